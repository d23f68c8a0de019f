"""Where runs come from: CSV, parquet, one HDF5 run file, a sweep file, a folder of run files, or a data frame.

Everything is read into cells as they stand; what they mean is decided later, in one place for all sources.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bayesloop.problems import Ledger, RunsError, listed
from bayesloop.schema import Run, SchemaError, is_sweep, read_run, read_sweep

RUN_FILE = "curve.h5"


@dataclass
class Cells:
    """Raw cells by column, each row's place for messages, column names that stand twice, a data frame's attributes.

    `is_table` is False for run files, whose many further attributes are no columns that someone meant to be read.
    """

    columns: dict[str, np.ndarray]
    places: list[str]
    repeated: frozenset[str] = frozenset()
    attrs: Mapping[Any, Any] = field(default_factory=dict)
    is_table: bool = True


def source_name(source: Any) -> str:
    """How messages and results call the source: the path as given."""
    if isinstance(source, pd.DataFrame):
        return str(source.attrs.get("source", "DataFrame"))
    return os.fspath(source) if isinstance(source, str | os.PathLike) else repr(source)[:80]


def read_cells(source: Any, ledger: Ledger) -> Cells:
    """Read a source whatever its kind.

    Raises
    ------
    RunsError
        If nothing can be read; problems of single rows and files go to the ledger.
    """
    if isinstance(source, pd.DataFrame):
        return _from_frame(source, ledger)
    if not isinstance(source, str | os.PathLike):
        raise RunsError(f"source is a {type(source).__name__}; expected a path or a pandas DataFrame")
    path = Path(os.fsdecode(source))
    try:
        if path.is_dir():
            return _from_folder(path, ledger)
        kind = _kind(path)
        return {"csv": _from_csv, "parquet": _from_parquet, "hdf5": _from_hdf5}[kind](path, ledger)
    except SchemaError as error:
        raise RunsError(str(error)) from None
    except (OSError, ValueError) as error:
        if isinstance(error, RunsError):
            raise
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise RunsError(f"{path}: cannot be read ({reason}); expected a readable file or folder") from None


def _kind(path: Path) -> str:
    """csv, parquet or hdf5: by the first bytes, else by the suffix (a damaged file has lost its first bytes)."""
    with open(path, "rb") as file:
        head = file.read(8)
    suffix = path.suffix.lower()
    if head.startswith(b"\x89HDF") or suffix in (".h5", ".hdf5"):
        return "hdf5"
    if head.startswith(b"PAR1") or suffix == ".parquet":
        return "parquet"
    if suffix in (".csv", ".txt", ""):
        return "csv"
    raise RunsError(f"{path}: files of kind {suffix!r} are not read; expected .csv, .parquet, .h5 or a folder of run "
                    f"files ({RUN_FILE}); convert it to CSV")


def _from_csv(path: Path, ledger: Ledger) -> Cells:
    rows: list[list[str]] = []
    places, ragged = [], []
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    ragged.append(f"line {reader.line_num} has {len(row)}")
                    continue
                rows.append(row)
                places.append(f"line {reader.line_num}")
    except UnicodeDecodeError as error:
        raise RunsError(f"{path}: not UTF-8 text (byte {error.start}); save the table as UTF-8 CSV") from None
    except csv.Error as error:
        raise RunsError(f"{path}: not readable as CSV ({error}); expected comma-separated text") from None
    if not header:
        raise RunsError(f"{path}: the file is empty; expected a header line and one line per run")
    if len(header) == 1 and any(mark in header[0] for mark in ";\t|"):
        raise RunsError(f"{path}: the header holds no comma but {header[0][:60]!r}; save the table comma-separated, "
                        "with a point as decimal mark")
    if ragged:
        ledger.refuse("fields", f"{len(ragged)} rows with another number of fields than the header's {len(header)}",
                      "every row needs as many fields as the header; quote text that contains commas", ragged)
    cells = np.array(rows, dtype=object).reshape(len(rows), len(header))
    return _named(header, [cells[:, i] for i in range(len(header))], places)


def _from_parquet(path: Path, ledger: Ledger) -> Cells:
    try:
        frame = pd.read_parquet(path)
    except Exception as error:  # the readers raise classes of their own for damaged files
        reason = " ".join(str(error).split())[:200]
        raise RunsError(f"{path}: not readable as parquet ({reason}); write the file again") from None
    return _from_frame(frame, ledger)


def _from_frame(frame: pd.DataFrame, ledger: Ledger) -> Cells:
    names = [str(name) for name in frame.columns]
    columns = [frame.iloc[:, i].to_numpy(dtype=object) for i in range(len(names))]
    cells = _named(names, columns, [f"row {i}" for i in range(len(frame))])
    cells.attrs = frame.attrs
    return cells


def _named(names: list[str], columns: list[np.ndarray], places: list[str]) -> Cells:
    repeated = frozenset(name for name in names if names.count(name) > 1)
    return Cells(dict(zip(names, columns, strict=True)), places, repeated)


def _from_hdf5(path: Path, ledger: Ledger) -> Cells:
    if _guarded(path, is_sweep):
        runs = _guarded(path, lambda p: read_sweep(p, curves=False))
        return _from_runs(runs, [f"/runs/{run.attrs.get('run_id', '?')}" for run in runs])
    return _from_runs([_guarded(path, lambda p: read_run(p, curves=False))], [path.name])


def _from_folder(path: Path, ledger: Ledger) -> Cells:
    files = sorted(Path(folder, RUN_FILE) for folder, _, names in os.walk(path) if RUN_FILE in names)
    if not files:
        raise RunsError(f"{path}: no run file ({RUN_FILE}) in this folder or below; expected one per run, "
                        "as training writes them; a sweep file or a table is named itself, not its folder")
    runs, places, unreadable = [], [], []
    for file in files:
        place = str(file.relative_to(path))
        try:
            runs.append(_guarded(file, lambda p: read_run(p, curves=False)))
            places.append(place)
        except SchemaError as error:
            unreadable.append(str(error))
            ledger.exclude("unreadable", file.parent.name, place, str(error))
    if not runs:
        raise RunsError(f"{path}: none of {len(files)} run files can be read{listed(unreadable)}")
    return _from_runs(runs, places)


def _guarded(path: Path, read: Any) -> Any:
    """Read, turning what h5py raises inside a damaged file into one message."""
    try:
        return read(path)
    except SchemaError:
        raise
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise SchemaError(f"{path}: damaged inside ({reason}); the run must be written again") from None


def _from_runs(runs: list[Run], places: list[str]) -> Cells:
    names = list(dict.fromkeys(name for run in runs for name in run.attrs))
    columns = {name: np.empty(len(runs), dtype=object) for name in names}
    for name in names:
        for i, run in enumerate(runs):
            columns[name][i] = run.attrs.get(name)
    return Cells(columns, places, is_table=False)
