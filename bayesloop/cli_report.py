"""The command report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayesloop.cli import (
    DONE,
    NOT_CONVERGED,
    Allow,
    Columns,
    Convention,
    Injection,
    Json,
    Probability,
    Seed,
    TokensPerByte,
    Units,
    Where,
    command,
)
from bayesloop.cli_options import Model, changes, load_all, read_table
from bayesloop.console import fail, print_json, progress, say, warn
from bayesloop.schema import InputError

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from bayesloop.assumptions import Assumptions
    from bayesloop.schema import Run


@command
def report(source: Annotated[Path, typer.Argument(metavar="RUNS_OR_POSTERIOR", help=(
               "Posterior file (.nc), or a table of runs, which is fitted first by the defaults of `bayesloop fit`."))],
           out_: Annotated[Path, typer.Option("--out", help=(
               "Folder of the report; an older report's files are replaced, others stay."))]
           = Path("report"),
           reference: Annotated[str | None, typer.Option(
               help="Probe that differences are taken from; default: the baseline, or the first.")] = None,
           prob: Probability = 0.95,
           assumptions: Annotated[bool, typer.Option("--assumptions", help=(
               "Also fit the runs under each assumption about what recipes do besides changing φ."))] = False,
           contrast: Annotated[bool, typer.Option("--contrast", help=(
               "Also fit the runs with φ = 1, and draw that beside the frontiers."))] = False,
           model: Model = None,
           force: Annotated[bool, typer.Option("--force", help=(
               "Report a posterior that did not converge, under a banner that says so."))] = False,
           where: Where = None, columns: Columns = None, units: Units = None, injection: Injection = "rec",
           allow: Allow = None, tokens_per_byte: TokensPerByte = None, count_convention: Convention = None,
           seed: Seed = 0, as_json: Json = False) -> int:
    """One HTML page to send: the answer, the runs, figures, checks; figures, tables and numbers.json beside it."""
    from bayesloop.files import make_folder
    from bayesloop.reporting import report as write

    if source.suffix == ".nc":
        if where is not None:
            raise InputError("--where chooses runs of a table, but a posterior was given; give the table")
        post, folder = load_all([source])[0], out_
    else:
        table = read_table(source, where, columns, units, injection, allow, tokens_per_byte, count_convention)
        folder = make_folder(out_)
        post = _fitted(table, folder / "posterior.nc", seed)
    if not post.attrs["converged"] and not force:
        fail(f"{post.attrs['verdict']}; nothing was reported; --force reports it, under a banner that says so")
        return NOT_CONVERGED
    numbers = write(post, folder, reference, prob, _assumed(post, reference, prob, seed) if assumptions else None,
                    _without_phi(post, seed) if contrast else None, changes(model), _curves(source), force)
    if as_json:
        print_json(numbers)
    else:
        for sentence in numbers["answer"]:
            say(sentence)
        for sentence in [*numbers["verdict"], *(f"note: {note}" for note in numbers["notes"])]:
            say(f"• {sentence}")
        say(f"written to {folder / 'report.html'}, with figures, tables and numbers.json beside it")
    return DONE


def _fitted(table: pd.DataFrame, path: Path, seed: int) -> xr.DataTree:
    """The default fit of a table, written to `path`."""
    from bayesloop.inference import fit
    from bayesloop.posterior import check_writable, save

    check_writable(path)
    with progress("sampling") as advance:
        post = fit(table, seed=seed, progress=advance)
    save(post, path)
    return post


def _curves(source: Path) -> list[Run]:
    """The loss curves of a run or sweep file."""
    from bayesloop.schema import is_sweep, read_run, read_sweep

    if source.suffix not in (".h5", ".hdf5"):
        return []
    return read_sweep(source) if is_sweep(source) else [read_run(source)]


def _assumed(post: xr.DataTree, reference: str | None, prob: float, seed: int) -> Assumptions:
    """The posterior's runs under each assumption about recipes."""
    from bayesloop.assumptions import compare_assumptions
    from bayesloop.findings import default_reference, table_of

    with progress("sampling") as advance:
        return compare_assumptions(table_of(post), reference=reference or default_reference(post), prob=prob,
                                   seed=seed, progress=lambda recipe, done, total: advance(done, total))


def _without_phi(post: xr.DataTree, seed: int) -> xr.DataTree:
    """The posterior's runs, law and error model with φ = 1."""
    from bayesloop.findings import table_of
    from bayesloop.inference import fit

    with progress("sampling, φ = 1") as advance:
        contrast = fit(table_of(post), law=str(post.attrs["law"]), errors=str(post.attrs["errors"]), fix={"phi": 1.0},
                       seed=seed, progress=advance)
    if not contrast.attrs["converged"]:
        warn(f"the fit with φ = 1 is drawn although it has {contrast.attrs['verdict']}")
    return contrast
