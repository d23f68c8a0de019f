"""Error models against SciPy: densities of the loss itself, measurement errors in quadrature, impossible means."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy import stats

from bayesloop.errors import ERRORS, Place, get_errors, pointwise
from bayesloop.laws import LawError
from tests import plain

INDEPENDENT = [name for name, model in ERRORS.items() if model.factor is None]
MEAN, LOSS = np.array([2.5, 3.1, 4.0]), np.array([2.51, 3.05, 4.4])


@pytest.mark.parametrize("errors", INDEPENDENT)
@pytest.mark.parametrize("log_se", [0.0, 0.003, 0.1])
def test_density_of_the_loss(errors: str, log_se: float) -> None:
    got = ERRORS[errors].loss(MEAN, np.full(3, log_se), plain.TRUTH).log_prob(LOSS)
    np.testing.assert_allclose(got, plain.log_likelihood(errors, LOSS, MEAN, log_se, plain.TRUTH), rtol=1e-10)


@pytest.mark.parametrize("errors", INDEPENDENT)
def test_measurement_error_adds_in_quadrature(errors: str) -> None:
    """A scatter of 3 and a measurement error of 4 are together a scatter of 5."""
    together = ERRORS[errors].loss(MEAN, np.full(3, 0.004), {**plain.TRUTH, "sigma": 0.003}).log_prob(LOSS)
    alone = ERRORS[errors].loss(MEAN, np.zeros(3), {**plain.TRUTH, "sigma": 0.005}).log_prob(LOSS)
    np.testing.assert_allclose(together, alone, rtol=1e-12)


@pytest.mark.parametrize("errors", INDEPENDENT)
def test_density_integrates_to_one(errors: str) -> None:
    loss = np.exp(np.linspace(np.log(1e-3), np.log(1e4), 200_001))
    density = np.exp(ERRORS[errors].loss(2.5, 0.0, {**plain.TRUTH, "sigma": 0.05}).log_prob(loss))
    assert np.trapezoid(density, loss) == pytest.approx(1, abs=1e-5)


def test_draws_have_the_stated_scatter() -> None:
    draws = np.log(ERRORS["normal"].loss(2.5, 0.003, {"sigma": 0.004}).sample(jax.random.key(0), (4000,)))
    assert stats.kstest(draws, stats.norm(np.log(2.5), 0.005).cdf).pvalue > 1e-3  # a false alarm in a thousand seeds
    tailed = np.log(ERRORS["student_t"].loss(2.5, 0.0, {"sigma": 0.004, "nu": 3.0}).sample(jax.random.key(1), (4000,)))
    assert stats.kstest((tailed - np.log(2.5)) / 0.004, stats.t(3).cdf).pvalue > 1e-3


@pytest.mark.parametrize("errors", INDEPENDENT)
@pytest.mark.parametrize("mean", [0.0, -1.0])
def test_a_law_without_a_positive_loss_is_unlikely_but_finite(errors: str, mean: float) -> None:
    def log_prob(mean: float) -> jax.Array:
        return ERRORS[errors].loss(mean, 0.0, plain.TRUTH).log_prob(2.5)

    assert log_prob(mean) < log_prob(2.4)
    assert np.isfinite([log_prob(mean), jax.grad(log_prob)(mean)]).all()


def place_of(log_n: np.ndarray, log_d: np.ndarray) -> Place:
    group = np.arange(len(log_n)) // 3
    return Place(group, group, log_n - log_n.mean(), log_d - log_d.mean(), (np.ptp(log_n) / 2, np.ptp(log_d) / 2))


def points(seed: int = 0, n: int = 30) -> tuple[Place, np.ndarray]:
    rng = np.random.default_rng(seed)
    return place_of(rng.uniform(16, 20, n), rng.uniform(20, 23, n)), rng.normal(0.9, 0.01, n)


def test_smooth_misfit_is_a_gaussian_process() -> None:
    """The grid reproduces the kernel it stands for; what it leaves out is a hundredth of the variance."""
    place, _ = points()
    values = {"sigma_smooth": 1.0, "length": 2.0}
    factor = np.asarray(ERRORS["smooth"].factor(place, values))
    apart = [(np.asarray(x)[:, None] - np.asarray(x)) ** 2 for x in (place.log_n_eff, place.log_tokens)]
    np.testing.assert_allclose(factor @ factor.T, np.exp(-sum(apart) / 2 / 2.0**2), atol=0.01)


@pytest.mark.parametrize("errors", [name for name in ERRORS if name not in INDEPENDENT])
def test_pointwise_density_is_that_given_all_other_runs(errors: str) -> None:
    """Against the difference of two joint densities, with the run and without it."""
    place, log_loss = points()
    values = {"sigma": 0.003, f"sigma_{errors}": 0.01, "length": 2.0}
    loss = ERRORS[errors].loss(np.full(30, 2.45), np.full(30, 0.001), values, place)
    factor = np.asarray(ERRORS[errors].factor(place, values))
    covariance = factor @ factor.T + np.diag(np.full(30, 0.003**2 + 0.001**2))
    got, z = pointwise(loss, np.exp(log_loss)), log_loss - np.log(2.45)
    joint = stats.multivariate_normal(cov=covariance).logpdf(z)
    assert float(loss.log_prob(np.exp(log_loss))) == pytest.approx(joint - log_loss.sum(), rel=1e-9)
    for i in range(30):
        others = np.arange(30) != i
        without = stats.multivariate_normal(cov=covariance[np.ix_(others, others)]).logpdf(z[others])
        assert got[i] == pytest.approx(joint - without - log_loss[i], rel=1e-6)


def test_pointwise_density_of_independent_runs() -> None:
    loss = ERRORS["student_t"].loss(MEAN, 0.0, plain.TRUTH)
    np.testing.assert_array_equal(pointwise(loss, LOSS), loss.log_prob(LOSS))


def test_unknown_name() -> None:
    with pytest.raises(LawError, match=r"'cauchy' is unknown; expected one of normal, student_t"):
        get_errors("cauchy")
    assert get_errors(ERRORS["normal"]) is ERRORS["normal"] is get_errors("normal")
