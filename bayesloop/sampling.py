"""NUTS over a batch of independent problems: the chains of one fit, or one chain for each of many data sets.

NumPyro's own kernel, mapped over the batch and run in short compiled stretches, so that progress can be shown and
an interrupt is heeded. All chains advance together; with several cores, each takes an equal share of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer.hmc import hmc
from numpyro.infer.util import constrain_fn, potential_energy

STRETCH = 50  # iterations between two looks at the clock and the keyboard
START_RADIUS = 1.0  # chains start uniformly within this distance of 0 in unconstrained coordinates
# A fit runs for about a second; this halves the compiler's time and slows the program by a fifth (measured).
_QUICK_COMPILE: dict[str, str | bool] = {"xla_cpu_use_fusion_emitters": False}


@dataclass(frozen=True)
class Settings:
    """Sampler settings, under NumPyro's names; both counts are rounded up to a multiple of `STRETCH`."""

    num_warmup: int = 1000
    num_samples: int = 1000
    target_accept_prob: float = 0.95
    max_tree_depth: int = 10


@dataclass(frozen=True)
class Draws:
    """Posterior draws: `values` by site and `stats` by name, each of shape (chain, draw, …)."""

    values: dict[str, np.ndarray]
    stats: dict[str, np.ndarray]


def run_nuts(model: Callable, data: Any, keys: jax.Array, settings: Settings, batched: bool = False,
             progress: Callable[[int], None] | None = None) -> Draws:
    """Sample a NumPyro model by NUTS with a dense mass matrix.

    Parameters
    ----------
    model : callable
        ``model(data)``, a NumPyro model whose sites are all continuous.
    data : pytree of arrays
        Its argument; with `batched` every array has a leading axis of the length of `keys`.
    keys : array of PRNG keys, shape (chain,)
        One for each chain.
    settings : Settings
    batched : bool
        Whether each chain has data of its own.
    progress : callable, optional
        Called with the number of iterations done since the last call.

    Returns
    -------
    Draws
        After warm-up; deterministic sites included.
    """
    data = jax.tree.map(jnp.asarray, data)
    warmup, samples = (-(-n // STRETCH) for n in (settings.num_warmup, settings.num_samples))
    n_shares = max(n for n in range(1, (os.cpu_count() or 1) + 1) if len(keys) % n == 0)
    shares = np.split(np.arange(len(keys)), n_shares)

    def part(share: np.ndarray) -> Any:
        return jax.tree.map(lambda array: array[share], data) if batched else data

    start, advance, finish = _compile(model, keys[shares[0]], part(shares[0]), settings, 0 if batched else None)

    def run(share: np.ndarray) -> tuple[dict, dict]:
        own = part(share)
        state, kept = start(keys[share], own), []
        for stretch in range(warmup + samples):
            state, collected = jax.block_until_ready(advance(state, own))
            if stretch >= warmup:
                kept.append((finish(collected[0], own), collected[1]))
            if progress and share[0] == 0:
                progress(STRETCH)
        return jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *kept)

    with ThreadPoolExecutor(n_shares) as pool:
        values, stats = jax.tree.map(lambda *arrays: np.concatenate(arrays), *pool.map(run, shares))
    return Draws(values, stats)


def _compile(model: Callable, keys: jax.Array, data: Any, settings: Settings,
             axis: int | None) -> tuple[Any, Any, Any]:
    """The three compiled steps, mapped over chains: start, advance by one stretch, finish to natural values."""
    one = jax.tree.map(lambda array: array[0], data) if axis == 0 else data
    origin, unravel = ravel_pytree(_origin(model, one))
    init_kernel, sample_kernel = hmc(
        potential_fn_gen=lambda data: lambda flat: potential_energy(model, (data,), {}, unravel(flat)), algo="NUTS")

    def start(key: Any, data: Any) -> Any:
        position_key, kernel_key = jax.random.split(key)
        position = jax.random.uniform(position_key, origin.shape, minval=-START_RADIUS, maxval=START_RADIUS)
        # the coordinates' scales span four orders of magnitude, so the covariance is used without shrinkage
        return init_kernel(position, settings.num_warmup, dense_mass=True, regularize_mass_matrix=False,
                           target_accept_prob=settings.target_accept_prob, max_tree_depth=settings.max_tree_depth,
                           model_args=(data,), rng_key=kernel_key)

    def advance(state: Any, data: Any) -> Any:
        def step(state: Any, _: None) -> Any:
            state = sample_kernel(state, model_args=(data,))
            stats = {"diverging": state.diverging, "acceptance_rate": state.accept_prob, "n_steps": state.num_steps,
                     "lp": -state.potential_energy, "energy": state.energy, "step_size": state.adapt_state.step_size}
            return state, (state.z, stats)
        return lax.scan(step, state, None, length=STRETCH)

    def finish(positions: Any, data: Any) -> Any:
        return jax.vmap(lambda flat: constrain_fn(model, (data,), {}, unravel(flat), return_deterministic=True)
                        )(positions)

    started = _mapped(start, axis, keys, data)
    advanced = _mapped(advance, axis, started.out_info, data)
    return started, advanced, _mapped(finish, axis, advanced.out_info[1][0], data)


def _mapped(function: Callable, axis: int | None, first: Any, data: Any) -> Any:
    """Compile a function of (first, data), mapped over chains."""
    lowered = jax.jit(jax.vmap(function, in_axes=(0, axis))).lower(first, data)
    try:
        return lowered.compile(compiler_options=_QUICK_COMPILE)
    except Exception:  # an XLA that does not know the option
        return lowered.compile()


def _origin(model: Callable, data: Any) -> dict[str, np.ndarray]:
    """The origin of the unconstrained coordinates: every latent site of the model, at zero."""
    def latent(key: Any) -> dict[str, Any]:
        trace = handlers.trace(handlers.seed(model, key)).get_trace(data)
        return {name: biject_to(site["fn"].support).inv(site["value"]) for name, site in trace.items()
                if site["type"] == "sample" and not site["is_observed"]}

    return jax.tree.map(lambda leaf: np.zeros(leaf.shape), jax.eval_shape(latent, jax.random.key(0)))
