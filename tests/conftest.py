"""Posteriors that many tests look at, sampled once."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import xarray as xr

import bayesloop as bl

GRID = Path(__file__).parents[1] / "data" / "paper_grid.csv"


@pytest.fixture(scope="session")
def runs() -> pd.DataFrame:
    return bl.read_runs(GRID)


@pytest.fixture(scope="session")
def baseline_post(runs: pd.DataFrame) -> xr.DataTree:
    return bl.fit(bl.select(runs, "probe == 'baseline'"))


@pytest.fixture(scope="session")
def probes_post(runs: pd.DataFrame) -> xr.DataTree:
    return bl.fit(bl.select(runs, "budget <= 4.64e18"), "recurrence")


@pytest.fixture(scope="session")
def unconverged_post(runs: pd.DataFrame) -> xr.DataTree:
    """Two chains of 100 draws cannot reach the effective sample size that is asked for, nor can twice as many."""
    return bl.fit(bl.select(runs, "probe == 'baseline'"), num_warmup=100, num_samples=100, num_chains=2)
