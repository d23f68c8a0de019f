"""Runs of a folder as one sweep file, finished or not, and as a table."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

from bayesloop.schema import COLUMNS, Run, SchemaError, read_run, replacing, write_sweep
from training import ledger
from training.grid import ConfigError, RunConfig
from training.run_directory import Journal, RunDirectory, RunError
from training.runfile import build_run


def run_directories(out: Path) -> list[RunDirectory]:
    """Folders of all runs below `out`, in order of budget, recipe, width and r.

    Raises
    ------
    ConfigError
        If `out` is missing, or a folder's config.json cannot be read.
    """
    if not out.is_dir():
        raise ConfigError(f"{out}: no such folder; expected one that python -m training.sweep has written")
    found = []
    for path in sorted(out.glob("*/config.json")):
        try:
            found.append(RunDirectory(out, RunConfig.from_json(path.read_text())))
        except (OSError, ConfigError) as error:
            raise ConfigError(f"{path}: {error}; restore it, or move its folder away") from None
    return sorted(found, key=lambda d: (d.config.budget, d.config.probe, d.config.architecture.width,
                                        d.config.architecture.r, d.config.run_id))


def collect(out: Path, path: Path) -> dict[str, int]:
    """Write every run that has been started to a sweep file, and its table beside it as CSV.

    Parameters
    ----------
    out : Path
        Folder of the runs.
    path : Path
        The sweep file; the table goes to the same name with `.csv`.

    Returns
    -------
    dict of str to int
        Number of runs by status, with `waiting` for those that have not begun and are left out.
    """
    runs, counts = [], {"waiting": 0}
    for directory in run_directories(out):
        if not directory.journal.path.exists() and not ledger.records(directory):
            counts["waiting"] += 1
            continue
        run = as_run(directory)
        counts[run.attrs["status"]] = counts.get(run.attrs["status"], 0) + 1
        runs.append(run)
    if not runs:
        raise ConfigError(f"{out}: no run has begun; nothing to collect")
    write_sweep(path, runs)
    write_table(path.with_suffix(".csv"), runs)
    return counts


def as_run(directory: RunDirectory) -> Run:
    """A run in the schema: its run file, or what its journal holds where a run file is missing or damaged."""
    try:
        run = read_run(directory.curve)
    except SchemaError:
        try:
            lines = Journal(directory.journal.path).read()
        except RunError:
            lines = []
        run = build_run(directory.config, lines, {}, {}, "running")
    last = ledger.records(directory)[-1:]
    if run.attrs["status"] == "running" and not ledger.busy(directory) and last and last[0].get("outcome") == "failed":
        run.attrs["status"] = "failed"
    return run


def write_table(path: Path, runs: list[Run]) -> None:
    """One line a run, the schema's columns; a missing number is an empty cell."""
    names = [name for name in COLUMNS if any(name in run.attrs for run in runs)]
    with replacing(path) as temporary, open(temporary, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([[_cell(run.attrs.get(name, "")) for name in names] for run in runs])


def _cell(value: Any) -> Any:
    return "" if isinstance(value, float) and math.isnan(value) else value
