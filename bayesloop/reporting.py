"""One HTML page that says what a posterior says, with its figures, tables and numbers beside it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from bayesloop.answer import QUESTION, answer, data_facts, fit_command
from bayesloop.assumptions import Assumptions
from bayesloop.console import as_json_text
from bayesloop.files import make_folder, writing
from bayesloop.findings import Findings, gather
from bayesloop.page import Drawn, render
from bayesloop.plot_decisions import optimum_figure
from bayesloop.plots import curves_figure, drawn_figures, file_name
from bayesloop.posterior import PosteriorError, attribute
from bayesloop.schema import Run
from bayesloop.style import save_figure

_OWN_FILE = re.compile(r"(figures|tables)/[^/\\]+\.(svg|png|csv)")


def report(post: xr.DataTree, out: str | os.PathLike[str], reference: str | None = None, prob: float = 0.95,
           assumptions: Assumptions | None = None, contrast: xr.DataTree | None = None,
           family: Mapping[str, Any] | None = None, curves: Sequence[Run] = (), force: bool = False) -> dict[str, Any]:
    """Write a report: one HTML page that needs nothing else, and its figures, tables and numbers beside it.

    Parameters
    ----------
    post : DataTree
        From `fit` or `load`.
    out : path
        Folder, created if missing: `report.html`, `figures/` (SVG and PNG), `tables/` (CSV, full precision) and
        `numbers.json`. Of a report that stands there each file is replaced whole, and those of its files that the new
        one does not have are removed.
    reference : str, optional
        The probe that differences are taken from; default: the baseline, or the first probe.
    prob : float
        Probability of the intervals.
    assumptions : Assumptions, optional
        From `compare_assumptions` on the same runs; then the report shows what Δφ depends on.
    contrast : DataTree, optional
        A fit of the same runs with φ fixed, such as ``fix={"phi": 1}``, drawn thin beside the frontiers.
    family : mapping, optional
        Fields of `Family` in which the models differ from the recipe, as in `optimum`.
    curves : sequence of Run
        The runs with their loss curves, as from `schema.read_sweep`; drawn where the posterior has seen them.
    force : bool
        Report a posterior that did not converge, with a banner that says so.

    Returns
    -------
    dict
        The content of `numbers.json`.

    Raises
    ------
    PosteriorError
        If the posterior did not converge, or the reference or the assumptions do not belong to it.
    InputError
        If the folder cannot be written.
    """
    if not post.attrs.get("converged") and not force:
        raise PosteriorError(f"a posterior that has not converged is not reported ({post.attrs.get('verdict')}); with "
                             "force=True (--force) it is, under a banner that says so")
    found = gather(post, reference, prob, assumptions, family, force)
    folder = make_folder(out)
    for name in ("figures", "tables"):
        make_folder(folder / name)
    before = _files_of(folder)
    drawn: dict[str, Drawn] = {}
    for kind, subject, figure in _figures(found, contrast, curves):
        name = _free(f"{kind}_{file_name(subject)}" if subject else kind, drawn)
        svg, _ = save_figure(figure, folder / "figures" / name)
        drawn[name] = Drawn(kind, subject, figure.get_figwidth(), svg.read_bytes())
    written = [f"figures/{name}.{kind}" for name in drawn for kind in ("svg", "png")]
    for name, table in found.tables.items():
        with writing(folder / "tables" / f"{name}.csv") as temporary:
            table.to_csv(temporary, index=table.index.name is not None)
        written.append(f"tables/{name}.csv")
    numbers = collect(found) | {"files": [*written, "numbers.json", "report.html"]}
    _write_text(folder / "numbers.json", as_json_text(numbers) + "\n")
    _write_text(folder / "report.html", render(found, drawn))
    for name in before - set(written):
        (folder / name).unlink(missing_ok=True)
    return numbers


def collect(found: Findings) -> dict[str, Any]:
    """Every number of a report, by name; `absent` says why a table does not apply."""
    post, seen = found.post, found.check
    parsed = ("priors", "fix", "versions", "convergence", "doubts", "data_excluded",
              "data_declared")
    settings = {str(name): attribute(post, str(name)) if name in parsed else value
                for name, value in post.attrs.items()}
    doubts, excluded = settings.pop("doubts", []), settings.pop("data_excluded", [])
    return {
        "question": QUESTION, "answer": answer(found), "converged": bool(post.attrs.get("converged")),
        "verdict": seen.verdict, "nothing_against": seen.ok, "reference": found.reference, "prob": found.prob,
        "data": data_facts(post), "excluded": excluded, "doubts": doubts, "notes": found.notes,
        "contradicted": found.contradicted, "undecided": found.undecided, "unanchored": found.unanchored,
        **{name: _records(table) for name, table in found.tables.items() if name != "excluded"},
        "check": {"together": seen.together, "together_expected": seen.together_expected, "loo": seen.loo},
        "assumptions_verdict": found.assumptions.verdict if found.assumptions else [],
        "absent": found.absent, "command": fit_command(post), "settings": settings}


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return (table.reset_index() if table.index.name is not None else table).to_dict("records")  # type: ignore[return-value]


def _figures(found: Findings, contrast: xr.DataTree | None, curves: Sequence[Run]) -> Iterator[tuple[str, str, Figure]]:
    """Kind, subject (a probe, or nothing) and figure, one at a time."""
    yield from drawn_figures(found.post, found.reference, contrast=contrast)
    if "optimum" in found.tables:
        for probe, table in found.tables["optimum"].groupby("probe", sort=False):
            yield "optimum", str(probe), optimum_figure(table)
    fitted = set(found.tables["runs"]["run"])
    if seen := [run for run in curves if run.attrs.get("run_id") in fitted]:
        yield "curves", "", curves_figure(seen)


def _free(name: str, taken: Iterable[str]) -> str:
    """The name, with a number where another figure has it: two probes may differ in special characters only."""
    names = [name, *(f"{name}_{number}" for number in range(2, 100))]
    return next(candidate for candidate in names if candidate not in taken)


def _files_of(folder: Path) -> set[str]:
    """Figures and tables of the report that stands in a folder, as it says itself."""
    try:
        listed = json.loads((folder / "numbers.json").read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    return {str(name) for name in listed if _OWN_FILE.fullmatch(str(name))}


def _write_text(path: Path, text: str) -> None:
    with writing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
