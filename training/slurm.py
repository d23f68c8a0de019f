"""Runs as jobs of a SLURM cluster, through submitit: one array of jobs, each of which trains one run.

A job that nears its time limit or is preempted has its run checkpoint and goes back to the queue. What became of a
run is read from its files, never from the job.
"""

from __future__ import annotations

import getpass
import logging
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from submitit import AutoExecutor
from submitit.core.utils import FailedJobError
from submitit.helpers import DelayedSubmission

from training import ledger
from training.engines import Attempt, Task
from training.grid import ConfigError
from training.ledger import Outcome

POLL_SECONDS = 10.0
SIGNAL_SECONDS = 120  # before the time limit: a step, and writing a checkpoint
PATIENCE_SECONDS = 60.0  # of a job whose run was asked to stop, until SLURM ends it
MIN_MINUTES = 4
log = logging.getLogger("training")


class SlurmJob:
    """What one job executes: attempts at one run, until it needs no more.

    Parameters
    ----------
    task : Task
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.attempt: Attempt | None = None

    def __call__(self) -> str:
        """Train the run; the state it ends in."""
        failures = 0
        while True:
            self.attempt = Attempt(self.task)
            while (outcome := self.attempt.ended()) is None:
                time.sleep(0.5)
            failures += outcome.state == "failed"
            if not outcome.again(failures):
                return outcome.state
            if outcome.state in ("interrupted", "busy"):
                # a job that ended here would count as complete, and SLURM would not queue it again
                time.sleep(PATIENCE_SECONDS)

    def checkpoint(self) -> DelayedSubmission:
        """Called by submitit when the job is about to end: have the run checkpoint, and queue it again."""
        if self.attempt is not None:
            while self.attempt.ended() is None:
                self.attempt.stop()
                time.sleep(1)
        return DelayedSubmission(SlurmJob(self.task))


class SlurmEngine:
    """Submits runs as job arrays, one for each number of devices, and watches the queue.

    Parameters
    ----------
    out : Path
        Folder of the runs, on a disk that the nodes share; job files go to its `.slurm`.
    cuda : bool
        Whether a run needs GPUs.
    hours : float
        Time limit of a job.
    parallel : int, optional
        Jobs of one array that run at once.
    parameters : mapping
        Further parameters of submitit's AutoExecutor.

    Raises
    ------
    ConfigError
        If SLURM is not there, or a parameter is wrong.
    """

    def __init__(self, out: Path, cuda: bool, hours: float, parallel: int | None,
                 parameters: Mapping[str, str]) -> None:
        if not 60 * hours >= MIN_MINUTES:
            raise ConfigError(f"a time limit of {60 * hours:g} minutes; expected at least {MIN_MINUTES}")
        self.cuda, self.stopping = cuda, False
        self.jobs: dict[str, Task] = {}
        self.looked = 0.0
        try:
            self.executor = AutoExecutor(out / ".slurm", cluster="slurm", slurm_max_num_timeout=1_000_000)
            self.executor.update_parameters(
                name="looped-lm", timeout_min=round(60 * hours), slurm_signal_delay_s=SIGNAL_SECONDS, nodes=1,
                tasks_per_node=1, **({"slurm_array_parallelism": parallel} if parallel else {}),
                **{key: int(value) if value.isdigit() else value for key, value in parameters.items()})
        except (RuntimeError, NameError, ValueError, TypeError, AssertionError) as error:
            raise ConfigError(f"SLURM cannot be used: {error}") from None

    def room(self, devices: int) -> bool:
        return True

    def submit(self, tasks: Sequence[Task]) -> None:
        queued = self.queued() or set()
        for devices in sorted({task.devices for task in tasks}):
            fresh = []
            for task in (task for task in tasks if task.devices == devices):
                job = submitted(task)
                if job in queued:
                    self.jobs[job] = task
                else:
                    fresh.append(task)
            if fresh:
                self.submit_array(fresh, devices)

    def submit_array(self, tasks: Sequence[Task], devices: int) -> None:
        """Queue tasks that need the same number of devices."""
        gpus: dict[str, Any] = {"gpus_per_node": devices} if self.cuda else {}
        self.executor.update_parameters(cpus_per_task=devices * tasks[0].operation.threads, **gpus)
        try:
            with self.executor.batch():
                jobs = [self.executor.submit(SlurmJob(task)) for task in tasks]
        except FailedJobError as error:
            raise ConfigError(f"sbatch refuses the jobs: {str(error).strip().splitlines()[-1]}") from None
        for job, task in zip(jobs, tasks, strict=True):
            self.jobs[job.job_id] = task
            ledger.record(task.directory, submitted=job.job_id)

    def queued(self) -> set[str] | None:
        """Ids of this user's jobs that wait or run; None where the controller does not answer."""
        command = ["squeue", "--noheader", "--array", "--user", getpass.getuser(), "--format", "%i"]
        listed = subprocess.run(command, capture_output=True, text=True)
        if listed.returncode:
            log.warning("squeue: %s", listed.stderr.strip())
            return None
        return set(listed.stdout.split())

    def poll(self) -> list[tuple[Task, Outcome]]:
        if self.stopping:
            ended = [(task, Outcome("interrupted", f"job {job} goes on; scancel {job} would end it", final=True))
                     for job, task in self.jobs.items()]
            self.jobs = {}
            return ended
        if not self.jobs or time.monotonic() - self.looked < POLL_SECONDS:
            return []
        self.looked = time.monotonic()
        queued = self.queued()
        if queued is None:
            return []
        left = {job: task for job, task in self.jobs.items() if job not in queued}
        self.jobs = {job: task for job, task in self.jobs.items() if job in queued}
        return [(task, after(task, job)) for job, task in left.items()]

    def stop(self, now: bool = False) -> None:
        """Stop watching. Jobs go on: they need no sweep."""
        self.stopping = True


def submitted(task: Task) -> str:
    """Id of the job a run was last submitted as, empty if there is none."""
    ids = [line["submitted"] for line in ledger.records(task.directory) if "submitted" in line]
    return ids[-1] if ids else ""


def after(task: Task, job: str) -> Outcome:
    """What became of a run whose job has left the queue."""
    directory = task.directory
    if finished := directory.finished():
        return Outcome(finished, str(directory.read_state().get("message", "")))
    lines = ledger.records(directory)
    since = [line for line in lines[[line.get("submitted") for line in lines].index(job):] if "outcome" in line]
    if not since:
        return Outcome("failed", f"job {job} left the queue without a trace; its output is in .slurm/{job}_0_log.err")
    if since[-1]["outcome"] == "interrupted":
        return Outcome("interrupted", f"job {job} was cancelled", final=True)
    return Outcome(since[-1]["outcome"], since[-1].get("message", ""), final=True)
