"""φ and Δφ: from joint draws, with warnings where the runs cannot carry the difference."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import bayesloop as bl
from bayesloop.posterior import PosteriorError
from bayesloop.robust import phi_quantities
from tests.posteriors import grid, posterior


def made_up(phi: np.ndarray, probes: list[str], **attrs: object) -> xr.DataTree:
    """A posterior with given draws of phi, shape (chain, draw, probe), and four runs of each probe."""
    runs = [(probe, r, 1e6 * (i + 1)) for i, probe in enumerate(probes) for r in (2, 4)]
    columns = {"probe": ("run", np.array([run[0] for run in runs])), "r": ("run", np.array([run[1] for run in runs]))}
    columns |= {name: ("run", np.array([run[2] for run in runs])) for name in ("n_once", "n_rec", "tokens")}
    posterior = xr.Dataset({"phi": (("chain", "draw", "probe"), phi)}, coords={"probe": probes})
    observed = xr.Dataset({"loss": ("run", np.array([run[2] for run in runs]))})
    return xr.DataTree.from_dict({"/": xr.Dataset(attrs={"converged": 1, "share": "law", "verdict": "", **attrs}),
                                  "posterior": posterior, "constant_data": xr.Dataset(columns),
                                  "observed_data": observed})


def draws(seed: int, *means: float) -> np.ndarray:
    common = np.random.default_rng(seed).normal(0, 0.1, (4, 500, 1))
    return np.asarray(means) + common + np.random.default_rng(seed + 1).normal(0, 0.01, (4, 500, len(means)))


def test_differences_come_from_joint_draws() -> None:
    """What the probes have in common cancels: the difference is ten times sharper than either φ."""
    table = bl.compare(made_up(draws(0, 0.4, 0.5), ["baseline", "mine"])).set_index("probe")
    assert table.loc["mine", "delta_mean"] == pytest.approx(0.1, abs=0.002)
    assert table.loc["mine", "delta_sd"] == pytest.approx(0.01 * np.sqrt(2), rel=0.1)
    assert table.loc["mine", "sd"] == pytest.approx(0.1, rel=0.1)
    assert np.isnan(table.loc["baseline", "delta_mean"])
    assert table.loc["mine", "p_positive"] == 1


def test_region_of_practical_equivalence() -> None:
    post = made_up(draws(0, 0.4, 0.4), ["baseline", "mine"])
    inside = bl.compare(post, rope=0.014).set_index("probe").loc["mine", "in_rope"]
    assert inside == pytest.approx(0.678, abs=0.05)  # one standard deviation of the difference
    assert bl.compare(post, rope=(0, 1)).set_index("probe").loc["mine", "in_rope"] == pytest.approx(0.5, abs=0.05)


def test_the_mean_difference_is_taken_over_the_r_of_both() -> None:
    """A recipe that was run at one r alone is compared with the reference at that r."""
    runs = grid(("baseline", "mine")).query("probe == 'baseline' or r == 4").reset_index(drop=True)
    post = posterior(runs, ("probe", "r"), phi="probe_r", errors="normal")
    table = bl.compare(post).set_index(["probe", "r"])
    assert table.loc[("mine", "mean"), "delta_mean"] == pytest.approx(table.loc[("mine", "4"), "delta_mean"])
    assert phi_quantities(post, "baseline")["Δφ[mine]"].mean() == pytest.approx(table.loc[("mine", "4"), "delta_mean"])


def test_the_reference_may_be_any_probe() -> None:
    table = bl.compare(made_up(draws(0, 0.4, 0.5), ["baseline", "mine"]), reference="mine").set_index("probe")
    assert table.loc["baseline", "delta_mean"] == pytest.approx(-0.1, abs=0.002)
    with pytest.raises(PosteriorError, match="reference 'yours' is not among the probes; name one of baseline, mine"):
        bl.compare(made_up(draws(0, 0.4, 0.5), ["baseline", "mine"]), reference="yours")


def test_several_posteriors_are_independent_and_shared_runs_are_named() -> None:
    one, two = made_up(draws(0, 0.4), ["baseline"]), made_up(draws(0, 0.5), ["mine"])
    table = bl.compare([one, two]).set_index("probe")
    # the same draws in both files, yet nothing in common: the order of one is not that of the other
    assert table.loc["mine", "delta_sd"] == pytest.approx(0.1 * np.sqrt(2), rel=0.15)
    assert any("share 2 runs" in note for note in table.attrs["notes"])


@pytest.mark.parametrize(("options", "message"), [
    ({"rope": -0.05}, "rope is -0.05"), ({"rope": float("nan")}, "rope is nan"), ({"rope": (0.1, -0.1)}, "rope is"),
    ({"prob": 95}, "expected a probability"), ({"reference": "yours"}, "not among the probes"),
])
def test_impossible_questions_are_refused(options: dict, message: str) -> None:
    with pytest.raises(PosteriorError, match=message):
        bl.compare(made_up(draws(0, 0.4, 0.5), ["baseline", "mine"]), **options)
    with pytest.raises(PosteriorError, match="at least one"):
        bl.compare([])


def test_posteriors_of_different_models_are_told_apart() -> None:
    one, two = (made_up(draws(0, 0.4, 0.5), ["baseline", "mine"], law=law) for law in ("recurrence", "chinchilla"))
    notes = bl.compare([one, two]).attrs["notes"]
    assert any("differ in law" in note for note in notes)
    assert not any(note.startswith("baseline") for note in notes)


def test_no_comparison_without_convergence_or_without_phi() -> None:
    with pytest.raises(PosteriorError, match="has not converged"):
        bl.compare(made_up(draws(0, 0.4, 0.5), ["baseline", "mine"], converged=0))
    post = made_up(draws(0, 0.4), ["baseline"])
    post["posterior"] = xr.DataTree(xr.Dataset({"E": (("chain", "draw"), np.zeros((4, 500)))}))
    with pytest.raises(PosteriorError, match="without φ"):
        bl.compare(post)


def test_a_borrowed_anchor_is_named(probes_post: xr.DataTree) -> None:
    """Hyperconnections have no r = 1 run; truncation at r = 1 is the baseline itself."""
    notes = bl.compare(probes_post).attrs["notes"]
    assert [note.split(":")[0] for note in notes] == ["hyperconnections"]
    assert "not that a recurrence is worth more" in notes[0]
    assert bl.compare(probes_post, reference="hyperconnections").attrs["notes"] == notes


def test_phi_by_r_has_a_row_per_r_and_their_average(runs: pd.DataFrame) -> None:
    post = bl.fit(bl.select(runs, "budget <= 4.64e18"), phi="probe_r")
    table = bl.compare(post).set_index(["probe", "r"])
    phi = post["posterior"]["phi"]
    assert list(table.loc["truncated"].index) == ["2", "4", "8", "mean"]
    expected = float((phi.sel(probe="hyperconnections") - phi.sel(probe="baseline")).mean())
    assert table.loc[("hyperconnections", "mean"), "delta_mean"] == pytest.approx(expected)
    # measured: one phi per probe is not what happened (tolerance: a few Monte Carlo errors and the prior)
    assert table.loc[("truncated", "2"), "mean"] == pytest.approx(-0.14, abs=0.05)
    assert table.loc[("hyperconnections", "2"), "mean"] == pytest.approx(0.96, abs=0.05)
    assert table.loc[("hyperconnections", "8"), "mean"] == pytest.approx(0.66, abs=0.03)
