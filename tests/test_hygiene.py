"""Each thing that goes wrong in tables of runs is found, counted and named, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bayesloop.problems import RunsError
from bayesloop.runs import Validation, read_runs, validate
from tests.tables import changed, paper_rows, write_csv


def excluded(report: Validation) -> list[tuple[str, str]]:
    return [(row["row"], row["reason"]) for row in report.excluded]


def test_the_small_table_is_clean(tmp_path: Path) -> None:
    report = validate(changed(tmp_path / "t.csv", {}))
    assert (report.ok, report.excluded, report.warnings, report.notes) == (True, [], [], [])


@pytest.mark.parametrize(("cells", "check", "reason"), [
    ({"loss": "0"}, "unfinished", "loss is 0"),
    ({"loss": ""}, "unfinished", "there is no loss"),
    ({"loss": "", "status": "failed"}, "unfinished", "failed, and there is no loss"),
    ({"loss": "NaN", "status": "running"}, "unfinished", "there is no loss"),
    ({"loss": "NaN"}, "diverged", "loss 'NaN'"),
    ({"loss": "inf"}, "diverged", "loss 'inf'"),
    ({"loss": "9.3"}, "diverged", "3 × the median"),
    ({"loss": "6.7", "vocab_size": "256"}, "diverged", "vocabulary"),
    ({"loss": "3.1", "status": "diverged"}, "diverged", "status says diverged"),
    ({"loss": "2.9", "status": "running", "tokens": "1e8"}, "unfinished", "short of its budget"),
])
def test_unusable_runs_are_excluded_and_named(tmp_path: Path, cells: dict[str, str], check: str, reason: str) -> None:
    """Missing inputs of an excluded run are no error: a run that ended early has none."""
    path = changed(tmp_path / "t.csv", {(5, name): cell for name, cell in cells.items()})
    report = validate(path)
    (entry,) = report.excluded
    assert report.ok
    assert report.counts[check] == 1
    assert (entry["row"], entry["run_id"]) == ("line 7", paper_rows()[5]["run_id"])
    assert reason in entry["reason"]
    with pytest.warns(UserWarning, match=r"1 of 24 runs excluded\n  line 7 baseline"):
        runs = read_runs(path)
    assert len(runs) == 23
    assert entry["run_id"] not in set(runs.run_id)


def test_missing_inputs_of_an_excluded_run_are_no_error(tmp_path: Path) -> None:
    assert validate(changed(tmp_path / "t.csv", {(5, "loss"): "0", (5, "tokens"): "", (5, "flops"): "0"})).ok


@pytest.mark.parametrize("status", ["failed", "crashed", "Killed", "running"])
def test_a_state_alone_excludes_nothing(tmp_path: Path, status: str) -> None:
    report = validate(changed(tmp_path / "t.csv", {(5, "status"): status, (4, "status"): "finished"}))
    assert report.ok
    assert report.n_kept == 24
    assert "line 7" in report.notes[0]
    assert "status" in report.notes[0]
    assert list(report.runs.status.iloc[4:6]) == ["done", "running" if status == "running" else "failed"]  # type: ignore[union-attr]


def test_a_running_run_that_nothing_shows_complete_is_a_question(tmp_path: Path) -> None:
    rows = [{**row, "status": "running" if i == 3 else "done"} for i, row in enumerate(paper_rows())]
    for row in rows:
        del row["flops"], row["budget"]
    path = write_csv(tmp_path / "t.csv", rows)
    with pytest.raises(RunsError, match=r"1 row with status running.*line 5.*allow=\['running'\]"):
        read_runs(path)
    assert validate(path, allow="running").n_kept == 24


@pytest.mark.parametrize(("cells", "check", "message"), [
    ({"loss": "-1"}, "loss", "1 row with a negative loss: line 7 (loss '-1')"),
    ({"tokens": ""}, "tokens", "whose tokens is missing or impossible: line 7 (tokens '')"),
    ({"tokens": "NaN"}, "tokens", "expected a finite number above 0"),
    ({"tokens": "0"}, "tokens", "tokens '0'"),
    ({"n_rec": "inf"}, "n_rec", "n_rec 'inf'"),
    ({"n_rec": "-3"}, "n_rec", "expected a finite number ≥ 0"),
    ({"budget": "0"}, "budget", "expected a finite number above 0"),
    ({"flops": "-1e17"}, "flops", "impossible"),
    ({"loss_se": "-0.1"}, "loss_se", "≥ 0"),
    ({"r": "0"}, "r", "whose r is missing or impossible: line 7 (r '0')"),
    ({"r": ""}, "r", "r ''"),
    ({"r": "1.5"}, "numbers", "whose r is no whole number: line 7 (r '1.5')"),
    ({"r": "2", "n_once": "35389440", "n_rec": "0"}, "n_rec", "n_rec > 0 where r > 1"),
    ({"r": "1", "n_once": "0", "n_rec": "0", "n_inject": "0"}, "n_rec", "expected n_once + n_rec > 0"),
    ({"n_inject": "1e12"}, "n_inject", "more parameters in the injection"),
    ({"bptt_k": "9"}, "bptt_k", "expected 1 ≤ bptt_k ≤ r"),
    ({"lanes": "1"}, "lanes", "expected 0 or at least 2"),
    ({"status": "fine"}, "status", "unknown status: line 7 (status 'fine')"),
    ({"tokens": "12M"}, "numbers", "suffix that is not declared: line 7 (tokens '12M')"),
    ({"n_rec": "11%"}, "numbers", "a percentage: line 7"),
    ({"run_id": "baseline-r1-s6-4.64e17"}, "run_id", "a run_id that stands twice"),
    ({"count_convention": "exact"}, "count_convention", "line 7 (count_convention 'exact')"),
])
def test_malformed_rows_are_refused(tmp_path: Path, cells: dict[str, str], check: str, message: str) -> None:
    path = changed(tmp_path / "t.csv", {(5, name): cell for name, cell in cells.items()})
    report = validate(path)
    assert [problem.check for problem in report.problems] == [check]
    assert report.runs is None
    with pytest.raises(RunsError) as caught:
        read_runs(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(("cells", "check"), [
    ({"loss": "7"}, "high_loss"), ({"tokens": "2e8"}, "partial"), ({"flops": "3e17"}, "partial"),
    ({"tokens": "3e12", "flops": ""}, "flops")])
def test_ambiguous_rows_are_a_question_with_a_way_through(tmp_path: Path, cells: dict[str, str], check: str) -> None:
    path = changed(tmp_path / "t.csv", {(6, name): cell for name, cell in cells.items()})
    with pytest.raises(RunsError, match=rf"line 8.*allow=\['{check}'\]"):
        read_runs(path)
    report = validate(path, allow=[check])
    assert report.n_kept == 24
    assert any(f"allow=['{check}']" in note for note in report.notes)


def test_partial_runs_are_found_without_flops(tmp_path: Path) -> None:
    """A larger model's account cannot be below a smaller one's; this run trained half of its tokens."""
    rows = paper_rows()
    for row in rows:
        del row["flops"]
    assert validate(write_csv(tmp_path / "t.csv", rows)).ok
    big = max(range(len(rows)), key=lambda i: (rows[i]["r"] == "1", int(rows[i]["size"]), float(rows[i]["budget"])))
    rows[big]["tokens"] = str(float(rows[big]["tokens"]) / 2)
    (problem,) = validate(write_csv(tmp_path / "t.csv", rows)).problems
    assert (problem.check, problem.count) == ("partial", 1)
    assert problem.places[0].startswith(f"line {big + 2} ")


def test_copies_are_excluded(tmp_path: Path) -> None:
    rows = paper_rows()
    again = [{**rows[3], "run_id": "again"}, dict(rows[4])]
    report = validate(write_csv(tmp_path / "t.csv", [*rows, *again]))
    assert excluded(report) == [("line 26", "a copy of an earlier row"), ("line 27", "a copy of an earlier row")]
    assert report.n_kept == 24


def test_restarted_twins(tmp_path: Path) -> None:
    """The half that crashed goes; two finished ones of one seed are a question; without a seed they are repetitions."""
    rows = [{**row, "seed": "1", "status": "done"} for row in paper_rows()]
    crashed = {**rows[3], "run_id": "again", "loss": "3.3", "tokens": "1e8", "flops": "1e17", "status": "crashed"}
    report = validate(write_csv(tmp_path / "t.csv", [*rows, crashed]))
    assert [reason[:10] for _, reason in excluded(report)] == ["unfinished"]
    finished = {**rows[3], "run_id": "again", "loss": "2.9"}
    path = write_csv(tmp_path / "t.csv", [*rows, finished])
    with pytest.raises(RunsError, match=r"2 rows of one configuration and seed.*line 5.*line 26"):
        read_runs(path)
    assert validate(path, allow="twins").n_kept == 25
    other_seed = validate(write_csv(tmp_path / "t.csv", [*rows, {**finished, "seed": "2"}]))
    assert (other_seed.n_kept, other_seed.warnings) == (25, [])
    for row in [*rows, finished]:
        row["seed"] = ""
    report = validate(write_csv(tmp_path / "t.csv", [*rows, finished]))
    assert report.n_kept == 25
    assert "no seed" in report.warnings[0]


def test_large_seeds_are_kept_apart(tmp_path: Path) -> None:
    rows = [{**row, "seed": str(2**53)} for row in paper_rows()]
    other = {**rows[3], "run_id": "again", "loss": "2.9", "seed": str(2**53 + 1)}
    runs = validate(write_csv(tmp_path / "t.csv", [*rows, other])).runs
    assert runs is not None
    assert runs.seed.iloc[-1] == 2**53 + 1


def test_perplexities_and_bits_per_byte(tmp_path: Path) -> None:
    def scaled(change: Any) -> Path:
        rows = paper_rows()
        return write_csv(tmp_path / "t.csv", [{**row, "loss": str(change(float(row["loss"])))} for row in rows])

    truth = read_runs(changed(tmp_path / "truth.csv", {})).loss
    path = scaled(np.exp)
    with pytest.raises(RunsError, match=r"every loss above 8: perplexities\?.*units=\{'loss': 'perplexity'\}"):
        read_runs(path)
    in_nats = read_runs(path, units={"loss": "perplexity", "loss_se": "perplexity"})
    np.testing.assert_allclose(in_nats.loss, truth, rtol=1e-14)
    errors = [float(row["loss_se"]) for row in paper_rows()]
    np.testing.assert_allclose(in_nats.loss_se, errors / np.exp(truth), rtol=1e-13)
    path = scaled(lambda loss: loss / np.log(2) / 4)
    with pytest.warns(UserWarning, match=r"bits per byte\?"):
        read_runs(path)
    back = read_runs(path, units={"loss": "bit/byte", "loss_se": 1}, tokens_per_byte=0.25)
    np.testing.assert_allclose(back.loss, truth, rtol=1e-14)
    bytewise = write_csv(tmp_path / "t.csv", [{**row, "loss": "1.1", "vocab_size": "256"} for row in paper_rows()])
    assert validate(bytewise).warnings == []


def test_the_standard_error_needs_its_unit_too(tmp_path: Path) -> None:
    path = changed(tmp_path / "t.csv", {})
    with pytest.raises(RunsError, match="declare its unit too"):
        read_runs(path, units={"loss": "bit/token"})
    runs = read_runs(path, units={"loss": "bit/token", "loss_se": "bit/token"})
    np.testing.assert_allclose(runs.loss_se, [float(row["loss_se"]) * np.log(2) for row in paper_rows()])


def test_embeddings_or_units_that_do_not_fit_the_compute(tmp_path: Path) -> None:
    rows = paper_rows()
    table = 2 * 32_064  # rows of the embedding and of the head
    heavy = [{**row, "n_rec": str(int(row["n_rec"]) + 40 * table * int(row["width"]))} for row in rows]
    assert "embeddings counted" in validate(write_csv(tmp_path / "t.csv", heavy)).warnings[0]
    small = [{**row, "n_rec": str(int(row["n_rec"]) // 4), "n_once": str(int(row["n_once"]) // 4), "n_inject": ""}
             for row in rows]
    assert "models so small" in validate(write_csv(tmp_path / "t.csv", small)).warnings[0]
    in_millions = [{**row, "tokens": str(float(row["tokens"]) / 1e6)} for row in rows]
    path = write_csv(tmp_path / "t.csv", in_millions)
    with pytest.raises(RunsError, match="is one of them in another unit"):
        read_runs(path)
    np.testing.assert_allclose(read_runs(path, units={"tokens": "M"}).tokens, [float(row["tokens"]) for row in rows])
    nothing_to_compare = [{**row, "budget": "", "flops": ""} for row in in_millions]
    with pytest.raises(RunsError, match="fewer than 10000 tokens each: millions or billions"):
        read_runs(write_csv(tmp_path / "t.csv", nothing_to_compare))


def test_names_of_recipes_that_differ_in_capitals_alone_are_doubted(tmp_path: Path) -> None:
    rows = [{**row, "probe": row["probe"].title() if i % 2 else row["probe"]} for i, row in enumerate(paper_rows())]
    assert any("differ in capitals" in text for text in validate(write_csv(tmp_path / "t.csv", rows)).warnings)


def test_products_of_counts_do_not_overflow(tmp_path: Path) -> None:
    """6 N D of these rows is above 2^63; as integers it would be negative and checks would go wrong."""
    frame = pd.read_csv(changed(tmp_path / "t.csv", {}))
    frame = frame.assign(**{name: frame[name] * 10**3 for name in ("n_once", "n_rec", "n_inject", "tokens")})
    assert (6 * frame.n_rec * frame.tokens < 0).any()
    runs = read_runs(frame.assign(budget=frame.budget * 1e6, flops=frame.flops * 1e6))
    assert all(runs[name].dtype == np.float64 for name in ("n_once", "n_rec", "tokens"))
    assert (6 * (runs.n_once + runs.r * runs.n_rec) * runs.tokens > 0).all()


def test_near_budgets_become_one(tmp_path: Path) -> None:
    path = changed(tmp_path / "t.csv", {(1, "budget"): "4.6402e17", (2, "budget"): "4.6398e17"})
    report = validate(path)
    assert report.runs is not None
    assert sorted(set(report.runs.budget)) == [4.64e17, 1e18]
    assert "2 rows with a budget within 1 %" in report.notes[0]


def test_everything_is_reported_at_once(tmp_path: Path) -> None:
    path = changed(tmp_path / "t.csv", {
        (0, "loss"): "0", (1, "tokens"): "12M", (2, "r"): "0", (3, "n_rec"): "", (4, "loss"): "7", (5, "flops"): "1e17",
        (6, "loss"): "nan", (7, "status"): "odd", **{(i, "loss_se"): "?" for i in range(8, 16)}})
    report = validate(path)
    assert report.counts["partial"] == 1
    assert {problem.check for problem in report.problems} == {
        "numbers", "r", "counts", "high_loss", "partial", "status"}
    assert [row["row"] for row in report.excluded] == ["line 2", "line 8"]
    (error_column,) = [problem for problem in report.problems if "loss_se" in problem.message]
    assert (error_column.count, len(error_column.places)) == (8, 5)
    assert "and 3 more" in error_column.message
    with pytest.raises(RunsError, match=r"t.csv: 7 problems\n  1\. ") as caught:
        read_runs(path)
    assert len(caught.value.problems) == 7


def test_a_table_without_a_usable_run(tmp_path: Path) -> None:
    rows = [{**row, "loss": "0"} for row in paper_rows()]
    with pytest.raises(RunsError, match="no usable run: all 24 rows are excluded"):
        read_runs(write_csv(tmp_path / "t.csv", rows))
