"""Select runs by a condition in words: comparisons of columns, joined by and, or, not. Nothing else is evaluated."""

from __future__ import annotations

import ast
import hashlib
import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from bayesloop.problems import RunsError, listed, near
from bayesloop.schema import COLUMNS

BUDGET_TOLERANCE = 0.01  # relative; neighbouring budgets of a grid differ by a factor of 1.5 and more
ANCHOR = "baseline"  # the probe whose r = 1 runs anchor every probe
_LABELS = ("run_id", "status")  # names of a run; no fit depends on them

_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}
_GRAMMAR = ("expected comparisons (==, !=, <, <=, >, >=, in, not in) of columns with numbers or quoted text, "
            "joined by and, or, not, such as \"budget <= 4.64e18 and probe in ['baseline', 'truncated']\"")


def select(runs: pd.DataFrame, where: str) -> pd.DataFrame:
    """The runs that satisfy a condition, in their order.

    Parameters
    ----------
    runs : DataFrame
        From `read_runs`.
    where : str
        Comparisons of columns with numbers or quoted text, joined by and, or, not; `in` takes a list.
        Budgets within 1 % are one, so ``budget <= 1e18`` includes 1.004e18.

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


def group_budgets(budget: np.ndarray) -> np.ndarray:
    """Number of the budget each run belongs to, shape (run,); values within 1 % of the next are one budget."""
    order = np.argsort(budget, kind="stable")
    ordered = np.asarray(budget, float)[order]
    number = np.concatenate([[0], np.cumsum(ordered[1:] > (1 + BUDGET_TOLERANCE) * ordered[:-1])])
    groups = np.empty(len(ordered), int)
    groups[order] = number
    return groups


def anchored(runs: pd.DataFrame, probe: str) -> pd.DataFrame:
    """A probe's runs and the runs that anchor them: the baseline's r = 1 runs at the budgets the probe has.

    Without budgets for all of them, all the baseline's r = 1 runs.

    Raises
    ------
    RunsError
        If there are no runs of that probe.
    """
    own = (runs["probe"] == probe).to_numpy()
    if not own.any():
        raise RunsError(f"no runs of probe {probe!r}; the table has {', '.join(sorted(set(runs['probe'])))}")
    anchor = ((runs["probe"] == ANCHOR) & (runs["r"] == 1)).to_numpy()
    if "budget" in runs and runs.loc[own | anchor, "budget"].notna().all():
        budgets = runs.loc[own, "budget"].to_numpy(float)
        near_one = np.isclose(runs["budget"].to_numpy(float)[:, None], budgets, rtol=BUDGET_TOLERANCE).any(axis=1)
        anchor = anchor & near_one
    chosen = runs[own | anchor].reset_index(drop=True)
    chosen.attrs = {**runs.attrs, "sha256": fingerprint(chosen)}
    return chosen


def fingerprint(runs: pd.DataFrame) -> str:
    """SHA-256 of the content of a table in the schema: which data a result has seen.

    Independent of the order of the rows, of the file format, and of `run_id` and `status`, which no fit uses;
    numbers enter in full precision.
    """
    names = [name for name in COLUMNS if name in runs.columns and name not in _LABELS]
    rows = runs[names].astype({name: float for name in names if COLUMNS[name].dtype is float})
    lines = sorted(repr(row) for row in rows.itertuples(index=False, name=None))
    return hashlib.sha256("\n".join([",".join(names), *lines]).encode()).hexdigest()


def matches(runs: pd.DataFrame, where: str) -> np.ndarray:
    """Which runs satisfy the condition `where`: boolean, shape (run,).

    Raises
    ------
    RunsError
        If `where` is not such a condition or names an unknown column.
    """
    if not isinstance(where, str):
        raise RunsError(f"where is {where!r}; {_GRAMMAR}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the parser warns about odd escapes in literals
            tree = ast.parse(where.strip(), mode="eval")
        return _truth(tree.body, runs, where)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, RunsError):
            raise
        raise RunsError(f"where {where[:200]!r} cannot be parsed; {_GRAMMAR}") from None


def columns_of(where: str) -> list[str]:
    """Names that the condition mentions, in order of appearance."""
    names = [node.id for node in ast.walk(ast.parse(where.strip(), mode="eval")) if isinstance(node, ast.Name)]
    return list(dict.fromkeys(names))


def nothing_selected(runs: pd.DataFrame, where: str) -> RunsError:
    """The error for a condition that no run satisfies; it says what values there are."""
    parts = []
    for name in columns_of(where):
        values = sorted(runs[name].unique())
        parts.append(f"{name} has {len(values)} value{'s' * (len(values) != 1)}"
                     + listed([f"{v:.6g}" if isinstance(v, float | np.floating) else repr(str(v))
                               if isinstance(v, str) else str(v) for v in values], 8))
    return RunsError(f"no run of {len(runs)} satisfies {where!r} ({'; '.join(parts)}); widen the condition")


def _truth(node: ast.AST, runs: pd.DataFrame, where: str) -> np.ndarray:
    match node:
        case ast.BoolOp(op=op, values=values):
            parts = [_truth(value, runs, where) for value in values]
            return np.logical_and.reduce(parts) if isinstance(op, ast.And) else np.logical_or.reduce(parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ~_truth(operand, runs, where)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            sides = [left, *comparators]
            return np.logical_and.reduce([
                _compare(op, a, b, runs, where) for op, a, b in zip(ops, sides, sides[1:], strict=False)])
    raise RunsError(f"where {where!r}: {ast.unparse(node)!r} is not a comparison; {_GRAMMAR}")


def _compare(op: ast.cmpop, left: ast.AST, right: ast.AST, runs: pd.DataFrame, where: str) -> np.ndarray:
    a = _value(left, runs, where)
    if isinstance(op, ast.In | ast.NotIn):
        if not isinstance(right, ast.List | ast.Tuple | ast.Set):
            raise RunsError(f"where {where!r}: 'in' needs a list such as [1, 2], found {ast.unparse(right)!r}")
        found = np.zeros(len(runs), dtype=bool)
        for item in right.elts:
            found |= _compared(ast.Eq(), left, item, a, _value(item, runs, where), len(runs), where)
        return ~found if isinstance(op, ast.NotIn) else found
    return _compared(op, left, right, a, _value(right, runs, where), len(runs), where)


def _compared(op: ast.cmpop, left: ast.AST, right: ast.AST, a: Any, b: Any, n: int, where: str) -> np.ndarray:
    if type(op) not in _COMPARE:
        raise RunsError(f"where {where!r}: 'is' compares no values; {_GRAMMAR}")
    if _is_text(a) != _is_text(b):
        raise RunsError(f"where {where!r}: {ast.unparse(left)!r} and {ast.unparse(right)!r} are text and number; "
                        "compare a text column with quoted text and a number column with a number")
    if _is_text(a) and not isinstance(op, ast.Eq | ast.NotEq):
        raise RunsError(f"where {where!r}: text has no order; expected ==, != or in")
    named = {side.id for side in (left, right) if isinstance(side, ast.Name)}
    if "budget" in named:
        a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
        # close enough counts as equal, whatever the direction of the comparison
        a = np.where(np.abs(a - b) <= BUDGET_TOLERANCE * np.abs(b), b, a)
    return np.broadcast_to(np.asarray(_COMPARE[type(op)](a, b), dtype=bool), (n,)).copy()


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, np.ndarray) and value.dtype == object)


def _value(node: ast.AST, runs: pd.DataFrame, where: str) -> Any:
    """A column as an array, or a literal."""
    match node:
        case ast.Name(id=name):
            if name not in runs.columns:
                quoted = "" if (hint := near(name, runs.columns)) else "; put text in quotes"
                known = ", ".join(runs.columns)
                raise RunsError(f"where {where!r}: no column {name!r}{hint}{quoted}; columns: {known}")
            column = runs[name]
            numeric = pd.api.types.is_numeric_dtype(column)
            return column.to_numpy() if numeric else column.astype(str).to_numpy(dtype=object)
        case ast.Constant(value=value) if isinstance(value, int | float | str) and not isinstance(value, bool):
            return float(value) if isinstance(value, int) and abs(value) > 2**62 else value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if isinstance(value, int | float):
            return -float(value)
    raise RunsError(f"where {where!r}: {ast.unparse(node)!r} is neither a column nor a literal; {_GRAMMAR}")
