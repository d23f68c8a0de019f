"""The model for a table where none is named."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import bayesloop as bl
from bayesloop.choice import PUBLISHED, choose, settle
from bayesloop.heldout import WITH_RECIPES, parse
from tests.posteriors import grid

THREE = {"budgets": (3e17, 6e17, 1.2e18)}


def test_a_table_like_the_published_one_gets_the_model_that_predicts_and_covers() -> None:
    choice = choose(grid(("baseline", "truncated", "hyperconnections"), **THREE))
    assert choice[:3] == ("cross_recurrence", "probe_r", "data_factor")
    named = parse(WITH_RECIPES[0])
    assert choice[:3] == (named["law"], named["phi"], named["recipe"])
    assert "--law recurrence" in choice.reason


def test_one_recipe_gets_the_published_model_without_words() -> None:
    assert choose(grid(counts=(2, 4, 8), **THREE)) == PUBLISHED


@pytest.mark.parametrize(("runs", "lacking"), [
    (grid(("baseline", "mine"), counts=(4,), **THREE), "second looped r of baseline"),
    (grid(("baseline", "mine")), "3 budgets"),
    (grid(("baseline", "mine"), **THREE).drop(columns="budget"), "3 budgets"),
    (grid(("baseline", "mine"), **THREE).assign(budget=np.nan), "3 budgets"),
    (grid(("baseline", "mine"), **THREE).query("r > 1"), "an r = 1 run"),
    (grid(("baseline", "mine"), widths=(256,), **THREE), "6 looped runs for each recipe and r"),
    (grid(("baseline", "mine"), **THREE).replace({"baseline": "plain"}), "a recipe named baseline"),
])
def test_what_a_smaller_table_lacks_is_said(runs: pd.DataFrame, lacking: str) -> None:
    choice = choose(runs)
    assert choice[:3] == PUBLISHED[:3]
    assert lacking in choice.reason
    assert choice.lacks


@pytest.mark.parametrize(("named", "chosen"), [
    ((None, "probe", None), PUBLISHED), ((None, None, None, False), PUBLISHED),
    (("kaplan_recurrence", None, None), ("kaplan_recurrence", "probe", "none", "", False)),
    ((None, None, "offset"), ("recurrence", "probe", "offset", "", False)),
])
def test_what_is_named_is_taken_and_the_rest_is_the_papers(named: tuple, chosen: tuple) -> None:
    assert settle(grid(("baseline", "truncated"), **THREE), *named) == chosen


def test_a_fit_records_what_was_chosen_and_why(runs: pd.DataFrame) -> None:
    short = {"num_warmup": 100, "num_samples": 100, "num_chains": 2}
    low = bl.select(runs, "budget <= 2.15e18 and r <= 4")
    about = bl.fit(low, **short).attrs
    assert (about["law"], about["phi"], about["recipe"]) == choose(low)[:3]
    assert about["choice"] == choose(low).reason != ""
    looped = bl.fit(bl.select(low, "budget <= 1e18 and r > 1"), **short)
    doubts = " ".join(json.loads(looped.attrs["doubts"]))
    assert "it names 2" in doubts
    assert "no run has r = 1" in doubts
