"""What a check finds on the published runs, and on a posterior that nothing speaks against."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from typer.testing import CliRunner

import bayesloop as bl
from bayesloop.cli import app


@pytest.fixture(scope="module")
def found(probes_post: xr.DataTree):
    return bl.check(probes_post)


def test_residuals_of_the_published_runs_miss_together(found) -> None:
    cells = found.cells.set_index(["probe", "r"])
    assert found.cells["runs"].sum() == 204
    # one φ per probe leaves truncation at r = 2 above the law at every budget (measured 25 to 38 mnats)
    assert (cells.loc[("truncated", 2), "mean"] > 0.015).all()
    assert found.together > 3 * found.together_expected
    assert not found.ok
    assert any("miss together" in sentence for sentence in found.verdict)


def test_runs_speak_louder_than_priors(found) -> None:
    phi = found.parameters.filter(like="phi", axis=0)
    assert (phi["left"] < 0.1).all()
    assert (phi["prior_sensitivity"] < 0.05).all()
    assert (phi["likelihood_sensitivity"] > 0.05).all()


def test_robust_spread_is_wider_for_hyperconnections(found) -> None:
    row = found.robust.loc["φ[hyperconnections]"]
    assert row["robust_sd"] > 1.3 * row["sd"]
    assert row["lower"] < row["mean"] < row["upper"]


def test_predictive_intervals_cover(found) -> None:
    gap = np.abs(found.coverage["covered"] - found.coverage["interval"])
    assert (gap < 3 * found.coverage["standard error"]).all()


def test_the_command_prints_and_its_json_is_whole(probes_post: xr.DataTree, tmp_path: Path) -> None:
    bl.save(probes_post, tmp_path / "p.nc")
    shown = CliRunner().invoke(app, ["check", str(tmp_path / "p.nc")])
    assert shown.exit_code == 0, shown.output
    assert "Mean residual in mnats" in shown.output
    assert "read the points above" in shown.output
    printed = json.loads(CliRunner().invoke(app, ["check", str(tmp_path / "p.nc"), "--json"]).stdout)
    assert printed["ok"] is False
    assert {row["parameter"] for row in printed["parameters"]} >= {"E", "phi[truncated]"}


@pytest.mark.slow
def test_intercepts_for_cells_are_warned_of_and_swallow_the_anchor(runs: pd.DataFrame) -> None:
    with pytest.warns(UserWarning, match="swallows the contrast"):
        post = bl.fit(bl.select(runs, "probe == 'baseline'"), errors="cell")
    phi = post["posterior"]["phi"]
    # measured 0.576 ± 0.036 with a wider prior on the intercepts' size
    assert float(phi.mean()) == pytest.approx(0.576, abs=0.04)
    assert float(phi.std()) == pytest.approx(0.036, abs=0.015)
    assert any("swallows the contrast" in sentence for sentence in bl.check(post).verdict)
