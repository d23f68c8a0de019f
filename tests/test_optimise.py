"""Derivatives, paths and stopping of the batched optimiser."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.optimize import check_grad

from bayesloop.laws import LAWS, Design, Law
from bayesloop.optimise import Huber, _along, _solve, box, evaluate, huber_terms, log_loss, log_parameter, to_natural
from benchmarks.pointfit import arrays, objective

RUNS = pd.read_csv("data/paper_grid.csv").query("probe == 'baseline'")
DESIGN = Design(*(RUNS[name].to_numpy(float) for name in Design._fields))
LOG_Y = np.log(RUNS["loss"].to_numpy(float))
ONES = np.ones(len(RUNS))
CENTRE = (18.0, 21.0)


def near(law: Law) -> np.ndarray:
    """A point near the optimum of the paper's grid, in search coordinates."""
    values = {"E": 1.6, "A": 28.0, "B": 900.0, "alpha": 0.2, "beta": 0.37, "phi": 0.4, "kappa": 0.9, "x": 0.1}
    return np.array([np.log(values[name]) if log_parameter(law, name) else values[name] for name in law.priors])


@pytest.mark.parametrize("law", LAWS.values(), ids=lambda law: law.name)
def test_slope_and_curvature_are_the_objectives_derivatives(law: Law) -> None:
    theta = near(law)
    weights = np.random.default_rng(0).integers(0, 3, len(RUNS)).astype(float)

    def along(way: jax.Array) -> jax.Array:
        residual = log_loss(law, _along(law, jnp.asarray(theta), way, CENTRE), DESIGN) - LOG_Y
        return jnp.sum(weights * huber_terms(residual, 1e-3))

    @jax.jit
    def everything(theta: jax.Array, way: jax.Array, direction: jax.Array) -> tuple:
        point = evaluate(law, True, theta, LOG_Y, weights, DESIGN, 1e-3, CENTRE)
        return point, along(way), *jax.jvp(jax.grad(along), (way,), (direction,))

    direction = np.random.default_rng(1).normal(size=len(theta))
    point, value, slope, turned = everything(jnp.asarray(theta), jnp.zeros(len(theta)), jnp.asarray(direction))
    assert float(point.value) == pytest.approx(float(value), rel=1e-12)
    np.testing.assert_allclose(point.slope, slope, rtol=1e-9)
    np.testing.assert_allclose(point.curvature @ direction, turned, rtol=1e-8, atol=1e-9 * np.abs(turned).max())
    step = 1e-6 * jnp.eye(len(theta))
    values = jax.jit(jax.vmap(along))(jnp.concatenate([step, -step]))
    central = (values[:len(theta)] - values[len(theta):]) / 2e-6
    np.testing.assert_allclose(slope, central, rtol=1e-4, atol=1e-6 * np.abs(slope).max())


def test_the_objective_is_the_reference_ones() -> None:
    theta, table = near(LAWS["recurrence"]), arrays(RUNS)
    value, slope = objective(theta, table)
    point = jax.jit(lambda theta: evaluate(LAWS["recurrence"], False, theta, LOG_Y, ONES, DESIGN, 1e-3, CENTRE))(theta)
    assert float(point.value) == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(point.slope, slope, rtol=1e-9)
    # the reference against finite differences; a kink within a step costs up to delta × step in the slope
    assert check_grad(lambda x: objective(x, table)[0], lambda x: objective(x, table)[1], theta) < 1e-4 * np.abs(
        slope).max()


def test_paths_start_along_the_step_and_add_to_the_terms() -> None:
    law, theta = LAWS["recurrence"], jnp.asarray(near(LAWS["recurrence"]))
    first = jax.jacfwd(lambda way: _along(law, theta, way, CENTRE))(jnp.zeros(6))
    np.testing.assert_allclose(first, np.eye(6), atol=1e-12)
    way = np.array([0.3, 0.2, -0.1, 0.01, 0.02, 0.5])
    there = np.asarray(_along(law, theta, jnp.asarray(way), CENTRE))

    def term(point: np.ndarray) -> float:
        return float(np.exp(point[1] - CENTRE[0] * point[3]))

    grown = 1 + way[1] - CENTRE[0] * way[3]
    assert np.exp(there[0] - theta[0]) == pytest.approx(1.3)
    assert term(there) / term(theta) == pytest.approx(grown)
    assert there[3] * term(there) == pytest.approx(theta[3] * term(theta) * grown + way[3] * term(theta))


def test_small_systems_are_solved_and_indefinite_ones_refused() -> None:
    root = np.random.default_rng(0).normal(size=(6, 6))
    matrix, right = root @ root.T + 0.1 * np.eye(6), np.arange(6.0)
    np.testing.assert_allclose(_solve(jnp.asarray(matrix), jnp.asarray(right)), np.linalg.solve(matrix, right))
    assert np.isnan(_solve(jnp.asarray(matrix - 2 * np.eye(6)), jnp.asarray(right))).all()


@pytest.mark.parametrize("law", LAWS.values(), ids=lambda law: law.name)
def test_the_box_is_finite_and_holds_the_default_priors_middle(law: Law) -> None:
    low, high = box(law).T
    assert np.isfinite([low, high]).all()
    assert ((low < near(law)) & (near(law) < high)).all()
    natural = to_natural(law, near(law)[None])
    assert list(natural) == list(law.priors)
    assert natural["A"] == pytest.approx([28.0])


def test_the_optimum_does_not_depend_on_the_objectives_scale() -> None:
    problem = Huber(LAWS["recurrence"], DESIGN, box(LAWS["recurrence"]), 1e-3)
    starts = problem.starts(12, np.random.default_rng(0))
    found = []
    for scale in (1e-3, 1.0, 1e3):
        theta, value, converged = problem.polish(problem.amplitudes(starts, LOG_Y, scale * ONES), LOG_Y, scale * ONES)
        assert converged.all()
        found.append((theta[value.argmin()], value.min() / scale))
    for theta, value in found[1:]:
        assert value == pytest.approx(found[0][1], rel=1e-10)
        np.testing.assert_allclose(theta, found[0][0], rtol=1e-6)


def test_every_optimum_is_stationary_in_the_box() -> None:
    problem = Huber(LAWS["recurrence"], DESIGN, box(LAWS["recurrence"]), 1e-3)
    starts = problem.starts(12, np.random.default_rng(1))
    theta, _, converged = problem.polish(problem.amplitudes(starts, LOG_Y, ONES), LOG_Y, ONES)
    low, high = problem.bounds.T
    for point in theta[converged]:
        slope = objective(point, arrays(RUNS))[1]
        pushed = ((point <= low) & (slope > 0)) | ((point >= high) & (slope < 0))
        # beside the sum of the runs' absolute pulls, at most delta each
        assert np.abs(np.where(pushed, 0, slope)).max() < 1e-5 * 1e-3 * len(RUNS)


def test_extreme_exponents_and_empty_counts_stay_finite() -> None:
    law = LAWS["recurrence"]
    design = Design(*(jnp.asarray(values) for values in ([0.0, 5e7, 1e7], [4e7, 0.0, 4e7], [1.0, 8.0, 8.0], [1e9] * 3)))
    corners = jnp.asarray(np.array(np.meshgrid(*box(law))).reshape(6, -1).T)
    points = jax.jit(jax.vmap(lambda corner: evaluate(
        law, True, corner, jnp.ones(3), jnp.ones(3), design, 1e-3, CENTRE)))(corners)
    assert len(corners) == 64
    assert all(np.isfinite(part).all() for part in points)
