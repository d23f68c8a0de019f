"""Several posteriors as one."""

from __future__ import annotations

import numpy as np
import pytest

from bayesloop.curves import design_of, expected_loss
from bayesloop.pooling import pool
from bayesloop.posterior import PosteriorError
from tests.posteriors import grid, posterior


def shifted(runs, by):
    post = posterior(runs)
    post["posterior"] = post["posterior"].to_dataset().assign(E=post["posterior"]["E"] + by)
    return post


def test_one_posterior_stays_as_it_is():
    runs = grid()
    post = posterior(runs)
    np.testing.assert_array_equal(pool(post).expected_loss(design_of(runs), "baseline"),
                                  expected_loss(post, design_of(runs), "baseline"))


@pytest.mark.parametrize(("weights", "mean"), [(None, 0.5), ((3, 1), 0.25), ((1, 0), 0.0), ((0.2, 0.8), 0.8)])
def test_the_mean_is_the_weighted_mean(weights, mean):
    runs = grid()
    pooled = pool([posterior(runs), shifted(runs, 1.0)], weights)
    base = pool(posterior(runs)).expected_loss(design_of(runs), "baseline").mean()
    # each has 60 draws of E with sd 0.003, drawn evenly
    assert pooled.expected_loss(design_of(runs), "baseline").mean() - base == pytest.approx(mean, abs=2e-3)
    if weights is None:
        assert pooled.expected_loss(design_of(runs), "baseline").std(axis=0).min() > 0.4


def test_effective_size_is_n_once_plus_r_to_the_phi_n_rec():
    runs = grid()
    post = posterior(runs)
    phi = post["posterior"]["phi"].to_numpy().reshape(-1)
    expected = np.log(runs["n_once"].to_numpy() + runs["r"].to_numpy() ** phi[:, None] * runs["n_rec"].to_numpy())
    np.testing.assert_allclose(pool(post).log_n_eff(design_of(runs), "baseline"), expected, rtol=1e-12)


def test_observed_losses_scatter_by_sigma():
    runs = grid()
    pooled = pool(posterior(runs))
    expected, observed = (getattr(pooled, name)(design_of(runs), "baseline") for name in ("expected_loss",
                                                                                         "observed_loss"))
    scatter = np.log(observed) - np.log(expected)
    assert scatter.std() == pytest.approx(0.004, rel=4 / np.sqrt(2 * scatter.size))  # four standard errors
    assert abs(scatter.mean()) < 4 * 0.004 / np.sqrt(scatter.size)


def test_what_may_not_be_pooled():
    runs = grid()
    good = posterior(runs)
    with pytest.raises(PosteriorError, match="law recurrence did not converge"):
        pool(posterior(runs, converged=0, verdict="R-hat"))
    assert not pool(posterior(runs, converged=0), force=True).converged
    with pytest.raises(PosteriorError, match="different runs"):
        pool([posterior(runs, data_sha256="a"), posterior(runs, data_sha256="b")])
    for weights in ((1,), (1, -1), (0, 0), (1, np.nan)):
        with pytest.raises(PosteriorError, match="expected one number ≥ 0 for each"):
            pool([good, good], weights)
    with pytest.raises(PosteriorError, match="no posterior given"):
        pool([])


def missing_together(errors: str, **sizes: float):
    post = posterior(grid(), n_draws=1000, errors=errors)
    shape = post["posterior"]["E"].shape
    post["posterior"] = post["posterior"].to_dataset().assign(
        {name: (("chain", "draw"), np.full(shape, size)) for name, size in sizes.items()})
    return post


def test_a_new_budget_misses_by_its_own_amount():
    """The runs fitted show no common miss, so a run of a new budget scatters by both sizes in quadrature."""
    pooled = pool(missing_together("budget", sigma=0.003, sigma_budget=0.004))
    design = design_of(grid())
    relative = np.log(pooled.observed_loss(design, "baseline") / pooled.expected_loss(design, "baseline"))
    np.testing.assert_allclose(relative.std(axis=0), 0.005, rtol=0.12)  # 1000 draws know it to 2 %, of 15 runs


def test_a_smooth_misfit_is_known_where_runs_are_and_unknown_far_away():
    pooled = pool(missing_together("smooth", sigma=0.001, sigma_smooth=0.01, length=1.1))
    near, far = design_of(grid()), design_of(grid(budgets=(3e22,)))
    spread = [np.log(pooled.observed_loss(design, "baseline") / pooled.expected_loss(design, "baseline")).std(axis=0)
              for design in (near, far)]
    assert spread[0].max() < 0.5 * spread[1].min()
    np.testing.assert_allclose(spread[1], 0.01, rtol=0.15)
