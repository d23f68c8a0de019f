"""A table of runs while it is being checked: typed columns, the cells they came from, and which rows still stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from bayesloop.problems import Ledger, RunsError, listed, near
from bayesloop.schema import COLUMNS, REQUIRED
from bayesloop.sources import Cells
from bayesloop.units import Unit, parse_number, to_schema_unit

# not in the schema, but read where present: the non-embedding parameters of a run without recurrence
HELPERS: dict[str, type] = {"n_params": float}
TYPES: dict[str, type] = {**{name: column.dtype for name, column in COLUMNS.items()}, **HELPERS}
SHAPE = ("width", "n_prelude", "n_recur", "n_coda")
NO_INT = -1  # a missing whole number


class Draft:
    """Typed columns under the schema's names, row by row beside the raw cells.

    Attributes
    ----------
    table : DataFrame
        float64 (missing: NaN), int64 (missing: −1), str (missing: empty).
    standing : bool array, shape (row,)
        Rows neither excluded nor found at fault; later checks look at these alone.
    excluded : bool array, shape (row,)
    ledger : Ledger
    """

    def __init__(self, cells: Cells, names: Mapping[str, str], ledger: Ledger) -> None:
        self.places = cells.places
        self.ledger = ledger
        self.names = dict(names)
        self.raw = {name: cells.columns[theirs] for name, theirs in names.items()}
        n = len(cells.places)
        self.standing, self.excluded = np.ones(n, dtype=bool), np.zeros(n, dtype=bool)
        self.table = pd.DataFrame(index=range(n))

    def __contains__(self, name: str) -> bool:
        return name in self.table.columns

    def values(self, name: str, default: Any = np.nan) -> np.ndarray:
        """A column as an array, or `default` for every row where the table has no such column."""
        if name in self.table.columns:
            return self.table[name].to_numpy()
        return np.full(len(self.places), default)

    def present(self, name: str) -> np.ndarray:
        """Where a column has a value."""
        values = self.values(name, np.nan if TYPES[name] is float else NO_INT if TYPES[name] is int else "")
        if TYPES[name] is float:
            return ~np.isnan(values)
        return values != (NO_INT if TYPES[name] is int else "")

    def rows(self, mask: np.ndarray, *shown: str) -> list[str]:
        """Places of the rows in a mask, each with the cells of the columns `shown`."""
        return [self._place(i, shown) for i in np.flatnonzero(mask).tolist()]

    def _place(self, i: int, shown: tuple[str, ...]) -> str:
        cells = [f"{self._title(name)} {self._cell(name, i)}" for name in shown if name in self or name in self.raw]
        return self.places[i] + (f" ({', '.join(cells)})" if cells else "")

    def _title(self, name: str) -> str:
        theirs = self.names.get(name, name)
        return name if theirs == name else f"{name} (column {theirs!r})"

    def _cell(self, name: str, i: int) -> str:
        cell = self.raw[name][i] if name in self.raw else self.table[name].iloc[i]
        if isinstance(cell, int | float | np.number):
            return f"{cell:.7g}" if isinstance(cell, float | np.floating) else str(cell)[:40]
        return repr(str(cell)[:40])

    def refuse(self, check: str, mask: np.ndarray, found: str, expected: str, shown: tuple[str, ...] = (),
               can_allow: bool = False) -> None:
        """Record rows at fault, if there are any; they take part in no further check unless the check is allowed."""
        if not mask.any():
            return
        self.ledger.refuse(check, f"{_rows(mask)} {found}", expected, self.rows(mask, *shown), can_allow)
        if not (can_allow and check in self.ledger.allow):
            self.standing &= ~mask

    def exclude(self, check: str, mask: np.ndarray, reason: str, shown: tuple[str, ...] = ()) -> None:
        """Leave rows out, each with its reason."""
        for i in np.flatnonzero(mask).tolist():
            cells = "".join(f", {name} {self._cell(name, i)}" for name in shown if name in self)
            run_id = str(self.table["run_id"].iloc[i]) if "run_id" in self else ""
            self.ledger.exclude(check, run_id, self.places[i], reason + cells)
        self.excluded |= mask
        self.standing &= ~mask

    def warn(self, check: str, mask: np.ndarray, message: str, shown: tuple[str, ...] = ()) -> None:
        """Record a doubt about rows that stay."""
        if mask.any():
            self.ledger.warn(check, f"{_rows(mask)} {message}{listed(self.rows(mask, *shown))}", int(mask.sum()))

    def note(self, mask: np.ndarray, message: str, shown: tuple[str, ...] = ()) -> None:
        """Record a fact about rows that stay."""
        if mask.any():
            self.ledger.notes.append(f"{_rows(mask)} {message}{listed(self.rows(mask, *shown))}")


def _rows(mask: np.ndarray) -> str:
    count = int(mask.sum())
    return f"{count} row{'s' * (count != 1)}"


def start_draft(cells: Cells, columns: Mapping[str, str] | None, units: Mapping[str, Unit], ledger: Ledger) -> Draft:
    """Name the columns and turn the cells into numbers and text.

    Parameters
    ----------
    cells : Cells
    columns : mapping of their name to ours, optional
        Columns that already have a name of the schema need none.
    units : mapping of column to Unit
    ledger : Ledger
        Receives every cell that is no number.

    Raises
    ------
    RunsError
        If `columns` names a column the source lacks, or a name that is none of ours.
    """
    names = _column_names(cells, columns, ledger)
    draft = Draft(cells, names, ledger)
    parsed = {}
    for name, dtype in TYPES.items():
        if name not in names:
            continue
        if np.isnan(units.get(name, Unit()).scale):
            raise RunsError(f"{ledger.source}: units are declared for loss but not for the column {name}; declare "
                            f"its unit too, units={{{name!r}: …}} (--units {name}=…)")
        parsed[name] = _text(draft, name) if dtype is str else _numbers(draft, name, units.get(name, Unit()))
    draft.table = pd.DataFrame(parsed, index=range(len(cells.places)))
    if "loss_se" in draft and units.get("loss_se", Unit()).is_perplexity:
        # the error of a logarithm, to first order: that of the perplexity over the perplexity
        draft.table["loss_se"] /= np.exp(np.minimum(draft.values("loss"), 700.0))
    return draft


def _column_names(cells: Cells, columns: Mapping[str, str] | None, ledger: Ledger) -> dict[str, str]:
    """Our name → theirs."""
    columns = dict(columns or {})
    for theirs, ours in columns.items():
        if theirs not in cells.columns:
            known = ", ".join(map(repr, list(cells.columns)[:40]))
            raise RunsError(f"{ledger.source}: columns names {theirs!r}, which the source lacks"
                            f"{near(str(theirs), cells.columns)}; it has {known}")
        if ours not in TYPES:
            raise RunsError(f"columns maps {theirs!r} to {ours!r}{near(str(ours), TYPES)}; expected one of "
                            f"{', '.join(TYPES)}")
    ours_named = list(columns.values())
    if twice := sorted({name for name in ours_named if ours_named.count(name) > 1}):
        raise RunsError(f"columns maps more than one column to {', '.join(twice)}; expected one each")
    names = {name: name for name in TYPES if name in cells.columns and name not in columns}
    if shadowed := [name for name in ours_named if name in names]:
        ledger.notes.append(f"columns of the source replaced by a mapped one: {', '.join(shadowed)}")
    names.update({ours: theirs for theirs, ours in columns.items()})
    if repeated := sorted(cells.repeated & set(names.values())):
        ledger.refuse("columns", f"column names that stand twice: {', '.join(repeated)}", "every name may stand once")
    unused = [name for name in cells.columns if name not in names.values() and name]
    if unused and cells.is_table:
        ledger.notes.append(f"columns that are not in the schema, left out{listed(unused)}")
    _require(names, cells, ledger)
    return names


# what people call columns that have a short or another name here
OTHER_WORDS = {"r": ("recur", "loop", "depth"), "tokens": ("d",), "n_once": ("nonrec", "unique")}


def _require(names: Mapping[str, str], cells: Cells, ledger: Ledger) -> None:
    """Columns without which there is nothing to fit; counts and the recipe may follow from others."""
    derived = {"probe"}
    if can_derive(set(names)):
        derived |= {"n_once", "n_rec"}
    missing = [name for name in REQUIRED if name not in names and name not in derived]
    unused = [name for name in cells.columns if name not in names.values()]
    for name in missing:
        hint = f"; it also follows from {', '.join(SHAPE)} and scheme" if name in ("n_once", "n_rec") else ""
        ledger.refuse("columns", f"no column {name} ({COLUMNS[name].meaning}; {COLUMNS[name].unit})",
                      f"name it with columns={{theirs: {name!r}}} (--columns theirs={name})"
                      f"{near(name, unused, OTHER_WORDS.get(name, ()))}{hint}")


def can_derive(names: set[str]) -> bool:
    """Whether columns of these names can say n_once and n_rec."""
    return set(SHAPE) <= names or "n_params" in names


def _text(draft: Draft, name: str) -> np.ndarray:
    return np.array(["" if _is_empty(cell) else str(cell).strip() for cell in draft.raw[name]], dtype=object)


def _is_empty(cell: Any) -> bool:
    return cell is None or type(cell).__name__ in ("NAType", "NaTType") or (isinstance(cell, float) and cell != cell)


def _numbers(draft: Draft, name: str, unit: Unit) -> np.ndarray:
    """Parse one column; cells that are no number are refused, in one problem per reason."""
    numbers: list[int | float] = []
    faults: dict[str, list[int]] = {}
    for i, cell in enumerate(draft.raw[name]):
        number: int | float | None = None
        try:
            number = parse_number(cell, unit.suffix)
        except ValueError as error:
            faults.setdefault(str(error), []).append(i)
        numbers.append(np.nan if number is None else number)
    for reason, where in faults.items():
        mask = np.zeros(len(numbers), dtype=bool)
        mask[where] = True
        draft.refuse("numbers", mask, f"whose {name} is {reason}", _number_advice(name), (name,))
    if TYPES[name] is int and unit == Unit():
        return _whole(draft, name, numbers)
    values = np.array(numbers, dtype=float)
    if not (name == "loss_se" and unit.is_perplexity):
        values = to_schema_unit(values, unit)
    return _whole(draft, name, values.tolist()) if TYPES[name] is int else values


def _number_advice(name: str) -> str:
    expected = f"expected a plain number such as 12000000 or 1.2e7 in {COLUMNS[name].unit if name in COLUMNS else '1'}"
    if name in ("loss", "loss_se"):
        return expected
    return f"{expected}, or 12M with units={{{name!r}: 'suffix'}} (--units {name}=suffix)"


def _whole(draft: Draft, name: str, numbers: list[int | float]) -> np.ndarray:
    """Whole numbers as int64, kept exact: a seed beyond 2^53 must not become another."""
    whole = np.full(len(numbers), NO_INT, dtype=np.int64)
    faulty = np.zeros(len(numbers), dtype=bool)
    for i, number in enumerate(numbers):
        if number != number:
            continue
        if (isinstance(number, float) and not number.is_integer()) or not -(2**63) <= number < 2**63:
            faulty[i] = True
        else:
            whole[i] = int(number)
    draft.refuse("numbers", faulty, f"whose {name} is no whole number", "expected a whole number", (name,))
    return whole
