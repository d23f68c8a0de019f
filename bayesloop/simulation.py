"""Simulated data sets: parameters from the prior, losses at the runs of a table, for calibration and planning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bayesloop.laws import LawError
from bayesloop.model import Model

ROUNDS = 100  # of redrawing; a prior that still gives impossible laws after these has almost no possible ones


class Simulation(NamedTuple):
    """Simulated data sets.

    Attributes
    ----------
    parameters : dict of str to array, shape (data set, …)
        Natural parameters each data set was drawn from, by name.
    loss : array, shape (data set, run)
        Simulated losses, nats per token.
    redrawn : int
        Draws thrown away because law or loss was not positive and finite for some run.
    """

    parameters: dict[str, np.ndarray]
    loss: np.ndarray
    redrawn: int


def simulate(model: Model, key: jax.Array, num: int, parameters: Mapping[str, Any] | None = None) -> Simulation:
    """Draw data sets at the design of the model's table: the same counts, recurrences, tokens, measurement errors.

    Parameters
    ----------
    model : Model
        From `build_model`; its fixed parameters stay fixed.
    key : PRNG key
    num : int
        Number of data sets.
    parameters : mapping of str to array, optional
        Natural parameters to simulate from, each of shape (…) for all data sets or (data set, …); those not
        given are drawn from the prior.

    Returns
    -------
    Simulation

    Raises
    ------
    LawError
        If a given name is no free parameter, or the law gives no positive finite loss, for given parameters or for
        nearly all of the prior.

    Notes
    -----
    Draws with a law or a loss that is not positive and finite for some run are drawn again, parameters and losses
    together. The model takes such parameters for impossible, so posteriors are calibrated for what is left.
    """
    given = _given(model, parameters or {}, num)
    propose = _compiled(model)
    values: dict[str, np.ndarray] = {}
    loss, possible, redrawn = np.zeros(0), np.zeros(num, bool), 0
    for round_key in jax.random.split(key, ROUNDS):
        drawn, seen, fine = jax.tree.map(np.asarray, propose(given, jax.random.split(round_key, num)))
        take = fine & ~possible
        values = {name: _put(values.get(name, array), take, array) for name, array in drawn.items()}
        loss = _put(loss if loss.size else seen, take, seen)
        possible |= take
        if possible.all():
            return Simulation(values, loss, redrawn)
        redrawn += int((~possible).sum())
    raise LawError(f"{(~possible).sum()} of {num} simulated data sets: law {model.law.name} gives no positive finite "
                   "loss for some run; expected parameters, or priors, that give one")


def _put(array: np.ndarray, take: np.ndarray, new: np.ndarray) -> np.ndarray:
    return np.where(take.reshape(-1, *[1] * (new.ndim - 1)), new, array)


def _given(model: Model, parameters: Mapping[str, Any], num: int) -> dict[str, np.ndarray]:
    for name in parameters:
        if name not in model.free:
            raise LawError(f"parameter {name!r} cannot be given; expected one of {', '.join(model.free)}")
    given = {}
    for name, value in parameters.items():
        try:
            given[name] = np.broadcast_to(np.asarray(value, float), (num, *model.shape(name)))
        except ValueError:
            raise LawError(f"parameter {name} has shape {np.shape(value)}; expected {model.shape(name)}, or "
                           f"{(num, *model.shape(name))} for {num} data sets") from None
    return given


def _compiled(model: Model) -> Any:
    """Compiled over data sets: (given, keys) → parameters, losses, and whether both are possible."""
    data = jax.tree.map(jnp.asarray, {name: model.layout.data[name] for name in ("design", "log_se")})

    def propose(given: dict, key: Any) -> tuple[dict, Any, Any]:
        prior_key, loss_key = jax.random.split(key)
        values = model.sample_prior(prior_key, given)
        mean, loss = model.predictive({**values, **model.fixed}, data)
        seen = loss.sample(loss_key)
        return values, seen, jnp.all(jnp.isfinite(mean) & (mean > 0) & jnp.isfinite(seen) & (seen > 0))

    return jax.jit(jax.vmap(propose))
