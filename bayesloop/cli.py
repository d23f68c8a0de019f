"""The command line: the only place that parses arguments or prints.

Heavy libraries are imported inside the commands, so that help is instant.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from bayesloop.architecture import ArchitectureError
from bayesloop.console import fail, warn
from bayesloop.schema import InputError

DONE, BAD_INPUT, USAGE, NOT_CONVERGED, INTERRUPTED = 0, 1, 2, 3, 4

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich",
    help="""What is a recurrence worth? Posteriors of the recurrence-equivalence exponent φ from pretraining runs.

A typical way through:

  bayesloop validate runs.csv             is the table sound?

  bayesloop priors                        what is assumed before

  bayesloop fit runs.csv --out post.nc    the posterior

  bayesloop check post.nc                 can one believe the interval?

  bayesloop compare post.nc               φ by probe, and Δφ

  bayesloop compare runs.csv --assumptions   what holds anyway

  bayesloop compare runs.csv --held-out   which law, which errors

  bayesloop optimum post.nc               how large a model

  bayesloop plan post.nc                  which runs next

  bayesloop report runs.csv --out report  all of it as a page to send

All but demo have --json. Exit codes: 0 done, 1 bad input, 2 wrong usage, 3 not converged, 4 interrupted.""")

Runs = Annotated[Path, typer.Argument(help="Table of runs: CSV, parquet, HDF5 run or sweep file, or a folder.")]
Columns = Annotated[list[str] | None, typer.Option("--columns", metavar="THEIRS=OURS",
                                                   help="Name of a column in your table and in the schema.")]
Units = Annotated[list[str] | None, typer.Option("--units", metavar="COLUMN=UNIT",
                                                 help="Unit of a column, e.g. tokens=B, loss=bit/token.")]
Injection = Annotated[str, typer.Option(help="Where the linear injection counts: rec, once or none.")]
TokensPerByte = Annotated[float | None, typer.Option(help="For losses in bit/byte or nat/byte: tokens per byte.")]
Convention = Annotated[str | None, typer.Option("--count-convention", help="Of the table's counts: exact or formula.")]
Where = Annotated[str | None, typer.Option(help='Which runs, e.g. "budget <= 4.64e18 and r > 1".')]
Allow = Annotated[list[str] | None, typer.Option(
    "--allow", help="Accept rows that a check refuses: partial, running, high_loss, loss_scale, twins or flops.")]
Prior_ = Annotated[list[str] | None, typer.Option("--prior", metavar='NAME="FAMILY(…)"',
                                                  help='Change a prior, e.g. "phi=Normal(0.5, 0.2)".')]
Fix = Annotated[list[str] | None, typer.Option("--fix", metavar="NAME=VALUE", help="Hold a parameter, e.g. phi=1.")]
LawName = Annotated[str, typer.Option("--law", help="Law; `bayesloop priors` lists them.")]
LawChoice = Annotated[str | None, typer.Option("--law", help=(
    "Law; where none of law, phi and recipe is given, the table decides about all three."))]
ErrorsName = Annotated[str, typer.Option("--errors", help="Error model; `bayesloop priors` lists them.")]
PhiName = Annotated[str | None, typer.Option("--phi", help="Structure of φ; `bayesloop priors` lists them.")]
RecipeName = Annotated[str | None, typer.Option("--recipe", help="What recipes do besides changing φ: see `priors`.")]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 2, help="Random seed.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Probability = Annotated[float, typer.Option("--prob", min=0.5, max=0.999, help="Probability of the intervals.")]


def main() -> None:
    """Entry point of `bayesloop` and `python -m bayesloop`."""
    app()


def command(function: Callable[..., int | None]) -> Callable[..., None]:
    """Register a command; turn its exceptions and warnings into one message and an exit code."""

    @app.command(name=function.__name__.rstrip("_"))
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        told: set[str] = set()

        def once(message: Any, *rest: Any, **more: Any) -> None:
            if str(message) not in told:
                told.add(str(message))
                warn(message)

        with warnings.catch_warnings():
            warnings.showwarning = once
            try:
                code = function(*args, **kwargs) or DONE
            except (InputError, ArchitectureError) as error:
                fail(error)
                code = BAD_INPUT
            except KeyboardInterrupt:
                fail("interrupted; what was written before is whole")
                code = INTERRUPTED
        raise typer.Exit(code)

    return run


for _name in ("runs", "fit", "decisions", "plan", "report"):  # their commands, in the order of the help
    import_module(f"bayesloop.cli_{_name}")
