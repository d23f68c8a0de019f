"""Every source gives the same validated table; conventions are declared, carried and changed on request."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import h5py
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


def test_run_files_a_folder_and_a_sweep_agree(tmp_path: Path) -> None:
    runs = [run_of(1), run_of(2), run_of(4, bptt_k=2, loss=2.6), run_of(2, scheme="hyperconnect", lanes=2, run_id="hc")]
    for i, run in enumerate(runs):
        (tmp_path / f"deep/{i}").mkdir(parents=True)
        write_run(tmp_path / f"deep/{i}/curve.h5", run)
    write_sweep(tmp_path / "sweep.h5", runs)
    folder = read_runs(tmp_path)
    assert list(folder.probe) == ["baseline", "baseline", "truncated", "hyperconnections"]
    assert folder.attrs["count_convention"] == "exact"
    sweep = read_runs(tmp_path / "sweep.h5")
    assert sweep.attrs["sha256"] == folder.attrs["sha256"]
    single = read_runs(tmp_path / "deep/2/curve.h5")
    assert single.attrs["sha256"] == bl.select(folder, "probe == 'truncated'").attrs["sha256"]


def test_a_tracker_export(tmp_path: Path) -> None:
    rows = [{"Name": "same", "ID": row["run_id"], "State": "failed" if i == 2 else "finished", "Runtime": "12h",
             "config.loops": row["r"], "config.n_once": f"{int(row['n_once']) / 1e6!r}M", "config.n_rec": row["n_rec"],
             "summary.tokens_B": repr(float(row["tokens"]) / 1e9), "summary.val_loss": row["loss"],
             "loss": "1.0", "config.budget": row["budget"]} for i, row in enumerate(paper_rows())]
    names = {"ID": "run_id", "State": "status", "config.loops": "r", "config.n_once": "n_once",
             "config.n_rec": "n_rec", "summary.tokens_B": "tokens", "summary.val_loss": "loss",
             "config.budget": "budget"}
    path = write_csv(tmp_path / "export.csv", rows)
    runs = read_runs(path, columns=names, units={"tokens": "B", "n_once": "suffix"})
    truth = read_runs(write_csv(tmp_path / "truth.csv", paper_rows()))
    for name in ("run_id", "r", "n_rec", "loss", "probe"):
        assert list(runs[name]) == list(truth[name])
    np.testing.assert_allclose(runs[["n_once", "tokens"]], truth[["n_once", "tokens"]], rtol=1e-14)
    assert any("status" in note and "line 4" in note for note in runs.attrs["notes"])
    with pytest.raises(RunsError, match=r"n_once \(column 'config.n_once'\) '7.077888M'"):
        read_runs(path, columns=names, units={"tokens": "B"})
    with pytest.raises(RunsError, match="a run_id that stands twice"):
        read_runs(path, columns={**{k: v for k, v in names.items() if k != "ID"}, "Name": "run_id"},
                  units={"tokens": "B", "n_once": "suffix"})


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


def test_a_declared_count_convention_must_be_the_tables(tmp_path: Path) -> None:
    write_run(tmp_path / "curve.h5", run_of(2))
    assert read_runs(tmp_path, count_convention="exact").attrs["count_convention"] == "exact"
    with pytest.raises(RunsError, match="that say count convention 'exact', but 'formula' is declared"):
        read_runs(tmp_path, count_convention="formula")
    with pytest.raises(RunsError, match="expected one of exact, formula"):
        read_runs(tmp_path, count_convention="rough")


def test_unreadable_run_files_are_named_and_the_others_read(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / name).mkdir()
        write_run(tmp_path / name / "curve.h5", run_of(2, run_id=name))
    cut = tmp_path / "b/curve.h5"
    cut.write_bytes(cut.read_bytes()[:1500])
    (tmp_path / "c/curve.h5").write_text("no HDF5")
    with h5py.File(tmp_path / "d/curve.h5", "w") as file:
        file.attrs["something"] = 1
    (tmp_path / "e").mkdir()
    write_run(tmp_path / "e/curve.h5", run_of(4, run_id="e"))
    with pytest.warns(RunsWarning, match=r"3 of 5 runs excluded"):
        runs = read_runs(tmp_path)
    assert list(runs.run_id) == ["a", "e"]
    assert [row["run_id"] for row in runs.attrs["excluded"]] == ["b", "c", "d"]
    assert [row["row"] for row in runs.attrs["excluded"]] == ["b/curve.h5", "c/curve.h5", "d/curve.h5"]
    assert "cut off by a crash" in runs.attrs["excluded"][0]["reason"]
    for name in "ae":
        (tmp_path / name / "curve.h5").unlink()
    with pytest.raises(RunsError, match=r"none of 3 run files can be read: .*b/curve.h5"):
        read_runs(tmp_path)


def test_a_file_that_another_process_writes(tmp_path: Path) -> None:
    for name in ("done", "open"):
        (tmp_path / name).mkdir()
        write_run(tmp_path / name / "curve.h5", run_of(2, run_id=name, seed=int(name == "open")))
    code = ("import h5py, sys; f = h5py.File(sys.argv[1], 'r+', locking=True); print('open', flush=True); "
            "sys.stdin.read()")
    writer = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "open/curve.h5")],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdin is not None
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == "open\n"
        with pytest.warns(RunsWarning, match="another process is writing this file"):
            runs = read_runs(tmp_path)
    finally:
        writer.communicate("")
    assert list(runs.run_id) == ["done"]
    assert len(read_runs(tmp_path)) == 2


@pytest.mark.parametrize(("name", "content", "message"), [
    ("none.csv", None, "No such file"), ("t.xlsx", b"PK", "files of kind '.xlsx' are not read"),
    ("t.csv", b"", "the file is empty"), ("t.csv", b"r,loss\n", "no rows"), ("t.csv", b"\xff\xfe\x00r", "not UTF-8"),
    ("t.csv", b"r;loss\n1;2\n", "comma-separated, with a point"),
    ("t.csv", b"r,loss\n1\n", r"(?s)line 2 has 1; every row.*no rows"),
    ("t.csv", b'r,"loss\n' + b"x" * 140_000, "field larger"),
    ("t.parquet", b"PAR1 and nothing", "not readable as parquet"),
    ("t.h5", b"", "not readable as HDF5"), ("t.h5", b"\x89HDF\r\n\x1a\n" + b"\0" * 90, "not readable as HDF5")])
def test_sources_that_cannot_be_read(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RunsError, match=message) as caught:
        read_runs(path)
    assert str(path) in str(caught.value)


def test_other_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunsError, match=r"no run file \(curve.h5\)"):
        read_runs(tmp_path)
    with pytest.raises(RunsError, match="source is a dict; expected a path or a pandas DataFrame"):
        read_runs({"r": [1]})  # type: ignore[arg-type]
    with pytest.raises(RunsError, match="allow names 'partiel'; did you mean 'partial'"):
        read_runs(PAPER, allow="partiel")
    with pytest.raises(RunsError, match="cannot be written"):
        write_runs(read_runs(PAPER), tmp_path / "no/such/folder.csv")


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
