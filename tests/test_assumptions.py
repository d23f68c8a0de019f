"""The verdict across assumptions, on posteriors whose Δφ is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

import bayesloop as bl
from bayesloop.assumptions import compare_assumptions
from bayesloop.cli import app
from bayesloop.posterior import PosteriorError
from bayesloop.structures import RECIPES
from tests.conftest import GRID
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


def test_an_assumption_whose_sampler_failed_is_left_out_and_named() -> None:
    posts = [assumed(recipe, {"truncated": [0.1, 0.1], "hyperconnections": [0.2, 0.2]}, elpd)
             for recipe, elpd in (("none", 600.0), ("data_factor", 650.0), ("both", 640.0))]
    posts[2].attrs |= {"converged": 0, "verdict": "not converged: 14 of 8000 transitions diverged"}
    found = compare_assumptions(posts)
    assert set(found.table["recipe"]) == {"none", "data_factor"}
    assert not any("under every assumption" in sentence for sentence in found.verdict)
    assert found.verdict[0] == "recipe term 'both' is left out: not converged: 14 of 8000 transitions diverged"
    for post in posts:
        post.attrs["converged"] = 0
    with pytest.raises(PosteriorError, match="under no assumption the sampler has converged"):
        compare_assumptions(posts)


def test_the_command_takes_posteriors(found, tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.nc" for i in range(2)]
    for post, path in zip(found.posts, paths, strict=True):
        bl.save(post, path)
    words = ["compare", *map(str, paths), "--assumptions"]
    printed = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert {row["recipe"] for row in printed["assumptions"]} == {"none", "offset"}
    assert printed["verdict"] == found.verdict
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "Δφ, mean over r" in shown.output
    refused = CliRunner().invoke(app, ["compare", str(paths[0]), str(GRID), "--assumptions"])
    assert refused.exit_code == 1
    assert "one table of runs" in refused.output


def test_the_command_fits_a_table_under_each_assumption(monkeypatch: pytest.MonkeyPatch) -> None:
    """One law and three terms instead of four, with short chains: that everything is passed on and put together."""
    from bayesloop import assumptions
    short = partial(assumptions.fit, num_warmup=50, num_samples=50, num_chains=1)
    asked = []

    def fit(runs: object, **options: object) -> xr.DataTree:
        asked.append((options["law"], options["phi"], options["recipe"], options["seed"]))
        post = short(runs, **{**options, "law": "recurrence", "phi": "probe"})
        post.attrs["converged"] = 1  # as if: 50 draws cannot
        return post

    monkeypatch.setattr(assumptions, "fit", fit)
    monkeypatch.setattr(assumptions.compare_assumptions, "__defaults__",
                        ("cross_recurrence", ("none", "looped_offset"), "baseline", 0.95, None))
    result = CliRunner().invoke(app, ["compare", str(GRID), "--assumptions", "--where", "budget <= 4.7e17",
                                      "--seed", "3", "--json"])
    assert result.exit_code == 0, result.output
    assert asked == [("cross_recurrence", "probe_r", recipe, 3) for recipe in ("none", "looped_offset")]
    assert {row["recipe"] for row in json.loads(result.stdout)["assumptions"]} == {"none", "looped_offset"}


@pytest.mark.parametrize("recipe", [pytest.param(name, marks=[] if name == "looped_both" else pytest.mark.slow)
                                    for name in RECIPES if name != "none"])
def test_every_recipe_term_is_sampled(recipe: str, tmp_path: Path) -> None:
    """From the command line: its parameters come out for the probes they belong to, and finite."""
    out = tmp_path / "p.nc"
    result = CliRunner().invoke(app, ["fit", str(GRID), "--where", "budget <= 1e18", "--recipe", recipe, "--out",
                                      str(out), "--num-warmup", "100", "--num-samples", "100", "--num-chains", "2"])
    assert result.exit_code in (0, 3), result.output  # so few draws do not converge, and it says so
    post = bl.load(out)
    probes = list(PROBES) if recipe.startswith("looped") else list(PROBES[1:])
    for name in RECIPES[recipe].priors:
        assert list(post["posterior"][name]["recipe"].values) == probes
        assert np.isfinite(post["posterior"][name]).all()
        assert float(post["posterior"][name].std(("chain", "draw")).min()) > 0
