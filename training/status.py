"""Where every run of a folder stands, as rows and as a table for people."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesloop.schema import SchemaError, read_run
from training import ledger
from training.cost import Costs, Device, finish_seconds, local_device
from training.run_directory import RunDirectory

STATES = ("done", "running", "waiting", "failed", "diverged")


@dataclass(frozen=True)
class Status:
    """One run: its state (one of `STATES`), steps, last loss in nats per token, seconds left or NaN, and a remark."""

    run_id: str
    state: str
    step: int
    n_steps: int
    loss: float
    seconds_left: float
    remark: str


def status(directory: RunDirectory, costs: Costs) -> Status:
    """Where a run stands, from its files alone."""
    config, noted = directory.config, directory.read_state()
    total, predicted = config.horizon.n_steps, costs.seconds(config)
    last = last_record(directory.journal.path)
    step, loss = int(last.get("step", -1)) + 1, float(last.get("loss", math.nan))
    remark, state = str(noted.get("message", "")), str(noted.get("state", "waiting"))
    if state in ledger.FINAL:
        return Status(config.run_id, state, step or total, total, loss, 0.0, remark)
    if ledger.busy(directory):
        pace = last["wall_s"] / step if step and last.get("wall_s", 0) > 0 else math.nan
        left = predicted * (1 - step / total) if math.isnan(pace) else pace * (total - step)
        return Status(config.run_id, "running", step, total, loss, left, f"on {_owner(directory)}")
    tried = ledger.records(directory)[-1:]
    if tried and tried[0].get("outcome") == "failed":
        return Status(config.run_id, "failed", step, total, loss, predicted, str(tried[0].get("message", "")))
    remark = "" if not step else f"interrupted at step {step}" if state != "failed" else remark
    return Status(config.run_id, "waiting", step, total, loss, predicted * (1 - step / total), remark)


def last_record(path: Path) -> dict[str, Any]:
    """The last whole training record of a journal, empty where there is none; only the end of the file is read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return {}
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and "step" in record:
            return record
    return {}


def _owner(directory: RunDirectory) -> str:
    try:
        return str(json.loads(directory.lock.read_text()).get("host", "?"))
    except (OSError, ValueError):
        return "?"


def measured_costs(directories: Sequence[RunDirectory], device: Device | None = None) -> Costs:
    """Costs on a device, by default this machine's, or that of the run finished last, corrected by finished runs."""
    finished, overheads = [], []
    for directory in directories:
        try:
            attrs = read_run(directory.curve).attrs
        except SchemaError:
            continue
        if attrs["status"] != "done":
            continue
        finished.append(attrs)
        attempts = [line for line in ledger.records(directory) if "seconds" in line]
        if len(attempts) == 1 and "eval_seconds" in attrs:
            overheads.append(attempts[0]["seconds"] - attrs["train_seconds"] - attrs["eval_seconds"])
    if device is None and finished:
        newest = max(finished, key=lambda attrs: str(attrs.get("finished_utc", "")))
        device = Device(str(newest["device_name"]), newest.get("compute_dtype") == "bfloat16")
    return Costs(device or local_device("auto"), finished, overheads)


def summary(statuses: Sequence[Status], slots: int | None = None) -> str:
    """Counts by state, and the predicted time to the end."""
    counts = Counter(one.state for one in statuses)
    parts = [f"{counts[state]} {state}" for state in STATES if counts[state]]
    open_runs = [one.seconds_left for one in statuses if one.state in ("running", "waiting")]
    if open_runs:
        left = finish_seconds(open_runs, slots or counts["running"] or 1)
        parts.append(f"about {duration(left)} left on {slots or counts['running'] or 1} at once")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Seconds in words: 45 s, 12 min, 3.4 h, 2.1 d."""
    if math.isnan(seconds):
        return "unknown time"
    for limit, unit, size in ((100, "s", 1), (6_000, "min", 60), (172_800, "h", 3_600)):
        if seconds < limit:
            return f"{seconds / size:.{0 if size < 3_600 else 1}f} {unit}"
    return f"{seconds / 86_400:.1f} d"


def table(statuses: Sequence[Status]) -> Any:
    """A rich table of the runs that are not done."""
    from rich.table import Table

    shown = Table("run", "state", "step", "loss", "left", "remark")
    for one in statuses:
        if one.state != "done":
            shown.add_row(one.run_id, one.state, f"{one.step}/{one.n_steps}",
                          "" if math.isnan(one.loss) else f"{one.loss:.4f}",
                          duration(one.seconds_left) if one.state in ("running", "waiting") else "", one.remark)
    return shown
