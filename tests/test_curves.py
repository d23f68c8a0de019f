"""The law at posterior draws."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from bayesloop.curves import (
    design_of,
    expected_loss,
    iso_flop,
    iso_flop_curves,
    parabola_minimum,
    probe_runs,
    residuals,
)
from bayesloop.laws import Design
from bayesloop.posterior import PosteriorError
from tests.posteriors import grid, law, posterior

EXACT = {"rtol": 1e-12}  # the same formula in another order of operations, in float64


def draws_of(post, name):
    return post["posterior"][name].to_numpy().reshape(-1, *post["posterior"][name].shape[2:])


@pytest.mark.parametrize("phi_dims", [(), ("probe",), ("probe", "r")])
def test_expected_loss_is_the_law_at_every_draw(phi_dims):
    runs = grid(looped=("baseline", "truncated"))
    post = posterior(runs, phi_dims)
    loss = expected_loss(post, design_of(runs), list(runs["probe"]))
    probes, counts = ["baseline", "truncated"], [2, 4]
    phi = draws_of(post, "phi")
    values = {name: draws_of(post, name)[:, None] for name in ("E", "A", "B", "alpha", "beta")}
    for i, run in runs.iterrows():
        index = {"probe": probes.index(run["probe"]), "r": counts.index(run["r"]) if run["r"] > 1 else 0}
        own = phi[(slice(None), *(index[dim] for dim in phi_dims))][:, None]
        np.testing.assert_allclose(loss[:, [i]], law(values, own, run), **EXACT)


def test_one_probe_for_all_runs_is_that_probe_for_each():
    runs = grid(looped=("truncated",))
    post = posterior(runs)
    design = design_of(runs)
    np.testing.assert_array_equal(expected_loss(post, design, "truncated"),
                                  expected_loss(post, design, ["truncated"] * len(runs)))


def test_fixed_parameters_hold_their_value():
    runs = grid()
    post = posterior(runs, fix={"phi": 1.0})
    values = {name: draws_of(post, name)[:, None] for name in ("E", "A", "B", "alpha", "beta")}
    expected = np.hstack([law(values, 1.0, run) for _, run in runs.iterrows()])
    np.testing.assert_allclose(expected_loss(post, design_of(runs), "baseline"), expected, **EXACT)


def test_laws_of_separate_fits_are_kept_apart():
    runs = grid(looped=("baseline", "truncated"))
    post = posterior(runs, share="none")
    group = post["posterior"].to_dataset()
    post["posterior"] = group.assign({"E": group["E"] + xr.DataArray([0.0, 0.5], {"probe": group["probe"].data})})
    design = design_of(runs[runs["r"] == 1])
    shifted = expected_loss(post, design, "truncated") - expected_loss(post, design, "baseline")
    np.testing.assert_allclose(shifted, 0.5, **EXACT)
    with pytest.raises(PosteriorError, match="no E for probe = mine; it has baseline, truncated"):
        expected_loss(post, design, "mine")


def test_draws_are_thinned_evenly():
    runs = grid()
    post = posterior(runs, n_draws=50)
    every, some = (expected_loss(post, design_of(runs), "baseline", n) for n in (1000, 30))
    assert every.shape == (100, len(runs))
    np.testing.assert_array_equal(some, every[::4])


def test_a_probe_or_count_without_phi_is_refused_unless_not_looped():
    runs = grid()
    post = posterior(runs, ("probe", "r"))
    looped = Design(1e7, 1e7, 3, 1e9)
    with pytest.raises(PosteriorError, match="no phi for r = 3"):
        expected_loss(post, looped, "baseline")
    with pytest.raises(PosteriorError, match="no phi for probe = mine"):
        expected_loss(post, looped._replace(r=2), "mine")
    plain = Design(1e7, 1e7, 1, 1e9)
    np.testing.assert_array_equal(expected_loss(post, plain, "mine"), expected_loss(post, plain, "baseline"))


def test_residuals_are_observed_minus_mean_of_expected():
    runs = grid(looped=("baseline", "truncated"))
    post = posterior(runs)
    shifted = posterior(runs.assign(loss=runs["loss"] + np.linspace(0, 0.1, len(runs))))
    np.testing.assert_allclose(residuals(shifted)["residual"] - residuals(post)["residual"],
                               np.linspace(0, 0.1, len(runs)), atol=1e-12)
    expected = expected_loss(post, design_of(runs), list(runs["probe"])).mean(axis=0)
    np.testing.assert_allclose(residuals(post)["residual"], runs["loss"] - expected, atol=1e-12)


def test_a_probe_without_r_1_runs_borrows_those_of_its_budgets():
    runs = pd.concat([grid(), grid(looped=("truncated",), budgets=(3e17,)).query("r > 1")], ignore_index=True)
    borrowed = probe_runs(posterior(runs), "truncated").query("r == 1")
    assert set(borrowed["probe"]) == {"baseline"}
    assert set(borrowed["budget"]) == {3e17}
    own = grid(budgets=(3e17,)).query("r == 1").assign(probe="truncated")
    with_own = posterior(pd.concat([runs, own], ignore_index=True))
    assert set(probe_runs(with_own, "truncated")["probe"]) == {"truncated"}
    with pytest.raises(PosteriorError, match=r"no run of probe 'mine'.*expected one of baseline, truncated"):
        probe_runs(with_own, "mine")


@pytest.mark.parametrize("r", [1, 2, 4])
def test_iso_flop_curves_pass_through_the_law_at_the_runs(r):
    runs = grid()
    post = posterior(runs)
    curve = iso_flop(post, "baseline", r, 6.0003e17)
    own = runs[(runs["r"] == r) & (runs["budget"] == 6e17)]
    at = [np.abs(np.log(curve.size / n)).argmin() for n in own["n_once"] + own["n_rec"]]
    np.testing.assert_allclose(curve.size[at], own["n_once"] + own["n_rec"], **EXACT)
    np.testing.assert_allclose(curve.loss[:, at], expected_loss(post, design_of(own), "baseline"), **EXACT)
    assert len(curve.runs) == len(own)
    assert (np.diff(curve.size) > 0).all()


def test_iso_flop_curves_follow_the_architecture_between_the_runs():
    every, some = grid(widths=(256, 384, 512, 640, 768, 896)), grid(widths=(256, 512, 640, 896))
    between = every[every["width"].isin((384, 768)) & (every["r"] == 4) & (every["budget"] == 6e17)]
    curve = iso_flop(posterior(some), "baseline", 4, 6e17, n_points=2001)
    tokens = np.interp(np.log(between["n_once"] + between["n_rec"]), np.log(curve.size), np.log(curve.design.tokens))
    np.testing.assert_allclose(np.exp(tokens), between["tokens"], rtol=5e-3)  # sizes a factor of 4 apart


def test_minimum_is_the_lowest_point_and_unknown_at_an_end():
    post = posterior(grid())
    curve = iso_flop(post, "baseline", 2, 6e17)
    size, loss = curve.minimum
    np.testing.assert_array_equal(loss, curve.loss.min(axis=1))
    assert np.isfinite(size).all()
    one_sided = iso_flop(posterior(grid(widths=(128, 256))), "baseline", 2, 6e17)
    assert np.isnan(one_sided.minimum[0]).all()


def test_single_and_repeated_sizes_make_curves():
    single = iso_flop(posterior(grid(widths=(384,))), "baseline", 2, 6e17)
    assert single.loss.shape == (60, 1)
    assert np.isnan(single.minimum[0]).all()
    runs = grid(widths=(256, 384))
    twice = iso_flop(posterior(pd.concat([runs, runs], ignore_index=True)), "baseline", 2, 6e17)
    once = iso_flop(posterior(runs), "baseline", 2, 6e17)
    np.testing.assert_allclose(twice.loss, once.loss, **EXACT)


def test_curves_need_budgets():
    runs = grid().drop(columns="budget")
    assert iso_flop_curves(posterior(runs), "baseline", 2) == []
    with pytest.raises(PosteriorError, match=r"no run of probe 'baseline' with r = 2 and budget 5e\+17"):
        iso_flop(posterior(grid()), "baseline", 2, 5e17)


def test_parabola_finds_a_known_minimum():
    size = np.array([1e7, 2e7, 4e7, 8e7])
    runs = pd.DataFrame({"n_once": size / 2, "n_rec": size / 2, "loss": 2.5 + 0.1 * np.log(size / 3e7) ** 2})
    assert parabola_minimum(runs) == pytest.approx((3e7, 2.5), rel=1e-9)
    for hidden in (runs[:2], runs.assign(loss=-runs["loss"]), runs.assign(loss=-np.log(size)),
                   runs.assign(loss=np.log(size / 9e7) ** 2)):
        assert np.isnan(parabola_minimum(hidden)).all()
