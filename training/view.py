"""What a sweep tells its reader: a list of what it would train, lines as runs end, a live table on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from bayesloop.schema import SchemaError, read_run
from training import ledger
from training.cost import Costs, memory
from training.engines import Task
from training.grid import RunConfig
from training.ledger import Outcome
from training.status import duration, status, summary, table

REFRESH_SECONDS = 2.0


def listing(configs: Sequence[RunConfig], costs: Costs) -> str:
    """One line a run: parameters, tokens, FLOPs, and predicted hours and memory on the device of `costs`."""
    width = max(len(config.run_id) for config in configs)
    lines = [f"{'run':{width}}  {'parameters':>13} {'tokens':>14} {'FLOP':>9} {'hours':>8} {'GB':>6}"]
    total_flops = total_hours = 0.0
    for config in configs:
        arch, tokens = config.architecture, config.horizon.tokens
        flops, hours = float(arch.flops_per_token) * tokens, costs.seconds(config) / 3600
        total_flops, total_hours = total_flops + flops, total_hours + hours
        lines.append(f"{config.run_id:{width}}  {arch.n_once() + arch.n_rec():>13,} {tokens:>14,} {flops:>9.3g} "
                     f"{hours:>8.3g} {memory(config, costs.device.cuda) / 1e9:>6.2g}")
    lines.append(f"{len(configs)} runs, {total_flops:.4g} FLOP, {total_hours:.4g} hours on one {costs.device.name}; "
                 "parameters without embedding and head")
    return "\n".join(lines)


class View:
    """Tells how a sweep goes on, and compares its cost with what was predicted.

    Parameters
    ----------
    tasks : sequence of Task
        All runs of the sweep.
    costs : Costs
        Learns from every run that is done.
    slots : int
        Runs at once.
    """

    def __init__(self, tasks: Sequence[Task], costs: Costs, slots: int) -> None:
        self.tasks, self.costs, self.slots = tasks, costs, slots
        self.shown = 0.0
        self.live: Any = None
        self.pairs: list[tuple[float, float]] = []  # predicted and actual seconds of runs trained in one attempt

    def __enter__(self) -> View:
        if sys.stdout.isatty():
            from rich.live import Live

            self.live = Live(auto_refresh=False)
            self.live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.live is not None:
            self.refresh()
            self.live.__exit__(*error)

    def ended(self, task: Task, outcome: Outcome, line: str, finished: int) -> None:
        """An attempt has ended."""
        if outcome.state == "done":
            attempts = [entry for entry in ledger.records(task.directory) if "seconds" in entry]
            try:
                self.costs.add(read_run(task.directory.curve).attrs)
            except SchemaError:
                attempts = []
            if len(attempts) == 1:
                self.pairs.append((task.predicted, attempts[0]["seconds"]))
                line += f" (took {duration(attempts[0]['seconds'])}, predicted {duration(task.predicted)})"
        text = f"[{finished}/{len(self.tasks)}] {line}"
        if self.live is not None:
            self.live.console.print(text, highlight=False, markup=False)
        else:
            print(text, flush=True)

    def refresh(self) -> None:
        """Draw the table of what runs, where there is a terminal; every two seconds at most."""
        if self.live is None or time.monotonic() - self.shown < REFRESH_SECONDS:
            return
        from rich.console import Group

        self.shown = time.monotonic()
        statuses = [status(task.directory, self.costs) for task in self.tasks]
        running = [one for one in statuses if one.state != "waiting"]
        self.live.update(Group(table(running), summary(statuses, self.slots)), refresh=True)

    def comparison(self) -> str:
        """What the sweep's runs cost against what was predicted."""
        if not self.pairs:
            return ""
        predicted, took = (sum(column) for column in zip(*self.pairs, strict=True))
        ratios = sorted(seconds / guess for guess, seconds in self.pairs)
        return (f"{len(self.pairs)} runs took {duration(took)} together, predicted {duration(predicted)}: "
                f"{took / predicted:.2f} times as long ({ratios[0]:.2f} … {ratios[-1]:.2f} by run)")
