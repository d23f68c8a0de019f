"""Posteriors of simulated data are calibrated, and a model that is wrong in its prior or its scatter is caught."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import distributions as dist

from bayesloop.errors import ERRORS
from bayesloop.model import Model, build_model
from bayesloop.sampling import Settings
from benchmarks.calibration import LEVELS, Calibration, band, calibrate, chi2_p, p_value
from tests import plain

REPLICATES = 40
QUICK, RETRY = Settings(250, 250), Settings(500, 500, 0.99)


@pytest.fixture(scope="module")
def model() -> Model:
    """The recurrence law over a third of the runs at the lower budgets: priors weigh in, and it is quick."""
    runs = plain.baseline("probe == 'baseline' and budget <= 4.64e18")
    return build_model(runs.iloc[::3].reset_index(drop=True))


def smallest(found: Calibration) -> float:
    """Smallest p value over the parameters, times their number."""
    return min(p_value(counts) for counts in found.counts.values()) * len(found.counts)


def test_posteriors_are_calibrated(model: Model) -> None:
    """At 1 %: of a hundred seeds one would fail. Every data set is counted, also where the short chain mixed slowly."""
    found = calibrate(model, REPLICATES, first=QUICK, retry=RETRY)
    assert smallest(found) > 0.01
    assert {name: counts.sum() for name, counts in found.counts.items()} == dict.fromkeys(model.priors, REPLICATES)
    assert len(found.failed_truth) == found.failed <= REPLICATES // 4
    assert found.divergences <= REPLICATES // 4


def test_a_wrong_model_is_caught(model: Model) -> None:
    """Two faults at once, each seen in its own parameter: no prior on A in the sampler, the scatter halved."""
    halved = replace(ERRORS["normal"], log_loss=lambda log_mean, log_se, sigma: dist.Normal(
        log_mean, jnp.hypot(sigma / 2, log_se)))
    wrong = replace(model, errors=halved, priors={**model.priors, "A": replace(model.priors["A"], args=(4.6, 100.0))})
    found = calibrate(model, REPLICATES, fitted=wrong, first=QUICK, retry=None)
    assert p_value(found.counts["sigma"]) < 0.001
    assert p_value(found.counts["A"]) < 0.01


def test_p_values_of_uniform_ranks_are_uniform() -> None:
    """And so the band holds a calibrated sampler 95 times in 100: 400 sets, within 4 standard errors."""
    rng = np.random.default_rng(1)
    sets = rng.multinomial(100, np.full(LEVELS, 1 / LEVELS), 400)
    p = np.array([p_value(counts) for counts in sets])
    assert abs(np.mean(p < 0.05) - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 400)
    low, high = band(100)
    off = np.cumsum(sets, axis=1)[:, :-1] / 100 - np.arange(1, LEVELS) / LEVELS
    outside = ((off < low - 1e-12) | (off > high + 1e-12)).any(axis=1)
    assert abs(outside.mean() - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 400)


@pytest.mark.parametrize("ranks", [np.r_[0:50, 0:50], np.r_[25:75, 25:75], [0] * 25 + [99] * 25 + list(range(25, 75))],
                         ids=["shifted", "too wide", "too narrow"])
def test_ranks_that_are_not_uniform(ranks: list[int]) -> None:
    counts = np.bincount(ranks, minlength=LEVELS)
    assert p_value(counts) < 0.001
    assert chi2_p(counts) < 0.001


@pytest.mark.slow
def test_the_law_without_recurrence() -> None:
    """40 data sets on the published baseline; the full run, of every law, is `python -m benchmarks.calibration`."""
    found = calibrate(build_model(plain.baseline("probe == 'baseline'"), "chinchilla"), 40, seed=1)
    assert smallest(found) > 0.001
    assert found.failed <= 3
