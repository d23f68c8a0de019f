"""Small valid tables of runs, and the same with single cells changed."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bayesloop.architecture import iso_depth
from bayesloop.schema import Run

PAPER = Path(__file__).parents[1] / "data" / "paper_grid.csv"
BUDGETS = (4.64e17, 1.0e18)


def paper_rows(n: int = 24) -> list[dict[str, str]]:
    """The first baseline runs of each r at two budgets, as text cells; 24 at most."""
    with open(PAPER, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["probe"] == "baseline" and float(row["budget"]) in BUDGETS]
    rows = [{name: cell for name, cell in row.items() if name != "reading"} for row in rows]
    return rows[: len(rows) : max(len(rows) // n, 1)][:n]


def write_csv(path: Path, rows: list[dict[str, str]]) -> Path:
    """Write rows of equal keys as CSV."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def changed(path: Path, cells: Mapping[tuple[int, str], str], n: int = 24) -> Path:
    """The small table with cells changed, by (row, column); a new column is empty elsewhere. Row 0 is on line 2."""
    rows = paper_rows(n)
    for name in {name for _, name in cells}:
        for row in rows:
            row.setdefault(name, "")
    for (i, name), cell in cells.items():
        rows[i][name] = cell
    return write_csv(path, rows)


def run_of(r: int = 2, width: int = 512, loss: float = 2.5, **attrs: Any) -> Run:
    """A finished run as training writes one: exact counts and its shape."""
    recipe = {name: attrs.pop(name) for name in ("scheme", "bptt_k", "lanes") if name in attrs}
    model = iso_depth(width, r, **recipe)
    tokens = round(1e18 / model.flops_per_token)
    return Run({"run_id": f"r{r}-d{width}", "r": r, "width": width, "scheme": model.scheme, "lanes": model.lanes,
                "bptt_k": model.backward_recurrences, "n_once": model.n_once(), "n_rec": model.n_rec(),
                "n_inject": model.n_inject, "count_convention": "exact", "budget": 1e18, "tokens": tokens,
                "flops": float(tokens * model.flops_per_token), "loss": loss, "seed": 0, "status": "done",
                "n_prelude": model.n_prelude, "n_recur": model.n_recur, "n_coda": model.n_coda, **attrs})
