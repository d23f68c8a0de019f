"""Losses of configurations, extrapolation in words, and equivalent sizes."""

from __future__ import annotations

import jax
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import bayesloop as bl
from bayesloop.architecture import ArchitectureError, iso_depth
from bayesloop.decisions import predict
from bayesloop.equivalents import equivalent
from bayesloop.frontier import optimum
from bayesloop.model import build_model
from bayesloop.pointposterior import as_posterior
from bayesloop.posterior import PosteriorError
from bayesloop.structures import RECIPES
from tests.posteriors import LOOPED_MODELS, grid, posterior, prior_as_posterior


@pytest.fixture(scope="module")
def post() -> xr.DataTree:
    return posterior(grid(looped=("baseline", "hyperconnections")))


def test_runs_of_the_table_are_predicted_within_their_interval(post: xr.DataTree) -> None:
    runs = grid()
    table = predict(post, runs)
    np.testing.assert_allclose(table["mean"], runs["loss"], rtol=2e-3)  # draws lie around the truth by 0.2 %
    assert (table["lower"] < runs["loss"]).all()
    assert (runs["loss"] < table["upper"]).all()
    assert (table["predictive_upper"] - table["predictive_lower"] > table["upper"] - table["lower"]).all()
    assert (table["extrapolates"] == "").all()


def test_width_and_budget_are_the_architectures(post: xr.DataTree) -> None:
    table = predict(post, {"r": [1, 4], "width": 512, "budget": 6e17})
    for row in table.itertuples():
        model = iso_depth(512, row.r)
        assert (row.n_once, row.n_rec) == (model.n_once(), model.n_rec())
        assert row.tokens == round(6e17 / model.flops_per_token / 262_144) * 262_144
        assert row.flops == row.tokens * model.flops_per_token
    by_tokens = predict(post, {"r": [1, 4], "width": 512, "tokens": table["tokens"]})
    pd.testing.assert_frame_equal(by_tokens, table)


def test_extrapolation_is_said_by_axis_and_factor(post: xr.DataTree) -> None:
    configs = {"r": 2, "width": [512, 512], "tokens": [6e8, 3e11]}
    inside, far = predict(post, configs)["extrapolates"]
    assert inside == ""
    most = grid()["tokens"].max()
    assert f"D {3e11 / most:.3g}× above" in far
    assert "C " in far
    assert "r 4× above" in predict(post, {"r": 16, "width": 512, "budget": 6e17})["extrapolates"][0]


def test_combinations_outside_the_hull_are_extrapolation_too() -> None:
    runs = grid(counts=(), widths=(256, 768)).assign(budget=np.nan)  # each size with its own tokens: a thin strip
    post = posterior(runs)
    big = runs[runs["width"] == 768].iloc[0]
    odd = predict(post, {"r": 1, "n_once": 0, "n_rec": big["n_rec"] * 0.9, "tokens": runs["tokens"].max() * 0.9})
    assert odd["extrapolates"][0] == "N_eff and D in a combination that was not run"


def test_laws_that_disagree_widen_the_interval(post: xr.DataTree) -> None:
    other = posterior(grid(looped=("baseline", "hyperconnections")), law="kaplan_recurrence")
    other["posterior"] = other["posterior"].to_dataset().assign(kappa=xr.full_like(other["posterior"]["E"], 0.8))
    config = {"r": 2, "width": 512, "budget": 6e17}
    one, both = predict(post, config), predict([post, other], config)
    assert set(both.attrs["laws"]) == {"recurrence", "kaplan_recurrence"}
    low, high = sorted(loss[0] for loss in both.attrs["laws"].values())
    assert both["lower"][0] < low < high < both["upper"][0]
    assert both["sd"][0] > 2 * one["sd"][0]
    weighted = predict([post, other], config, weights=[1, 0])
    np.testing.assert_allclose(weighted["mean"], one["mean"])


@pytest.mark.parametrize(("config", "error", "message"), [
    ({"width": 512, "budget": 1e18}, PosteriorError, "needs r"),
    ({"r": 2, "budget": 1e18}, PosteriorError, "needs width, or n_once and n_rec"),
    ({"r": 2, "width": 512}, PosteriorError, "needs tokens or budget"),
    ({"r": 2, "n_once": 1e6, "n_rec": 1e6, "budget": 1e18}, PosteriorError, "given by its counts needs tokens"),
    ({"r": 2.5, "width": 512, "budget": 1e18}, PosteriorError, "r is 2.5; expected a whole number"),
    ({"r": 2, "width": 512, "budget": -1e18}, PosteriorError, "budget is -1e"),
    ({"r": 2, "width": 500, "budget": 1e18}, ArchitectureError, "width 500 is not a multiple of the head dimension"),
    ({"r": 5, "width": 512, "budget": 1e18}, ArchitectureError, "does not divide"),
    ({"r": 2, "width": 512, "budget": 1e10}, ArchitectureError, "less than half a step"),
    ({"r": 2, "width": 512, "budget": 1e18, "probe": "hyperconnection"}, PosteriorError,
     "did you mean 'hyperconnections'"),
])
def test_faults_are_named(post: xr.DataTree, config: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        predict(post, config)


def test_equivalent_size_of_the_paper(runs: pd.DataFrame) -> None:
    """arXiv 2604.21106: 1B plain, same-width r = 4: 410M unique, performs like 580M, costs 1.03 times as much."""
    once = bl.read_runs("data/paper_grid.csv", injection="once")
    own = bl.select(once, "probe == 'baseline'")
    point = bl.point_fit(own, num_starts=100, num_bootstrap=0)
    row = equivalent(as_posterior(point, own), 4, plain_size=1e9).iloc[0]
    assert row["unique_ratio"] == pytest.approx(0.41, abs=0.005)
    assert row["equivalent_ratio"] == pytest.approx(0.58, abs=0.01)
    assert row["cost_ratio"] == pytest.approx(1.03, abs=0.005)


def test_equivalent_size_against_the_formula(post: xr.DataTree) -> None:
    table = equivalent(post, [1, 2], width=[512, 768], probe="hyperconnections")
    assert list(table["r"]) == [1, 1, 2, 2]
    np.testing.assert_allclose(table["n_equivalent"][:2], table["n_plain"][:2], rtol=1e-9)
    np.testing.assert_allclose(table["cost_equivalent"][:2], 1, rtol=1e-4)  # a width interpolated in log size
    phi = post["posterior"]["phi"].sel(probe="hyperconnections").to_numpy()
    model = iso_depth(768, 2, scheme="hyperconnect", lanes=2)
    expected = model.n_once() + 2**phi * model.n_rec()
    assert table["n_equivalent"][3] == pytest.approx(np.quantile(expected, 0.5, method="nearest"), rel=1e-9)
    assert (table["unmatched"] == 0).all()
    assert (table["extrapolates"] == "").all()
    assert "N_eff" in equivalent(post, 2, plain_size=1e9)["extrapolates"][0]
    assert table["n_equivalent_lower"][3] == pytest.approx(np.quantile(expected, 0.025, method="nearest"), rel=1e-9)
    assert "no r = 1 run of this recipe" in table.attrs["notes"][0]
    assert equivalent(post, 2, width=512).attrs["notes"] == []


@pytest.mark.parametrize("options", LOOPED_MODELS, ids=str)
def test_every_law_error_model_structure_and_recipe_term_decides(options: dict[str, str]) -> None:
    runs = grid(("baseline", "hyperconnections"))
    model = build_model(runs, **options)
    post = prior_as_posterior(model, runs=runs)
    draws = {name: value.to_numpy()[0] for name, value in post["posterior"].data_vars.items()}
    losses = jax.vmap(lambda one: model.predictive(one, model.layout.data)[0])(draws)
    table = predict(post, runs)
    np.testing.assert_allclose(table["mean"], losses.mean(axis=0), rtol=1e-9)
    assert (table["predictive_upper"] - table["predictive_lower"] > 0).all()
    table = predict(post, {"probe": "hyperconnections", "r": [2], "width": 512, "budget": 6e17})
    best = optimum(post, [2], [6e17], "hyperconnections")
    assert best["loss"][0] <= table["mean"][0] + 3 * table["sd"][0]
    like = equivalent(post, 2, width=512, probe="hyperconnections", tokens=3e9)
    assert like["n_equivalent_lower"][0] <= like["n_equivalent"][0] <= like["n_equivalent_upper"][0]


DEPENDENT = [*({"recipe": name} for name in RECIPES if name != "none"), {"phi": "trend"}]


@pytest.mark.parametrize("options", DEPENDENT, ids=str)
def test_equivalent_size_at_given_tokens_has_the_loss(options: dict[str, str]) -> None:
    """P(N) = P(N_eff) + (exp(rho) − 1) Q + delta solved by hand, at every draw, in the additive law."""
    runs = grid(("baseline", "hyperconnections"))
    post = prior_as_posterior(build_model(runs, **options), n=200, runs=runs)
    draws = {name: value.to_numpy()[0] for name, value in post["posterior"].data_vars.items()}
    with pytest.raises(PosteriorError, match="depends on the tokens; give them"):
        equivalent(post, 2, width=512, probe="hyperconnections")
    tokens = 3e9
    model = iso_depth(512, 2, scheme="hyperconnect", lanes=2)
    phi = draws["phi"][:, 1]
    if "phi_slope" in draws:
        compute = 6 * (model.n_once() + 2 * model.n_rec()) * tokens
        phi = phi + draws["phi_slope"] * np.log10(compute / post.attrs["compute"])
    place = post["posterior"]["recipe"].to_numpy().tolist().index("hyperconnections") if "recipe" in options else 0
    rho, delta = (draws[name][:, place] if name in draws else 0.0 for name in ("rho", "delta"))
    term = draws["A"] * (model.n_once() + 2**phi * model.n_rec()) ** -draws["alpha"]
    term = term + np.expm1(rho) * draws["B"] * tokens ** -draws["beta"] + delta
    with np.errstate(invalid="ignore", divide="ignore"):
        sizes = np.where(term > 0, (np.maximum(term, 0) / draws["A"]) ** (-1 / draws["alpha"]), np.inf)
    n_unique = model.n_once() + model.n_rec()
    sizes = np.where(sizes > 1e3 * n_unique, np.inf, np.where(sizes < 1e-3 * n_unique, 0.0, sizes))
    row = equivalent(post, 2, width=512, probe="hyperconnections", tokens=tokens).iloc[0]
    assert row["unmatched"] == pytest.approx(np.mean((sizes == 0) | np.isinf(sizes)), abs=0.006)
    for name, level in (("n_equivalent", 0.5), ("n_equivalent_lower", 0.025), ("n_equivalent_upper", 0.975)):
        assert row[name] == pytest.approx(np.quantile(sizes, level, method="nearest"), rel=1e-3)
    if not options.get("recipe", "looped").startswith("looped"):
        assert len(equivalent(post, 2, width=512)) == 1  # the recipe's effect is not the baseline's


@pytest.mark.parametrize(("more", "message"), [
    ({}, "either as width or as plain_size"), ({"width": 512, "plain_size": 1e9}, "either as width or as plain_size"),
    ({"width": -1}, "expected positive"),
    ({"width": 512, "tokens": [3e9, 0]}, "tokens .* expected positive"),
    ({"width": 512, "probe": "mine"}, "no run of probe 'mine'"),
])
def test_equivalent_faults(post: xr.DataTree, more: dict, message: str) -> None:
    with pytest.raises(PosteriorError, match=message):
        equivalent(post, 2, **more)
