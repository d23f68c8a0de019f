"""Many small bounded Huber minimisations at once: the optimiser behind the point fit and its bootstrap.

One problem is: find the parameters in a box that minimise

    Σ_i w_i · huber_delta(log L_i − log y_i)

for one law, one set of weights w and one set of observed losses y. Problems of one design are solved in batches.
A start is brought to an optimum in three stages, all with the same damped step:

1. E, A and B alone, the start's exponents held: a random point of the box becomes the best law with these exponents;
2. all parameters, Gauss–Newton with reweighting, on a Huber function ten times as wide (smoother, fewer kinks);
3. all parameters, exact Newton on the Huber function itself, until the decrease a step promises is nothing beside
   the objective.

Steps follow the valleys of these laws, where E, A and alpha trade off against each other (`_along`). Every step
size, damping and stopping rule is relative to the objective, so multiplying it by a constant changes nothing. A box of
width zero fixes a parameter.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bayesloop.laws import Design, Law

AMPLITUDES = ("E", "A", "B")  # searched by their logarithm; solved for, given the exponents, at every start
# arXiv 2604.21106, the fit: a, b, e are logarithms. Range of the starts and bound of the search.
BOX = {"E": (-3.0, 2.0), "A": (-5.0, 35.0), "B": (-5.0, 35.0), "alpha": (0.0, 2.5), "beta": (0.0, 2.5),
       "phi": (-3.0, 3.0)}
EXTRA_TAIL = 1e-4     # an extra parameter's box cuts this much off either end of its default prior
WIDER = 10.0          # stage 2's delta over the true one: measured, 3 of 4 starts then reach the optimum
STAGES = (5, 20)      # iterations of stages 1 and 2
ROUND, MAX_ROUNDS = 10, 30  # Newton iterations between looks at what has converged; rounds at most
TOLERANCE = 1e-14     # promised decrease relative to the objective
BATCH = 32            # problems a compiled call works on
PAD = 64              # runs are padded, with weight 0, to a multiple of this: fewer shapes to compile
LEAST_LOSS = 1e-6     # a law that predicts less than this many nats is cut there, so that its logarithm exists


class _Point(NamedTuple):
    """Objective at theta with its slope (p,), Gauss–Newton majoriser and curvature (p, p)."""

    value: Any
    slope: Any
    majoriser: Any
    curvature: Any


def log_parameter(law: Law, name: str) -> bool:
    """Whether the search runs over the logarithm of this parameter."""
    return name in AMPLITUDES or (name in law.extra and law.extra[name].positive)


def box(law: Law) -> np.ndarray:
    """Lower and upper bound of each parameter in search coordinates, shape (p, 2), in the order of `law.priors`."""
    rows = []
    for name, prior in law.priors.items():
        if name in BOX:
            rows.append(BOX[name])
            continue
        ends = np.array([float(prior.distribution().icdf(tail)) for tail in (EXTRA_TAIL, 1 - EXTRA_TAIL)])
        rows.append(tuple(np.log(ends) if log_parameter(law, name) else ends))
    return np.array(rows, dtype=float)


def to_natural(law: Law, theta: np.ndarray) -> dict[str, np.ndarray]:
    """Search coordinates of shape (..., p) → natural parameters of shape (...) by name."""
    columns = {name: theta[..., k] for k, name in enumerate(law.priors)}
    return {name: np.exp(value) if log_parameter(law, name) else value for name, value in columns.items()}


def log_loss(law: Law, theta: Any, design: Design) -> Any:
    """Logarithm of the expected loss of runs, shape (run,), at search coordinates theta of shape (p,)."""
    values = {name: jnp.exp(theta[k]) if log_parameter(law, name) else theta[k] for k, name in enumerate(law.priors)}
    return jnp.log(jnp.maximum(law.loss(values, design), LEAST_LOSS))


def huber_terms(residual: Any, delta: Any) -> Any:
    """Huber function of each residual: r²/2 within delta, delta·(|r| − delta/2) beyond."""
    inner = jnp.clip(residual, -delta, delta)
    return inner * (residual - 0.5 * inner)


def evaluate(law: Law, newton: Any, theta: Any, log_y: Any, weights: Any, design: Design, delta: Any,
             centre: tuple[Any, Any]) -> _Point:
    """Objective, slope and curvature at theta; with `newton` the curvature is exact along the paths of `_along`."""
    predict = partial(log_loss, law, design=design)
    residual = predict(theta) - log_y
    jacobian = jax.jacfwd(predict)(theta)
    pull = weights * jnp.clip(residual, -delta, delta)
    size = jnp.abs(residual)
    majoriser = (jacobian.T * (weights * delta / jnp.maximum(size, delta))) @ jacobian

    def exact() -> Any:
        bend = jax.hessian(lambda way: jnp.sum(pull * predict(_along(law, theta, way, centre))))(jnp.zeros_like(theta))
        return (jacobian.T * (weights * (size < delta))) @ jacobian + bend

    curvature = jax.lax.cond(newton, exact, lambda: majoriser)
    return _Point(jnp.sum(weights * huber_terms(residual, delta)), jacobian.T @ pull, majoriser, curvature)


def _grow(x: Any) -> Any:
    """log(1 + x), continued by its tangent below −1/2 so that it is defined everywhere."""
    return jnp.where(x > -0.5, jnp.log1p(jnp.maximum(x, -0.5)), 2 * (x + 0.5) - jnp.log(2.0))


def _along(law: Law, theta: Any, way: Any, centre: tuple[Any, Any]) -> Any:
    """The point that a step `way` leads to: theta + way to first order, but bent along the law's valleys.

    E, the two terms at the mean run and their slopes there trade off against each other along straight lines, which
    are curves in (E, A, alpha) and (B, beta). So a step adds to these five instead of multiplying them.
    """
    names = list(law.priors)
    e = names.index("E")
    new = (theta + way).at[e].set(theta[e] + _grow(way[e]))
    for amplitude, exponent, middle in (("A", "alpha", centre[0]), ("B", "beta", centre[1])):
        i, k = names.index(amplitude), names.index(exponent)
        rise = _grow(way[i] - middle * way[k])
        bent = theta[k] + way[k] * jnp.exp(-rise)
        new = new.at[k].set(bent).at[i].set(theta[i] + rise + middle * (bent - theta[k]))
    return new


def _centred(law: Law, centre: tuple[Any, Any]) -> Any:
    """Matrix to coordinates in which A and alpha, B and beta hardly correlate: the terms' logs at the mean run."""
    names = list(law.priors)
    change = jnp.eye(len(names)).at[names.index("A"), names.index("alpha")].set(-centre[0])
    return change.at[names.index("B"), names.index("beta")].set(-centre[1])


def _solve(matrix: Any, right: Any) -> Any:
    """Solve a small positive definite system; NaN if it is not definite.

    Elimination written out: over a batch of 6 × 6 systems that is plain arithmetic, not a LAPACK call for each.
    """
    table = jnp.concatenate([matrix, right[:, None]], axis=1)
    definite = jnp.asarray(True)
    for k in range(len(right)):
        definite &= table[k, k] > 0
        row = table[k] / table[k, k]
        table = (table - table[:, k][:, None] * row).at[k].set(row)
    return jnp.where(definite, table[:, -1], jnp.nan)


def _descend_one(law: Law, newton: Any, iterations: Any, theta: Any, damping: Any, log_y: Any, weights: Any,
                 free: Any, bounds: Any, design: Design, delta: Any) -> tuple[Any, Any, Any, Any]:
    """Try `iterations` damped steps on one problem; return theta, damping, objective and whether it has converged."""
    low, high = bounds
    p = len(low)
    mean = partial(jnp.average, weights=weights)
    centre = (mean(jnp.log(design.n_once + design.n_rec)), mean(jnp.log(design.tokens)))
    change = _centred(law, centre)
    back = 2 * jnp.eye(p) - change  # its inverse: the off-diagonal part squares to zero
    negligible = 1e-6 * delta**2 * jnp.sum(weights)

    def move(theta: Any, point: _Point, damping: Any) -> tuple[Any, Any]:
        inside = free & ~((theta <= low) & (point.slope >= 0)) & ~((theta >= high) & (point.slope <= 0))
        ridge = (change.T * jnp.diag(back.T @ point.majoriser @ back)) @ change
        damped = jnp.where(newton, point.majoriser + 1e-3 * ridge, ridge)
        scale = jnp.diag(ridge)
        floor = 1e-12 * jnp.diag(jnp.maximum(scale, 1e-12 * jnp.max(scale)) + 1e-300)
        system = jnp.where(inside[:, None] & inside, point.curvature + damping * damped + floor, jnp.eye(p))
        way = _solve(system, jnp.where(inside, -point.slope, 0.0))
        definite = jnp.all(jnp.isfinite(way))
        there = _along(law, theta, jnp.where(definite, way, 0.0), centre)
        return jnp.clip(jnp.where(inside, there, theta), low, high), definite

    def step(_: Any, state: Any) -> Any:
        theta, point, damping, trial, done = state
        new = evaluate(law, newton, trial, log_y, weights, design, delta, centre)
        better = (new.value < point.value) & ~done
        theta, point = jax.tree.map(partial(jnp.where, better), (trial, new), (theta, point))
        damping = jnp.clip(jnp.where(better, 0.2 * damping, 6 * jnp.maximum(damping, 1e-6)), 1e-9, 1e10)
        trial, definite = move(theta, point, damping)
        promised = -point.slope @ (trial - theta)
        settled = definite & (damping < 1e-2) & (promised <= TOLERANCE * (point.value + negligible))
        return theta, point, damping, trial, done | settled | (damping > 1e9)

    nothing = _Point(jnp.asarray(jnp.inf), jnp.zeros(p), jnp.zeros((p, p)), jnp.zeros((p, p)))
    state = (theta, nothing, 5 * damping, theta, jnp.asarray(False))  # the first step only evaluates
    theta, point, damping, _, done = jax.lax.fori_loop(0, iterations + 1, step, state)
    return theta, damping, point.value, done


@partial(jax.jit, static_argnums=0)
def _descend(law: Law, newton: Any, iterations: Any, *arrays: Any) -> Any:
    one = partial(_descend_one, law, newton, iterations)  # not batched: a batch is of one stage
    return jax.vmap(one, in_axes=(0, 0, 0, 0, None, None, None, None))(*arrays)


@dataclass(frozen=True)
class Huber:
    """Huber objectives of one law on one set of runs, in one box.

    Parameters
    ----------
    law : Law
    design : Design
        Arrays of shape (run,).
    bounds : array
        (p, 2), lower and upper bounds in search coordinates; equal bounds fix a parameter.
    delta : float
        Where the Huber function turns linear, in log loss.
    """

    law: Law
    design: Design
    bounds: np.ndarray
    delta: float

    def starts(self, num: int, rng: np.random.Generator) -> np.ndarray:
        """Starts drawn uniformly in the box, shape (num, p)."""
        return rng.uniform(self.bounds[:, 0], self.bounds[:, 1], (num, len(self.bounds)))

    def predict(self, theta: np.ndarray) -> np.ndarray:
        """Log loss of the runs at each of many points (m, p), shape (m, run)."""
        return np.asarray(_predict(self.law, jnp.asarray(theta), Design(*map(jnp.asarray, self.design))))

    def amplitudes(self, theta: np.ndarray, log_y: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Stage 1: E, A and B that suit the exponents of each start; what they were before does not matter."""
        names = list(self.law.priors)
        third = np.log(np.exp(log_y).mean() / 3)
        phi = theta[:, [names.index("phi")]] if self.law.looped else None
        theta = theta.copy()
        theta[:, names.index("E")] = third
        size = np.asarray(self.law.log_n_eff(phi, self.design)).mean(-1)
        theta[:, names.index("A")] = third + theta[:, names.index("alpha")] * size
        theta[:, names.index("B")] = third + theta[:, names.index("beta")] * np.log(self.design.tokens).mean()
        theta = np.clip(theta, *self.bounds.T)
        free = np.array([name in AMPLITUDES for name in names])
        return self._run(False, STAGES[0], theta, log_y, weights, free, self.delta * WIDER)[0]

    def polish(self, theta: np.ndarray, log_y: np.ndarray, weights: np.ndarray,
               progress: Callable[[int, int], None] | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Stages 2 and 3: bring each point to an optimum.

        Parameters
        ----------
        theta : array
            (problem, p).
        log_y, weights : array
            (problem, run) or (run,).
        progress : callable, optional
            Called with (problems done, problems).

        Returns
        -------
        theta, objective, converged : arrays
            (problem, p), (problem,), (problem,).
        """
        every = np.ones(len(self.bounds), bool)
        theta = self._run(False, STAGES[1], theta, log_y, weights, every, self.delta * WIDER)[0]
        count = len(theta)
        log_y, weights = (np.broadcast_to(values, (count, values.shape[-1])) for values in (log_y, weights))
        damping, value, done = np.full(count, 1e-2), np.full(count, np.inf), np.zeros(count, bool)
        for _ in range(MAX_ROUNDS):
            left = np.flatnonzero(~done)
            if not len(left):
                break
            theta[left], damping[left], value[left], done[left] = self._run(
                True, ROUND, theta[left], log_y[left], weights[left], every, self.delta, damping[left])
            if progress is not None:
                progress(int(done.sum()), count)
        return theta, value, done

    def _run(self, newton: bool, iterations: int, theta: np.ndarray, log_y: np.ndarray, weights: np.ndarray,
             free: np.ndarray, delta: float, damping: np.ndarray | float = 0.1) -> list[np.ndarray]:
        """Descend from every point, in padded batches on a thread per core."""
        count, runs = len(theta), len(self.design.tokens)
        extra = -runs % PAD
        design = Design(*(jnp.pad(jnp.asarray(values, float), (0, extra), mode="edge") for values in self.design))
        log_y = np.pad(np.broadcast_to(log_y, (count, runs)), ((0, 0), (0, extra)))
        weights = np.pad(np.broadcast_to(weights, (count, runs)).astype(float), ((0, 0), (0, extra)))
        damping = np.broadcast_to(damping, count).astype(float)
        shared = (jnp.asarray(free), tuple(jnp.asarray(self.bounds.T)), design, jnp.asarray(delta))

        def batch(begin: int) -> list[np.ndarray]:
            rows = np.minimum(np.arange(begin, begin + BATCH), count - 1)
            arrays = (jnp.asarray(values[rows]) for values in (theta, damping, log_y, weights))
            return [np.asarray(values)[:count - begin] for values in _descend(
                self.law, newton, iterations, *arrays, *shared)]

        first = batch(0)  # alone, so that no two threads compile the same
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            parts = [first, *threads.map(batch, range(BATCH, count, BATCH))]
        return [np.concatenate(values) for values in zip(*parts, strict=True)]


@partial(jax.jit, static_argnums=0)
def _predict(law: Law, theta: Any, design: Design) -> Any:
    return jax.vmap(partial(log_loss, law, design=design))(theta)
