"""The command line: the only place that parses arguments or prints.

Heavy libraries are imported inside the commands, so that help is instant.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from bayesloop.architecture import ArchitectureError
from bayesloop.cli_options import load_all, read_table, unfit_for_phi
from bayesloop.console import (
    fail,
    numbers,
    pairs,
    print_json,
    print_table,
    progress,
    say,
    show_assumptions,
    show_check,
    show_comparison,
    show_held_out,
    show_posterior,
    warn,
)
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
ErrorsName = Annotated[str, typer.Option("--errors", help="Error model; `bayesloop priors` lists them.")]
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
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *rest, **more: warn(message)
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


@command
def validate(runs: Runs, columns: Columns = None, units: Units = None, injection: Injection = "rec",
             allow: Allow = None, tokens_per_byte: TokensPerByte = None, count_convention: Convention = None,
             as_json: Json = False,
             out_: Annotated[Path | None, typer.Option("--out", help="Write the clean table.")] = None) -> int:
    """Check a table of runs: everything found, not the first fault only; write the clean table."""
    from bayesloop.runs import validate as check
    from bayesloop.runs import write_runs

    report = check(runs, columns=pairs(columns, "--columns"), units=pairs(units, "--units"), injection=injection,
                   allow=tuple(allow or ()), tokens_per_byte=tokens_per_byte, count_convention=count_convention)
    if out_ and report.runs is not None:
        write_runs(report.runs, out_)
    if as_json:
        print_json(report.to_dict())
        return DONE if report.ok else BAD_INPUT
    faulty = report.n_rows - report.n_kept - len(report.excluded)
    say(f"{report.source}: {report.n_rows} rows read, {report.n_kept} kept, {len(report.excluded)} excluded"
        + (f", {faulty} with problems" if faulty else ""))
    for row in report.excluded:
        named = f"{row['run_id']} ({row['row']})" if row["run_id"] else row["row"]
        say(f"  excluded {named}: {row['reason']}")
    for kind, found in (("problem", report.problems), ("warning", report.warnings), ("note", report.notes)):
        for item in found:
            say(f"  {kind}: {getattr(item, 'message', item)}")
    if report.summary:
        import pandas as pd
        print_table(pd.DataFrame(report.summary), "Runs kept")
    if report.runs is not None:
        for unfit in unfit_for_phi(report.runs):
            say(f"  note: {unfit}")
    if out_:
        say(f"  clean table written to {out_}" if report.runs is not None else f"  nothing written to {out_}")
    say("sound" if report.ok else "not usable as it is: see the problems above", "green" if report.ok else "bold red")
    return DONE if report.ok else BAD_INPUT


@command
def priors(law: LawName = "recurrence", errors: ErrorsName = "normal", prior: Prior_ = None,
           as_json: Json = False) -> None:
    """Show the laws, the error models, and the priors with their reasons."""
    import pandas as pd

    from bayesloop.errors import ERRORS, get_errors
    from bayesloop.laws import LAWS, get_law, resolve_priors

    chosen = resolve_priors({**get_law(law).priors, **get_errors(errors).priors}, pairs(prior, "--prior"))
    if as_json:
        print_json({"law": law, "errors": errors, "priors": {name: {"prior": str(value), "reason": value.reason}
                                                              for name, value in chosen.items()}})
        return
    rows = [{"parameter": name, "prior": str(value), "reason": value.reason} for name, value in chosen.items()]
    print_table(pd.DataFrame(rows), f"Priors of law {law} with errors {errors}")
    print_table(pd.DataFrame([{"law": each.name, "mean": each.formula, "source": each.source}
                               for each in LAWS.values()]), "Laws")
    print_table(pd.DataFrame([{"errors": each.name, "assumes": each.assumes, "misleads": each.misleads}
                               for each in ERRORS.values()]), "Error models")


@command
def point(runs: Runs, law: LawName = "recurrence", probe: Annotated[str, typer.Option(
              help="Probe whose runs, with the r = 1 runs that anchor them, are fitted.")] = "baseline",
          fix: Fix = None, num_starts: Annotated[int, typer.Option(min=1)] = 500,
          num_bootstrap: Annotated[int, typer.Option(min=0)] = 200,
          bootstrap: Annotated[str, typer.Option(help="block, runs or wild.")] = "block", seed: Seed = 0,
          columns: Columns = None, units: Units = None, injection: Injection = "rec", where: Where = None,
          allow: Allow = None, tokens_per_byte: TokensPerByte = None, count_convention: Convention = None,
          as_json: Json = False) -> int:
    """The paper's point estimate: Huber loss, many starts, bootstrap interval."""
    import pandas as pd

    from bayesloop.pointfit import point_fit
    from bayesloop.selection import anchored

    reading = (columns, units, injection, allow, tokens_per_byte, count_convention)
    table = anchored(read_table(runs, where, *reading), probe)
    with progress("bootstrap") as advance:
        result = point_fit(table, law=law, fix=numbers(fix, "--fix"), num_starts=num_starts,
                           num_bootstrap=num_bootstrap, bootstrap=bootstrap, seed=seed, progress=advance)
    if as_json:
        print_json(result.to_dict())
        return DONE if result.converged else NOT_CONVERGED
    rows = []
    for name, value in result.parameters.items():
        row: dict[str, Any] = {"parameter": name, "estimate": value}
        if result.bootstrap:
            row["lower"], row["upper"] = result.bootstrap.interval(name)
        rows.append(row)
    interval = f", 95 % {bootstrap} bootstrap interval" if num_bootstrap else ""
    print_table(pd.DataFrame(rows), f"{law}, {len(table)} runs{interval}")
    say(f"R² {result.r2:.4f}, RMSE {1e3 * result.rmse:.1f} mnats, largest residual {1e3 * result.max_residual:.0f} "
        f"mnats; {result.reached:.0%} of {num_starts} starts reached the optimum")
    for name in result.on_boundary:
        warn(f"{name} is at the edge of the search box")
    return DONE if result.converged else NOT_CONVERGED


@command
def fit(runs: Runs,
        out_: Annotated[Path, typer.Option("--out", help="Posterior file (netCDF).")] = Path("posterior.nc"),
        law: LawName = "recurrence", errors: ErrorsName = "normal",
        phi: Annotated[str, typer.Option(help="Structure of φ: one, probe, probe_r, probe_r_pooled, trend.")] = "probe",
        share: Annotated[str, typer.Option(help="law: probes share the law; none: separate fits.")] = "law",
        recipe: Annotated[str, typer.Option(help="What recipes do besides changing φ: none, data_factor, offset, both, "
                                                 "or looped_… for what looping itself does.")] = "none",
        prior: Prior_ = None, fix: Fix = None, num_warmup: Annotated[int, typer.Option(min=100)] = 1000,
        num_samples: Annotated[int, typer.Option(min=100)] = 1000, num_chains: Annotated[int, typer.Option(min=2)] = 4,
        seed: Seed = 0, columns: Columns = None, units: Units = None, injection: Injection = "rec", where: Where = None,
        allow: Allow = None, tokens_per_byte: TokensPerByte = None, count_convention: Convention = None,
        as_json: Json = False) -> int:
    """Sample the posterior of a law and write it with its evidence."""
    from bayesloop.inference import fit as sample
    from bayesloop.posterior import check_writable, save

    check_writable(out_)
    table = read_table(runs, where, columns, units, injection, allow, tokens_per_byte, count_convention)
    with progress("sampling") as advance:
        post = sample(table, law=law, errors=errors, phi=phi, share=share, priors=pairs(prior, "--prior"),
                      fix=numbers(fix, "--fix"), recipe=recipe, num_warmup=num_warmup, num_samples=num_samples,
                      num_chains=num_chains, seed=seed, progress=advance)
    save(post, out_)
    show_posterior(post, out_, as_json)
    return DONE if post.attrs["converged"] else NOT_CONVERGED


@command
def check(posterior: Annotated[Path, typer.Argument(help="Posterior file from `bayesloop fit`.")],
          reference: Annotated[str, typer.Option(help="Probe that differences are taken from.")] = "baseline",
          refits: Annotated[bool, typer.Option(
              "--refits", help="Refit without each cell, to resampled cells and more: a minute or so.")] = False,
          figures: Annotated[Path | None, typer.Option(help="Folder for figures of the residuals and more.")] = None,
          as_json: Json = False) -> int:
    """Can one believe the interval? Convergence, residuals by cell, leave-one-out, sensitivity, robust spread."""
    from bayesloop.checks import check as look

    post = load_all([posterior])[0]
    with progress("refits") as advance:
        found = look(post, reference, refits, advance)
    if figures:
        from bayesloop.plot_checks import save_check_figures
        save_check_figures(post, found, figures)
    show_check(found, as_json)
    return DONE if post.attrs["converged"] else NOT_CONVERGED


@command
def compare(posteriors: Annotated[list[Path], typer.Argument(
                help="Posterior files from `bayesloop fit`; with --assumptions or --held-out also one table of runs.")],
            reference: Annotated[str, typer.Option(help="Probe that differences are taken from.")] = "baseline",
            rope: Annotated[float | None, typer.Option(
                min=0,
                help="Half-width of the region of practical equivalence of Δφ.")] = None,
            prob: Probability = 0.95,
            figure: Annotated[Path | None, typer.Option(help="Write the figure as FIGURE.svg and FIGURE.png.")] = None,
            assumptions: Annotated[bool, typer.Option(
                "--assumptions", help="Fit a table under each assumption about what recipes do besides changing φ (or "
                                      "take such posteriors): which statements hold under all?")] = False,
            held_out: Annotated[bool, typer.Option(
                "--held-out", help="Fit a table under several laws, error models and structures of φ (or take such "
                                   "posteriors): which predict best without a cell, a budget, an r?")] = False,
            models: Annotated[list[str] | None, typer.Option(
                help="For --held-out: LAW or LAW/ERRORS/PHI/RECIPE, repeated; default a set of them.")] = None,
            out_: Annotated[Path | None, typer.Option("--out", help="For --held-out: write the table as CSV.")] = None,
            where: Where = None, seed: Seed = 0, as_json: Json = False) -> None:
    """φ by probe, and the differences Δφ with credible intervals."""
    from bayesloop.comparison import compare as contrast
    from bayesloop.posterior import load

    if assumptions or held_out:
        from bayesloop.cli_compare import under_assumptions, under_models
        if held_out:
            show_held_out(under_models(posteriors, models, reference, where, seed, out_), as_json)
        else:
            show_assumptions(under_assumptions(posteriors, reference, prob, where, seed), as_json)
        return
    posts = [load(path) for path in posteriors]
    table = contrast(posts, reference=reference, rope=rope, prob=prob)
    if figure:
        from bayesloop.plots import comparison_figure
        from bayesloop.style import save_figure
        if len(posts) > 1:
            raise InputError("--figure needs one posterior with all probes; fit them in one table")
        save_figure(comparison_figure(posts[0], reference, rope), figure)
    show_comparison(table, as_json)


@command
def demo(runs: Runs = Path("data/paper_grid.csv"),
         out_: Annotated[Path, typer.Option("--out", help="Folder for posteriors and figures.")] = Path("out/demo"),
         seed: Seed = 0) -> int:
    """The whole job on the paper's runs: its point fits redone, the posterior of φ, Δφ by probe, figures."""
    from bayesloop.demo import run_demo

    return DONE if run_demo(read_table(runs, None), out_, seed) else NOT_CONVERGED


from bayesloop import cli_decisions, cli_plan, cli_report  # noqa: E402, F401  register their commands after those above
