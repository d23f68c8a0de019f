"""The commands fit, check, compare and demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bayesloop.cli import (
    DONE,
    NOT_CONVERGED,
    Allow,
    Columns,
    Convention,
    ErrorsName,
    Fix,
    Injection,
    Json,
    LawChoice,
    PhiName,
    Prior_,
    Probability,
    RecipeName,
    Runs,
    Seed,
    TokensPerByte,
    Units,
    Where,
    command,
)
from bayesloop.cli_options import load_all, read_table
from bayesloop.console import (
    numbers,
    pairs,
    progress,
    show_assumptions,
    show_check,
    show_comparison,
    show_held_out,
    show_posterior,
)
from bayesloop.schema import InputError


@command
def fit(runs: Runs,
        out_: Annotated[Path, typer.Option("--out", help="Posterior file (netCDF).")] = Path("posterior.nc"),
        law: LawChoice = None, errors: ErrorsName = "normal", phi: PhiName = None, recipe: RecipeName = None,
        share: Annotated[str, typer.Option(help="law: probes share the law; none: separate fits.")] = "law",
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
            where: Where = None, columns: Columns = None, units: Units = None, injection: Injection = "rec",
            allow: Allow = None, tokens_per_byte: TokensPerByte = None, count_convention: Convention = None,
            seed: Seed = 0, as_json: Json = False) -> None:
    """φ by probe, and the differences Δφ with credible intervals."""
    from bayesloop.cli_compare import Reading, check_together, under_assumptions, under_models
    from bayesloop.comparison import compare as contrast
    from bayesloop.posterior import load

    reading: Reading = (where, columns, units, injection, allow, tokens_per_byte, count_convention)
    check_together(posteriors, reading, assumptions, held_out, models, out_)
    if held_out:
        return show_held_out(under_models(posteriors, models, reference, reading, seed, out_), as_json)
    if assumptions:
        return show_assumptions(under_assumptions(posteriors, reference, prob, reading, seed), as_json)
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
