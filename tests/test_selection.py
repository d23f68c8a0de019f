"""Conditions in words: what they select, what they refuse."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from bayesloop.problems import RunsError
from bayesloop.runs import read_runs
from bayesloop.selection import anchored, fingerprint, select
from tests.tables import PAPER


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    return read_runs(PAPER)


def test_conditions_select_what_pandas_selects(runs: pd.DataFrame) -> None:
    for where, expected in [
        ("r > 1", runs.r > 1),
        ("probe in ['baseline', 'truncated'] and r > 1", runs.probe.isin(["baseline", "truncated"]) & (runs.r > 1)),
        ("probe not in ('baseline',) or r == 1", (runs.probe != "baseline") | (runs.r == 1)),
        ("not (r == 2 or r == 4)", ~runs.r.isin([2, 4])),
        ("2 <= r < 8", (runs.r >= 2) & (runs.r < 8)),
        ("1e9 >= tokens", runs.tokens <= 1e9),
        ("n_once > n_rec", runs.n_once > runs.n_rec),
        ("loss > -1 and r in [1, 2.0]", runs.r.isin([1, 2])),
        ("'truncated' == probe", runs.probe == "truncated"),
    ]:
        pd.testing.assert_frame_equal(select(runs, where), runs[expected].reset_index(drop=True))


def test_budgets_match_with_tolerance(runs: pd.DataFrame) -> None:
    """Counts from the paper's grid: 116 baseline runs, 56 of them at the three lower budgets."""
    nudged = runs.assign(budget=runs.budget * (1 + 5e-4 * np.where(np.arange(len(runs)) % 2, 1, -1)))
    for table in (runs, nudged):
        baseline = select(table, "probe == 'baseline'")
        assert len(baseline) == 116
        for where, count in [("budget <= 2.15e18", 56), ("budget < 2.15e18", 36), ("budget == 2.15e18", 20),
                             ("budget != 2.15e18", 96), ("budget in [1e18, 2.15e18]", 40), ("budget > 2.15e18", 60),
                             ("2.15e18 <= budget", 80), ("budget not in [1e18]", 96)]:
            assert len(select(baseline, where)) == count, where


@pytest.mark.parametrize(("where", "message"), [
    ("buget < 1e18", "no column 'buget'; did you mean 'budget'"), ("probe == baseline", "put text in quotes"),
    ("r >", "cannot be parsed"), ("", "cannot be parsed"), ("r", "not a comparison"), ("r > '2'", "text and number"),
    ("probe == 3", "text and number"), ("probe < 'b'", "text has no order"), ("r in 2", "needs a list"),
    ("r is 1", "compares no values"), ("(r > 1) & (r < 8)", "joined by and, or, not"),
    ("r + 1 > 2", "neither a column"),
    ("__import__('os').system('x')", "not a comparison"), ("r > abs(1)", "neither a column"), ("r == True", "neither"),
    ("runs.r > 1", "neither a column"), ("r > 1; r", "cannot be parsed"), ("r > 1e999j", "neither"),
    ("\0", "cannot be parsed"), ("(" * 5000, "cannot be parsed"), ("not " * 5000 + "r > 1", "cannot be parsed"),
    ("r > 100", r"no run of 240 satisfies .*r has 4 values: 1, 2, 4, 8")])
def test_other_conditions_are_refused(runs: pd.DataFrame, where: str, message: str) -> None:
    with pytest.raises(RunsError, match=message):
        select(runs, where)
    with pytest.raises(RunsError, match="expected comparisons"):
        select(runs, 3)  # type: ignore[arg-type]


def test_attributes_survive_and_the_fingerprint_follows_the_rows(runs: pd.DataFrame) -> None:
    low = select(select(runs, "budget <= 4.64e18"), "r == 1")
    assert low.attrs["source"] == runs.attrs["source"]
    assert low.attrs["where"] == ["budget <= 4.64e18", "r == 1"]
    assert low.attrs["sha256"] == fingerprint(low) != runs.attrs["sha256"]
    assert low.copy().attrs == low.attrs
    assert "where" not in runs.attrs


def test_the_fingerprint_is_of_the_content(runs: pd.DataFrame) -> None:
    shuffled = runs.sample(frac=1, random_state=0)
    assert fingerprint(shuffled) == fingerprint(runs) == runs.attrs["sha256"]
    assert fingerprint(runs.assign(run_id="x", status="done")) == fingerprint(runs)
    last = runs.assign(loss=np.nextafter(runs.loss, 9))
    assert fingerprint(last) != fingerprint(runs)


def test_a_probe_is_anchored_at_its_own_budgets(runs: pd.DataFrame) -> None:
    chosen = anchored(runs, "hyperconnections")
    anchor = chosen[chosen["probe"] != "hyperconnections"]
    assert set(anchor["r"]) == {1}
    assert set(anchor["probe"]) == {"baseline"}
    assert anchor["budget"].max() < 5e18
    assert len(anchor) == 20
    assert chosen.attrs["source"] == runs.attrs["source"]
    assert chosen.attrs["sha256"] == fingerprint(chosen)
    own = runs.query("probe == 'truncated'").iloc[:1].assign(r=1)
    assert len(anchored(pd.concat([runs, own]), "truncated")) == len(anchored(runs, "truncated")) + 1
    with pytest.raises(RunsError, match="no runs of probe 'middle'; the table has baseline, hyper"):
        anchored(runs, "middle")
