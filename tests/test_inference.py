"""The main job on the paper's runs: posteriors with the values measured before, and the evidence they carry."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import bayesloop as bl
from bayesloop import inference
from bayesloop.laws import LawError
from bayesloop.posterior import summarise
from bayesloop.runs import RunsError

LAW = ["E", "A", "B", "alpha", "beta", "phi[baseline]"]


def moments(values: xr.DataArray) -> tuple[float, float]:
    return float(values.mean()), float(values.std())


def test_phi_of_the_baseline(baseline_post: xr.DataTree) -> None:
    mean, sd = moments(baseline_post["posterior"]["phi"])
    assert mean == pytest.approx(0.441, abs=0.005)
    assert sd == pytest.approx(0.016, abs=0.005)


def test_the_baseline_fit_has_its_evidence(baseline_post: xr.DataTree) -> None:
    assert baseline_post.attrs["converged"] == 1
    assert baseline_post.attrs["retries"] == 0
    assert not baseline_post["sample_stats"]["diverging"].any()
    summary = summarise(baseline_post)
    assert (summary.loc[LAW, "ess_bulk"] >= 1000).all()
    assert (summary["rhat"] < 1.01).all()


def test_differences_of_phi_across_probes(probes_post: xr.DataTree) -> None:
    phi = probes_post["posterior"]["phi"]
    for probe, expected, spread in (("truncated", -0.124, 0.024), ("hyperconnections", 0.271, 0.022)):
        mean, sd = moments(phi.sel(probe=probe) - phi.sel(probe="baseline"))
        assert mean == pytest.approx(expected, abs=0.01)
        assert sd == pytest.approx(spread, abs=0.01)


def test_groups_dims_and_provenance(baseline_post: xr.DataTree, runs: pd.DataFrame) -> None:
    expected = {"posterior", "sample_stats", "log_likelihood", "log_prior", "prior", "prior_predictive",
                "posterior_predictive", "observed_data", "constant_data"}
    assert expected <= set(baseline_post.children)
    assert baseline_post["posterior"]["phi"].dims == ("chain", "draw", "probe")
    assert baseline_post["log_likelihood"]["loss"].dims == ("chain", "draw", "run")
    assert list(baseline_post["constant_data"]["run"].values) == list(runs["run_id"][:116])
    attrs = baseline_post.attrs
    assert attrs["data_sha256"] == bl.select(runs, "probe == 'baseline'").attrs["sha256"]
    assert json.loads(attrs["priors"])["phi"] == "Normal(0.5, 0.5)"
    assert json.loads(attrs["versions"])["jax"]
    assert (attrs["law"], attrs["errors"], attrs["seed"], attrs["data_injection"]) == ("recurrence", "normal", 0, "rec")


def test_log_likelihood_and_log_prior_against_scipy(baseline_post: xr.DataTree) -> None:
    from scipy import stats

    post = baseline_post["posterior"].isel(chain=1, draw=17)
    data = baseline_post["constant_data"]
    n_eff = data["n_once"].values + data["r"].values ** float(post["phi"][0]) * data["n_rec"].values
    mean = (float(post["E"]) + float(post["A"]) * n_eff ** -float(post["alpha"])
            + float(post["B"]) * data["tokens"].values ** -float(post["beta"]))
    loss = baseline_post["observed_data"]["loss"].values
    scale = np.hypot(float(post["sigma"]), data["loss_se"].values / loss)
    expected = stats.norm(np.log(mean), scale).logpdf(np.log(loss)) - np.log(loss)
    np.testing.assert_allclose(baseline_post["log_likelihood"]["loss"].values[1, 17], expected, rtol=1e-9)
    log_prior = baseline_post["log_prior"].isel(chain=1, draw=17)
    assert float(log_prior["A"]) == pytest.approx(stats.lognorm(1.5, scale=np.exp(4.6)).logpdf(float(post["A"])))
    assert float(log_prior["phi"][0]) == pytest.approx(stats.norm(0.5, 0.5).logpdf(float(post["phi"][0])))


def test_posterior_predictive_matches_the_residuals(baseline_post: xr.DataTree) -> None:
    """Replicated losses scatter around the law as the observed ones do: 95 % of runs inside, give or take 3 sd."""
    low, high = np.quantile(baseline_post["posterior_predictive"]["loss"].values, [0.025, 0.975], axis=(0, 1))
    loss = baseline_post["observed_data"]["loss"].values
    inside = np.mean((low < loss) & (loss < high))
    assert inside == pytest.approx(0.95, abs=3 * np.sqrt(0.95 * 0.05 / len(loss)))


def test_one_seed_gives_one_posterior(runs: pd.DataFrame, baseline_post: xr.DataTree) -> None:
    again = bl.fit(bl.select(runs, "probe == 'baseline'"))
    np.testing.assert_array_equal(again["posterior"]["phi"].values, baseline_post["posterior"]["phi"].values)


def test_a_fit_that_has_not_converged_was_retried_and_says_so(unconverged_post: xr.DataTree) -> None:
    attrs = unconverged_post.attrs
    assert (attrs["converged"], attrs["retries"]) == (0, 1)
    assert attrs["verdict"].startswith("NOT CONVERGED: ")
    attempts = json.loads(attrs["convergence"])
    assert len(attempts) == 2
    assert all(attempt["ess_bulk"] < 400 or attempt["ess_tail"] < 400 for attempt in attempts)
    assert (attrs["num_samples"], attrs["target_accept_prob"], attrs["max_tree_depth"]) == (200, 0.99, 12)


def test_phi_fixed_leaves_the_posterior(runs: pd.DataFrame) -> None:
    post = bl.fit(bl.select(runs, "probe == 'baseline'"), fix={"phi": 1.0})
    assert "phi" not in post["posterior"]
    assert json.loads(post.attrs["fix"]) == {"phi": 1.0}
    # the point estimate with phi fixed at 1 (published: alpha 0.218)
    assert float(post["posterior"]["alpha"].mean()) == pytest.approx(0.218, abs=0.03)


def test_separate_fits_use_the_anchor_of_their_own_budgets(runs: pd.DataFrame) -> None:
    low = bl.select(runs, "budget <= 2.15e18 and probe != 'truncated'")
    extra = bl.select(runs, "(budget <= 2.15e18 and probe != 'truncated') or r == 1")
    from bayesloop.model import build_model

    model = build_model(extra, share="none")
    anchors = {probe: sum(f"@ {probe}" in run and "-r1-" in run for run in model.layout.run)
               for probe in ("baseline", "hyperconnections")}
    assert anchors == {"baseline": 29, "hyperconnections": 14}
    post = bl.fit(low, share="none", num_samples=500)
    assert post["posterior"]["alpha"].dims == ("chain", "draw", "probe")
    assert post["posterior"]["phi"].mean(("chain", "draw")).sel(probe="hyperconnections") > 0.5


@pytest.mark.parametrize(("where", "law", "message"), [
    ("r == 4 and probe == 'baseline'", "recurrence", "every run has r = 4: phi cannot be identified"),
    ("budget == 4.64e17 and size == 6 and probe == 'baseline'", "recurrence", "4 runs for 7 parameters"),
])
def test_tables_that_cannot_answer_are_refused(runs: pd.DataFrame, where: str, law: str, message: str) -> None:
    with pytest.raises(RunsError, match=message):
        bl.fit(bl.select(runs, where), law=law)


@pytest.mark.parametrize(("options", "message"), [
    ({"law": "linear"}, "law 'linear' is unknown; expected one of recurrence"),
    ({"errors": "cauchy"}, "error model 'cauchy' is unknown"),
    ({"phi": "free"}, "phi structure 'free' is unknown"),
    ({"share": "some"}, "share is 'some'"),
    ({"share": "none", "phi": "one"}, "has no meaning"),
    ({"priors": {"gamma": "Normal(0, 1)"}}, "no such parameter"),
    ({"priors": {"E": "Normal(1, 1)"}}, "must be positive"),
    ({"priors": {"phi": "Normal(0.5)"}}, "takes 2 arguments"),
    ({"fix": {"phi": float("nan")}}, "expected a finite number"),
    ({"fix": {"alpha": -1.0}}, "expected a finite positive number"),
])
def test_impossible_options_are_refused(runs: pd.DataFrame, options: dict, message: str) -> None:
    with pytest.raises(LawError, match=message):
        bl.fit(runs, **options)


def test_many_runs_are_first_fitted_faintly(runs: pd.DataFrame, baseline_post: xr.DataTree,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """The way that a thousand runs take, with the baseline's: the same posterior within 5 Monte Carlo errors."""
    monkeypatch.setattr(inference, "MANY_RUNS", 100)
    monkeypatch.setattr(inference, "FAINT_RUNS", 10)
    done: list[tuple[int, int]] = []
    found = bl.fit(bl.select(runs, "probe == 'baseline'"), seed=5, progress=lambda *both: done.append(both))
    assert found.attrs["converged"] == 1
    assert done[-1] == (4 * 2500,) * 2
    ours, theirs = summarise(found), summarise(baseline_post)
    for name in (*LAW, "sigma"):
        error = np.hypot(*(one.loc[name, "sd"] / np.sqrt(one.loc[name, "ess_bulk"]) for one in (ours, theirs)))
        assert abs(ours.loc[name, "mean"] - theirs.loc[name, "mean"]) < 5 * error, name
        assert ours.loc[name, "sd"] == pytest.approx(theirs.loc[name, "sd"], rel=0.1), name
