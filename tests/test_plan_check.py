"""Plans checked by simulation: against the expectation, and over the r that both probes were run at."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import bayesloop as bl
from bayesloop.model import build_model
from bayesloop.plan_check import _quantities, refit
from bayesloop.planning import plan


@pytest.mark.slow
def test_refits_agree_with_the_expectation(baseline_post: xr.DataTree) -> None:
    runs = bl.read_runs("data/paper_grid.csv")
    low = bl.select(runs, "probe == 'baseline' and budget <= 1e18")
    expected = plan(baseline_post, low, existing=False)["sd"][0]
    found = refit(baseline_post, low, existing=False, number=2)
    assert found["sd"][0] == pytest.approx(expected, rel=0.35)  # sigma and the curvature are estimated anew in each


@pytest.mark.parametrize(("phi", "delta"), [("probe_r", 0.3), ("probe", 0.2)])
def test_differences_are_over_the_r_of_both(runs: pd.DataFrame, phi: str, delta: float) -> None:
    """Truncation without r = 8: φ of the baseline is a mean over three r, Δφ over two."""
    table = bl.select(runs, "probe != 'hyperconnections' and budget <= 4.64e18")
    table = table[(table["probe"] == "baseline") | (table["r"] < 8)]
    model = build_model(table, phi=phi)
    assert (model.layout.probes, model.layout.recurrences) == (["baseline", "truncated"], [2, 4, 8])
    values = {"probe_r": [[0.5, 0.4, 0.0], [0.8, 0.7, 9.0]], "probe": [0.3, 0.5]}[phi]
    found = _quantities(model, table, {"phi": np.array([values, values])}, model.compute, "baseline")
    expected = {("phi", "baseline"): 0.3, ("phi", "truncated"): 0.75 if phi == "probe_r" else 0.5,
                ("delta", "truncated"): delta}
    assert {name: draws[0] for name, draws in found.items()} == pytest.approx(expected)
