"""A sampler that has converged may still report the prior: that is found and said."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import xarray as xr

import bayesloop as bl
from bayesloop.identification import cells_without_runs, prior_ratios


def test_the_papers_runs_leave_no_doubt(baseline_post: xr.DataTree) -> None:
    assert json.loads(baseline_post.attrs["doubts"]) == []
    ratios = prior_ratios(baseline_post)
    assert ratios["phi[baseline]"] < 0.05  # sd 0.016 against 0.5
    assert max(ratios.values()) < 0.5


def test_a_single_budget_leaves_the_law_to_its_priors(runs: pd.DataFrame) -> None:
    """At one budget size and tokens trade off exactly: eight runs cannot tell E, B and beta apart."""
    few = bl.select(runs, "budget == 4.64e17 and probe == 'baseline' and r in [1, 4]")
    post = bl.fit(few, num_samples=500)
    doubt = " ".join(json.loads(post.attrs["doubts"]))
    assert "prior-dominated" in doubt
    assert "E (" in doubt
    assert "correlation of φ with E" in doubt


def test_phi_without_runs_is_named_and_left_out_of_comparisons(runs: pd.DataFrame) -> None:
    ragged = bl.select(runs, "budget <= 1e18 and ((probe == 'baseline' and r in [1, 2, 4]) "
                             "or (probe == 'truncated' and r == 4))")
    post = bl.fit(ragged, phi="probe_r", num_samples=500)
    assert cells_without_runs(post) == [("truncated", 2)]
    assert "no runs for phi[truncated, 2]" in " ".join(json.loads(post.attrs["doubts"]))
    table = bl.compare(post).set_index(["probe", "r"])
    assert ("truncated", "2") not in table.index
    phi = post["posterior"]["phi"]
    expected = float((phi.sel(probe="truncated", r=4) - phi.sel(probe="baseline", r=4)).mean())
    assert np.isclose(table.loc[("truncated", "4"), "delta_mean"], expected)


def test_a_law_without_recurrence_says_that_r_is_ignored(runs: pd.DataFrame) -> None:
    post = bl.fit(bl.select(runs, "probe == 'baseline' and budget <= 2.15e18"), law="chinchilla", num_samples=500)
    assert any("runs of different r are treated alike" in doubt for doubt in json.loads(post.attrs["doubts"]))
