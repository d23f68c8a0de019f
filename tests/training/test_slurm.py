"""Sweeps through a real SLURM cluster of one node: queueing, requeueing, cancelling, teams under torchrun."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bayesloop.schema import read_run
from training import ledger, queue, slurm
from training.engines import Task
from training.grid import ConfigError, Operation, RunConfig
from training.run_directory import RunDirectory
from training.sources import synthetic_store
from training.sweep import main

from .conftest import TinyRun

SCRIPT = Path(__file__).with_name("slurm.sh")
TOOLS = ("slurmctld", "slurmd", "munged", "sbatch")


def missing() -> list[str]:
    return [tool for tool in TOOLS if shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin") is None]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A running cluster that this process's SLURM commands talk to."""
    in_ci = bool(os.environ.get("CI"))
    if in_ci:
        subprocess.run([SCRIPT, "install"], check=False)
    if missing() or os.getuid() != 0:
        reason = (f"NOT TESTED ON SLURM: missing {', '.join(missing()) or 'root'}; as root, run {SCRIPT} install")
        pytest.fail(reason) if in_ci else pytest.skip(reason)
    folder = tmp_path_factory.mktemp("slurm")
    started = subprocess.run([SCRIPT, "start", folder], capture_output=True, text=True)
    try:
        assert started.returncode == 0, started.stderr
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_CONF", started.stdout.strip())
            patch.setattr(slurm, "POLL_SECONDS", 0.5)
            yield
    finally:
        subprocess.run([SCRIPT, "stop", folder], check=True)


Start = Callable[..., int]


@pytest.fixture
def start(cluster: None, tmp_path: Path) -> Start:
    """A function that sweeps a grid through SLURM, two jobs at once."""
    store = synthetic_store(tmp_path / "rows", rows=4_000, val_rows=4_096)

    def sweep(grid: str, *options: str) -> int:
        return main(["--grid", grid, "--data", str(store.folder), "--out", str(tmp_path / "runs"), "--engine", "slurm",
                     "--device", "cpu", "--slots", "2", "--order", "ascending", *options])

    return sweep


def meddle(monkeypatch: pytest.MonkeyPatch, act: Callable[[], bool]) -> list[bool]:
    """Call `act` while a sweep watches its jobs, until it returns True."""
    real, hits = queue.Queue.look_elsewhere, []

    def look(self: queue.Queue) -> None:
        real(self)
        if not hits and act():
            hits.append(True)

    monkeypatch.setattr(queue.Queue, "look_elsewhere", look)
    return hits


def under_way(out: Path, least: int) -> list[str]:
    """Runs that train, are past step `least` and in their first half."""
    found = []
    for path in out.glob("*/journal.jsonl"):
        config = RunConfig.from_json((path.parent / "config.json").read_text())
        if least <= path.read_text().count('"step"') < config.horizon.n_steps / 2 and (path.parent / "lock").exists():
            found.append(path.parent.name)
    return found


def job_process(out: Path, name: str) -> int:
    """Process of a run's job: the parent of the one that trains."""
    pid = json.loads((out / name / "lock").read_text())["pid"]
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def lines(out: Path, name: str) -> list[dict]:
    return ledger.records(RunDirectory(out, RunConfig.from_json((out / name / "config.json").read_text())))


def job_of(out: Path, name: str) -> str:
    return [line["submitted"] for line in lines(out, name) if "submitted" in line][-1]


@pytest.mark.slow
def test_micro_ci_with_jobs_requeued_half_way(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One job is requeued by SLURM (SIGTERM), another is told that its time is up (submitit's signal): both resume."""
    out, hit = tmp_path / "runs", []

    def interrupt() -> bool:
        for name in set(under_way(out, 30)) - set(hit):
            if not hit:
                subprocess.run(["scontrol", "requeue", job_of(out, name)], check=True)
            else:
                os.kill(job_process(out, name), signal.SIGUSR2)
            hit.append(name)
        return len(hit) >= 2

    meddle(monkeypatch, interrupt)
    assert start("micro-ci") == 0
    assert len(hit) >= 2
    found = {path.parent.name: read_run(path).attrs for path in out.glob("*/curve.h5")}
    assert len(found) == 6
    assert {attrs["status"] for attrs in found.values()} == {"done"}
    assert all(attrs["tokens"] == attrs["n_steps"] * attrs["batch_tokens"] for attrs in found.values())
    for name in hit[:2]:
        assert found[name]["resumes"] == 1
        assert [line["outcome"] for line in lines(out, name) if "outcome" in line] == ["interrupted", "done"]
    assert all(sum("submitted" in line for line in lines(out, name)) == 1 for name in found)


GRID = 'recipe = "micro"\n[[cell]]\nbudgets = [8e9]\nwidths = [8]\nr = [1, 2]\n'


@pytest.mark.slow
def test_a_cancelled_job_and_a_sweep_that_stops_watching(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                        capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "grid.toml").write_text(GRID)
    out, hit = tmp_path / "runs", []

    def cancel() -> bool:
        for name in under_way(out, 30)[:1]:
            subprocess.run(["scancel", job_of(out, name)], check=True)
            hit.append(name)
        return bool(hit)

    with pytest.MonkeyPatch.context() as patch:
        meddle(patch, cancel)
        assert start(str(tmp_path / "grid.toml")) == 4
    printed = capsys.readouterr()
    assert "was cancelled" in printed.out
    assert "the same command goes on" in printed.err

    with pytest.MonkeyPatch.context() as patch:  # the next sweep is told to stop while the job trains
        meddle(patch, lambda: bool(under_way(out, 1)) and os.kill(os.getpid(), signal.SIGTERM) is None)
        assert start(str(tmp_path / "grid.toml")) == 4
    assert "goes on; scancel" in capsys.readouterr().out
    assert start(str(tmp_path / "grid.toml")) == 0
    submissions = {path.name: sum("submitted" in line for line in lines(out, path.name)) for path in out.glob("base*")}
    assert sorted(submissions.values()) == [1, 2]
    assert submissions[hit[0]] == 2
    assert read_run(out / hit[0] / "curve.h5").attrs["resumes"] == 1


@pytest.mark.slow
def test_a_team_of_two_under_torchrun(cluster: None, tiny: TinyRun, operation: Operation) -> None:
    config = tiny(24)
    task = Task(config, operation, devices=2)
    task.directory.create()
    engine = slurm.SlurmEngine(operation.out, cuda=False, hours=1, parallel=None, parameters={})
    engine.submit([task])
    while not (ended := engine.poll()):
        time.sleep(0.2)
    assert ended[0][1].state == "done", ended
    assert read_run(task.directory.curve).attrs["n_devices"] == 2


@pytest.mark.slow
def test_failures_inside_jobs(cluster: None, tiny: TinyRun, operation: Operation) -> None:
    """A run that fails three times in its job is given up; a job that leaves no trace may be tried again."""
    config = tiny(24)
    task = Task(config, operation)
    task.directory.create()
    (task.directory.path / "journal.jsonl").write_text("damaged\n{}\n")
    engine = slurm.SlurmEngine(operation.out, cuda=False, hours=1, parallel=None, parameters={})
    engine.submit([task])
    while not (ended := engine.poll()):
        time.sleep(0.2)
    outcome = ended[0][1]
    assert (outcome.state, outcome.final) == ("failed", True)
    assert "line 1: damaged" in outcome.message
    assert [line["outcome"] for line in ledger.records(task.directory) if "outcome" in line] == ["failed"] * 3
    ledger.record(task.directory, submitted="77_0")
    lost = slurm.after(task, "77_0")
    assert (lost.state, lost.again(1)) == ("failed", True)


def test_slurm_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="SLURM cannot be used"):
        slurm.SlurmEngine(tmp_path, cuda=False, hours=1, parallel=None, parameters={})


@pytest.mark.parametrize(("hours", "parameters", "message"), [
    (0.0, {}, "a time limit of 0 minutes; expected at least 4"), (float("nan"), {}, "a time limit of nan"),
    (1.0, {"nonsense": "1"}, "nonsense"),
])
def test_wrong_parameters_are_named(hours: float, parameters: dict, message: str, tmp_path: Path,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "srun").write_text("")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=message):
        slurm.SlurmEngine(tmp_path, cuda=False, hours=hours, parallel=2, parameters=parameters)


def test_a_controller_that_does_not_answer_loses_nothing(tiny: TinyRun, operation: Operation,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    engine = object.__new__(slurm.SlurmEngine)
    engine.jobs, engine.looked, engine.stopping = {"1_0": Task(tiny(), operation)}, -1e9, False
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 1, "", "timed out"))
    assert engine.poll() == []
    assert list(engine.jobs) == ["1_0"]
