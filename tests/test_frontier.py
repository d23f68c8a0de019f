"""Compute-optimal models and their growth, against published numbers and finer searches."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy.optimize import minimize_scalar

import bayesloop as bl
from bayesloop.architecture import iso_depth
from bayesloop.frontier import minimise, optimum
from bayesloop.growth import exponents
from bayesloop.isoflop import polynomials, vertex
from bayesloop.pointposterior import as_posterior
from bayesloop.pooling import pool
from bayesloop.posterior import PosteriorError
from tests.posteriors import grid, law, posterior

PUBLISHED = {  # arXiv 2604.21106, compute-optimal scaling: exponents of N*, of D*; with exact FLOPs; parabolas' N*
    1: (0.57, 0.53, 0.50, 0.59, 0.54), 2: (0.70, 0.42, 0.62, 0.48, 0.60), 4: (0.76, 0.37, 0.67, 0.43, 0.62),
    8: (0.67, 0.44, 0.60, 0.49, 0.61)}


@pytest.fixture(scope="module")
def post() -> xr.DataTree:
    return posterior(grid(budgets=(3e17, 6e17, 12e17)))


@pytest.mark.parametrize("r", PUBLISHED)
def test_published_exponents_come_out_by_all_three_definitions(runs: pd.DataFrame, r: int) -> None:
    own = bl.select(runs, f"probe == 'baseline' and r == {r}")
    point = bl.point_fit(own, law="chinchilla", num_starts=100, num_bootstrap=0)
    table = exponents(as_posterior(point, own), r=[r]).set_index("definition")
    found = [*table.loc["closed form", ["size", "tokens"]], *table.loc["exact FLOPs", ["size", "tokens"]],
             table.loc["parabolas", "size"]]
    assert found == pytest.approx(PUBLISHED[r], abs=0.0100001)  # printed to two digits, both times
    redrawn = table.loc["parabolas", ["size_lower", "size", "size_upper"]].to_list()
    assert redrawn == sorted(redrawn)
    assert redrawn[0] < redrawn[2]


def test_published_gaps_to_r_1_come_out(runs: pd.DataFrame) -> None:
    own = bl.select(runs, "probe == 'baseline'")
    table = optimum(as_posterior(bl.point_fit(own, num_starts=50, num_bootstrap=0), own))
    for r, least, most in ((2, 0.03, 0.06), (4, 0.05, 0.08), (8, 0.09, 0.12)):
        gaps = table.loc[table["r"] == r, "parabola_gap"]
        assert (gaps.min(), gaps.max()) == pytest.approx((least, most), abs=0.0055)  # printed to two digits
    assert (table["loss_lower"] == table["loss_upper"]).all()  # one draw


@pytest.mark.parametrize("r", [1, 4])
def test_optima_are_those_of_a_finer_search(post: xr.DataTree, r: int) -> None:
    pooled = pool(post)
    found = minimise(pooled, "baseline", r, np.array([1e17, 5e18]))
    draw = {name: float(value[0, 7]) for name, value in post["posterior"].data_vars.items() if name != "phi"}
    phi = float(post["posterior"]["phi"][0, 7, 0])
    for i, budget in enumerate(found.budgets):
        def loss(log_width: float, budget: float = budget) -> float:
            once, rec, per_token = found.family.counts(np.exp(log_width), r)
            return float(law(draw, phi, {"n_once": once, "n_rec": rec, "r": float(r), "tokens": budget / per_token}))

        best = minimize_scalar(loss, bounds=(4, 11), method="bounded", options={"xatol": 1e-6})
        assert found.width[7, i] == pytest.approx(np.exp(best.x), rel=1e-3)
        assert found.loss[7, i] == pytest.approx(best.fun, abs=1e-7)
        assert found.size[7, i] == pytest.approx(sum(found.family.counts(np.exp(best.x), r)[:2]), rel=2e-3)
        assert found.tokens[7, i] * found.family.counts(found.width[7, i], r)[2] == pytest.approx(budget)


def test_optimum_table_is_consistent(post: xr.DataTree) -> None:
    table = optimum(post, budgets=[3e17, 6e18])
    assert list(table["r"]) == [1, 1, 2, 2, 4, 4]
    for name in ("size", "width", "tokens", "loss"):
        assert (table[f"{name}_lower"] < table[name]).all()
        assert (table[name] < table[f"{name}_upper"]).all()
    assert (table.loc[table["r"] == 1, ["gap", "gap_lower", "gap_upper"]] == 0).all(axis=None)
    assert (table.loc[table["r"] > 1, "gap_lower"] > 0).all()
    assert (table["best_penalty"] > -1e-4).all()  # whole steps may spend half a step more than the budget
    for row in table.itertuples():
        assert row.best_width % 128 == 0
        assert abs(row.best_width - row.width) < 128
        per_token = iso_depth(row.best_width, row.r).flops_per_token
        assert row.best_tokens == row.best_steps * 262_144
        assert row.best_tokens * per_token == pytest.approx(row.budget, rel=0.5 / row.best_steps)
    assert table["extrapolates"].map(bool).tolist() == [False, True] * 3
    assert "C 5× above" in table["extrapolates"][1]
    assert table["parabola_size"].notna().tolist() == [True, False] * 3


def test_other_families_have_other_optima(post: xr.DataTree) -> None:
    plain, other = optimum(post, r=[2]), optimum(post, r=[2], family={"vocab_size": 200_000})
    assert (other["loss"] > plain["loss"]).all()  # a larger head takes compute from the tokens
    with pytest.raises(PosteriorError, match="expected positive numbers of FLOP"):
        optimum(post, budgets=[-1.0])
    with pytest.raises(PosteriorError, match="no run of probe 'mine'"):
        optimum(post, probe="mine")


def test_closed_form_only_where_the_terms_keep_their_ratio(post: xr.DataTree) -> None:
    group = post["posterior"].to_dataset()
    kaplan, cross = (posterior(grid(budgets=(3e17, 6e17, 12e17)), law=name) for name in ("kaplan_recurrence",
                                                                                        "cross_recurrence"))
    kaplan["posterior"] = group.assign(kappa=xr.full_like(group["E"], 0.6))
    cross["posterior"] = group.assign(x=xr.full_like(group["E"], -0.3))
    known = [exponents(each, r=[2]).set_index("definition").loc["closed form", "size"]
             for each in (post, kaplan, cross)]
    assert known[0] == known[1]
    assert np.isnan(known[2])


def test_one_budget_has_no_growth(post: xr.DataTree) -> None:
    table = exponents(post, r=[2], budgets=[6e17]).set_index("definition")["size"]
    assert table[["exact FLOPs", "parabolas"]].isna().all()
    assert np.isfinite(table["closed form"])


@pytest.mark.parametrize("degree", [2, 3])
def test_polynomials_find_a_known_minimum_and_its_scatter(degree: int) -> None:
    rng = np.random.default_rng(3)
    x = np.log(np.geomspace(1e7, 1e8, 7))
    clean = 2.5 + 0.1 * (x - np.log(3e7)) ** 2 + (degree == 3) * 0.02 * (x - np.log(3e7)) ** 3
    def fit(losses: np.ndarray):
        runs = pd.DataFrame({"n_once": np.exp(x) / 2, "n_rec": np.exp(x) / 2, "budget": 1e18, "loss": losses})
        return polynomials(runs, np.array([1.0005e18, 2e18]), degree)

    exact = fit(clean)
    assert exact.size[0] == pytest.approx(3e7, rel=1e-4)
    assert exact.loss[0] == pytest.approx(2.5, abs=1e-6)
    assert np.isnan(exact.size[1])
    noise = 0.001 * rng.normal(size=(200, 7))
    spread = np.nanstd([np.log(fit(clean + each).size[0]) for each in noise])
    redrawn = np.nanmean([np.nanstd(np.log(fit(clean + each).sizes[:, 0])) for each in noise[:40]])
    assert redrawn == pytest.approx(spread, rel=0.3)  # scatter estimated from 3 or 4 spare runs


def test_vertex_is_unknown_at_an_end() -> None:
    x = np.linspace(0, 1, 11)
    place, lowest = vertex(x, np.stack([(x - 0.537) ** 2, x, -x]))
    assert place[0] == pytest.approx(0.537)
    assert lowest[0] == pytest.approx(0, abs=1e-12)
    assert np.isnan(place[1:]).all()
