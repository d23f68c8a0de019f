"""A grid of runs, trained to the end: `python -m training.sweep`.

The same command goes on after any interruption: finished runs are skipped, others go on from their checkpoints.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bayesloop.architecture import ArchitectureError
from bayesloop.schema import SchemaError
from training import ledger
from training.collect import collect
from training.engines import Engine, LocalEngine, Task, local_slots
from training.grid import COMPILE_MODES, ConfigError, Operation, RunConfig
from training.grids import GRIDS, distinct
from training.ledger import Outcome
from training.run_directory import RunError
from training.tokens import DataError, RowStore
from training.train import check_data, signals

ORDERS = ("longest", "ascending")
LOOK_SECONDS, BUSY_SECONDS = 0.1, 5.0
log = logging.getLogger("training.sweep")


class Sweep:
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

    def run(self, stopping: Callable[[], bool], report: Callable[[Sweep, str], None]) -> None:
        """Train until nothing is left, or until asked to stop and everything has checkpointed."""
        told = False
        try:
            while self.running or (not stopping() and (self.waiting or self.elsewhere)):
                if stopping() and not told:
                    self.engine.stop()
                    told = True
                for task, outcome in self.engine.poll():
                    report(self, self.settle(task, outcome, stopping()))
                if not stopping():
                    self.look_elsewhere()
                    self.start()
                report(self, "")
                time.sleep(LOOK_SECONDS)
        except KeyboardInterrupt:
            self.engine.stop(now=True)
            raise

    def start(self) -> None:
        """Submit what the engine has room for."""
        while self.waiting and self.engine.room(self.waiting[0]):
            task = self.waiting.pop(0)
            if ledger.busy(task.directory):
                self.elsewhere.append(task)
                continue
            self.running[task.config.run_id] = task
            self.engine.submit([task])

    def settle(self, task: Task, outcome: Outcome, stopping: bool) -> str:
        """Take note of an ended attempt, and put the run back where it deserves another; a line for the reader."""
        name = task.config.run_id
        self.running.pop(name)
        self.failures[name] = self.failures.get(name, 0) + (outcome.state == "failed")
        again = outcome.state == "oom" or (outcome.state == "failed" and self.failures[name] <= ledger.RETRIES)
        if outcome.state == "busy":
            self.elsewhere.append(task)
        elif again and not stopping:
            self.waiting.insert(0, task)
        else:
            self.states[name] = outcome
        after = "; again" if again and not stopping else ""
        return f"{name}: {outcome.state}{': ' if outcome.message else ''}{outcome.message}{after}"

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
        if self.waiting or self.running or self.elsewhere or "interrupted" in states or "oom" in states:
            return 4
        return 3 if states - {"done"} else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m training.sweep",
        description="Train a grid of looped language models. The same command goes on after any interruption.",
        epilog="exit codes: 0 done, 1 bad input, 2 wrong usage, 3 some runs diverged or failed, 4 interrupted")
    parser.add_argument("--grid", nargs="+", default=[], metavar="NAME|FILE.toml",
                        help=f"one or more of {', '.join(GRIDS)}, or files of your own")
    parser.add_argument("--max-budget", type=float, metavar="FLOP", help="leave out runs with a larger budget")
    parser.add_argument("--data", type=Path, help="row store, made by python -m training.tokens")
    parser.add_argument("--out", type=Path, help="folder that receives one folder per run")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--collect", type=Path, metavar="FILE.h5",
                      help="write all runs of --out to one file, and its table to FILE.csv; train nothing")
    how = parser.add_argument_group("how the runs execute (no effect on their results)")
    how.add_argument("--order", choices=ORDERS, default="longest",
                     help="longest first, or ascending budget for a deadline (default %(default)s)")
    how.add_argument("--slots", type=int, help="runs at once on this machine (default: its GPUs, or its cores)")
    how.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    how.add_argument("--device-rows", type=int, help="sequences of one micro-batch (default by width and memory)")
    how.add_argument("--compile", choices=COMPILE_MODES, default="auto")
    how.add_argument("--threads", type=int, default=1, help="CPU threads of a run (default %(default)s)")
    how.add_argument("--checkpoint-minutes", type=float, default=10.0, help="(default %(default)s)")
    return parser


def grid_runs(names: Sequence[str], data: str | None, max_budget: float | None) -> list[RunConfig]:
    """Runs of named grids and grid files, each once."""
    configs: list[RunConfig] = []
    for name in names:
        if name not in GRIDS:
            raise ConfigError(f"--grid {name}: no such grid; expected one of {', '.join(GRIDS)}, or a .toml file")
        configs += GRIDS[name](data) if data else GRIDS[name]()
    configs = distinct(configs)
    return [config for config in configs if max_budget is None or config.budget <= max_budget * (1 + 1e-9)]


def ordered(tasks: list[Task], order: str) -> list[Task]:
    """Tasks in the order in which they start."""
    if order == "ascending":
        return sorted(tasks, key=lambda task: (task.config.budget, task.predicted))
    return sorted(tasks, key=lambda task: -task.predicted)


def train_grid(options: argparse.Namespace) -> int:
    """Train what the options describe."""
    store = RowStore(options.data)
    configs = grid_runs(options.grid, store.name, options.max_budget)
    for config in configs:
        check_data(config, store)
    operation = Operation(options.data, options.out, options.device, options.device_rows, options.compile,
                          options.threads, options.checkpoint_minutes)
    slots = local_slots(options.device, options.threads, options.slots)
    tasks = [Task(config, operation, predicted=config.budget) for config in configs]
    sweep = Sweep(ordered(tasks, options.order), LocalEngine(slots))
    total = len(configs)
    print(f"{total} runs, {len(sweep.states)} finished before, {len(slots)} at once")

    def report(sweep: Sweep, line: str) -> None:
        if line:
            print(f"[{len(sweep.states)}/{total}] {line}", flush=True)

    with signals() as received:
        sweep.run(lambda: bool(received), report)
    return sweep.exit_code()


def main(argv: list[str] | None = None) -> int:
    """Entry point of `python -m training.sweep`; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        if options.collect:
            if options.out is None:
                parser.error("--collect needs --out, the folder of the runs")
            counts = collect(options.out, options.collect)
            print(f"{options.collect}: " + ", ".join(f"{count} {state}" for state, count in counts.items() if count))
            return 0
        for name in ("grid", "data", "out"):
            if not getattr(options, name):
                parser.error(f"--{name} is needed")
        return train_grid(options)
    except (ConfigError, ArchitectureError, DataError, RunError, SchemaError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 4


if __name__ == "__main__":
    raise SystemExit(main())
