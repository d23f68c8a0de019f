"""The verdict across assumptions, on posteriors whose Δφ is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import xarray as xr

from bayesloop.assumptions import compare_assumptions
from bayesloop.posterior import PosteriorError
from tests.posteriors import grid, posterior

PROBES = ("baseline", "truncated", "hyperconnections")


def assumed(recipe: str, deltas: dict[str, Sequence[float]], elpd: float, sha: str = "a") -> xr.DataTree:
    """A posterior with given Δφ at r = 2 and 4, and a log likelihood of the given sum."""
    runs = grid(PROBES)
    post = posterior(runs, ("probe", "r"), recipe=recipe, data_sha256=sha, phi="probe_r", verdict="", errors="normal")
    phi = post["posterior"]["phi"].copy()
    for probe, by_r in deltas.items():
        phi.loc[{"probe": probe}] = phi.sel(probe="baseline") + np.array(by_r) + 0.02 * (
            phi.sel(probe=probe) - phi.sel(probe=probe).mean(("chain", "draw")))
    post["posterior"]["phi"] = phi
    noise = 1e-3 * np.random.default_rng(0).normal(size=(2, 30, len(runs)))
    post["log_likelihood"] = xr.DataTree(xr.Dataset({"loss": (("chain", "draw", "run"), elpd / len(runs) + noise)}))
    return post


@pytest.fixture(scope="module")
def found():
    return compare_assumptions([
        assumed("none", {"truncated": (-0.2, -0.2), "hyperconnections": (0.5, 0.2)}, 700),
        assumed("offset", {"truncated": (-0.1, -0.3), "hyperconnections": (-0.4, -0.3)}, 760)])


def test_one_row_for_each_assumption_probe_and_r(found) -> None:
    table = found.table.set_index(["recipe", "probe", "r"])
    assert len(table) == 2 * 2 * 3
    assert table.loc[("none", "hyperconnections", "mean"), "delta_mean"] == pytest.approx(0.35, abs=0.01)
    assert table.loc[("offset", "hyperconnections", "2"), "delta_mean"] == pytest.approx(-0.4, abs=0.01)
    assert table.loc[("none", "truncated", "2"), "behind"] == pytest.approx(60, abs=0.1)


def test_the_verdict_says_what_holds_and_what_does_not(found) -> None:
    text = "\n".join(found.verdict)
    assert "'offset' predicts runs left out best" in text
    assert "truncated: Δφ, averaged over r, is negative under every assumption" in text
    assert "hyperconnections: even the sign of Δφ depends" in text
    assert "truncated: one Δφ for all r is not contradicted" in text
    assert "hyperconnections: no single Δφ describes it: +0.50, +0.20 at r = 2, 4" in text
    assert "hyperconnections: what would settle it are r = 1 runs of this recipe" in text
    assert "truncated: at r = 1 it is the baseline's own computation" in text


def test_posteriors_of_other_runs_are_refused() -> None:
    posts = [assumed("none", {}, 1.0, sha) for sha in "ab"]
    with pytest.raises(PosteriorError, match="on the same runs"):
        compare_assumptions(posts)
