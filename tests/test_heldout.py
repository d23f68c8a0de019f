"""Held-out prediction: exact refits against fits with the rows really removed, densities against plain SciPy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from numpyro import handlers
from numpyro.infer.util import log_density as log_density_of
from scipy import stats
from typer.testing import CliRunner

import bayesloop as bl
from bayesloop.cli import app
from bayesloop.errors import ERRORS, given, log_density
from bayesloop.heldout import MIN_DRAWS, _named, effective, groups, log_mean, parse, stack
from bayesloop.laws import LawError
from bayesloop.model import build_model
from bayesloop.posterior import PosteriorError
from bayesloop.refits import model_of, refit, score
from bayesloop.sampling import Settings
from tests.conftest import GRID
from tests.test_errors import points

SMALL = "probe == 'baseline' and budget <= 2.15e18 and r <= 4"


@pytest.fixture(scope="module")
def small(runs: pd.DataFrame) -> pd.DataFrame:
    return bl.select(runs, SMALL)


@pytest.fixture(scope="module")
def post(small: pd.DataFrame) -> xr.DataTree:
    return bl.fit(small)


@pytest.mark.parametrize("errors", ["budget", "smooth", "cell"])
def test_a_weighted_density_is_that_of_the_repeated_runs(errors: str) -> None:
    """Weight 0 leaves a run out, weight 2 writes its row twice: against SciPy's density of those rows."""
    place, log_loss = points(n=12)
    values = {"sigma": 0.003, f"sigma_{errors}": 0.01, "length": 2.0}
    loss = ERRORS[errors].loss(np.full(12, 2.45), np.full(12, 0.001), values, place)
    factor = np.asarray(ERRORS[errors].factor(place, values))
    weight = np.array([0, 1, 2, 1, 0, 3, 1, 1, 0, 1, 2, 1])
    rows = np.repeat(np.arange(12), weight)
    covariance = (factor @ factor.T)[np.ix_(rows, rows)] + np.eye(len(rows)) * (0.003**2 + 0.001**2)
    z = log_loss - np.log(2.45)
    expected = stats.multivariate_normal(cov=covariance).logpdf(z[rows]) - log_loss[rows].sum()
    assert float(log_density(loss, np.exp(log_loss), weight)) == pytest.approx(expected, rel=1e-8)
    pull = (factor @ factor.T)[:, rows] @ np.linalg.inv(covariance)
    alone = given(loss, np.exp(log_loss), weight).base_dist
    np.testing.assert_allclose(alone.loc - np.log(2.45), pull @ z[rows], atol=1e-7)
    variance = np.diag(factor @ factor.T - pull @ (factor @ factor.T)[rows]) + 0.003**2 + 0.001**2
    np.testing.assert_allclose(np.asarray(alone.scale) ** 2, variance, rtol=1e-5)


@pytest.mark.parametrize("errors", ["normal", "student_t"])
def test_independent_runs_count_by_weight(errors: str) -> None:
    loss = ERRORS[errors].loss(np.full(3, 2.45), 0.0, {"sigma": 0.01, "nu": 4.0})
    observed, weight = np.array([2.4, 2.45, 2.5]), np.array([0.0, 1.0, 2.0])
    assert float(log_density(loss, observed, weight)) == pytest.approx(float(loss.log_prob(observed) @ weight))
    assert given(loss, observed, weight) is loss


@pytest.mark.parametrize("errors", list(ERRORS))
def test_weights_of_one_change_nothing(small: pd.DataFrame, errors: str) -> None:
    model, values = build_model(small, errors=errors), {}
    with handlers.seed(rng_seed=0):
        trace = handlers.trace(model).get_trace(model.layout.data)
        values = {name: site["value"] for name, site in trace.items()
                  if site["type"] == "sample" and not site["is_observed"]}
    plain, weighted = (float(log_density_of(model, (data,), {}, values)[0]) for data in (
        model.layout.data, {**model.layout.data, "weight": np.ones(len(small))}))
    assert weighted == pytest.approx(plain, rel=1e-9)


@pytest.mark.parametrize("errors", ["normal", pytest.param("budget", marks=pytest.mark.slow)])
def test_a_refit_is_the_fit_without_the_rows(small: pd.DataFrame, errors: str) -> None:
    model = build_model(small, errors=errors)
    out = (small["budget"] == small["budget"].max()).to_numpy()
    chains = 4
    found = refit(model, np.tile(~out, (chains, 1)), settings=Settings(500, 1000))
    kept = bl.fit(small[~out].reset_index(drop=True), errors=errors, num_chains=chains, seed=1)
    for name in ("phi", "alpha", "beta", "sigma"):
        ours, theirs = found.values[name].ravel(), kept["posterior"][name].to_numpy().ravel()
        # some 1000 effective draws each: the means differ by 0.05 sd, four times that is a fault
        assert abs(ours.mean() - theirs.mean()) < 0.2 * theirs.std(), name
        assert ours.std() == pytest.approx(theirs.std(), rel=0.2), name
    held = score(model, found, np.tile(~out, (chains, 1)))
    lpd, error = log_mean(held.joint.ravel())
    expected, theirs_error = _plain_density(kept, small, out, errors)
    assert lpd == pytest.approx(expected, abs=5 * np.hypot(error, theirs_error) + 0.1)


def _plain_density(kept: xr.DataTree, runs: pd.DataFrame, out: np.ndarray, errors: str) -> tuple[float, float]:
    """Log density of the left-out runs under the fit without them, in numpy."""
    draws = {name: value.to_numpy().ravel() for name, value in kept["posterior"].data_vars.items()}
    own = runs[out]
    n_eff = own["n_once"].to_numpy(float) + own["r"].to_numpy(float) ** draws["phi"][:, None] * own["n_rec"].to_numpy()
    mean = (draws["E"][:, None] + draws["A"][:, None] * n_eff ** -draws["alpha"][:, None]
            + draws["B"][:, None] * own["tokens"].to_numpy() ** -draws["beta"][:, None])
    z, n = np.log(own["loss"].to_numpy()) - np.log(mean), int(out.sum())
    common = draws["sigma_budget"] ** 2 if errors == "budget" else np.zeros(len(z))  # a budget never seen
    own_variance = draws["sigma"] ** 2
    squares = (z**2).sum(1) / own_variance - common / own_variance**2 * z.sum(1)**2 / (1 + n * common / own_variance)
    log_det = n * np.log(2 * np.pi * own_variance) + np.log1p(n * common / own_variance)
    return log_mean(-(squares + log_det) / 2 - np.log(own["loss"].to_numpy()).sum())


def test_groups_cover_the_runs(runs: pd.DataFrame) -> None:
    found = groups(bl.select(runs, "budget <= 4.64e18"))
    assert {scheme: len(masks) for scheme, masks in found.items()} == {"cell": 40, "budget": 4, "r": 4, "top": 1}
    for scheme in ("cell", "budget", "r"):
        assert (np.sum(found[scheme], axis=0) == 1).all()
    assert found["top"][0] is found["budget"][-1]
    assert set(groups(bl.select(runs, "budget == 1e18"))) == {"cell", "r"}


def test_stacking_finds_the_best_mixture() -> None:
    rng = np.random.default_rng(0)
    lpd = rng.normal(size=(200, 3)) + np.array([0.0, 0.3, 0.1])
    weights = stack(lpd)
    grid = rng.dirichlet(np.ones(3), 20_000)
    best = np.log(np.exp(lpd) @ grid.T).mean(axis=0).max()
    assert np.log(np.exp(lpd) @ weights).mean() >= best - 1e-6
    np.testing.assert_allclose(stack(np.column_stack([np.zeros(5), np.full(5, -9.0)])), [1, 0], atol=1e-6)


def test_a_density_that_rests_on_few_draws() -> None:
    """A Normal mean whose prior alone says where the left-out run lies: the estimate is low, and the count says so."""
    draws = np.random.default_rng(0).normal(size=500)
    wide, narrow = (stats.norm.logpdf(2.0, draws, sigma) for sigma in (1.0, 1e-5))
    assert effective(wide) > 50
    assert log_mean(wide)[0] == pytest.approx(stats.norm.logpdf(2.0, 0, np.sqrt(2.0)), abs=0.3)
    assert effective(narrow) < MIN_DRAWS
    assert log_mean(narrow)[0] < stats.norm.logpdf(2.0) - 100
    assert effective(np.zeros(500)) == pytest.approx(500)


def test_a_recurrence_left_out_of_its_own_phi(small: pd.DataFrame) -> None:
    """Where φ is apart for each r, leaving out an r leaves its φ to the prior: the table counts that as unsound."""
    post = bl.fit(small, phi="probe_r")
    table = bl.held_out([post]).table.set_index("scheme")
    assert table.loc["r", "draws"] < MIN_DRAWS
    assert table.loc["r", "unsound"] >= 1
    assert table.loc["cell", "draws"] > 4 * MIN_DRAWS
    assert table.loc["cell", "unsound"] == 0


def test_names_of_models() -> None:
    assert parse("cross_recurrence/normal/probe_r") == {"law": "cross_recurrence", "errors": "normal",
                                                        "phi": "probe_r", "recipe": "none"}
    with pytest.raises(LawError, match="expected LAW"):
        parse("recurrence//probe")


def test_the_command_compares_models(post: xr.DataTree, tmp_path: Path) -> None:
    bl.save(post, tmp_path / "a.nc")
    words = ["compare", str(tmp_path / "a.nc"), "--held-out"]
    result = CliRunner().invoke(app, [*words, "--json", "--out", str(tmp_path / "t.csv")])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    table = pd.DataFrame(printed["held_out"]).set_index("scheme")
    assert set(table["model"]) == {"recurrence/normal/probe/none"}
    assert table.loc[["run", "cell"], "weight"].tolist() == pytest.approx([1, 1])
    assert {row["quantity"] for row in printed["averages"]} == {"φ[baseline]"}
    assert len(pd.read_csv(tmp_path / "t.csv")) == len(table)
    # leaving out a cell of some five runs tells about the same of each of so many runs as leaving out one
    assert table.loc["cell", "each"] == pytest.approx(table.loc["run", "each"], abs=15)
    refused = CliRunner().invoke(app, [*words, "--models", "recurrence"])
    assert refused.exit_code == 1
    assert "posteriors are of their own models" in refused.output


def test_posteriors_of_one_model_are_both_kept(post: xr.DataTree) -> None:
    assert list(_named([post, post])) == ["recurrence/normal/probe/none", "recurrence/normal/probe/none (2)"]


def test_refits_need_shared_parameters(post: xr.DataTree) -> None:
    apart = post.copy()
    apart.attrs = {**post.attrs, "share": "none"}
    with pytest.raises(PosteriorError, match='share="law"'):
        model_of(apart)
    other = post.copy()
    other.attrs = {**post.attrs, "data_sha256": "x"}
    with pytest.raises(PosteriorError, match="of different"):
        bl.held_out([post, other])
    assert CliRunner().invoke(app, ["compare", str(GRID), str(GRID), "--held-out"]).exit_code == 1
