"""Read tables of runs into one validated table in the schema; select from it; say whether it can answer a question."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from warnings import warn

import numpy as np
import pandas as pd

from bayesloop.consistency import check_twins, check_work
from bayesloop.counting import INJECTIONS, check_counts, derive_counts, derive_probe, place_injection, settle_convention
from bayesloop.draft import NO_INT, TYPES, Draft, start_draft
from bayesloop.files import writing
from bayesloop.hygiene import ALLOWABLE, check_outcomes, check_values, merge_budgets
from bayesloop.problems import Ledger, Problem, RunsError, RunsWarning, near
from bayesloop.schema import COLUMNS, REQUIRED
from bayesloop.selection import fingerprint, select
from bayesloop.sources import Cells, read_cells, source_name
from bayesloop.units import declared_units
from bayesloop.wording import many

__all__ = ["RunsError", "RunsWarning", "Validation", "check_identifiable", "fingerprint", "read_runs", "select",
           "validate", "write_runs"]

Source = str | os.PathLike[str] | pd.DataFrame


@dataclass(frozen=True)
class Validation:
    """The hygiene report of a source: everything found, and the table if nothing stands against it.

    Attributes
    ----------
    source : str
        The source as given.
    ok : bool
        Whether there is no problem.
    n_rows, n_kept : int
        Rows read, and rows neither excluded nor at fault.
    problems : list of Problem
        What must be changed before the table can be used.
    excluded : list of dict
        `run_id`, `row` (place in the source) and `reason` of each row left out.
    notes, warnings : list of str
        What else to know, and what looks doubtful.
    counts : dict of str to int
        Rows or cells found by each check.
    summary : list of dict
        Runs kept, by `budget`, `r` and `probe`.
    runs : DataFrame or None
        What `read_runs` returns; None where it would raise.
    """

    source: str
    ok: bool
    n_rows: int
    n_kept: int
    problems: list[Problem]
    excluded: list[dict[str, str]]
    notes: list[str]
    warnings: list[str]
    counts: dict[str, int]
    summary: list[dict[str, Any]]
    runs: pd.DataFrame | None

    def to_dict(self) -> dict[str, Any]:
        """Everything but the table, as JSON can hold it; with the table's attributes under `table`."""
        fields = {name: value for name, value in vars(self).items() if name != "runs"}
        fields["problems"] = [{**asdict(problem), "places": list(problem.places)} for problem in self.problems]
        table = None
        if self.runs is not None:
            table = {name: self.runs.attrs[name] for name in ("sha256", "injection", "count_convention")}
        return {**fields, "table": table}


def read_runs(source: Source, columns: Mapping[str, str] | None = None, units: Mapping[str, Any] | None = None,
              injection: str = "rec", count_convention: str | None = None, tokens_per_byte: float | None = None,
              allow: str | Iterable[str] = ()) -> pd.DataFrame:
    """Read pretraining runs into one table in the schema, or say what is wrong with them.

    Parameters
    ----------
    source : path or DataFrame
        A CSV or parquet table, an HDF5 run file or sweep file, a folder searched for run files (curve.h5), or a
        data frame. A tracker's export is a CSV whose columns are named by `columns`.
    columns : mapping of their name to ours, optional
        Such as ``{"summary.val_loss": "loss", "State": "status"}``; columns under the schema's names need none.
    units : mapping of our name to unit, optional
        Where a column is not in the schema's unit: a scale factor ("1e6"), K, M, B or T (the cells count thousands,
        millions, …), "suffix" (the cells read 12M), or for `loss` and `loss_se` bit/token, bit/byte, perplexity.
    injection : {"rec", "once", "none"}
        Where the linear injection's parameters are counted: in n_rec (the schema; arXiv 2604.21106, text), in n_once,
        or nowhere. Other than "rec" needs `n_inject`, which is 0 afterwards: nothing is left inside n_rec.
    count_convention : {"exact", "formula"}, optional
        Declares how the counts were made, where no column says so; also used for derived counts (else exact).
    tokens_per_byte : float, optional
        Tokens per byte of the validation text, for losses in bit/byte.
    allow : str or iterable of str
        Checks whose findings are let through with a note: partial, running, high_loss, loss_scale, twins, flops.

    Returns
    -------
    DataFrame
        One row per run in the source's order, columns in the schema's order, float64, int64 (missing: −1) and text
        (missing: empty). Budgets within 1 % of each other have one value. `attrs` holds `source`, `sha256` (see
        `fingerprint`), `injection`, `count_convention` (exact, formula or undeclared), `excluded`, `notes`, `warnings`,
        and `declared`, the arguments that were given.

    Raises
    ------
    RunsError
        One message with all problems: missing columns, cells that are no numbers, impossible values, and everything
        that could be meant in two ways.

    Warns
    -----
    RunsWarning
        Once, if rows were excluded or something looks doubtful.
    """
    report = validate(source, columns, units, injection, count_convention, tokens_per_byte, allow)
    if report.runs is None:
        raise Ledger(report.source, problems=report.problems).error()
    messages = list(report.warnings)
    if report.excluded:
        reasons = "".join(f"\n  {row['row']} {row['run_id']}: {row['reason']}" for row in report.excluded[:5])
        more = f"\n  and {len(report.excluded) - 5} more, in attrs['excluded']" if len(report.excluded) > 5 else ""
        messages.insert(0, f"{len(report.excluded)} of {many(report.n_rows, 'run')} excluded{reasons}{more}")
    given = {"columns": dict(columns or {}), "units": {name: str(unit) for name, unit in (units or {}).items()},
             "allow": [allow] if isinstance(allow, str) else list(allow), "tokens_per_byte": tokens_per_byte,
             "count_convention": count_convention}
    before = report.runs.attrs.get("declared", {})
    report.runs.attrs["declared"] = {**before, **{name: value for name, value in given.items() if value}}
    if messages:
        warn(f"{report.source}: " + "\n".join(messages), RunsWarning, stacklevel=2)
    return report.runs


def validate(source: Source, columns: Mapping[str, str] | None = None, units: Mapping[str, Any] | None = None,
             injection: str = "rec", count_convention: str | None = None, tokens_per_byte: float | None = None,
             allow: str | Iterable[str] = ()) -> Validation:
    """Everything that is wrong with a table of runs, at once, and the table itself if nothing is.

    Parameters
    ----------
    source, columns, units, injection, count_convention, tokens_per_byte, allow
        As in `read_runs`.

    Returns
    -------
    Validation

    Raises
    ------
    RunsError
        If an argument is wrong, or the source cannot be read at all.
    """
    if injection not in INJECTIONS:
        raise RunsError(f"injection is {injection!r}; expected one of {', '.join(INJECTIONS)}")
    allowed = frozenset([allow] if isinstance(allow, str) else allow)
    for name in sorted(allowed - set(ALLOWABLE), key=str):
        raise RunsError(f"allow names {name!r}{near(str(name), ALLOWABLE)}; expected of {', '.join(ALLOWABLE)}")
    ledger = Ledger(source_name(source), allowed)
    declared = declared_units(units, TYPES, tokens_per_byte)
    with np.errstate(all="ignore"):
        cells = read_cells(source, ledger)
        if not cells.places:
            ledger.refuse("rows", "no rows", "expected one per run")
            raise ledger.error()
        _check_injection_of(cells, injection, ledger)
        draft = start_draft(cells, columns, declared, ledger)
        convention = _check(draft, injection, count_convention)
        return _report(draft, cells, injection, convention)


def _check(draft: Draft, injection: str, count_convention: str | None) -> str:
    """All checks in order; each looks at the rows that the ones before left standing."""
    check_outcomes(draft)
    derive_probe(draft)
    assumed = count_convention or _first(draft, "count_convention") or "exact"
    derive_counts(draft, assumed)
    check_values(draft)
    check_counts(draft, assumed)
    convention = settle_convention(draft, count_convention)
    merge_budgets(draft)
    if all(name in draft for name in REQUIRED):
        check_work(draft)
        check_twins(draft)
    place_injection(draft, injection)
    if not draft.standing.any() and not draft.ledger.problems:
        reasons = sorted({row["reason"].split(":")[0] for row in draft.ledger.excluded})
        draft.ledger.refuse(
            "rows", f"no usable run: all {len(draft.places)} rows are excluded ({'; '.join(reasons)})",
            "expected at least one run with a loss; if the unit or the column of loss is another, declare it")
    return convention


def _first(draft: Draft, name: str) -> str:
    return next((value for value in draft.values(name, "") if value in ("exact", "formula")), "")


def _check_injection_of(cells: Cells, injection: str, ledger: Ledger) -> None:
    """A data frame that was read under another convention has forgotten what n_inject was."""
    before = cells.attrs.get("injection", injection)
    if before not in ("rec", injection):
        raise RunsError(f"{ledger.source}: the table was read with injection={before!r}; to have "
                        f"injection={injection!r}, read the original source again")


def _report(draft: Draft, cells: Cells, injection: str, convention: str) -> Validation:
    ledger = draft.ledger
    runs = None if ledger.problems else _finished(draft, cells, injection, convention)
    names = [name for name in ("budget", "r", "probe") if name in draft]
    kept = draft.table.loc[draft.standing, names]
    summary = kept.groupby(names, dropna=False, sort=True).size().reset_index(name="runs").to_dict("records")
    return Validation(
        source=ledger.source, ok=runs is not None, n_rows=len(draft.places) + ledger.counts.get("unreadable", 0),
        n_kept=int(draft.standing.sum()),
        problems=ledger.problems, excluded=ledger.excluded, notes=ledger.notes, warnings=ledger.warnings,
        counts=ledger.counts, summary=[{str(k): _plain(v) for k, v in row.items()} for row in summary], runs=runs)


def _plain(value: Any) -> Any:
    """A value as JSON holds it."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and value != value else value


def _finished(draft: Draft, cells: Cells, injection: str, convention: str) -> pd.DataFrame:
    """The rows that stand, columns in the schema's order and types; optional columns without any value are dropped."""
    kept = draft.standing
    parts: dict[str, Any] = {}
    for name, column in COLUMNS.items():
        if name not in draft or not draft.present(name)[kept].any():
            continue
        values = draft.values(name)[kept]
        parts[name] = pd.Series(values.astype(object), dtype=str) if column.dtype is str else values
    if "bptt_k" in parts:
        parts["bptt_k"] = np.where(parts["bptt_k"] == NO_INT, parts["r"], parts["bptt_k"])
    if "lanes" in parts:
        unknown = draft.values("scheme", "")[kept] == "hyperconnect"  # of these alone a missing number is not 0
        parts["lanes"] = np.where((parts["lanes"] == NO_INT) & ~unknown, 0, parts["lanes"])
    runs = pd.DataFrame(parts, index=range(int(kept.sum())))
    ledger, before = draft.ledger, cells.attrs if "sha256" in cells.attrs else {}
    runs.attrs = {**before, "source": ledger.source, "sha256": fingerprint(runs), "injection": injection,
                  "count_convention": convention, "excluded": [*before.get("excluded", []), *ledger.excluded],
                  "notes": list(dict.fromkeys([*before.get("notes", []), *ledger.notes])),
                  "warnings": list(dict.fromkeys([*before.get("warnings", []), *ledger.warnings]))}
    return runs


def write_runs(runs: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write a table as CSV, or as parquet by its suffix, atomically and in full precision.

    Raises
    ------
    RunsError
        If the file cannot be written.
    """
    with writing(path, RunsError) as temporary:
        if Path(path).suffix == ".parquet":
            runs.to_parquet(temporary, index=False)
        else:
            runs.to_csv(temporary, index=False)


def check_identifiable(runs: pd.DataFrame, law_has_phi: bool = True, n_parameters: int = 6) -> None:
    """Refuse a table that cannot identify a law.

    Parameters
    ----------
    runs : DataFrame
        From `read_runs` or `select`.
    law_has_phi : bool
        Whether the law has a recurrence exponent, which needs runs that differ in r.
    n_parameters : int
        Free parameters of the law's mean (E, A, B, alpha, beta, phi: 6).

    Raises
    ------
    RunsError
        If every run has the same r, or there are fewer runs than parameters.
    """
    if len(runs) < n_parameters:
        raise RunsError(f"{many(len(runs), 'run')} for {many(n_parameters, 'parameter')}; give at least {n_parameters} "
                        "runs, or fix some parameters")
    values = sorted(set(runs["r"]))
    if law_has_phi and len(values) < 2:
        raise RunsError(f"every run has r = {values[0]}: phi cannot be identified, since nothing shows what another "
                        "recurrence is worth; add runs with another r (r = 1 is the anchor), or use the law chinchilla")
