"""The contract between `training` and `bayesloop`: names, types, units, and the HDF5 files that carry them.

One run is one HDF5 file: scalar attributes at the root, loss curves in the groups `train` and `eval`.
A sweep file holds many runs under `/runs/<run_id>` and one row per run under `/summary`.
Files are written beside their place and renamed, so a reader always sees a complete one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

SCHEMA_VERSION = "1.0"
STATUSES = ("done", "diverged", "failed", "running")


@dataclass(frozen=True)
class Column:
    """One named quantity of a run: type, unit, meaning, and whether a fit needs it."""

    name: str
    dtype: type
    unit: str
    meaning: str
    required: bool = False


_COLUMNS = (
    Column("run_id", str, "1", "identity of the run"),
    Column("probe", str, "1", "recipe: baseline, truncated, hyperconnections, or the user's own", True),
    Column("r", int, "1", "recurrence count", True),
    Column("budget", float, "FLOP", "compute budget the run was planned for; equal budgets form an iso-FLOP set"),
    Column("size", float, "1", "size s; width = 64 s in the paper's grid, elsewhere width alone"),
    Column("width", int, "1", "features of the residual stream"),
    Column("n_once", float, "1", "non-embedding parameters run once per token", True),
    Column("n_rec", float, "1", "non-embedding parameters of the shared block, injection included", True),
    Column("n_inject", float, "1", "parameters of the linear injection alone (inside n_rec)"),
    Column("tokens", float, "token", "training tokens D", True),
    Column("flops", float, "FLOP", "training compute actually spent"),
    Column("loss", float, "nat/token", "final validation loss", True),
    Column("loss_se", float, "nat/token", "standard error of loss as a measurement"),
    Column("scheme", str, "1", "how the block is iterated: linear, additive, passthrough, hyperconnect"),
    Column("bptt_k", int, "1", "recurrences that carry gradient"),
    Column("lanes", int, "1", "residual lanes of the hyperconnect scheme, else 0"),
    Column("n_prelude", int, "1", "layers before the shared block"),
    Column("n_recur", int, "1", "layers of the shared block"),
    Column("n_coda", int, "1", "layers after the shared block"),
    Column("head_dim", int, "1", "features of an attention head"),
    Column("seq_len", int, "token", "tokens of a training row"),
    Column("vocab_size", int, "1", "entries of the vocabulary"),
    Column("batch_tokens", int, "token", "tokens of one optimiser step"),
    Column("count_convention", str, "1", "exact (norms and lane scalars counted) or formula (12 d² a layer)"),
    Column("seed", int, "1", "random seed"),
    Column("status", str, "1", "done, diverged, failed or running"),
)
COLUMNS: dict[str, Column] = {column.name: column for column in _COLUMNS}
REQUIRED = tuple(column.name for column in _COLUMNS if column.required)

CURVE_UNITS = {
    "step": "1", "tokens": "token", "flops": "FLOP", "loss": "nat/token", "loss_sum": "nat", "n_tokens": "token",
    "kind": "1", "is_final": "1", "lr_mult": "1", "lr_matrix": "1", "grad_norm": "1", "update_norm": "1", "wall_s": "s",
    "tokens_per_s": "token/s", "row_hash": "1",
}
CURVE_NAMES = {
    "step": "index of the optimiser step just taken", "tokens": "tokens trained after the step",
    "flops": "training compute after the step", "loss": "mean loss per token",
    "loss_sum": "summed loss of the evaluation", "n_tokens": "target tokens of the evaluation",
    "kind": "0 fast evaluation, 1 final evaluation", "is_final": "1 for the one evaluation that may enter a fit",
    "lr_mult": "learning-rate multiplier", "lr_matrix": "learning rate of the matrices",
    "grad_norm": "global L2 norm of the gradient", "update_norm": "global L2 norm of the update",
    "wall_s": "training time since the start", "tokens_per_s": "throughput",
    "row_hash": "CRC-32 of the ids of all training rows read so far",
}


class InputError(ValueError):
    """What a user gave cannot be used; the message says what was found, where, what was expected and what to do."""


class SchemaError(InputError):
    """A file that is not a run or sweep file of this schema; the message names the file and what was expected."""


@dataclass
class Run:
    """One run: scalar attributes and loss curves.

    Attributes
    ----------
    attrs : dict
        Scalars (int, float, str) under the names of `COLUMNS` and the provenance names of data/README.md.
    train, eval : dict of str to 1-D array
        Curves of equal length within a group, `step` among them.
    """

    attrs: dict[str, Any]
    train: dict[str, np.ndarray] = field(default_factory=dict)
    eval: dict[str, np.ndarray] = field(default_factory=dict)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it into place on success, remove it on failure.

    Whatever stood at `path` stays whole until the new file is complete and on disk.

    Raises
    ------
    OSError
        As raised by the file system (full disk, read-only folder); `path` is then untouched.
    """
    target = Path(path)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def write_run(path: str | os.PathLike[str], run: Run) -> None:
    """Write one run file (`curve.h5`), atomically.

    Parameters
    ----------
    path : path
        The file to create or replace.
    run : Run
        Attributes must be scalars: int, float or str.

    Raises
    ------
    SchemaError
        If an attribute is not a scalar, or the curves of a group differ in length or lack `step`.
    """
    with replacing(path) as temporary, h5py.File(temporary, "w") as file:
        file.attrs["schema_version"] = SCHEMA_VERSION
        _write_run(file, run)


def read_run(path: str | os.PathLike[str], curves: bool = True) -> Run:
    """Read one run file; `curves=False` reads the attributes alone.

    Raises
    ------
    SchemaError
        If the file cannot be opened (missing, truncated, locked by a writer) or is not a run file.
    """
    with _opened(path) as file:
        if "posterior" in file:
            raise SchemaError(f"{path}: a posterior, not a table of runs; `bayesloop compare` takes it")
        if "run_id" not in file.attrs:
            raise SchemaError(f"{path}: no attribute run_id at the root; expected a run file as written by write_run")
        return _read_run(file, curves)


def write_sweep(path: str | os.PathLike[str], runs: Iterable[Run]) -> None:
    """Write a sweep file: every run under `/runs/<run_id>`, one row per run under `/summary`, atomically.

    Raises
    ------
    SchemaError
        If two runs share a run_id or a run lacks one.
    """
    runs = list(runs)
    ids = [str(run.attrs.get("run_id", "")) for run in runs]
    if "" in ids or len(set(ids)) < len(ids):
        twice = sorted({name for name in ids if ids.count(name) > 1})
        found = "repeated " + ", ".join(twice) if twice else "a run without one"
        raise SchemaError(f"{path}: run_id must be present and unique; found {found}")
    # the format of HDF5 1.10: half the size, since a sweep is many small datasets (measured)
    with replacing(path) as temporary, h5py.File(temporary, "w", libver=("v110", "v110")) as file:
        file.attrs["schema_version"] = SCHEMA_VERSION
        for name, run in zip(ids, runs, strict=True):
            _write_run(file.create_group(f"runs/{name}"), run)
        _write_summary(file.create_group("summary"), runs)


def read_sweep(path: str | os.PathLike[str], curves: bool = True) -> list[Run]:
    """Read the runs of a sweep file, in file order; `curves=False` reads the attributes alone.

    Raises
    ------
    SchemaError
        If the file cannot be opened or has no `/runs`.
    """
    with _opened(path) as file:
        if "runs" not in file:
            raise SchemaError(f"{path}: no group /runs; expected a sweep file as written by write_sweep")
        return [_read_run(group, curves) for group in file["runs"].values()]


def is_sweep(path: str | os.PathLike[str]) -> bool:
    """Whether the HDF5 file is a sweep file (True) or not (False).

    Raises
    ------
    SchemaError
        If the file cannot be opened.
    """
    with _opened(path) as file:
        return "runs" in file


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading, with one clear message when that fails."""
    try:
        file = h5py.File(path, "r")
    except FileNotFoundError:
        raise SchemaError(f"{path}: no such file") from None
    except OSError as error:
        if getattr(error, "errno", None) == 11 or "unable to lock" in str(error):
            raise SchemaError(f"{path}: another process is writing this file; read it when that run is done") from None
        reason = f"not readable as HDF5 ({_reason(error)}); a file cut off by a crash must be written again"
        raise SchemaError(f"{path}: {reason}") from None
    with file:
        version = str(file.attrs.get("schema_version", ""))
        if version and version.split(".")[0] != SCHEMA_VERSION.split(".")[0]:
            raise SchemaError(f"{path}: schema version {version}; this release reads {SCHEMA_VERSION}")
        yield file


def _reason(error: OSError) -> str:
    """The part of an HDF5 error that says something: what stands in its parentheses."""
    text = str(error)
    return text[text.find("(") + 1 : text.rfind(")")] if "(" in text else text


def _write_run(group: h5py.Group, run: Run) -> None:
    for key, value in run.attrs.items():
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, bool):
            value = int(value)  # an HDF5 enum is not netCDF
        if not isinstance(value, int | float | str):
            raise SchemaError(f"attribute {key} is {value!r}; expected an int, float or str")
        group.attrs[key] = value
    for name, curves in (("train", run.train), ("eval", run.eval)):
        if curves:
            _write_curves(group.create_group(name), curves)


def _write_curves(group: h5py.Group, curves: Mapping[str, np.ndarray]) -> None:
    lengths = {key: len(values) for key, values in curves.items()}
    if "step" not in curves or len(set(lengths.values())) != 1:
        raise SchemaError(f"curves of {group.name} have lengths {lengths}; expected equal lengths with a `step`")
    for key in ["step", *(key for key in curves if key != "step")]:
        values = np.asarray(curves[key])
        options: dict[str, Any] = {}
        if len(values):
            options = {"chunks": (min(len(values), 4096),), "compression": "gzip", "compression_opts": 4,
                       "shuffle": True, "fletcher32": True}
        dataset = group.create_dataset(key, data=values, **options)
        dataset.attrs["units"] = CURVE_UNITS.get(key, "1")
        dataset.attrs["long_name"] = CURVE_NAMES.get(key, key)
    group["step"].make_scale("step")
    for key in curves:
        if key != "step":
            group[key].dims[0].attach_scale(group["step"])


def _write_summary(group: h5py.Group, runs: list[Run]) -> None:
    """One 1-D dataset per schema column that any run has; a missing number is NaN (or −1), a missing text is empty."""
    text = h5py.string_dtype()
    group.create_dataset("run", data=[str(run.attrs["run_id"]) for run in runs], dtype=text)
    group["run"].make_scale("run")
    for column in _COLUMNS:
        if not any(column.name in run.attrs for run in runs):
            continue
        missing: Any = "" if column.dtype is str else -1 if column.dtype is int else np.nan
        values = [column.dtype(run.attrs.get(column.name, missing)) for run in runs]
        dtype = {str: text, int: "i8", float: "f8"}[column.dtype]
        dataset = group.create_dataset(column.name, data=values, dtype=dtype)
        dataset.attrs["units"], dataset.attrs["long_name"] = column.unit, column.meaning
        dataset.dims[0].attach_scale(group["run"])


def _read_run(group: h5py.Group, curves: bool = True) -> Run:
    run = Run({key: _scalar(value) for key, value in group.attrs.items() if key != "schema_version"})
    for name in ("train", "eval") if curves else ():
        if name in group:
            getattr(run, name).update({key: data[()] for key, data in group[name].items()})
    return run


def _scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value.decode() if isinstance(value, bytes) else value
