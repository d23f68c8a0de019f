"""Sweeps over runs that pretend to train: what is trained, retried, resumed, reported and collected."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from bayesloop.schema import read_run, read_sweep
from training import engines, ledger, queue, sweep
from training.collect import run_directories
from training.engines import Task
from training.grid import RunConfig
from training.lock import Lock
from training.run_directory import RunDirectory
from training.tokens import RowStore

from .conftest import TinyRun

Start = Callable[..., int]


@pytest.fixture
def grid(tiny: TinyRun, monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """Three runs, offered as the grid `tiny`."""
    configs = [tiny(10), tiny(30), tiny(20)]
    monkeypatch.setitem(sweep.GRIDS, "tiny", lambda data: configs)
    return configs


@pytest.fixture
def start(grid: list[RunConfig], store: RowStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """A function that starts the sweep of `grid` with runs that pretend: `start(["fail", "done"], …)` scripts them."""
    original = engines.command

    def fake(task: Task) -> list[str]:
        line = original(task)
        return [line[0], "-m", "tests.training.fake_run", *line[3:]]

    monkeypatch.setattr(engines, "command", fake)
    monkeypatch.setattr(queue, "BUSY_SECONDS", 0.1)

    def run(*scripts: list[str], options: tuple[str, ...] = ()) -> int:
        named = {config.run_id: script for config, script in zip(grid, scripts, strict=False)}
        monkeypatch.setenv("FAKE_RUNS", json.dumps(named))
        return sweep.main(["--grid", "tiny", "--data", str(store.folder), "--out", str(tmp_path / "runs"), "--device",
                           "cpu", "--slots", "2", *options])

    return run


def outcomes(tmp_path: Path, config: RunConfig) -> list[str]:
    return [line["outcome"] for line in ledger.records(RunDirectory(tmp_path / "runs", config)) if "outcome" in line]


def test_a_sweep_trains_every_run_once(start: Start, grid: list[RunConfig], tmp_path: Path,
                                       capsys: pytest.CaptureFixture) -> None:
    assert start() == 0
    assert [outcomes(tmp_path, config) for config in grid] == [["done"]] * 3
    printed = capsys.readouterr().out
    assert "3 runs, 0 finished before; predicted" in printed
    assert "[3/3]" in printed
    assert "3 runs took" in printed
    assert start() == 0
    assert [outcomes(tmp_path, config) for config in grid] == [["done"]] * 3
    assert "3 finished before" in capsys.readouterr().out


def test_order(start: Start, grid: list[RunConfig], capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    def order(option: str) -> list[float]:
        assert start(options=("--slots", "1", "--order", option, "--out", str(tmp_path / option))) == 0
        ended = [line.split()[1].rstrip(":") for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
        return [config.budget for name in ended for config in grid if config.run_id == name]

    assert order("ascending") == sorted(config.budget for config in grid)
    assert order("longest") == sorted((config.budget for config in grid), reverse=True)


def test_failed_runs_are_tried_three_times(start: Start, grid: list[RunConfig], tmp_path: Path,
                                           capsys: pytest.CaptureFixture) -> None:
    assert start(["fail", "kill", "done"], ["fail"]) == 3
    assert outcomes(tmp_path, grid[0]) == ["failed", "failed", "done"]
    assert outcomes(tmp_path, grid[1]) == ["failed"] * 3
    assert outcomes(tmp_path, grid[2]) == ["done"]
    error = capsys.readouterr().err
    assert f"{grid[1].run_id} failed: a made-up fail" in error
    killed = ledger.records(RunDirectory(tmp_path / "runs", grid[0]))[1]
    assert killed["message"].startswith("killed by signal 9")
    assert start(["done"], ["fail", "fail", "fail", "done"]) == 0  # a new start is a new chance


def test_diverged_runs_are_not_tried_again(start: Start, grid: list[RunConfig], tmp_path: Path,
                                           capsys: pytest.CaptureFixture) -> None:
    for _ in range(2):
        assert start(["diverged"]) == 3
        assert outcomes(tmp_path, grid[0]) == ["diverged"]
        assert f"{grid[0].run_id} diverged" in capsys.readouterr().err


def test_out_of_memory_halves_the_micro_batch(start: Start, grid: list[RunConfig], tmp_path: Path) -> None:
    assert start(["oom", "oom", "oom", "oom", "done"]) == 0
    lines = ledger.records(RunDirectory(tmp_path / "runs", grid[0]))
    assert [line["outcome"] for line in lines] == ["oom"] * 4 + ["done"]
    assert [line["device_rows"] for line in lines] == [8, 4, 2, 1, 1]


def test_an_interrupted_sweep_goes_on(start: Start, grid: list[RunConfig], tmp_path: Path) -> None:
    real = queue.Queue.start
    seen: list[float] = []

    def start_and_signal(self: queue.Queue) -> None:
        real(self)
        if not seen and all(journal_steps(tmp_path, config) > 2 for config in (grid[1], grid[2])):
            seen.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue.Queue, "start", start_and_signal)
        assert start(["done"], ["slow"], ["slow"]) == 4
    assert {outcomes(tmp_path, config)[0] for config in grid[1:]} == {"interrupted"}
    before = journal_steps(tmp_path, grid[1])
    assert before >= 3
    assert start() == 0
    assert outcomes(tmp_path, grid[1]) == ["interrupted", "done"]


def journal_steps(tmp_path: Path, config: RunConfig) -> int:
    path = tmp_path / "runs" / config.run_id / "journal.jsonl"
    return path.read_text().count('"step"') if path.exists() else 0


def test_a_run_asked_to_stop_by_somebody_goes_on(start: Start, grid: list[RunConfig], tmp_path: Path) -> None:
    real, hit = queue.Queue.look_elsewhere, []

    def stop_one(self: queue.Queue) -> None:
        real(self)
        if not hit and journal_steps(tmp_path, grid[1]) > 2:
            hit.append(json.loads((tmp_path / "runs" / grid[1].run_id / "lock").read_text())["pid"])
            os.kill(hit[0], signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue.Queue, "look_elsewhere", stop_one)
        assert start(["done"], ["slow", "done"]) == 0
    assert outcomes(tmp_path, grid[1]) == ["interrupted", "done"]


def test_a_run_that_another_process_trains_is_waited_for(start: Start, grid: list[RunConfig], tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "runs", grid[0])
    directory.create()
    holder = subprocess.Popen([sys.executable, "-c",
                               "import sys, time, pathlib; from training.lock import Lock\n"
                               f"with Lock(pathlib.Path({str(directory.lock)!r})): print('held', flush=True); "
                               "time.sleep(2)"], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    with holder, holder.stdout:
        holder.stdout.readline()
        assert start() == 0
        assert holder.poll() is not None or outcomes(tmp_path, grid[0]) == ["done"]
    others = [ledger.records(RunDirectory(tmp_path / "runs", config))[-1]["time"] for config in grid[1:]]
    assert ledger.records(directory)[-1]["time"] > max(others)


def test_a_lock_taken_just_before_the_start_is_no_failure(grid: list[RunConfig], tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path, grid[0])
    directory.create()
    with Lock(directory.lock):
        assert ledger.conclude(directory, 1, {}).state == "busy"
    (directory.path / "output.txt").write_text("Traceback\nImportError: no module\n")
    expected = ledger.Outcome("failed", "exit code 1: ImportError: no module")
    assert ledger.conclude(directory, 1, {}) == expected
    for state in ("interrupted", "failed"):  # left by an attempt before this one
        directory.write_state(state, message="earlier")
        assert ledger.conclude(directory, 1, directory.read_state()) == expected
        assert ledger.conclude(directory, 1, {}).state == state


def test_collecting_an_unfinished_sweep(start: Start, grid: list[RunConfig], tmp_path: Path,
                                        capsys: pytest.CaptureFixture) -> None:
    assert start(["diverged"], ["fail"]) == 3
    waiting, running = dataclasses.replace(grid[0], seed=1), dataclasses.replace(grid[0], seed=2)
    for config in (waiting, running):
        RunDirectory(tmp_path / "runs", config).create()
    journal = RunDirectory(tmp_path / "runs", running).journal
    journal.restart(0)
    journal.append([{"step": 0, "loss": 5.5, "grad_norm": 1.0, "lr_mult": 1.0, "lr_matrix": 0.01, "row_hash": 1,
                     "wall_s": 0.5}])
    journal.close()
    path = tmp_path / "sweep.h5"
    command = ["--out", str(tmp_path / "runs"), "--collect", str(path)]
    capsys.readouterr()
    assert sweep.main(command) == 0
    counts = capsys.readouterr().out
    assert all(part in counts for part in ("1 waiting", "1 done", "1 diverged", "1 failed", "1 running"))
    found = {run.attrs["run_id"]: run for run in read_sweep(path)}
    expected = {grid[0].run_id: "diverged", grid[1].run_id: "failed", grid[2].run_id: "done", running.run_id: "running"}
    assert {name: run.attrs["status"] for name, run in found.items()} == expected
    np.testing.assert_array_equal(found[running.run_id].train["loss"], [5.5])
    assert found[running.run_id].attrs["tokens"] == 128
    done = read_run(tmp_path / "runs" / grid[2].run_id / "curve.h5")
    assert all(found[grid[2].run_id].attrs[name] == value for name, value in done.attrs.items() if "mfu" not in name)
    with open(tmp_path / "sweep.csv", newline="") as file:
        rows = {row["run_id"]: row for row in csv.DictReader(file)}
    assert {name: row["status"] for name, row in rows.items()} == expected
    assert float(rows[grid[2].run_id]["loss"]) == done.attrs["loss"]
    assert rows[running.run_id]["loss"] == ""
    with xr.open_datatree(path, engine="h5netcdf") as tree:
        assert tree["summary"].sizes == {"run": 4}
        assert tree[f"runs/{running.run_id}/train"]["loss"].values.tolist() == [5.5]
    before = path.read_bytes()
    assert sweep.main(command) == 0
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]
    assert len(before) == path.stat().st_size


def test_a_terminal_sees_what_runs(start: Start, grid: list[RunConfig], monkeypatch: pytest.MonkeyPatch,
                                   capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr("training.view.REFRESH_SECONDS", 0.1)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    assert start(["slow"], ["slow"], ["fail", "slow"]) == 0
    printed = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().out)
    assert re.search(r"(1 done, 2 running|2 running, 1 waiting)", printed)
    assert "left on 2 at once" in printed
    assert f"{grid[2].run_id}: failed: a made-up fail; again" in printed
    assert "3 runs took" not in printed  # two attempts at one of them: its time is no measure
    assert "2 runs took" in printed


def test_status_of_a_folder(start: Start, grid: list[RunConfig], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert start(["diverged"], ["fail"]) == 3
    waiting = RunDirectory(tmp_path / "runs", dataclasses.replace(grid[0], seed=1))
    waiting.create()
    capsys.readouterr()
    for options in (["--status", str(tmp_path / "runs")], ["--out", str(tmp_path / "runs"), "--status"]):
        assert sweep.main(options) == 0
        printed = capsys.readouterr().out
        assert "1 done, 1 waiting, 1 failed, 1 diverged, about " in printed
        assert "a made-up fail" in printed
        assert grid[2].run_id not in printed
    with Lock(waiting.lock):
        assert sweep.main(options) == 0
        assert "1 running" in capsys.readouterr().out


def test_a_status_loads_no_torch(start: Start, tmp_path: Path) -> None:
    assert start() == 0
    code = (f"import sys; from training.sweep import main; code = main(['--status', {str(tmp_path / 'runs')!r}]); "
            "assert not {'torch', 'submitit', 'jax'} & set(sys.modules); raise SystemExit(code)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "3 done"), done.stderr


@pytest.mark.parametrize(("options", "code", "message"), [
    ([], 2, "--grid is needed"), (["--grid", "tiny"], 2, "--data is needed"), (["--status"], 2, "needs a folder"),
    (["--collect", "x.h5"], 2, "--out is needed"), (["--order", "random"], 2, "invalid choice"),
    (["--status", "/nowhere"], 1, "/nowhere: no such folder"),
    (["--out", "/nowhere", "--collect", "x.h5"], 1, "/nowhere: no such folder"),
    (["--grid", "micro", "--data", "/nowhere", "--out", "x"], 1, "no such file; prepare rows"),
    (["--grid", "absent.toml", "--list"], 1, "absent.toml: cannot be read"),
])
def test_exit_codes_of_wrong_input(options: list[str], code: int, message: str, capsys: pytest.CaptureFixture) -> None:
    if code == 2:
        with pytest.raises(SystemExit) as stopped:
            sweep.main(options)
        assert stopped.value.code == 2
    else:
        assert sweep.main(options) == code
    assert message in capsys.readouterr().err


def test_a_store_that_does_not_fit_stops_the_sweep_before_it_starts(store: RowStore, tmp_path: Path,
                                                                   capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "runs"
    assert sweep.main(["--grid", "micro", "--data", str(store.folder), "--out", str(out)]) == 1
    assert "seq_len 16; the run expects 64" in capsys.readouterr().err
    assert not out.exists()


def test_damaged_folders_are_named(start: Start, grid: list[RunConfig], tmp_path: Path) -> None:
    assert start() == 0
    folder = tmp_path / "runs" / grid[0].run_id
    (folder / "config.json").write_text("{")
    with pytest.raises(sweep.ConfigError, match=rf"{grid[0].run_id}/config\.json: not a run configuration"):
        run_directories(tmp_path / "runs")


def test_a_torn_ledger_loses_only_its_last_line(grid: list[RunConfig], tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path, grid[0])
    directory.create()
    ledger.record(directory, outcome="oom", device_rows=8)
    with open(directory.path / "ledger.jsonl", "a") as file:
        file.write('{"outcome": "fai')
    ledger.record(directory, outcome="done")
    assert [line["outcome"] for line in ledger.records(directory)] == ["oom", "done"]
    assert ledger.device_rows(directory) == 4
