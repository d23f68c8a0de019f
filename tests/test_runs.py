"""Every source gives the same validated table; conventions are declared, carried and changed on request."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import bayesloop as bl
from bayesloop.runs import RunsError, RunsWarning, check_identifiable, fingerprint, read_runs, validate, write_runs
from bayesloop.schema import COLUMNS, Run, write_run, write_sweep
from tests.tables import PAPER, changed, paper_rows, run_of, write_csv

SHAPE = ["n_prelude", "n_recur", "n_coda"]


@pytest.fixture(scope="module")
def paper() -> pd.DataFrame:
    return read_runs(PAPER)


def as_runs(table: pd.DataFrame) -> list[Run]:
    return [Run({str(name): value for name, value in row.items()}) for row in table.to_dict("records")]


def test_the_shipped_table_is_clean(paper: pd.DataFrame) -> None:
    report = validate(PAPER)
    assert (report.ok, report.n_rows, report.n_kept) == (True, 240, 240)
    assert (report.excluded, report.warnings, report.problems, report.counts) == ([], [], [], {})
    assert sum(row["runs"] for row in report.summary) == 240
    assert {"budget": 1e18, "r": 4, "probe": "truncated", "runs": 5} in report.summary
    assert dict(paper.probe.value_counts()) == {"baseline": 116, "hyperconnections": 63, "truncated": 61}
    assert list(paper.columns) == [name for name in COLUMNS if name in paper]
    for name in paper:
        assert paper[name].dtype == {float: np.float64, int: np.int64}.get(COLUMNS[str(name)].dtype, paper.probe.dtype)
    attrs = {"source": str(PAPER), "injection": "rec", "count_convention": "formula", "excluded": [], "warnings": []}
    assert attrs.items() <= paper.attrs.items()
    assert paper.attrs["sha256"] == fingerprint(paper)


def test_round_trips_keep_every_bit(paper: pd.DataFrame, tmp_path: Path) -> None:
    write_runs(paper, tmp_path / "t.csv")
    write_runs(paper, tmp_path / "t.parquet")
    write_sweep(tmp_path / "t.h5", as_runs(paper.sort_values("run_id")))
    for name in ("t.csv", "t.parquet", "t.h5"):
        back = read_runs(tmp_path / name)
        ours = paper.sort_values("run_id", ignore_index=True) if name == "t.h5" else paper
        pd.testing.assert_frame_equal(back, ours, check_exact=True)
        assert back.attrs["sha256"] == paper.attrs["sha256"]
        assert back.attrs["source"] == str(tmp_path / name)
    again = read_runs(paper)
    pd.testing.assert_frame_equal(again, paper, check_exact=True)
    assert again.attrs == paper.attrs


@pytest.mark.parametrize(("columns", "message"), [
    ({"los": "loss"}, "names 'los', which the source lacks; did you mean 'loss'"),
    ({"loss": "losss"}, "to 'losss'; did you mean 'loss'"),
    ({"loss": "tokens", "flops": "tokens"}, "more than one column to tokens")])
def test_wrong_column_names_are_refused(tmp_path: Path, columns: dict[str, str], message: str) -> None:
    with pytest.raises(RunsError, match=message):
        read_runs(changed(tmp_path / "t.csv", {}), columns=columns)


def test_missing_columns_are_named_with_the_nearest(tmp_path: Path) -> None:
    rows = [{("Tokens" if k == "tokens" else k): v for k, v in row.items() if k != "n_rec"} for row in paper_rows()]
    with pytest.raises(RunsError, match=r"(?s)no column n_rec .*n_prelude.*no column tokens.*did you mean 'Tokens'"):
        read_runs(write_csv(tmp_path / "t.csv", rows))
    twice = tmp_path / "twice.csv"
    twice.write_text("r,loss,loss,n_once,n_rec,tokens\n1,3,3,0,1e7,1e9\n")
    with pytest.raises(RunsError, match="column names that stand twice: loss"):
        read_runs(twice)


def test_columns_under_other_words_are_recognised(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("recurrences,nonrec_params,n_recurrent,D,final_loss\n1,0,1e7,1e9,3.2\n")
    with pytest.raises(RunsError) as refused:
        read_runs(table)
    meant = dict(re.findall(r"no column (\w+) .*did you mean '(\w+)'", str(refused.value)))
    assert meant == {"r": "recurrences", "n_once": "nonrec_params", "n_rec": "n_recurrent", "tokens": "D",
                     "loss": "final_loss"}


def test_the_smallest_table(tmp_path: Path) -> None:
    """Optional columns may be absent; one recipe without a name is called baseline, and that is said."""
    (tmp_path / "t.csv").write_text("r,n_once,n_rec,tokens,loss\n1,0,1e7,1e9,3.2\n\n2,1e6,5e6,1e9,3.25\n")
    runs = read_runs(tmp_path / "t.csv")
    assert list(runs.columns) == ["run_id", "probe", "r", "n_once", "n_rec", "tokens", "loss"]
    assert list(runs.run_id) == ["baseline-r1-000", "baseline-r2-001"]
    assert "taken as baseline: line 4" in runs.attrs["notes"][0]
    assert runs.attrs["count_convention"] == "undeclared"


@pytest.mark.parametrize("convention", ["exact", "formula"])
def test_counts_follow_from_the_layers(tmp_path: Path, convention: str) -> None:
    """The paper's counts are those of its layers by the formula; exact ones add the norms."""
    layers = {1: (0, 20, 0), 2: (2, 8, 2), 4: (2, 4, 2), 8: (2, 2, 2)}
    rows = [{**{k: v for k, v in row.items() if k not in ("n_once", "n_rec", "n_inject")}, "scheme": "linear",
             **dict(zip(SHAPE, map(str, layers[int(row["r"])]), strict=True))} for row in paper_rows()]
    runs = read_runs(write_csv(tmp_path / "t.csv", rows), count_convention=convention)
    truth = read_runs(write_csv(tmp_path / "truth.csv", paper_rows()))
    assert runs.attrs["count_convention"] == convention
    assert "in 24 rows" in runs.attrs["notes"][-1]
    norms = 2 * truth.width if convention == "exact" else 0
    once = np.where(truth.r == 1, 0, 4)
    np.testing.assert_array_equal(runs.n_once, truth.n_once + once * norms)
    np.testing.assert_array_equal(runs.n_rec, truth.n_rec + np.array([layers[r][1] for r in truth.r]) * norms)
    np.testing.assert_array_equal(runs.n_inject, truth.n_inject)
    for row in rows:
        row["scheme"] = "" if row["r"] == "2" else "lineal" if row["r"] == "4" else row["scheme"]
    with pytest.raises(RunsError, match=r"(?s)no scheme says.*scheme 'lineal' is not known; did you mean 'linear'"):
        read_runs(write_csv(tmp_path / "t.csv", rows))


def test_counts_that_are_not_those_of_the_layers(tmp_path: Path) -> None:
    """Embeddings counted in: nothing but the layers can show it for sure."""
    runs = [run_of(1), run_of(2), run_of(4)]
    runs[1].attrs["n_once"] += 2 * 32_064 * 512
    write_sweep(tmp_path / "t.h5", runs)
    with pytest.warns(RunsWarning, match=r"1 row where n_once \+ n_rec is not that of the layers.*/runs/r2-d512"):
        read_runs(tmp_path / "t.h5")


def test_parameters_of_runs_without_recurrence(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("r,n_params,n_once,n_rec,tokens,loss\n1,1e7,,,1e9,3.2\n2,,1e6,5e6,1e9,3.25\n")
    assert list(read_runs(tmp_path / "t.csv").n_rec) == [1e7, 5e6]
    (tmp_path / "t.csv").write_text("r,n_params,tokens,loss\n1,1e7,1e9,3.2\n2,1e7,1e9,3.25\n")
    with pytest.raises(RunsError, match=r"cannot be derived: no layers are given: line 3 \(r '2'\)"):
        read_runs(tmp_path / "t.csv")


def test_the_injection_is_counted_where_declared(paper: pd.DataFrame) -> None:
    once, none = read_runs(PAPER, injection="once"), read_runs(PAPER, injection="none")
    np.testing.assert_array_equal(once.n_once, paper.n_once + paper.n_inject)
    np.testing.assert_array_equal(once.n_rec, paper.n_rec - paper.n_inject)
    np.testing.assert_array_equal(none.n_once, paper.n_once)
    np.testing.assert_array_equal(none.n_rec, once.n_rec)
    assert (once.attrs["injection"], none.attrs["injection"]) == ("once", "none")
    assert len({table.attrs["sha256"] for table in (paper, once, none)}) == 3
    pd.testing.assert_frame_equal(read_runs(paper, injection="once"), once)
    pd.testing.assert_frame_equal(read_runs(once, injection="once"), once)
    with pytest.raises(RunsError, match=r"read with injection='once'.*read the original source"):
        read_runs(once, injection="none")
    with pytest.raises(RunsError, match="expected one of rec, once, none"):
        read_runs(PAPER, injection="linear")
    with pytest.raises(RunsError, match="without n_inject, which injection='once' needs"):
        read_runs(paper.drop(columns="n_inject"), injection="once")
    looped_once = read_runs(bl.select(paper, "r == 1").drop(columns="n_inject"), injection="once")
    assert (looped_once.n_once == 0).all()


def test_probes_follow_from_the_recipe() -> None:
    recipes = pd.DataFrame([
        ("linear", 1, 1, 0, "baseline"), ("linear", 4, 4, 0, "baseline"), ("linear", 4, 2, 0, "truncated"),
        ("hyperconnect", 1, 1, 2, "hyperconnections"), ("hyperconnect", 4, 4, 2, "hyperconnections"),
        ("passthrough", 1, 1, 0, "baseline"), ("passthrough", 4, 4, 0, "passthrough"),
        ("additive", 2, 1, 0, "truncated"), ("gated", 2, 2, 0, "gated"), ("linear", 2, 2, 0, "")],
        columns=["scheme", "r", "bptt_k", "lanes", "expected"])
    table = recipes.assign(n_once=1e6, n_rec=1e7, tokens=np.linspace(1e9, 2e9, 10), loss=3.0, probe="")
    table.loc[9, ["probe", "expected"]] = "mine"
    assert list(read_runs(table).probe) == list(recipes.expected.where(recipes.expected != "", "mine"))
    table.loc[6, "scheme"] = ""
    with pytest.raises(RunsError, match=r"without probe, which cannot be derived: row 6"):
        read_runs(table)


def test_missing_parts_of_the_recipe_have_their_meaning() -> None:
    table = pd.DataFrame({"scheme": ["linear", "linear", "hyperconnect"], "r": [2, 4, 2], "bptt_k": ["", "2", ""],
                          "lanes": [None, 0, None], "n_once": 1e6, "n_rec": 1e7, "tokens": [1e9, 2e9, 3e9], "loss": 3.0,
                          "seed": [3, None, None]})
    runs = read_runs(table)
    assert list(runs.bptt_k) == [2, 2, 2]
    assert list(runs.lanes) == [0, 0, -1]
    assert list(runs.seed) == [3, -1, -1]
    assert list(runs.probe) == ["baseline", "truncated", "hyperconnections"]


def test_exact_counts_show_themselves() -> None:
    for convention in ("exact", "formula"):
        rows = [run_of(r, width).attrs for r in (1, 2) for width in (384, 512)]
        table = pd.DataFrame(rows).drop(columns="count_convention")
        runs = read_runs(table.drop(columns=["n_once", "n_rec", "n_inject"]), count_convention=convention)
        assert read_runs(pd.DataFrame(runs.to_dict("list"))).attrs["count_convention"] == convention
    runs.loc[0, "n_rec"] += 2 * 384
    assert read_runs(pd.DataFrame(runs.to_dict("list"))).attrs["count_convention"] == "undeclared"


def test_a_declared_count_convention_must_be_the_tables(tmp_path: Path) -> None:
    write_run(tmp_path / "curve.h5", run_of(2))
    assert read_runs(tmp_path, count_convention="exact").attrs["count_convention"] == "exact"
    with pytest.raises(RunsError, match="with count convention 'exact', but 'formula' is declared"):
        read_runs(tmp_path, count_convention="formula")
    with pytest.raises(RunsError, match="expected one of exact, formula"):
        read_runs(tmp_path, count_convention="rough")


def test_a_wrong_allowance_is_refused() -> None:
    with pytest.raises(RunsError, match="allow names 'partiel'; did you mean 'partial'"):
        read_runs(PAPER, allow="partiel")


def test_a_failed_write_leaves_the_old_table(
        paper: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunsError, match="cannot be written"):
        write_runs(paper, tmp_path / "no/such/folder.csv")
    path = write_csv(tmp_path / "t.csv", paper_rows())
    before = path.read_bytes()

    def full(self: pd.DataFrame, target: Path, **_: object) -> None:
        target.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    with pytest.raises(RunsError, match=r"t\.csv: cannot be written \(No space left on device\)"):
        write_runs(paper, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_every_column_is_described() -> None:
    text = (PAPER.parent / "README.md").read_text()
    table = text[text.index("## Columns"):text.index("\\* needed")]
    assert [name for name in COLUMNS if f"`{name}`" not in table] == []


def test_the_report_is_json(tmp_path: Path) -> None:
    path = changed(tmp_path / "t.csv", {(0, "loss"): "0", (1, "tokens"): "12M", (2, "budget"): ""})
    report = json.loads(json.dumps(validate(path).to_dict(), allow_nan=False))
    assert report["problems"][0]["places"] == ["line 3 (tokens '12M')"]
    assert report["excluded"][0]["row"] == "line 2"
    assert (report["ok"], report["table"], report["n_rows"], report["n_kept"]) == (False, None, 24, 22)
    assert json.loads(json.dumps(validate(PAPER).to_dict()))["table"]["injection"] == "rec"


def test_what_cannot_identify_a_law(paper: pd.DataFrame) -> None:
    check_identifiable(paper)
    one = bl.select(paper, "r == 4")
    with pytest.raises(RunsError, match="every run has r = 4: phi cannot be identified"):
        check_identifiable(one)
    check_identifiable(one, law_has_phi=False, n_parameters=5)
    with pytest.raises(RunsError, match="5 runs for 6 parameters"):
        check_identifiable(paper.iloc[:5])
