"""What the commands share: options, tables, numbers with suffixes, files. No command is defined here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesloop.console import pairs, print_json
from bayesloop.files import writing
from bayesloop.schema import InputError
from bayesloop.wording import SUFFIX

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

Posteriors = Annotated[list[Path], typer.Argument(help="Posterior files of the same runs, one or one for each law.")]
Weights = Annotated[str | None, typer.Option(help="Weights of the posteriors, such as 0.3,0.7; default equal.")]
Probe = Annotated[str, typer.Option(help="Recipe.")]
Model = Annotated[list[str] | None, typer.Option("--model", metavar="NAME=VALUE", help=(
    "What differs from the recipe's models: depth, ends, head_dim, vocab_size, seq_len, batch_tokens, scheme, "
    "bptt_k (a number or half), lanes, convention, injection."))]
Force = Annotated[bool, typer.Option("--force", help="Accept a posterior that did not converge.")]
Csv = Annotated[Path | None, typer.Option("--out", help="Write the table as CSV, in full precision.")]
Figure_ = Annotated[Path | None, typer.Option("--figure", help="Write the figure as FIGURE.svg and FIGURE.png.")]
Several = "Number, or several with commas; K, M, B, T for thousands to trillions."


def several(text: str, option: str) -> list[float]:
    """Numbers out of text such as ``1e18,2.15e18`` or ``410M,1B``.

    Raises
    ------
    InputError
        If a part is not a number.
    """
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([+-]?[\d.]+(?:[eE][+-]?\d+)?)\s*([KMBT]?)\s*", part)
        try:
            found.append(float(match[1]) * SUFFIX[match[2]] if match else float("x"))
        except ValueError:
            raise InputError(f"--{option.replace('_', '-')} {text!r}: {part.strip()!r} is not a number; expected such "
                             "as 4, 1e18, 410M or 20B, several joined by commas") from None
    return found


def counts(text: str | None) -> list[int] | None:
    """Recurrence counts out of text.

    Raises
    ------
    InputError
        If one is not a whole number ≥ 1.
    """
    if text is None:
        return None
    found = several(text, "r")
    if any(value != int(value) or value < 1 for value in found):
        raise InputError(f"--r {text!r}: expected whole numbers ≥ 1, several joined by commas")
    return [int(value) for value in found]


def changes(items: list[str] | None) -> dict[str, Any]:
    """Fields of a family out of NAME=VALUE options."""
    found: dict[str, Any] = dict(pairs(items, "--model"))
    return {name: int(value) if re.fullmatch(r"[+-]?\d+", value) else value for name, value in found.items()}


def shares(text: str | None) -> list[float] | None:
    return several(text, "weights") if text else None


def load_all(paths: list[Path]) -> list[xr.DataTree]:
    from bayesloop.compilation import enable_cache
    from bayesloop.posterior import load

    enable_cache()
    return [load(path) for path in paths]


def emit(table: pd.DataFrame, name: str, out: Path | None, as_json: bool, **more: Any) -> None:
    """Write the table as CSV where asked, and print it as JSON where asked."""
    if out:
        with writing(out) as temporary:
            table.to_csv(temporary, index=False)
    if as_json:
        print_json({name: table.to_dict("records"), **{str(key): value for key, value in table.attrs.items()}, **more})


def read_table(path: Path, where: str | None, columns: Sequence[str] | None = None, units: Sequence[str] | None = None,
               injection: str = "rec", allow: Sequence[str] | None = None, tokens_per_byte: float | None = None,
               count_convention: str | None = None) -> pd.DataFrame:
    """The table of a file as the reading options have it, the chosen runs alone; compiled programs are kept."""
    from bayesloop.compilation import enable_cache
    from bayesloop.runs import read_runs, select

    enable_cache()
    runs = read_runs(path, columns=pairs(columns, "--columns"), units=pairs(units, "--units"), injection=injection,
                     allow=tuple(allow or ()), tokens_per_byte=tokens_per_byte, count_convention=count_convention)
    return select(runs, where) if where else runs


def unfit_for_phi(runs: pd.DataFrame) -> list[str]:
    """Why a sound table could still not tell φ."""
    from bayesloop.runs import check_identifiable

    found = []
    try:
        check_identifiable(runs)
    except InputError as error:
        found.append(str(error))
    if len(runs) > 1 and runs["loss"].nunique() == 1:
        found.append(f"every loss is {runs['loss'].iloc[0]:g}: nothing varies that a law could explain")
    return found
