"""Every kind of source: run files, folders, sweeps, exports; and what is said of those that cannot be read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import bayesloop as bl
from bayesloop.problems import RunsError, RunsWarning
from bayesloop.runs import read_runs
from bayesloop.schema import write_run, write_sweep
from tests.tables import paper_rows, run_of, write_csv


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
