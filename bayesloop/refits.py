"""Exact refits of one model to parts of its runs, or to runs that count several times: one compiled batch for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from bayesloop.convergence import diagnose
from bayesloop.curves import runs_of
from bayesloop.errors import given, log_density
from bayesloop.laws import Design
from bayesloop.model import Model, build_model
from bayesloop.posterior import PosteriorError, attribute
from bayesloop.sampling import Draws, Settings, counted, one_by_one, quick_compile, run_nuts

REFIT = Settings(num_warmup=500, num_samples=500)
MAX_DIVERGED, MAX_RHAT = 0.01, 1.05  # of a single short chain


@dataclass(frozen=True)
class Refits:
    """One chain for each refit.

    Attributes
    ----------
    values : dict of str to array, shape (refit, draw, …)
        The model's free parameters.
    sound : bool array, shape (refit,)
        At most 1 % of the draws diverged, and the halves of the chain agree in φ (or, without φ, in E) to a split
        R-hat of 1.05.
    """

    values: dict[str, np.ndarray]
    sound: np.ndarray


def model_of(post: xr.DataTree) -> Model:
    """The model that a posterior is of.

    Raises
    ------
    PosteriorError
        If the probes were fitted apart: their copies of the shared runs cannot be left out one by one.
    """
    if post.attrs["share"] != "law":
        raise PosteriorError('refits to parts of the runs need a fit with share="law"; this one has the probes apart')
    free = {name: text for name, text in attribute(post, "priors").items() if "phi_mean" not in text}
    return build_model(runs_of(post), post.attrs["law"], post.attrs["errors"], post.attrs["phi"], priors=free,
                       fix=attribute(post, "fix"), recipe=post.attrs.get("recipe", "none"))


def refit(model: Model, weight: np.ndarray, design: Design | None = None, settings: Settings = REFIT, seed: int = 0,
          progress: Callable[[int, int], None] | None = None) -> Refits:
    """Fit a model again for every row of weights.

    Parameters
    ----------
    model : Model
    weight : array, shape (refit, run)
        How often each run counts; 0 leaves it out.
    design : Design, optional
        Counts and tokens of the runs for each refit, arrays of shape (refit, run), where they differ.
    settings, seed
        Of the sampler.
    progress : callable, optional
        Called as ``progress(done, total)`` with iterations.

    Returns
    -------
    Refits
    """
    data = {**model.layout.data, "weight": np.asarray(weight, float)}
    if design is not None:
        data["design"] = design
    keys = jax.random.split(jax.random.key(seed), len(weight))
    batched = ("weight",) if design is None else ("weight", "design")
    draws = run_nuts(model, data, keys, settings, batched=batched,
                     progress=counted(progress, len(weight), settings))
    return Refits({name: draws.values[name] for name in model.free}, sound(draws))


def sound(draws: Draws) -> np.ndarray:
    """Whether each of several single chains may be used: see `Refits`."""
    watched = draws.values["phi" if "phi" in draws.values else "E"]
    flat = watched.reshape(*watched.shape[:2], -1)
    rhat = np.array([max(diagnose(one[:, j].reshape(2, -1))["rhat"] for j in range(one.shape[1])) for one in flat])
    return (draws.stats["diverging"].mean(axis=1) <= MAX_DIVERGED) & (rhat <= MAX_RHAT)


@dataclass(frozen=True)
class Scores:
    """How refits predict the runs they have not seen.

    Attributes
    ----------
    joint : array, shape (refit, draw)
        Log density of all runs left out together, given the others.
    each : array, shape (refit, draw, run)
        Log density of every run by itself, given the runs that were fitted.
    predicted : array, shape (refit, draw, run)
        Losses drawn from that distribution, nats per token.
    """

    joint: np.ndarray
    each: np.ndarray
    predicted: np.ndarray


def score(model: Model, found: Refits, weight: np.ndarray, seed: int = 0) -> Scores:
    """Predict the runs that refits left out (weight 0)."""
    data = {name: jax.tree.map(jnp.asarray, value) for name, value in model.layout.data.items()}

    def one(values: dict, kept: jax.Array, key: jax.Array) -> tuple:
        _, loss = model.predictive({**values, **model.fixed}, data)
        alone = given(loss, data["loss"], kept)
        everything = log_density(loss, data["loss"], jnp.maximum(kept, 1.0))
        return (everything - log_density(loss, data["loss"], kept), alone.log_prob(data["loss"]), alone.sample(key))

    def many(values: dict, kept: jax.Array, key: jax.Array) -> tuple:
        keys = jax.random.split(key, len(next(iter(values.values()))))
        return one_by_one(lambda own, key: one(own, kept, key), values, keys)

    keys, kept = jax.random.split(jax.random.key(seed), len(weight)), jnp.asarray(weight, float)
    first = {name: value[0] for name, value in found.values.items()}
    compiled = quick_compile(jax.jit(many).lower(first, kept[0], keys[0]))
    parts = [compiled({name: value[i] for name, value in found.values.items()}, kept[i], keys[i])
             for i in range(len(weight))]
    return Scores(*(np.stack([np.asarray(part[i]) for part in parts]) for i in range(3)))
