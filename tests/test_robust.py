"""The cluster-robust spread against the sandwich of a linear regression, written in numpy."""

from __future__ import annotations

import numpy as np
import pytest

from bayesloop.robust import influences, robust_spread


def regression(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Design, losses, clusters of a regression whose clusters miss together; draws of its exact posterior."""
    rng = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(20), 5)
    x = np.column_stack([np.ones(100), rng.normal(size=20)[cluster]])
    y = x @ [1.0, 0.5] + rng.normal(size=20)[cluster] + 0.5 * rng.normal(size=100)
    covariance = np.linalg.inv(x.T @ x)  # the posterior of a flat prior and a scatter of 1
    draws = rng.multivariate_normal(covariance @ x.T @ y, covariance, 100_000)
    log_likelihood = -0.5 * (y - draws @ x.T) ** 2
    return x, y, cluster, draws, log_likelihood


def test_spread_is_the_sandwich() -> None:
    x, y, cluster, draws, log_likelihood = regression()
    bread = np.linalg.inv(x.T @ x)
    residual = y - x @ (bread @ x.T @ y)
    scores = np.stack([x[cluster == g].T @ residual[cluster == g] for g in range(20)])
    sandwich = bread @ scores.T @ scores @ bread * 20 / 19
    # 100,000 draws leave about 1 % of Monte Carlo error in a covariance
    assert robust_spread(draws[:, 1], log_likelihood, cluster) == pytest.approx(np.sqrt(sandwich[1, 1]), rel=0.03)
    assert robust_spread(draws[:, 1], log_likelihood, cluster) > 1.5 * draws[:, 1].std()


def test_influences_are_the_change_when_a_cluster_counts_more() -> None:
    x, y, cluster, draws, log_likelihood = regression(1)
    weight = np.where(cluster == 3, 1.001, 1.0)
    moved = np.linalg.solve(x.T @ (weight[:, None] * x), x.T @ (weight * y))
    change = (moved - np.linalg.solve(x.T @ x, x.T @ y)) / 0.001
    assert influences(draws[:, 1], log_likelihood, cluster)[3] == pytest.approx(change[1], abs=0.003)
