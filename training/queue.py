"""Runs that wait, run and have ended, and what happens to those that fail."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from training import ledger
from training.engines import Engine, Task
from training.ledger import Outcome

LOOK_SECONDS, BUSY_SECONDS, STOP_SECONDS = 0.1, 5.0, 5.0


class Watcher(Protocol):
    """Whoever is told how a queue goes on."""

    def ended(self, task: Task, outcome: Outcome, line: str, finished: int) -> None:
        """An attempt has ended; `line` says how, `finished` counts runs that need no further attempt."""

    def refresh(self) -> None:
        """Called several times a second."""


class Queue:
    """Trains tasks through an engine, and decides what happens to those that fail.

    Parameters
    ----------
    tasks : sequence of Task
        In the order in which they should start.
    engine : Engine
    """

    def __init__(self, tasks: Sequence[Task], engine: Engine) -> None:
        self.engine = engine
        self.states: dict[str, Outcome] = {}
        self.failures: dict[str, int] = {}
        self.running: dict[str, Task] = {}
        self.waiting: list[Task] = []
        self.elsewhere: list[Task] = []
        for task in tasks:
            task.directory.create()
            if finished := task.directory.finished():
                self.states[task.config.run_id] = Outcome(finished, "before")
            else:
                self.waiting.append(task)
        self.looked = 0.0

    def run(self, stopping: Callable[[], bool], watcher: Watcher) -> None:
        """Train until nothing is left, or until asked to stop and everything has checkpointed."""
        told = -math.inf
        try:
            while self.running or (not stopping() and (self.waiting or self.elsewhere)):
                if stopping() and time.monotonic() - told >= STOP_SECONDS:
                    self.engine.stop()
                    told = time.monotonic()
                for task, outcome in self.engine.poll():
                    line = self.settle(task, outcome, stopping())
                    watcher.ended(task, outcome, line, len(self.states))
                if not stopping():
                    self.look_elsewhere()
                    self.start()
                watcher.refresh()
                time.sleep(LOOK_SECONDS)
        except KeyboardInterrupt:
            self.engine.stop(now=True)
            raise

    def start(self) -> None:
        """Submit what the engine has room for."""
        batch: list[Task] = []
        while self.waiting and self.engine.room(sum(task.devices for task in [*batch, self.waiting[0]])):
            task = self.waiting.pop(0)
            (self.elsewhere if ledger.busy(task.directory) else batch).append(task)
        self.running |= {task.config.run_id: task for task in batch}
        if batch:
            self.engine.submit(batch)

    def settle(self, task: Task, outcome: Outcome, stopping: bool) -> str:
        """Take note of an ended attempt, and put the run back where it deserves another; a line for the reader."""
        name = task.config.run_id
        self.running.pop(name)
        self.failures[name] = self.failures.get(name, 0) + (outcome.state == "failed")
        again = outcome.again(self.failures[name]) and not stopping
        if not again:
            self.states[name] = outcome
        elif outcome.state == "busy":
            self.elsewhere.append(task)
        else:
            self.waiting.insert(0, task)
        return f"{name}: {outcome.state}{': ' if outcome.message else ''}{outcome.message}{'; again' if again else ''}"

    def look_elsewhere(self) -> None:
        """Every few seconds: take back runs that another process has left."""
        if time.monotonic() - self.looked < BUSY_SECONDS:
            return
        self.looked = time.monotonic()
        for task in [task for task in self.elsewhere if not ledger.busy(task.directory)]:
            self.elsewhere.remove(task)
            if finished := task.directory.finished():
                self.states[task.config.run_id] = Outcome(finished, "by another process")
            else:
                self.waiting.append(task)

    def exit_code(self) -> int:
        """0 all done, 3 some diverged or failed, 4 some not finished."""
        states = {outcome.state for outcome in self.states.values()}
        if self.waiting or self.running or self.elsewhere or states - {*ledger.FINAL, "failed"}:
            return 4
        return 3 if states - {"done"} else 0
