"""What the commands print: tables, posteriors, comparisons, progress, JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bayesloop.schema import InputError
from bayesloop.wording import many

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from bayesloop.assumptions import Assumptions
    from bayesloop.checks import Check
    from bayesloop.heldout import HeldOut

# a pipe has no width of its own; the widest table has about this many columns
out, err = Console(width=None if sys.stdout.isatty() else 110), Console(stderr=True)
FORMATS = {"P(Δφ > 0)": "{:.3f}", "in ROPE": "{:.3f}", "R-hat": "{:.4f}", "ESS bulk": "{:.0f}", "ESS tail": "{:.0f}",
           "budget": "{:.3g}", "elpd": "{:.1f}", "raw": "{:.1f}"}


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
    view = Table(title=escape(title), title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place, name in enumerate(table.columns):
        number = table[name].dtype.kind in "if"
        short = number or place == 0 or table[name].astype(str).str.len().max() <= 24
        view.add_column(str(name), justify="right" if number else "left", no_wrap=bool(short))
    for row in table.itertuples(index=False):
        view.add_row(*(escape(_cell(str(name), value)) for name, value in zip(table.columns, row, strict=True)))
    out.print(view)


def _cell(name: str, value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return "" if math.isnan(value) else FORMATS.get(name, "{:.4g}").format(value)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object; numbers that are not finite become null."""
    sys.stdout.write(as_json_text(value) + "\n")


def as_json_text(value: Mapping[str, Any]) -> str:
    """One JSON object as text; numbers that are not finite become null."""
    return json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False)


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
    from bayesloop.views import parameters_view

    summary = summarise(post)
    if as_json:
        print_json({"posterior": path, "converged": bool(post.attrs["converged"]), "verdict": post.attrs["verdict"],
                    "parameters": {str(name): dict(row) for name, row in summary.iterrows()},
                    "convergence": attribute(post, "convergence"), "doubts": attribute(post, "doubts"),
                    "settings": {str(name): value for name, value in post.attrs.items()
                                 if name not in ("convergence", "doubts")}})
        return
    fixed = attribute(post, "fix")
    about = [f"law {post.attrs['law']}", f"errors {post.attrs['errors']}", f"{post['observed_data'].sizes['run']} runs",
             *(f"{name} fixed at {value:g}" for name, value in fixed.items())]
    print_table(parameters_view(summary), f"{title}: {', '.join(about)}")
    if post.attrs["retries"]:
        first = attribute(post, "convergence")[0]
        reasons = first["problems"] or [f"{first['divergences']} of {first['draws']} transitions diverged"]
        say(f"the first attempt was not accepted ({'; '.join(reasons)}); repeated with a stricter sampler")
    if post.attrs.get("choice") and not post.attrs.get("choice_lacks"):  # that is among the doubts
        say(f"model: {post.attrs['choice']}")
    say(post.attrs["verdict"], "green" if post.attrs["converged"] else "bold red")
    for doubt in attribute(post, "doubts"):
        say(f"note: {doubt}", "yellow")
    say(f"written to {path}")


def show_comparison(table: pd.DataFrame, as_json: bool = False) -> None:
    """Print φ and Δφ by probe with the notes."""
    from bayesloop.views import comparison_view

    about = {str(name): value for name, value in table.attrs.items()}
    if as_json:
        print_json({"comparison": table.to_dict("records"), **about})
        return
    rope = f", region of practical equivalence (ROPE) ± {about['rope']}" if about["rope"] is not None else ""
    print_table(comparison_view(table), f"φ by probe, and Δφ against {about['reference']}{rope}")
    for note in about["notes"]:
        say(f"note: {note}", "yellow")


def show_assumptions(found: Assumptions, as_json: bool = False) -> None:
    """Print Δφ under each assumption, the matched differences and the verdict."""
    if as_json:
        print_json({"assumptions": found.table.to_dict("records"), "matched": found.matched.to_dict("records"),
                    "verdict": found.verdict})
        return
    from bayesloop.views import assumptions_view, matched_view

    print_table(assumptions_view(found.table), "Δφ under each recipe term")
    if len(found.matched):
        print_table(matched_view(found.matched),
                    "Matched differences in mnats, at equal budget, r and width, corrected for tokens")
    for sentence in found.verdict:
        say(f"• {sentence}")


def show_held_out(found: HeldOut, as_json: bool = False) -> None:
    """Print how models predict groups of runs left out, the stacking weights, and φ under the mixtures."""
    if as_json:
        print_json({"held_out": found.table.to_dict("records"), "averages": found.averages.to_dict("records")})
        return
    import pandas as pd

    from bayesloop.heldout import MIN_DRAWS

    for scheme, part in found.table.groupby("scheme", sort=False):
        own = part.sort_values("behind")
        shown = pd.DataFrame({"model": own["model"], "elpd": own["elpd"].round(1), "behind": [
            f"{a:.1f}" + (f" ± {b:.1f}" if b == b else "") for a, b in zip(own["behind"], own["behind_se"],
                                                                          strict=True)]})
        if scheme == "run":
            shown["worst k"] = own["worst_k"].round(2)
        else:
            shown = shown.assign(**{"each": own["each"].round(1), "RMSE, mnats": (1e3 * own["rmse"]).round(1),
                      "in 95 %": own["covered"].map("{:.0%}".format)})
        if own["weight"].notna().any():
            shown["weight"] = own["weight"].round(2)
        shown["unsound"] = own["unsound"]
        left = f"each of {own['groups'].iloc[0]} groups" if scheme != "top" else "the runs of the largest budget"
        print_table(shown, f"Left out by {scheme}: {left}")
    few = found.table[found.table["draws"] < MIN_DRAWS]
    for scheme, part in few.groupby("scheme", sort=False):
        say(f"note: left out by {scheme}, the density of a group rests on fewer than {MIN_DRAWS:g} draws under "
            f"{', '.join(part['model'])}: its elpd is off by an unknown amount, mostly too low; `each` suffers less")
    if len(found.averages):
        values = found.averages.assign(value=[f"{row.mean:+.3f} ± {row.sd:.3f}" for row in found.averages.itertuples()])
        wide = values.pivot(index="scheme", columns="quantity", values="value")
        order = list(dict.fromkeys(values["quantity"]))
        print_table(wide.loc[list(dict.fromkeys(values["scheme"])), order].reset_index().rename(
            columns={"scheme": "model, or mixture by"}), "φ of each model and of the mixtures that predict best")


def show_check(found: Check, as_json: bool = False) -> None:
    """Print what a check has found, the verdict last."""
    if as_json:
        tables = ("cells", "coverage", "parameters", "robust", "moves", "bagged")
        print_json({**{name: getattr(found, name).reset_index().to_dict("records") for name in tables},
                    "together": found.together, "together_expected": found.together_expected, "loo": found.loo,
                    "verdict": found.verdict, "ok": found.ok})
        return
    from bayesloop.views import cells_view, sensitivity_view

    print_table(cells_view(found), "Mean residual in mnats, by budget (observed minus expected)")
    print_table(sensitivity_view(found), "What the runs have said")
    if len(found.robust):
        print_table(found.robust.reset_index(), "Posterior and cluster-robust spread, over (budget, r) cells")
    if len(found.bagged):
        counts = f"{found.bagged.attrs['resamples']} resamples, {found.bagged.attrs['unsound']} unsound left out"
        print_table(found.bagged.reset_index(), f"Bagged posterior over (budget, r) cells: {counts}")
    if len(found.moves):
        _show_moves(found.moves)
    print_table(found.coverage, "Predictive intervals given all other runs")
    say(f"leave-one-out: elpd {found.loo['elpd']:.1f} ± {found.loo['se']:.1f}, effective parameters "
        f"{found.loo['p']:.1f}, {many(len(found.loo['bad']), 'run')} with Pareto k above 0.7")
    for sentence in found.verdict:
        say(f"• {sentence}")
    say("nothing found against this interval" if found.ok else "read the points above before quoting an interval",
        "green" if found.ok else "bold yellow")


def _show_moves(moves: pd.DataFrame, most: int = 4) -> None:
    """The changes that move φ or Δφ most, of each kind."""
    ranked = moves.assign(size=moves["in_sd"].abs()).sort_values("size", ascending=False)
    shown = ranked.groupby("kind", sort=False).head(most).sort_values("kind", kind="stable")
    print_table(shown[["kind", "without", "quantity", "change", "in_sd", "how"]].rename(columns={"in_sd": "in sd"}),
                "What moves φ most")


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
        if name.strip() in found:
            raise InputError(f"{option}: {name.strip()!r} is given twice")
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
