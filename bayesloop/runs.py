"""Read tables of runs into one validated table in the schema; select from it; say whether it can answer a question."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np
import pandas as pd

from bayesloop.problems import RunsError, RunsWarning
from bayesloop.schema import COLUMNS, REQUIRED
from bayesloop.selection import matches, nothing_selected

__all__ = ["RunsError", "RunsWarning", "fingerprint", "read_runs", "select"]

_LABELS = ("run_id", "status")  # names of a run; no fit depends on them


def read_runs(source: str | os.PathLike[str], columns: dict[str, str] | None = None,
              injection: str = "rec") -> pd.DataFrame:
    """Read a table of runs."""
    runs = pd.read_csv(source, float_precision="round_trip")
    missing = [name for name in REQUIRED if name not in runs]
    if missing:
        raise RunsError(f"{source}: no column {missing}")
    runs = runs[[name for name in COLUMNS if name in runs]].copy()
    for name in runs:
        dtype: Any = {int: np.int64, float: np.float64, str: str}[COLUMNS[str(name)].dtype]
        runs[name] = runs[name].astype(dtype)
    moved = runs.get("n_inject", 0.0)
    if injection != "rec":
        runs["n_rec"] -= moved
        runs["n_once"] += moved if injection == "once" else 0.0
    runs.attrs = {"source": str(source), "sha256": fingerprint(runs), "injection": injection,
                  "count_convention": "undeclared", "excluded": [], "notes": [], "warnings": []}
    return runs


def select(runs: pd.DataFrame, where: str) -> pd.DataFrame:
    """The runs that satisfy a condition, in their order.

    Parameters
    ----------
    runs : DataFrame
        From `read_runs`.
    where : str
        Comparisons of columns with numbers or quoted text, joined by and, or, not; `in` takes a list.
        Budgets match with a relative tolerance of 1e-3, so ``budget <= 1e18`` includes 1.0004e18.

    Returns
    -------
    DataFrame
        With the attributes of `runs`; `sha256` is that of the selected rows, `where` lists the conditions applied.

    Raises
    ------
    RunsError
        If the condition is malformed, names an unknown column, or no run satisfies it.
    """
    kept = matches(runs, where)
    if not kept.any():
        raise nothing_selected(runs, where)
    selected = runs[kept].reset_index(drop=True)
    selected.attrs = {**runs.attrs, "sha256": fingerprint(selected), "where": [*runs.attrs.get("where", []), where]}
    return selected


def fingerprint(runs: pd.DataFrame) -> str:
    """SHA-256 of the content of a table in the schema: which data a result has seen.

    Independent of the order of the rows, of the file format, and of `run_id` and `status`, which no fit uses;
    numbers enter in full precision.
    """
    names = [name for name in COLUMNS if name in runs.columns and name not in _LABELS]
    rows = runs[names].astype({name: float for name in names if COLUMNS[name].dtype is float})
    lines = sorted(repr(row) for row in rows.itertuples(index=False, name=None))
    return hashlib.sha256("\n".join([",".join(names), *lines]).encode()).hexdigest()
