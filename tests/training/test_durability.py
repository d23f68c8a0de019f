"""Kills, signals, locks and full disks: nothing finished is lost, and a resumed run is the run that was not stopped."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesloop.schema import read_run
from training import checkpoints, lock, loop
from training.grid import Operation, RunConfig
from training.lock import Lock, LockedError
from training.run_directory import Journal, RunDirectory, RunError
from training.train import train as run

from .conftest import TinyRun


def command(config: RunConfig, operation: Operation, *more: str) -> list[str]:
    file = operation.out.parent / f"{config.run_id}.json"
    file.write_text(config.to_json())
    return [sys.executable, "-m", "training.train", "--data", str(operation.data), "--out", str(operation.out),
            "--config", str(file), "--compile", operation.compile, "--checkpoint-minutes",
            str(operation.checkpoint_minutes), "--keep-checkpoints", *more]


def journal_steps(operation: Operation, config: RunConfig) -> int:
    path = operation.out / config.run_id / "journal.jsonl"
    return path.read_text().count('"step"') if path.exists() else 0


def kill_at(config: RunConfig, operation: Operation, step: int, number: int = signal.SIGKILL) -> int:
    """Start the run and send a signal once its journal has `step` steps; the exit code."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command(config, operation), env=environment, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    while process.poll() is None:
        if journal_steps(operation, config) >= step:
            process.send_signal(number)
            break
        time.sleep(0.001)
    return process.wait()


def weights(operation: Operation, config: RunConfig) -> dict[str, torch.Tensor]:
    newest = checkpoints.found(operation.out / config.run_id / "ckpt")[-1]
    return torch.load(newest, weights_only=True)["model"]


def assert_same(config: RunConfig, one: Operation, other: Operation) -> None:
    """Bit for bit: weights, and every column of the curves that is not a time."""
    a, b = (read_run(op.out / config.run_id / "curve.h5") for op in (one, other))
    assert a.attrs["loss"] == b.attrs["loss"]
    assert a.attrs["row_hash"] == b.attrs["row_hash"]
    for group in ("train", "eval"):
        for name in set(getattr(a, group)) - {"wall_s", "tokens_per_s"}:
            np.testing.assert_array_equal(getattr(a, group)[name], getattr(b, group)[name], err_msg=name)
    for name, tensor in weights(one, config).items():
        assert torch.equal(tensor, weights(other, config)[name]), name


def uninterrupted(config: RunConfig, operation: Operation, tmp_path: Path) -> Operation:
    reference = dataclasses.replace(operation, out=tmp_path / "reference", keep_checkpoints=True)
    assert run(config, reference) == "done"
    return reference


def test_a_killed_run_resumes_to_the_same_bits(tiny: TinyRun, operation: Operation, tmp_path: Path) -> None:
    config = tiny(60)
    reference = uninterrupted(config, operation, tmp_path)
    assert kill_at(config, operation, random.randrange(11, 50)) == -signal.SIGKILL
    resumed = dataclasses.replace(operation, keep_checkpoints=True)
    assert run(config, resumed) == "done"
    assert read_run(operation.out / config.run_id / "curve.h5").attrs["resumes"] == 1
    assert_same(config, reference, resumed)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("compiled", ["none", "block"])
def test_twenty_random_kills(tiny: TinyRun, operation: Operation, tmp_path: Path, compiled: str) -> None:
    operation = dataclasses.replace(operation, compile=compiled)
    config = tiny(400)
    reference = uninterrupted(config, operation, tmp_path)
    rng = random.Random(0)
    for _ in range(20):
        kill_at(config, operation, min(journal_steps(operation, config) + rng.randrange(1, 30), 395))
        path = operation.out / config.run_id / "curve.h5"
        if path.exists():
            read_run(path)
    resumed = dataclasses.replace(operation, keep_checkpoints=True)
    assert run(config, resumed) == "done"
    assert_same(config, reference, resumed)


def test_a_signal_saves_and_stops(tiny: TinyRun, operation: Operation, tmp_path: Path) -> None:
    config = tiny(500)
    operation = dataclasses.replace(operation, checkpoint_minutes=10)
    assert kill_at(config, operation, 10, signal.SIGTERM) == 4
    folder = operation.out / config.run_id
    state = json.loads((folder / "state.json").read_text())
    assert state["state"] == "interrupted"
    assert 10 <= state["step"] < 500
    partial = read_run(folder / "curve.h5")
    assert partial.attrs["status"] == "running"
    assert partial.attrs["tokens"] == 128 * state["step"]
    assert not (folder / "lock").exists()
    assert checkpoints.found(folder / "ckpt")[-1].name == f"step_{state['step']:08d}.pt"


def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(tiny: TinyRun, operation: Operation, tmp_path: Path,
                                                                 caplog: pytest.LogCaptureFixture) -> None:
    config = tiny(40)
    reference = uninterrupted(config, operation, tmp_path)
    kill_at(config, operation, 21)
    kept = checkpoints.found(operation.out / config.run_id / "ckpt")
    assert len(kept) == 2
    kept[-1].write_bytes(kept[-1].read_bytes()[:2000])
    resumed = dataclasses.replace(operation, keep_checkpoints=True)
    assert run(config, resumed) == "done"
    assert "trying the one before" in caplog.text
    assert_same(config, reference, resumed)


def test_a_checkpoint_of_other_data_or_configuration_is_refused(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, 3, {"data": "abc", "configuration": "x"})
    with pytest.raises(RunError, match="made with another data"):
        checkpoints.newest(tmp_path, {"data": "abd", "configuration": "x"})
    with pytest.raises(RunError, match="another configuration"):
        checkpoints.newest(tmp_path, {"data": "abc", "configuration": "y"})


def test_checkpoints_keep_the_last_two(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        checkpoints.save(tmp_path, step, {"step": step})
    assert [path.name for path in checkpoints.found(tmp_path)] == ["step_00000010.pt", "step_00000015.pt"]


def test_a_torn_last_line_is_dropped_and_a_torn_middle_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.path.write_text('{"step": 0}\n{"step": 1}\n{"eval": 1}\n{"st')
    assert journal.restart(1) == [{"step": 0}]
    journal.close()
    assert journal.path.read_text() == '{"step": 0}\n'
    journal.path.write_text('{"step": 0}\n{"st\n{"step": 2}\n')
    with pytest.raises(RunError, match="line 2: damaged"):
        journal.read()


def test_one_of_two_processes_gets_the_run(tiny: TinyRun, operation: Operation, tmp_path: Path) -> None:
    config = tiny(40)
    processes = [subprocess.Popen(command(config, operation), env=os.environ | {"OMP_NUM_THREADS": "1"},
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate()[1] for process in processes]
    codes = sorted(process.returncode for process in processes)
    # the second is refused, or, where it starts after the first has finished, finds the run done
    assert codes in ([0, 1], [0, 0])
    if codes == [0, 1]:
        assert any("trains this run" in error for error in errors)
    assert_same(config, uninterrupted(config, operation, tmp_path), operation)


def test_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    with Lock(path) as mine:
        assert mine.held()
        with pytest.raises(LockedError, match=f"process {os.getpid()}"), Lock(path):
            pass
        assert mine.held()
    assert not path.exists()
    # a dead process of this machine
    dead = subprocess.Popen(["true"])
    dead.wait()
    path.write_text(json.dumps({"host": lock.socket.gethostname(), "pid": dead.pid, "born": "1", "token": "x"}))
    with Lock(path) as mine:
        assert mine.held()
    # another machine: only the heartbeat tells
    path.write_text(json.dumps({"host": "elsewhere", "pid": 1, "born": "1", "token": "x"}))
    with pytest.raises(LockedError, match="process 1 on elsewhere"), Lock(path):
        pass
    old = time.time() - lock.STALE_SECONDS - 1
    os.utime(path, (old, old))
    with Lock(path) as mine:
        assert mine.held()
        path.write_text(json.dumps({"token": "thief"}))
        assert not mine.held()
    assert json.loads(path.read_text()) == {"token": "thief"}


def test_a_run_whose_lock_was_taken_stops(tiny: TinyRun, operation: Operation, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(40)
    original = loop.Training.train_step

    def robbed(self: loop.Training, stopping: bool) -> None:
        original(self, stopping)
        if self.step == 15:
            self.directory.lock.write_text(json.dumps({"token": "thief"}))

    monkeypatch.setattr(loop.Training, "train_step", robbed)
    with pytest.raises(RunError, match="another process has taken this run over"):
        run(config, operation)


@pytest.mark.parametrize("limit", [4_000, 60_000], ids=["journal", "checkpoint"])
def test_a_full_disk_leaves_the_last_files_whole(tiny: TinyRun, operation: Operation, limit: int, tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """A file-size limit from step 25 on stands in for a full disk: the next write of journal or checkpoint fails."""
    config = tiny(40)
    reference = uninterrupted(config, operation, tmp_path)
    original, before = loop.Training.train_step, resource.getrlimit(resource.RLIMIT_FSIZE)

    def filling(self: loop.Training, stopping: bool) -> None:
        original(self, stopping)
        if self.step == 25:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))

    monkeypatch.setattr(loop.Training, "train_step", filling)
    try:
        with pytest.raises(RunError, match=r"cannot be written or read .*the last checkpoint is intact"):
            run(config, operation)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    folder = operation.out / config.run_id
    assert read_run(folder / "curve.h5").attrs["tokens"] == 20 * 128
    assert torch.load(checkpoints.found(folder / "ckpt")[-1], weights_only=True)["step"] == 20
    assert not [path for path in folder.rglob("*") if path.name.endswith(".tmp")]
    monkeypatch.setattr(loop.Training, "train_step", original)
    resumed = dataclasses.replace(operation, keep_checkpoints=True)
    assert run(config, resumed) == "done"
    assert_same(config, reference, resumed)


def test_a_folder_that_cannot_be_written(tiny: TinyRun, operation: Operation, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder is needed")
    with pytest.raises(RunError, match="cannot be written"):
        run(tiny(12), dataclasses.replace(operation, out=blocked))


def test_a_folder_of_another_configuration_is_refused(tiny: TinyRun, operation: Operation) -> None:
    one, other = tiny(12), tiny(13)
    directory = RunDirectory(operation.out, one)
    directory.create()
    (directory.path / "config.json").write_text(other.to_json())
    with pytest.raises(RunError, match="another configuration"):
        run(one, operation)
