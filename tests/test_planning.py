"""Planned runs: their information against second derivatives, refits and exhaustive search."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy.optimize import least_squares
from scipy.stats import norm

import bayesloop as bl
from bayesloop.designs import DesignError, design_runs, gpu_hours, read_design
from bayesloop.information import information
from bayesloop.model import build_model
from bayesloop.planning import cheapest, plan, rank
from bayesloop.posterior import PosteriorError
from tests.posteriors import LOOPED_MODELS, PHI, TRUTH, grid, law, posterior, prior_as_posterior

PRIORS = ('{"E": "LogNormal(0.4, 0.5)", "A": "LogNormal(4.6, 1.5)", "B": "LogNormal(6.9, 2.0)", '
          '"alpha": "LogNormal(-1.4, 0.4)", "beta": "LogNormal(-1.0, 0.4)", "phi": "Normal(0.5, 0.5)"}')
SPREAD = {"E": 0.5, "A": 1.5, "B": 2.0, "alpha": 0.4, "beta": 0.4}


@pytest.fixture(scope="module")
def post() -> xr.DataTree:
    return posterior(grid(looped=("baseline", "truncated")), priors=PRIORS, data_sha256="x")


def test_information_is_the_curvature_of_the_log_posterior() -> None:
    """Against the Hessian of a Normal log posterior written out here, at a point where the residuals are zero."""
    runs = grid()
    post = posterior(runs, n_chains=1, n_draws=1, priors=PRIORS)
    values = {name: float(value.squeeze()) for name, value in post["posterior"].data_vars.items()}
    names = ["E", "A", "B", "alpha", "beta"]
    point = jnp.array([*(np.log(values[name]) for name in names), values["phi"]])
    table = {name: jnp.asarray(runs[name].to_numpy(float)) for name in ("n_once", "n_rec", "r", "tokens")}

    def log_mean(theta):
        return jnp.log(law(dict(zip(names, jnp.exp(theta[:5]), strict=True)), theta[5], table))

    target = log_mean(point)

    def minus_log_posterior(theta):
        prior = sum(((theta[i] - point[i]) / SPREAD[name]) ** 2 for i, name in enumerate(names))
        return (jnp.sum(((log_mean(theta) - target) / values["sigma"]) ** 2) + prior
                + ((theta[5] - point[5]) / 0.5) ** 2) / 2

    expected = np.linalg.inv(jax.hessian(minus_log_posterior)(point))
    about = information(post, runs)
    assert about.names == ["E", "A", "B", "alpha", "beta", "phi[baseline]"]
    # the priors' spread is that of 2000 draws: 3 % and more
    np.testing.assert_allclose(about.covariance(np.arange(len(runs)))[0], expected, rtol=0.1,
                               atol=0.05 * np.abs(expected).min())
    sd = np.sqrt(about.variance(about.target("baseline"), np.arange(len(runs))))
    assert sd[0] == pytest.approx(np.sqrt(expected[5, 5]), rel=0.01)


@pytest.mark.parametrize(("name", "probes"), [("baseline_post", ("baseline",)), ("probes_post", (
    "baseline", "truncated", "hyperconnections"))])
def test_the_expected_width_of_what_was_run_is_the_posteriors(request: pytest.FixtureRequest, name: str,
                                                              probes: tuple[str, ...]) -> None:
    post = request.getfixturevalue(name)
    table = plan(post).set_index(["quantity", "probe"])["sd"]
    phi = post["posterior"]["phi"]
    for probe in probes:
        own = phi.sel(probe=probe)
        # a Normal approximation, and draws with an error of 2 %
        assert table["phi", probe] == pytest.approx(float(own.std()), rel=0.12)
        if probe != "baseline":
            assert table["delta", probe] == pytest.approx(float((own - phi.sel(probe="baseline")).std()), rel=0.12)


def test_more_runs_tell_more_and_a_new_probe_needs_looped_ones(post: xr.DataTree) -> None:
    few = design_runs(post, [3e17], [4], widths=[256, 512], probe="mine")
    many = design_runs(post, [3e17], [4], widths=[256, 512], probe="mine", repeats=4)
    half = {len(design): plan(post, design).set_index(["quantity", "probe"])["half_width"]["delta", "mine"]
            for design in (few, many)}
    assert half[2] > half[8] > half[2] / 2  # the baseline's φ stays as unsure as it is
    plain = design_runs(post, [3e17], [1], widths=[256], probe="mine")
    assert "mine" not in set(plan(post, plain)["probe"])
    with pytest.raises(PosteriorError, match="no looped run of probe 'mine'"):
        rank(post, plain, probe="mine")


def test_probability_of_detection_is_that_of_the_interval(post: xr.DataTree) -> None:
    design = design_runs(post, [3e17], [2, 4], widths=[256, 512], probe="mine")
    row = plan(post, design).set_index(["quantity", "probe"]).loc[("delta", "mine")]
    at = plan(post, design, delta=row["detectable"]).set_index(["quantity", "probe"]).loc[("delta", "mine")]
    assert at["p_detect"] == pytest.approx(0.8, abs=0.03)  # the spread over draws enters
    assert row["half_width"] / row["sd"] == pytest.approx(norm.ppf(0.975))
    assert plan(post, design, delta=0.0)["p_detect"].max() == pytest.approx(0.025, abs=0.001)


def test_cost_is_exact(post: xr.DataTree) -> None:
    design = design_runs(post, [3e17, 6e17], [1, 2], sizes=[4, 8])
    table = plan(post, design, mfu=0.5, peak=1e15)
    assert table.attrs["flops"] == design["flops"].sum()
    assert table.attrs["gpu_hours"] == pytest.approx(design["flops"].sum() / 0.5e15 / 3600)
    assert gpu_hours(3.6e18, 1.0, 1e15) == 1.0


def test_a_recipe_effect_takes_what_looped_runs_alone_tell(post: xr.DataTree) -> None:
    looped = design_runs(post, [3e17, 6e17], [2, 4], widths=[256, 512, 768], probe="mine")
    plain = design_runs(post, [3e17, 6e17], [1], widths=[256, 512, 768], probe="mine")
    half = [plan(post, design, recipes=recipes).set_index(["quantity", "probe"])["half_width"]["delta", "mine"]
            for design, recipes in ((looped, []), (looped, ["mine"]), (pd.concat([looped, plain]), ["mine"]))]
    assert half[1] > 1.5 * half[0]
    assert half[2] < 0.85 * half[1]


def test_r_1_runs_of_the_recipe_are_worth_most_for_hyperconnections(probes_post: xr.DataTree) -> None:
    candidates = pd.concat([design_runs(probes_post, [4.64e17, 1e18], [1, 2, 4, 8], sizes=[6, 8, 10, 12], probe=probe)
                            for probe in ("baseline", "hyperconnections")], ignore_index=True)
    asked = {"probe": "hyperconnections", "reference": "baseline"}
    with_recipe = rank(probes_post, candidates, recipes=["hyperconnections"], **asked)
    assert set(zip(with_recipe["probe"][:3], with_recipe["r"][:3], strict=True)) == {("hyperconnections", 1)}
    assert with_recipe["per_flop"].is_monotonic_decreasing
    without = rank(probes_post, candidates, **asked)
    assert not ((without["probe"][:10] == "hyperconnections") & (without["r"][:10] == 1)).any()
    assert with_recipe.attrs["sd"] > 1.5 * without.attrs["sd"]


def _fitted_phi(table: pd.DataFrame, log_loss: np.ndarray) -> float:
    """Least squares with the priors as pseudo-observations, by SciPy and the law in numpy."""
    names = ["E", "A", "B", "alpha", "beta"]
    truth = np.array([*(np.log(TRUTH[name]) for name in names), PHI["baseline"]])
    spread = np.array([*SPREAD.values(), 0.5])

    def misfit(theta):
        mean = np.log(law(dict(zip(names, np.exp(theta[:5]), strict=True)), theta[5], table))
        return np.concatenate([(mean - log_loss) / TRUTH["sigma"], (theta - truth) / spread])

    return least_squares(misfit, truth, method="lm", x_scale=spread).x[5]


@pytest.mark.slow
def test_reductions_are_those_of_brute_force_refits() -> None:
    """Scatter of refitted φ over simulated losses, with and without a candidate, by plain least squares.

    Bayesian posterior variance at fixed truth exceeds the estimator's by the priors' share, which is small here.
    """
    runs = grid(budgets=(3e17, 6e17, 12e17), counts=(2, 8))
    post = posterior(runs, n_chains=1, n_draws=1, priors=PRIORS)
    candidates = pd.concat([design_runs(post, [budget], [r], widths=[width]) for budget, r, width in (
        (3e17, 1, 256), (12e17, 8, 256), (3e17, 8, 768), (12e17, 1, 768), (12e17, 2, 512))], ignore_index=True)
    predicted = rank(post, candidates)
    rng, number = np.random.default_rng(0), 300
    noise = TRUTH["sigma"] * rng.normal(size=(number, len(runs)))
    extra = TRUTH["sigma"] * rng.normal(size=(number, 1))
    clean = np.log(runs["loss"].to_numpy())
    before = np.var([_fitted_phi(runs, clean + each) for each in noise])
    found = []
    for _, candidate in candidates.iterrows():
        table = pd.concat([runs, candidate.to_frame().T], ignore_index=True).astype(
            dict.fromkeys(("n_once", "n_rec", "r", "tokens"), float))
        mean = np.log(law(TRUTH, PHI["baseline"], table).to_numpy())
        after = np.var([_fitted_phi(table, mean + np.append(each, more)) for each, more in
                        zip(noise, extra, strict=True)])
        found.append(1 - after / before)
    order = {(row.r, row.width, row.budget): row.reduction for row in predicted.itertuples()}
    expected = [order[row.r, row.width, row.budget] for row in candidates.itertuples()]
    # paired refits share their noise, so differences are known to a few percent of the variance
    np.testing.assert_allclose(found, expected, atol=0.04)
    assert np.argmax(found) == np.argmax(expected)


def test_the_cheapest_part_is_enough_and_near_the_best(post: xr.DataTree) -> None:
    own = grid(budgets=(3e17,), counts=(4,), widths=(256, 384, 512, 768))
    small = posterior(own, priors=PRIORS)
    about = information(small, own, like="baseline")
    target = about.target("baseline")
    z = norm.ppf(0.975)
    best = min((combination for size in range(1, 9) for combination in combinations(range(8), size)
                if z * np.sqrt(about.variance(target, np.array(combination))).mean() <= 0.35), key=len)
    chosen, steps = cheapest(small, 0.35, unit="run", cost="runs")
    assert len(best) <= len(chosen) <= len(best) + 1
    assert z * plan(small, chosen, existing=False)["sd"][0] <= 0.35
    assert steps["n_runs"].is_monotonic_increasing
    assert steps["half_width"].is_monotonic_decreasing
    assert steps["n_runs"].iloc[-1] == 8


def test_cells_are_left_out_whole_and_existing_runs_cost_nothing(post: xr.DataTree) -> None:
    chosen, _ = cheapest(post, 0.3, unit="cell")
    sizes = chosen.groupby(["probe", "budget", "r"]).size()
    assert (sizes == 5).all()
    design = design_runs(post, [3e17, 6e17], [2, 4], widths=[256, 512, 768], probe="mine")
    alone = plan(post, design)
    goal = 1.2 * alone.set_index(["quantity", "probe"])["half_width"]["delta", "mine"]
    part, steps = cheapest(post, goal, design, existing=True, probe="mine", reference="baseline", unit="run")
    assert 0 < len(part) < len(design)
    assert set(part["probe"]) == {"mine"}
    assert steps["n_runs"].max() == len(design)


@pytest.mark.parametrize(("call", "message"), [
    (lambda post: cheapest(post, 1e-4), r"posterior's own \d+ runs are expected to give"),
    (lambda post: cheapest(post, 0.1, unit="width"), "expected one of cell, run"),
    (lambda post: plan(post, existing=False), "no runs"),
    (lambda post: rank(post, pd.DataFrame({"r": [1]})), "the design lacks probe, n_once"),
    (lambda post: design_runs(post, [1e18], [2]), "either widths or sizes"),
    (lambda post: design_runs(post, [], [2], widths=[512]), "no runs"),
    (lambda post: rank(post, grid(), probe="truncated", reference="mine"), "no looped run of probe 'mine'"),
    (lambda post: plan(post, reference="basline"), "reference 'basline': no looped run of it"),
    (lambda post: plan(posterior(grid(), fix={"phi": 0.5}, priors=PRIORS)), "φ of baseline is held at a value"),
])
def test_faults_are_named(post: xr.DataTree, call, message: str) -> None:
    with pytest.raises((DesignError, PosteriorError), match=message):
        call(post)


def test_posteriors_that_cannot_be_planned_with() -> None:
    runs = grid()
    with pytest.raises(PosteriorError, match="did not converge"):
        plan(posterior(runs, priors=PRIORS, converged=0))
    with pytest.raises(PosteriorError, match="share the law"):
        plan(posterior(runs, priors=PRIORS, share="none"))
    with pytest.raises(PosteriorError, match="law with φ"):
        plan(posterior(runs, priors=PRIORS, law="chinchilla"))


def test_what_runs_miss_by_together_counts_as_in_their_joint_density() -> None:
    """Against the inverse Hessian of the log posterior with the runs' covariance written out."""
    runs = grid()
    post = posterior(runs, n_chains=1, n_draws=1, priors=PRIORS, errors="budget")
    post["posterior"] = post["posterior"].to_dataset().assign(sigma_budget=(("chain", "draw"), [[0.008]]))
    names = ["E", "A", "B", "alpha", "beta"]
    values = {name: float(value.squeeze()) for name, value in post["posterior"].data_vars.items()}
    point = jnp.array([*(np.log(values[name]) for name in names), values["phi"]])
    table = {name: jnp.asarray(runs[name].to_numpy(float)) for name in ("n_once", "n_rec", "r", "tokens")}
    same = runs["budget"].to_numpy()[:, None] == runs["budget"].to_numpy()
    precision = np.linalg.inv(values["sigma"] ** 2 * np.eye(len(runs)) + values["sigma_budget"] ** 2 * same)

    def log_mean(theta):
        return jnp.log(law(dict(zip(names, jnp.exp(theta[:5]), strict=True)), theta[5], table))

    slope = np.asarray(jax.jacobian(log_mean)(point))
    spread = np.array([*SPREAD.values(), 0.5])[[0, 1, 2, 3, 4, 5]]
    expected = np.linalg.inv(slope.T @ precision @ slope + np.diag(spread**-2.0))
    about = information(post, runs)
    assert about.names[6:] == ["together[0]", "together[1]"]
    sd = np.sqrt(about.variance(about.target("baseline"), np.arange(len(runs))))
    assert sd[0] == pytest.approx(np.sqrt(expected[5, 5]), rel=0.01)
    independent = information(posterior(runs, n_chains=1, n_draws=1, priors=PRIORS), runs)
    assert about.variance(about.target("baseline"), np.arange(len(runs)))[0] != pytest.approx(
        independent.variance(independent.target("baseline"), np.arange(len(runs)))[0], rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("options", [
    {"phi": "probe_r_pooled"}, {"law": "cross_recurrence", "phi": "probe_r", "recipe": "data_factor"}], ids=str)
def test_the_expected_width_is_the_posteriors_in_other_models(runs: pd.DataFrame, options: dict[str, str]) -> None:
    post = bl.fit(bl.select(runs, "budget <= 4.64e18"), **options)
    table = plan(post).set_index(["quantity", "probe"])["sd"]
    phi = post["posterior"]["phi"]
    phi = phi.mean("r") if "r" in phi.dims else phi
    for probe in ("truncated", "hyperconnections"):
        delta = phi.sel(probe=probe) - phi.sel(probe="baseline")
        assert table["phi", probe] == pytest.approx(float(phi.sel(probe=probe).std()), rel=0.12)
        assert table["delta", probe] == pytest.approx(float(delta.std()), rel=0.12)


@pytest.mark.parametrize("options", [*LOOPED_MODELS, {"phi": "probe_r_pooled", "fix": {"phi_mean": 0.4}}], ids=str)
def test_every_law_error_model_structure_and_recipe_term_can_be_planned_with(options: dict[str, Any]) -> None:
    """A new recipe, an r that was never run, and planning as it is documented: more runs tell more."""
    known = grid(looped=("baseline", "truncated"), widths=(256, 512, 768))
    post = prior_as_posterior(build_model(known, **options), runs=known)
    mine = [design_runs(post, [6e17], [1, 2, 16], widths=[256, 512], probe="mine", repeats=n) for n in (1, 3)]
    few, many = (plan(post, design).set_index(["quantity", "probe"])["sd"] for design in mine)
    assert np.isfinite(few).all()
    assert (many <= few * (1 + 1e-6)).all()
    assert few["phi", "mine"] < 1.0
    ranked = rank(post, mine[0], probe="mine" if options.get("phi") == "one" else "baseline")
    assert (ranked["reduction"] >= -1e-9).all()


@pytest.mark.parametrize(("dims", "phi"), [((), "one"), (("probe", "r"), "probe_r")])
def test_other_structures_of_phi(dims: tuple[str, ...], phi: str) -> None:
    post = posterior(grid(looped=("baseline", "truncated")), dims, priors=PRIORS, phi=phi)
    table = plan(post, design_runs(post, [3e17], [2, 4], widths=[256, 512, 768], probe="mine"))
    assert set(table["probe"]) == {"baseline", "truncated", "mine"}
    assert np.isfinite(table["sd"]).all()
    assert ("delta" in set(table["quantity"])) == bool(dims)  # one φ has no differences


def test_phi_is_planned_for_itself_whatever_its_prior() -> None:
    """A prior on the positive numbers alone, of the same width, changes nothing that many runs tell."""
    runs = grid(looped=("baseline", "truncated"))
    one, other = (plan(posterior(runs, priors=PRIORS.replace("Normal(0.5, 0.5)", text)))["sd"]
                  for text in ("Normal(0.5, 0.29)", "Uniform(0, 1)"))
    np.testing.assert_allclose(one, other, rtol=0.02)


def test_differences_are_taken_over_the_r_of_both() -> None:
    by_r = posterior(grid(looped=("baseline", "truncated")), ("probe", "r"), priors=PRIORS, phi="probe_r")
    about = information(by_r, pd.concat([grid(), grid(looped=("mine",), counts=(4,)).query("probe == 'mine'")]))
    weights = dict(zip(about.names, about.target("mine", "baseline"), strict=True))
    assert weights["phi[mine, 4]"] == 1
    assert weights["phi[baseline, 4]"] == -1
    assert weights["phi[baseline, 2]"] == 0
    apart = pd.concat([grid(counts=(2,)), grid(looped=("mine",), counts=(4,)).query("probe == 'mine'")])
    with pytest.raises(PosteriorError, match="no looped r in common"):
        information(by_r, apart).target("mine", "baseline")
    assert set(plan(by_r, apart, existing=False)["quantity"]) == {"phi"}


def test_a_recipe_term_that_no_planned_run_has_plays_no_part() -> None:
    known = grid(looped=("baseline", "truncated"))
    post = prior_as_posterior(build_model(known, recipe="data_factor"), runs=known)
    assert set(plan(post, grid(), existing=False)["probe"]) == {"baseline"}


def test_without_budgets_compute_follows_from_parameters_and_tokens() -> None:
    runs = grid().drop(columns="budget")
    chosen, steps = cheapest(posterior(runs, priors=PRIORS), 0.35, unit="run", cost="flops")
    assert 0 < len(chosen) < len(runs)
    whole = 6 * ((runs["n_once"] + runs["r"] * runs["n_rec"]) * runs["tokens"]).sum()
    assert steps["flops"].iloc[-1] == pytest.approx(whole)


def test_designs_from_toml(post: xr.DataTree, tmp_path: Path) -> None:
    path = tmp_path / "design.toml"
    path.write_text('[[runs]]\nprobe = "mine"\nr = 2\nbudgets = [3e17, 6e17]\nsizes = [4, 8]\nrepeats = 2\n'
                    '[[runs]]\nr = [1]\nbudgets = 3e17\nwidths = [256]\nmodel = {vocab_size = 1000}\n')
    design = read_design(post, path)
    assert len(design) == 9
    pd.testing.assert_frame_equal(design[:8], design_runs(post, [3e17, 6e17], [2], sizes=[4, 8], probe="mine",
                                                          repeats=2))
    for text, message in (("runs = 3", "one or more tables"), ("[[runs]]\nrr = 1", "did you mean 'r'"),
                          ("[[runs]]\nr = 1\nwidths = [256]", "needs budgets and r"), ("[[runs", "not TOML")):
        path.write_text(text)
        with pytest.raises(DesignError, match=message):
            read_design(post, path)
    with pytest.raises(DesignError, match="cannot be read"):
        read_design(post, tmp_path / "none.toml")
