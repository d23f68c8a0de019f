"""Resamples keep their units whole; intervals are percentiles of what succeeded."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from bayesloop.bootstrap import Bootstrap, cells, group_budgets, resample

RUNS = pd.read_csv("data/paper_grid.csv").query("probe == 'baseline'")
CELL = cells(RUNS["budget"].to_numpy(float), RUNS["r"].to_numpy())
LOG_Y = np.log(RUNS["loss"].to_numpy(float))


def test_cells_are_the_pairs_of_budget_and_r() -> None:
    expected = RUNS.groupby(["budget", "r"]).ngroup().to_numpy()
    assert CELL.max() == 23
    np.testing.assert_array_equal(CELL, expected)


def test_budgets_within_a_percent_are_one() -> None:
    assert list(group_budgets(np.array([2.15e18, 1.0e18, 1.004e18, 2.1499e18, 4.64e18]))) == [1, 0, 0, 1, 2]


def test_blocks_are_drawn_whole_and_as_many_as_there_are() -> None:
    log_y, weights = resample("block", CELL, LOG_Y, LOG_Y, 50, np.random.default_rng(0))
    assert weights.shape == log_y.shape == (50, len(RUNS))
    np.testing.assert_array_equal(log_y[7], LOG_Y)
    by_cell = pd.DataFrame(weights.T).groupby(CELL)
    assert (by_cell.nunique() == 1).all(axis=None)  # all runs of a cell equally often
    np.testing.assert_array_equal(by_cell.first().sum(), 24.0)
    assert weights.max() > 1
    assert (weights == 0).any(axis=1).all()


def test_runs_are_drawn_one_by_one() -> None:
    _, weights = resample("runs", np.arange(len(RUNS)), LOG_Y, LOG_Y, 50, np.random.default_rng(0))
    np.testing.assert_array_equal(weights.sum(axis=1), len(RUNS))
    assert (pd.DataFrame(weights.T).groupby(CELL).nunique() > 1).any(axis=None)


def test_wild_resamples_flip_whole_cells() -> None:
    fitted = LOG_Y + np.random.default_rng(1).normal(0, 0.01, len(LOG_Y))
    log_y, weights = resample("wild", CELL, LOG_Y, fitted, 50, np.random.default_rng(0))
    signs = (log_y - fitted) / (LOG_Y - fitted)
    np.testing.assert_allclose(np.abs(signs), 1, rtol=1e-6)
    assert (pd.DataFrame(signs.T.round()).groupby(CELL).nunique() == 1).all(axis=None)
    assert abs(signs.mean()) < 0.1  # 1,200 signs: standard error 0.03
    np.testing.assert_array_equal(weights, 1.0)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="bootstrap 'cells' is unknown; expected one of block, runs, wild"):
        resample("cells", CELL, LOG_Y, LOG_Y, 5, np.random.default_rng(0))


def test_failed_refits_are_counted_and_left_out_of_the_interval() -> None:
    draws = np.append(np.linspace(0, 1, 101), np.nan)
    boot = Bootstrap("block", {"phi": draws, "E": np.full(102, np.nan)}, failed=1, on_boundary=0)
    assert boot.interval("phi") == pytest.approx((0.025, 0.975))
    assert boot.interval("phi", 0.5) == pytest.approx((0.25, 0.75))
    assert np.isnan(boot.interval("E")).all()
    read = json.loads(json.dumps(boot.to_dict(), allow_nan=False))
    assert read["draws"]["phi"][-1] is None
    assert read["interval"]["E"] == [None, None]
    assert read["failed"] == 1
