"""What the commands print: tables, posteriors, comparisons, progress, JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bayesloop.schema import InputError

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

out, err = Console(), Console(stderr=True)
FORMATS = {"p_positive": "{:.3f}", "in_rope": "{:.3f}", "rhat": "{:.4f}", "ess_bulk": "{:.0f}", "ess_tail": "{:.0f}",
           "budget": "{:.3g}", "E": "{:.3f}"}
HEADERS = {"p_positive": "P(Δ>0)", "in_rope": "in ROPE", "delta_mean": "Δφ", "delta_sd": "± sd"}


def say(text: Any, style: str = "") -> None:
    """Print a line to standard output, wrapped by the terminal only."""
    out.print(escape(str(text)), style=style, highlight=False, soft_wrap=True)


def warn(text: Any) -> None:
    """Print a line to standard error."""
    err.print(f"[yellow]note:[/] {escape(str(text))}", highlight=False, soft_wrap=True)


def fail(text: Any) -> None:
    """Print an error to standard error."""
    err.print(f"[red]error:[/] {escape(str(text))}", highlight=False, soft_wrap=True)


def print_table(table: pd.DataFrame, title: str) -> None:
    """Print a table; numbers to four significant digits, or as `FORMATS` says."""
    view = Table(title=escape(title), title_justify="left", title_style="bold")
    numeric = {name for name in table.columns if table[name].dtype.kind in "if"}
    for name in table.columns:
        view.add_column(HEADERS.get(str(name), str(name)), justify="right" if name in numeric else "left",
                        no_wrap=name in numeric)
    for row in table.itertuples(index=False):
        view.add_row(*(escape(_cell(str(name), value)) for name, value in zip(table.columns, row, strict=True)))
    out.print(view)


def _cell(name: str, value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return "" if math.isnan(value) else FORMATS.get(name, "{:.4g}").format(value)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object; numbers that are not finite become null."""
    sys.stdout.write(json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, int | float | str | bool | None) else str(value)


def show_posterior(post: xr.DataTree, path: Path, as_json: bool = False, title: str = "Posterior") -> None:
    """Print the parameters of a posterior and the verdict on convergence."""
    from bayesloop.posterior import attribute, summarise

    summary = summarise(post).reset_index()
    if as_json:
        print_json({"posterior": path, "converged": bool(post.attrs["converged"]), "verdict": post.attrs["verdict"],
                    "parameters": {str(name): dict(row) for name, row in summary.set_index("parameter").iterrows()},
                    "convergence": attribute(post, "convergence"),
                    "settings": {str(name): value for name, value in post.attrs.items() if name != "convergence"}})
        return
    fixed = attribute(post, "fix")
    about = [f"law {post.attrs['law']}", f"errors {post.attrs['errors']}", f"{post['observed_data'].sizes['run']} runs",
             *(f"{name} fixed at {value:g}" for name, value in fixed.items()), "95 % intervals"]
    print_table(summary, f"{title}: {', '.join(about)}")
    if post.attrs["retries"]:
        first = attribute(post, "convergence")[0]
        say(f"the first attempt did not converge ({'; '.join(first['problems'])}); repeated with a stricter sampler")
    say(post.attrs["verdict"], "green" if post.attrs["converged"] else "bold red")
    say(f"written to {path}")


def show_comparison(table: pd.DataFrame, as_json: bool = False) -> None:
    """Print φ and Δφ by probe with the notes."""
    if as_json:
        print_json({"comparison": table.to_dict("records"), **table.attrs})
        return
    about = table.attrs
    rope = f", region of practical equivalence {about['rope']}" if about["rope"] is not None else ""
    print_table(table, f"φ by probe, and Δφ from {about['reference']}; {about['prob']:.0%} intervals{rope}")
    for note in about["notes"]:
        say(f"note: {note}", "yellow")


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error, shown on a terminal only; yields ``advance(done, total)``."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def pairs(items: Sequence[str] | None, option: str) -> dict[str, str]:
    """NAME=VALUE options as a dict.

    Raises
    ------
    InputError
        If one has no equals sign.
    """
    found = {}
    for item in items or ():
        name, equals, value = item.partition("=")
        if not equals or not name.strip():
            raise InputError(f"{option} {item!r}: expected NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def numbers(items: Sequence[str] | None, option: str) -> dict[str, float]:
    """NAME=NUMBER options as a dict.

    Raises
    ------
    InputError
        If a value is not a number.
    """
    found = {}
    for name, value in pairs(items, option).items():
        try:
            found[name] = float(value)
        except ValueError:
            raise InputError(f"{option} {name}={value!r}: expected a number") from None
    return found
