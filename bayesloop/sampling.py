"""NUTS over a batch of independent problems: the chains of one fit, or one chain for each of many data sets.

NumPyro's own kernel, run in short compiled stretches, so that progress can be shown and an interrupt is heeded. The
cores share the chains, each taking the next one when it is free. No chain waits for another's longer trajectory, and
its draws depend on its key alone: neither the number of cores nor the other chains change a digit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Event, Lock
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer.hmc import hmc
from numpyro.infer.util import constrain_fn, potential_energy
from threadpoolctl import threadpool_limits

STRETCH = 50  # iterations between two looks at the clock and the keyboard
# deeper trees before the mass matrix fits take 40 % of a first attempt's time, which fares as well without; a stricter
# one, of posteriors that failed it, fares worse without them (measured)
WARMUP_DEPTH, FIRST_DEPTH = 8, 10
START_RADIUS = 1.0  # chains start uniformly within this distance of 0 in unconstrained coordinates
# A fit runs for about a second; this halves the compiler's time and slows the program by a fifth (measured).
_QUICK_COMPILE: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1}


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


class Pilot(NamedTuple):
    """Where a chain of a similar posterior ended, and what it had adapted to: flat unconstrained coordinates."""

    position: Any
    inverse_mass_matrix: Any
    step_size: Any


@dataclass(frozen=True)
class Faint:
    """A fainter likelihood under which chains first find their way: entries of the data, and its share of the full one.

    A likelihood of thousands of runs is so steep that from afar most of a warm-up goes by before its mass matrix is
    that of the posterior (measured: 12 minutes of 240 steps an iteration, where 7 do).
    """

    data: Mapping[str, Any]
    share: float


def run_nuts(model: Callable, data: Mapping[str, Any], keys: jax.Array, settings: Settings,
             batched: tuple[str, ...] = (), progress: Callable[[int], None] | None = None,
             pilot: Pilot | None = None, faint: Faint | None = None) -> Draws:
    """Sample a NumPyro model by NUTS with a dense mass matrix.

    Parameters
    ----------
    model : callable
        ``model(data)``, a NumPyro model whose sites are all continuous.
    data : mapping of str to pytree of arrays
        Its argument.
    keys : array of PRNG keys, shape (chain,)
        One for each chain.
    settings : Settings
    batched : tuple of str
        Entries of `data` that each chain has for itself: arrays with a leading axis of the length of `keys`.
    progress : callable, optional
        Called with the number of iterations done since the last call, by any chain.
    pilot : Pilot, optional
        Of a similar posterior of the same model: chains start where it ended and with its mass matrix, so that their
        warm-up, which then adapts the step size alone, may be short.
    faint : Faint, optional
        Each chain goes for half the iterations of a warm-up under this likelihood, and begins its warm-up there.

    Returns
    -------
    Draws
        After warm-up; deterministic sites included.
    """
    data = jax.tree.map(jnp.asarray, dict(data))
    warmup, samples = (-(-n // STRETCH) for n in (settings.num_warmup, settings.num_samples))

    def own(chain: int) -> dict[str, Any]:
        return {name: jax.tree.map(lambda array: array[chain], entry) if name in batched else entry
                for name, entry in data.items()}

    search = jax.tree.map(jnp.asarray, dict(faint.data)) if faint else {}
    start, resume, advance, finish = _compile(model, keys[0], own(0), settings, pilot, faint is not None)
    stop, lock = Event(), Lock()

    def run(chain: int) -> Any:
        mine, kept = own(chain), []
        state = resume(keys[chain], mine, pilot) if pilot else start(keys[chain], {**mine, **search})
        for stretch in range(-(warmup // 2) if faint else 0, warmup + samples):
            if stop.is_set():
                return None
            if faint and stretch == 0:  # as much wider as the posterior of the fainter likelihood is
                adapted = faint.share * state.adapt_state.inverse_mass_matrix
                state = resume(jax.random.fold_in(keys[chain], 1), mine,
                               Pilot(state.z, adapted, state.adapt_state.step_size))
            seen = {**mine, **search} if stretch < 0 else mine
            state, (positions, stats) = jax.block_until_ready(advance(state, seen))
            if stretch >= warmup:
                kept.append((finish(positions, mine), stats))
            if progress:
                with lock:
                    progress(STRETCH)
        return jax.tree.map(lambda *parts: np.concatenate(parts), *kept)

    # chains keep the cores busy: threads of BLAS for matrices of 20 rows would only wait for each other
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(_cores()) as pool:
        futures = [pool.submit(run, chain) for chain in range(len(keys))]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:  # after an interrupt or a fault the other chains end at their next stretch
            stop.set()
    chains = [future.result() for future in futures]
    values, stats = jax.tree.map(lambda *arrays: np.stack(arrays), *chains)
    return Draws(values, stats)


def _cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_pilot(model: Callable, data: Mapping[str, Any], key: jax.Array, settings: Settings) -> Pilot:
    """A chain of one posterior as the start of chains of similar ones; arguments as in `run_nuts`."""
    data = jax.tree.map(jnp.asarray, dict(data))
    start, _, advance, _ = _compile(model, key, data, settings)
    state = start(key, data)
    for _ in range(-(-settings.num_warmup // STRETCH)):
        state, _ = jax.block_until_ready(advance(state, data))
    adapted = state.adapt_state
    return Pilot(state.z, adapted.inverse_mass_matrix, adapted.step_size)


def _compile(model: Callable, key: jax.Array, data: Any, settings: Settings,
             pilot: Pilot | None = None, resumed: bool = False) -> tuple[Any, ...]:
    """The compiled steps of a chain: start or resume, advance by one stretch, finish to natural values."""
    origin, unravel = ravel_pytree(_origin(model, data))
    init_kernel, sample_kernel = hmc(
        potential_fn_gen=lambda data: lambda flat: potential_energy(model, (data,), {}, unravel(flat)), algo="NUTS")

    def begin(key: Any, data: Any, position: Any, **known: Any) -> Any:
        deepest = settings.max_tree_depth
        # the coordinates' scales span four orders of magnitude, so the covariance is used without shrinkage
        return init_kernel(position, settings.num_warmup, dense_mass=True, regularize_mass_matrix=False,
                           adapt_mass_matrix=pilot is None, target_accept_prob=settings.target_accept_prob,
                           max_tree_depth=(deepest if deepest > FIRST_DEPTH else min(WARMUP_DEPTH, deepest), deepest),
                           model_args=(data,), rng_key=key, **known)

    def start(key: Any, data: Any) -> Any:
        position_key, kernel_key = jax.random.split(key)
        position = jax.random.uniform(position_key, origin.shape, minval=-START_RADIUS, maxval=START_RADIUS)
        return begin(kernel_key, data, position)

    def resume(key: Any, data: Any, known: Pilot) -> Any:
        return begin(jax.random.split(key)[1], data, **known._asdict())

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

    started = jax.jit(start).lower(key, data)
    like = pilot or Pilot(origin, jnp.outer(origin, origin), jnp.asarray(1.0))
    resuming = [jax.jit(resume).lower(key, data, like)] if pilot or resumed else []
    advanced = jax.jit(advance).lower(started.out_info, data)
    finished = jax.jit(finish).lower(advanced.out_info[1][0], data)
    with ThreadPoolExecutor() as pool:  # the compiler takes most of the time of a fit
        first, *middle, next_, last = pool.map(quick_compile, (started, *resuming, advanced, finished))
    return first, middle[0] if middle else None, next_, last


def quick_compile(lowered: Any) -> Any:
    """Compile a lowered function in little time; for programs that run for seconds, not minutes."""
    try:
        return lowered.compile(compiler_options=_QUICK_COMPILE)
    except Exception:  # an XLA that does not know the option
        return lowered.compile()


def counted(progress: Callable[[int, int], None] | None, num_chains: int, settings: Settings,
            faint: Faint | None = None) -> Callable[[int], None]:
    """What `run_nuts` calls with iterations, for a ``progress(done, total)`` over all chains, or none."""
    done = 0
    warmup, samples = (-(-n // STRETCH) for n in (settings.num_warmup, settings.num_samples))
    total = num_chains * STRETCH * (warmup + samples + (warmup // 2 if faint else 0))

    def advance(iterations: int) -> None:
        nonlocal done
        done += iterations
        if progress:
            progress(done, total)

    return advance


def one_by_one(function: Callable, *arrays: Any) -> Any:
    """A function at every entry of the leading axes, in sequence.

    Not `jax.vmap`: jaxlib factorises a batch of matrices on threads that wait for each other, and stops for ever when
    as many batches are under way as it has threads (measured with jaxlib 0.10.2 on two cores).
    """
    return lax.map(lambda entry: function(*entry), arrays)


def _origin(model: Callable, data: Any) -> dict[str, np.ndarray]:
    """The origin of the unconstrained coordinates: every latent site of the model, at zero."""
    def latent(key: Any) -> dict[str, Any]:
        trace = handlers.trace(handlers.seed(model, key)).get_trace(data)
        return {name: biject_to(site["fn"].support).inv(site["value"]) for name, site in trace.items()
                if site["type"] == "sample" and not site["is_observed"]}

    return jax.tree.map(lambda leaf: np.zeros(leaf.shape), jax.eval_shape(latent, jax.random.key(0)))
