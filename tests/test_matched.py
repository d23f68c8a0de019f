"""Matched differences on runs whose differences are known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from bayesloop.matched import matched_differences
from bayesloop.posterior import PosteriorError
from tests.posteriors import PHI, TRUTH, grid, law, posterior

SHIFT = -0.04


def shifted(more_tokens: float = 1.3) -> pd.DataFrame:
    """Hyperconnections that are the baseline's looped runs, trained on more tokens, with a constant gain."""
    runs = grid(("baseline",))
    own = runs[runs["r"] > 1].assign(probe="hyperconnections")
    own["tokens"] *= more_tokens
    own["loss"] = law(TRUTH, PHI["baseline"], own) + SHIFT
    return pd.concat([runs, own], ignore_index=True)


@pytest.fixture(scope="module")
def post() -> xr.DataTree:
    return posterior(shifted())


def test_the_correction_takes_out_what_tokens_do(post: xr.DataTree) -> None:
    found = matched_differences(post)
    assert list(found["r"]) == [2, 4]
    assert list(found["pairs"]) == [10, 10]
    # draws of the law scatter by 0.2 % around the truth, and phi by 0.02
    np.testing.assert_allclose(found["corrected"], SHIFT, atol=0.0005)
    assert (found["raw"] < SHIFT - 0.02).all()
    assert (found["se"] < 0.001).all()


def test_another_phi_alone_would_grow_with_r(post: xr.DataTree) -> None:
    """Against the law in numpy, at the baseline's runs."""
    found = matched_differences(post).set_index("r")
    runs = grid(("baseline",))
    for r in (2, 4):
        own = runs[runs["r"] == r]
        pure = (law(TRUTH, PHI["hyperconnections"], own) - law(TRUTH, PHI["baseline"], own)).mean()
        assert found.loc[r, "pure"] == pytest.approx(pure, rel=0.1)
    assert found.loc[4, "pure"] < 1.3 * found.loc[2, "pure"] < 0


def test_every_posterior_corrects_and_one_of_the_baseline_alone_predicts_nothing(post: xr.DataTree) -> None:
    found = matched_differences([post, posterior(grid(("baseline",)))])
    assert len(found) == 4
    np.testing.assert_allclose(found["corrected"], SHIFT, atol=0.0005)
    assert found["pure"].isna().tolist() == [False, False, True, True]


def test_at_one_recurrence_a_recipe_is_seen_without_phi() -> None:
    """A recipe with r = 1 runs of its own: what it does there is told, and no φ can have done it."""
    runs = shifted()
    own = runs[(runs["probe"] == "baseline") & (runs["r"] == 1)].assign(probe="hyperconnections")
    own["loss"] += SHIFT / 4
    found = matched_differences(posterior(pd.concat([runs, own], ignore_index=True))).set_index("r")
    assert list(found.index) == [1, 2, 4]
    assert found.loc[1, "corrected"] == pytest.approx(SHIFT / 4, abs=1e-6)
    assert found.loc[1, "pure"] == 0


def test_runs_that_cannot_be_matched_are_refused(post: xr.DataTree) -> None:
    with pytest.raises(PosteriorError, match="give columns `budget` and `width`"):
        matched_differences(posterior(shifted().drop(columns="width")))
    odd = shifted()
    odd.loc[odd["probe"] == "hyperconnections", "width"] += 64
    with pytest.raises(PosteriorError, match="no run of another probe"):
        matched_differences(posterior(odd))
