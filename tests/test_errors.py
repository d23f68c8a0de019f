"""Error models against SciPy: densities of the loss itself, measurement errors in quadrature, impossible means."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy import stats

from bayesloop.errors import ERRORS, get_errors
from bayesloop.laws import LawError
from tests import plain

MEAN, LOSS = np.array([2.5, 3.1, 4.0]), np.array([2.51, 3.05, 4.4])


@pytest.mark.parametrize("errors", ERRORS)
@pytest.mark.parametrize("log_se", [0.0, 0.003, 0.1])
def test_density_of_the_loss(errors: str, log_se: float) -> None:
    got = ERRORS[errors].loss(MEAN, np.full(3, log_se), plain.TRUTH).log_prob(LOSS)
    np.testing.assert_allclose(got, plain.log_likelihood(errors, LOSS, MEAN, log_se, plain.TRUTH), rtol=1e-10)


@pytest.mark.parametrize("errors", ERRORS)
def test_measurement_error_adds_in_quadrature(errors: str) -> None:
    """A scatter of 3 and a measurement error of 4 are together a scatter of 5."""
    together = ERRORS[errors].loss(MEAN, np.full(3, 0.004), {**plain.TRUTH, "sigma": 0.003}).log_prob(LOSS)
    alone = ERRORS[errors].loss(MEAN, np.zeros(3), {**plain.TRUTH, "sigma": 0.005}).log_prob(LOSS)
    np.testing.assert_allclose(together, alone, rtol=1e-12)


@pytest.mark.parametrize("errors", ERRORS)
def test_density_integrates_to_one(errors: str) -> None:
    loss = np.exp(np.linspace(np.log(1e-3), np.log(1e4), 200_001))
    density = np.exp(ERRORS[errors].loss(2.5, 0.0, {**plain.TRUTH, "sigma": 0.05}).log_prob(loss))
    assert np.trapezoid(density, loss) == pytest.approx(1, abs=1e-5)


def test_draws_have_the_stated_scatter() -> None:
    draws = np.log(ERRORS["normal"].loss(2.5, 0.003, {"sigma": 0.004}).sample(jax.random.key(0), (4000,)))
    assert stats.kstest(draws, stats.norm(np.log(2.5), 0.005).cdf).pvalue > 1e-3  # a false alarm in a thousand seeds
    tailed = np.log(ERRORS["student_t"].loss(2.5, 0.0, {"sigma": 0.004, "nu": 3.0}).sample(jax.random.key(1), (4000,)))
    assert stats.kstest((tailed - np.log(2.5)) / 0.004, stats.t(3).cdf).pvalue > 1e-3


@pytest.mark.parametrize("errors", ERRORS)
@pytest.mark.parametrize("mean", [0.0, -1.0])
def test_a_law_without_a_positive_loss_is_unlikely_but_finite(errors: str, mean: float) -> None:
    def log_prob(mean: float) -> jax.Array:
        return ERRORS[errors].loss(mean, 0.0, plain.TRUTH).log_prob(2.5)

    assert log_prob(mean) < log_prob(2.4)
    assert np.isfinite([log_prob(mean), jax.grad(log_prob)(mean)]).all()


def test_unknown_name() -> None:
    with pytest.raises(LawError, match=r"'cauchy' is unknown; expected one of normal, student_t"):
        get_errors("cauchy")
    assert get_errors(ERRORS["normal"]) is ERRORS["normal"] is get_errors("normal")
