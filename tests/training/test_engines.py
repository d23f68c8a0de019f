"""The local engine with real runs: slots, command lines, kills of everything; and jobs of an engine with a queue."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bayesloop.schema import read_run, read_sweep
from training import engines, ledger
from training.cost import Costs, Device
from training.engines import Task, command, local_slots, visible_gpus
from training.grid import Operation, RunConfig, paper_run
from training.run_directory import RunDirectory
from training.sources import synthetic_store
from training.sweep import main, make_task

from .conftest import TinyRun
from .test_durability import uninterrupted


def test_command_of_a_run(tiny: TinyRun, operation: Operation) -> None:
    config = tiny()
    directory = RunDirectory(operation.out, config)
    directory.create()
    line = command(Task(config, operation))
    assert line[:3] == [sys.executable, "-m", "training.train"]
    assert "--device-rows" not in line
    team = command(Task(config, dataclasses.replace(operation, device_rows=4), devices=2))
    assert team[1:7] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    assert team[-2:] == ["--device-rows", "4"]
    ledger.record(directory, outcome="oom", device_rows=16)
    assert command(Task(config, operation))[-2:] == ["--device-rows", "8"]


def test_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert local_slots("cpu", 1, None) == [""] * 8
    assert local_slots("cpu", 4, None) == [""] * 2
    assert local_slots("cpu", 16, None) == [""]
    assert local_slots("cpu", 1, 3) == [""] * 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert visible_gpus() == local_slots("auto", 1, None) == ["2", "5"]
    assert local_slots("cuda", 1, 1) == ["2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert local_slots("auto", 1, 2) == ["", ""]


def test_a_run_of_several_devices_takes_their_slots(tiny: TinyRun, operation: Operation,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "command", lambda task: [
        sys.executable, "-c", "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['OMP_NUM_THREADS'])"])
    engine = engines.LocalEngine(["0", "1", "2"])
    task = Task(tiny(), operation, devices=2)
    assert engine.room(3)
    engine.submit([task])
    assert engine.room(1)
    assert not engine.room(2)
    while not (ended := engine.poll()):
        time.sleep(0.02)
    assert ended[0][1].state == "failed"  # it trained nothing
    assert sorted(engine.free) == ["0", "1", "2"]
    assert (task.directory.path / "output.txt").read_text() == "0,1 1\n"


def test_long_runs_get_more_gpus(operation: Operation) -> None:
    config = paper_run(34, 1, 2.15e19)  # 11.8 hours on one H100
    h100, cpu = Costs(Device("H100", True)), Costs(Device("a processor", False))
    teams = [make_task(config, operation, h100, hours, most).devices
             for hours, most in ((12, 8), (6.5, 8), (2, 8), (0.1, 8), (2, 3), (2, 1))]
    assert teams == [1, 2, 8, 8, 2, 1]
    assert make_task(config, operation, cpu, 12, 8).devices == 1
    assert make_task(config, operation, Costs(Device("unknown", True)), 12, 8).devices == 1


GRID = 'recipe = "micro"\n[[cell]]\nbudgets = [6e9]\nwidths = [8]\nr = [1, 2, 4]\n'


def sweep_command(tmp_path: Path, store: Path) -> list[str]:
    grid = tmp_path / "grid.toml"
    grid.write_text(GRID)
    return ["--grid", str(grid), "--data", str(store), "--out", str(tmp_path / "runs"), "--device", "cpu",
            "--slots", "2", "--compile", "none", "--order", "ascending", "--checkpoint-minutes", "0"]


def steps(out: Path) -> dict[str, int]:
    return {path.parent.name: path.read_text().count('"step"') for path in out.glob("*/journal.jsonl")}


@pytest.mark.slow
def test_everything_killed_half_way_goes_on(tmp_path: Path) -> None:
    """SIGKILL to the sweep and to one of its runs; the other is told to stop by its parent's death."""
    store = synthetic_store(tmp_path / "rows", rows=2_000, val_rows=4_096).folder
    options = sweep_command(tmp_path, store)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", "training.sweep", *options], env=environment)
    while sum(count >= 30 for count in steps(tmp_path / "runs").values()) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    owners = [int(path.read_text().split('"pid": ')[1].split(",")[0]) for path in (tmp_path / "runs").glob("*/lock")]
    os.kill(owners[0], signal.SIGKILL)
    process.kill()
    process.wait()
    while Path(f"/proc/{owners[1]}").exists():
        time.sleep(0.05)
    before = steps(tmp_path / "runs")
    assert sorted(before.values())[0] >= 30
    assert subprocess.run([sys.executable, "-m", "training.sweep", *options], env=environment).returncode == 0
    found = {path.parent.name: read_run(path) for path in (tmp_path / "runs").glob("*/curve.h5")}
    assert len(found) == 3
    for name, run in found.items():
        assert run.attrs["status"] == "done"
        assert run.attrs["resumes"] == (name in before)
        assert run.attrs["tokens"] == run.attrs["n_steps"] * 512
    config = RunConfig.from_json(str(found[next(iter(before))].attrs["config_json"]))
    operation = Operation(store, tmp_path / "runs", compile="none")
    reference = uninterrupted(config, operation, tmp_path)
    one, other = (read_run(out / config.run_id / "curve.h5") for out in (reference.out, operation.out))
    assert one.attrs["loss"] == other.attrs["loss"]


@pytest.mark.slow
def test_a_team_that_is_stopped_goes_on_alone(tiny: TinyRun, operation: Operation) -> None:
    config = tiny(400)
    engine = engines.LocalEngine(["", ""])
    engine.submit([Task(config, operation, devices=2)])
    while steps(operation.out).get(config.run_id, 0) < 20:
        assert not engine.poll()
        time.sleep(0.02)
    engine.stop()
    assert until_ended(engine) == "interrupted"
    assert 20 <= steps(operation.out)[config.run_id] < 400
    engine.submit([Task(config, operation)])
    assert until_ended(engine) == "done"
    attrs = read_run(operation.out / config.run_id / "curve.h5").attrs
    assert (attrs["resumes"], attrs["tokens"]) == (1, 400 * 128)


def until_ended(engine: engines.LocalEngine) -> str:
    while not (ended := engine.poll()):
        time.sleep(0.02)
    return ended[0][1].state


@pytest.mark.slow
def test_micro_ci_on_this_machine(tmp_path: Path) -> None:
    store = synthetic_store(tmp_path / "rows", rows=4_000, val_rows=4_096)
    path = tmp_path / "sweep.h5"
    common = ["--out", str(tmp_path / "runs")]
    assert main(["--grid", "micro-ci", "--data", str(store.folder), *common, "--device", "cpu", "--slots", "2"]) == 0
    assert main([*common, "--collect", str(path)]) == 0
    runs = read_sweep(path)
    assert len(runs) == 6
    assert {run.attrs["probe"] for run in runs} == {"baseline", "truncated", "hyperconnections"}
    for run in runs:
        assert run.attrs["status"] == "done"
        assert run.attrs["loss"] < run.train["loss"][0] - 0.5
