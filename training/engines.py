"""Where runs execute: on this machine, or through SLURM. An engine starts runs and says how they ended.

The ledger and the run files are the truth; an engine that dies loses nothing.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from training import ledger
from training.grid import Operation, RunConfig
from training.ledger import Outcome
from training.run_directory import RunDirectory


@dataclass(frozen=True)
class Task:
    """One run to be trained: configuration, how it executes, on how many devices, and its predicted seconds."""

    config: RunConfig
    operation: Operation
    devices: int = 1
    predicted: float = float("nan")

    @property
    def directory(self) -> RunDirectory:
        """The run's folder."""
        return RunDirectory(self.operation.out, self.config)


class Engine(Protocol):
    """What the sweep asks of an engine."""

    def room(self, devices: int) -> bool:
        """Whether tasks that need so many devices together can be submitted now."""

    def submit(self, tasks: Sequence[Task]) -> None:
        """Start tasks, or queue them."""

    def poll(self) -> list[tuple[Task, Outcome]]:
        """Tasks that have ended since the last call."""

    def stop(self, now: bool = False) -> None:
        """Ask what runs to checkpoint and end; `now` does not wait for it."""


def command(task: Task) -> list[str]:
    """Command line of one attempt at a run; several devices are a team under torchrun."""
    operation, directory = task.operation, task.directory
    launcher = [sys.executable]
    if task.devices > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(task.devices)]
    line = [*launcher, "-m", "training.train", "--data", str(operation.data), "--out", str(operation.out),
            "--config", str(directory.path / "config.json"), "--device", operation.device, "--compile",
            operation.compile, "--threads", str(operation.threads), "--checkpoint-minutes",
            str(operation.checkpoint_minutes)]
    rows = ledger.device_rows(directory) or operation.device_rows
    line += ["--device-rows", str(rows)] if rows else []
    line += ["--keep-checkpoints"] if operation.keep_checkpoints else []
    return line + (["--deterministic"] if operation.deterministic else [])


class Attempt:
    """One process that trains a run, from its start to the line it leaves in the ledger.

    Parameters
    ----------
    task : Task
    devices : sequence of str
        CUDA devices the process may see; empty on a CPU, or where the surroundings have chosen.
    """

    def __init__(self, task: Task, devices: Sequence[str] = ()) -> None:
        self.task, self.devices, self.begun = task, tuple(devices), time.monotonic()
        directory = task.directory
        directory.create()
        self.before = directory.read_state()
        threads = str(task.operation.threads)
        environment = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        if devices:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        with open(directory.path / "output.txt", "a") as output:
            self.process = subprocess.Popen(command(task), env=environment, stdin=subprocess.DEVNULL, stdout=output,
                                            stderr=subprocess.STDOUT, start_new_session=True,
                                            preexec_fn=_stop_with_parent)

    def ended(self) -> Outcome | None:
        """How the attempt ended, noted in the ledger; None while it runs."""
        code = self.process.poll()
        if code is None:
            return None
        directory = self.task.directory
        outcome = ledger.conclude(directory, code, self.before)
        if outcome.state != "busy":
            rows = directory.read_state().get("device_rows")
            ledger.record(directory, outcome=outcome.state, message=outcome.message, exit_code=code, device_rows=rows,
                          seconds=time.monotonic() - self.begun, predicted=self.task.predicted)
        return outcome

    def stop(self, now: bool = False) -> None:
        """Ask the run to checkpoint and end, or end it now. To be repeated: a team that starts up does not hear."""
        if self.process.poll() is not None:
            return
        if self.task.devices == 1:
            self.process.kill() if now else self.process.terminate()
        elif now:
            self.process.terminate()  # torchrun ends its workers, within 30 s
        elif (leader := ledger.owner(self.task.directory)) is not None:
            os.kill(leader, signal.SIGUSR2)  # past torchrun, which would leave its workers 30 s


def _stop_with_parent() -> None:
    """Have Linux send SIGTERM to this process when its parent dies, so that a killed sweep leaves no stray runs."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


class LocalEngine:
    """A pool of slots on this machine: GPUs, or cores.

    Parameters
    ----------
    slots : sequence of str
        CUDA device numbers, or empty strings for slots on the CPU.
    """

    def __init__(self, slots: Sequence[str]) -> None:
        self.free = list(slots)
        self.running: list[tuple[Attempt, list[str]]] = []

    def room(self, devices: int) -> bool:
        return len(self.free) >= devices

    def submit(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            mine, self.free = self.free[:task.devices], self.free[task.devices:]
            self.running.append((Attempt(task, [slot for slot in mine if slot]), mine))

    def poll(self) -> list[tuple[Task, Outcome]]:
        ended = []
        for entry in list(self.running):
            attempt, slots = entry
            if (outcome := attempt.ended()) is not None:
                self.running.remove(entry)
                self.free += slots
                ended.append((attempt.task, outcome))
        return ended

    def stop(self, now: bool = False) -> None:
        for attempt, _ in self.running:
            attempt.stop(now)


def local_slots(device: str, threads: int, slots: int | None) -> list[str]:
    """Slots of this machine: its GPUs, or as many as its cores can serve with `threads` each."""
    gpus = [] if device == "cpu" else visible_gpus()
    if gpus:
        return gpus[:slots]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [""] * (slots or max(1, cores // threads))


def visible_gpus() -> list[str]:
    """Numbers of the CUDA devices this process may use, without loading torch."""
    if (chosen := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in chosen.split(",") if name.strip()]
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    listed = subprocess.run(query, capture_output=True, text=True)
    return listed.stdout.split() if listed.returncode == 0 else []
