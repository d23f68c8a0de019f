"""A grid of runs, trained to the end: `python -m training.sweep`.

The same command goes on after any interruption: finished runs are skipped, others go on from their checkpoints.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from bayesloop.architecture import ArchitectureError
from bayesloop.schema import SchemaError
from training.collect import collect, run_directories
from training.cost import Costs, Device, finish_seconds, local_device
from training.engines import Engine, LocalEngine, Task, local_slots
from training.grid import COMPILE_MODES, ConfigError, Operation, RunConfig
from training.gridfile import read_grid
from training.grids import GRIDS, distinct
from training.queue import Queue
from training.run_directory import RunDirectory, RunError
from training.runfile import PEAK_FLOPS
from training.status import duration, measured_costs, status, summary, table
from training.tokens import DataError, RowStore
from training.train import check_data, signals
from training.view import View, listing

ORDERS = ("longest", "ascending")
MAX_TEAM = 8  # devices of one run, on one node


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
    what = parser.add_argument_group("instead of training").add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true",
                      help="print runs, parameters, tokens, FLOPs, and predicted hours and memory")
    what.add_argument("--status", nargs="?", const="", metavar="DIR", help="where the runs of a folder stand")
    what.add_argument("--collect", type=Path, metavar="FILE.h5",
                      help="write all runs of --out, finished or not, to one file, and their table to FILE.csv")
    how = parser.add_argument_group("how the runs execute (no effect on their results)")
    how.add_argument("--order", choices=ORDERS, default="longest",
                     help="longest first, or ascending budget for a deadline (default %(default)s)")
    how.add_argument("--on", metavar="DEVICE", default="",
                     help=f"device to predict costs for: cpu, {', '.join(PEAK_FLOPS)} (default: this machine's)")
    how.add_argument("--slots", type=int,
                     help="runs at once (default: this machine's GPUs or cores; with slurm no limit of our own)")
    how.add_argument("--max-hours", type=float, default=12.0,
                     help="a run predicted to take longer gets 2, 4 or 8 GPUs (default %(default)s)")
    how.add_argument("--engine", choices=("local", "slurm"), default="local", help="(default %(default)s)")
    how.add_argument("--time-limit", type=float, default=12.0, metavar="HOURS",
                     help="of a SLURM job, which goes on in the next one (default %(default)s)")
    how.add_argument("--slurm", nargs="+", default=[], metavar="KEY=VALUE",
                     help="parameters of submitit: slurm_partition=long slurm_account=me mem_gb=64 …")
    how.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    how.add_argument("--device-rows", type=int, help="sequences of one micro-batch (default by width and memory)")
    how.add_argument("--compile", choices=COMPILE_MODES, default="auto")
    how.add_argument("--threads", type=int, default=1, help="CPU threads of a run (default %(default)s)")
    how.add_argument("--checkpoint-minutes", type=float, default=10.0, help="(default %(default)s)")
    return parser


def grid_runs(names: Sequence[str], data: str | None, max_budget: float | None) -> list[RunConfig]:
    """Runs of named grids and grid files, each once.

    Raises
    ------
    ConfigError
        If a name is unknown, a file is wrong, or nothing is left to train.
    """
    configs: list[RunConfig] = []
    for name in names:
        if name in GRIDS:
            configs += GRIDS[name](data) if data else GRIDS[name]()
        elif name.endswith(".toml"):
            configs += read_grid(Path(name), data)
        else:
            raise ConfigError(f"--grid {name}: no such grid; expected one of {', '.join(GRIDS)}, or a .toml file")
    configs = [run for run in distinct(configs) if max_budget is None or run.budget <= max_budget * (1 + 1e-9)]
    if not configs:
        raise ConfigError("no run to train; expected a larger --max-budget")
    return configs


def ordered(tasks: list[Task], order: str) -> list[Task]:
    """Tasks in the order in which they start."""
    if order == "ascending":
        return sorted(tasks, key=lambda task: (task.config.budget, task.predicted))
    return sorted(tasks, key=lambda task: -task.predicted)


def make_task(config: RunConfig, operation: Operation, costs: Costs, max_hours: float, most: int) -> Task:
    """A run with its predicted seconds, and as many GPUs as bring it below `max_hours`."""
    devices, most = 1, min(most, MAX_TEAM) if costs.device.cuda else 1
    while costs.seconds(config, devices) > 3600 * max_hours and 2 * devices <= most:
        devices *= 2
    return Task(config, operation, devices, costs.seconds(config, devices))


def train_grid(options: argparse.Namespace) -> int:
    """Train what the options describe."""
    store = RowStore(options.data)
    configs = grid_runs(options.grid, store.name, options.max_budget)
    for config in configs:
        check_data(config, store)
    names = {field.name for field in dataclasses.fields(Operation)} & set(vars(options))
    operation = Operation(**{name: getattr(options, name) for name in names})
    known = [RunDirectory(options.out, config) for config in configs]
    costs = measured_costs(known, chosen_device(options.on, options.device))
    engine, slots, most = make_engine(options, costs.device.cuda, len(configs))
    tasks = ordered([make_task(config, operation, costs, options.max_hours, most) for config in configs],
                    options.order)
    queue = Queue(tasks, engine)
    left = finish_seconds([task.predicted for task in queue.waiting], slots)
    print(f"{len(configs)} runs, {len(queue.states)} finished before; predicted {duration(left)} for the others, "
          f"{slots} at once on {costs.device.name}", flush=True)
    with signals() as received, View(tasks, costs, slots) as view:
        queue.run(lambda: bool(received), view)
    return conclude(queue, view)


def make_engine(options: argparse.Namespace, cuda: bool, runs: int) -> tuple[Engine, int, int]:
    """The engine, how many runs execute at once, and how many devices one run may have."""
    if options.engine == "slurm":
        from training.slurm import SlurmEngine

        parameters = dict(pair.partition("=")[::2] for pair in options.slurm)
        return SlurmEngine(options.out, cuda, options.time_limit, options.slots, parameters), options.slots or runs, 8
    slots = local_slots(options.device, options.threads, options.slots)
    return LocalEngine(slots), len(slots), len(slots)


def conclude(queue: Queue, view: View) -> int:
    """Last words; the exit code."""
    if text := view.comparison():
        print(text)
    for name, outcome in queue.states.items():
        if outcome.state in ("diverged", "failed"):
            print(f"{name} {outcome.state}: {outcome.message}", file=sys.stderr)
    code = queue.exit_code()
    if code == 4:
        print("not finished; the same command goes on", file=sys.stderr)
    return code


def chosen_device(name: str, device: str) -> Device:
    """The device costs are predicted for: a named one, or what `device` (auto, cpu, cuda) means on this machine."""
    if not name:
        return local_device(device)
    if name != "cpu" and name not in PEAK_FLOPS:
        raise ConfigError(f"--on {name}: unknown device; expected cpu, {', '.join(PEAK_FLOPS)}")
    return local_device("cpu") if name == "cpu" else Device(name, True)


def show_status(folder: Path) -> int:
    """Print where the runs of a folder stand."""
    from rich.console import Console

    directories = run_directories(folder)
    costs = measured_costs(directories)
    statuses = [status(directory, costs) for directory in directories]
    if any(one.state != "done" for one in statuses):
        Console(width=None if sys.stdout.isatty() else 200).print(table(statuses))
    print(summary(statuses) or "no runs")
    return 0


def execute(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Do what the options ask for."""
    if options.status is not None:
        if not (options.status or options.out):
            parser.error("--status needs a folder")
        return show_status(Path(options.status or options.out))
    needed = ["out"] if options.collect else ["grid"] if options.list else ["grid", "data", "out"]
    for name in needed:
        if not getattr(options, name):
            parser.error(f"--{name} is needed")
    if options.collect:
        counts = collect(options.out, options.collect)
        print(f"{options.collect}: " + ", ".join(f"{count} {state}" for state, count in counts.items() if count))
        return 0
    if options.list:
        data = RowStore(options.data).name if options.data else None
        configs = grid_runs(options.grid, data, options.max_budget)
        known = [RunDirectory(options.out, config) for config in configs] if options.out else []
        print(listing(configs, measured_costs(known, chosen_device(options.on, options.device))))
        return 0
    return train_grid(options)


def main(argv: list[str] | None = None) -> int:
    """Entry point of `python -m training.sweep`; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        return execute(options, parser)
    except (ConfigError, ArchitectureError, DataError, RunError, SchemaError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 4


if __name__ == "__main__":
    raise SystemExit(main())
