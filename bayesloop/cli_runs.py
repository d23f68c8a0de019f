"""The commands about a table of runs: validate, priors and point."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bayesloop.cli import (
    BAD_INPUT,
    DONE,
    NOT_CONVERGED,
    Allow,
    Columns,
    Convention,
    ErrorsName,
    Fix,
    Injection,
    Json,
    LawName,
    PhiName,
    Prior_,
    RecipeName,
    Runs,
    Seed,
    TokensPerByte,
    Units,
    Where,
    command,
)
from bayesloop.cli_options import read_table, unfit_for_phi
from bayesloop.console import numbers, pairs, print_json, print_table, progress, say, warn


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
def priors(law: LawName = "recurrence", errors: ErrorsName = "normal", phi: PhiName = None,
           recipe: RecipeName = None, prior: Prior_ = None, as_json: Json = False) -> None:
    """Show the laws, error models, structures of φ and recipe terms there are, and priors with their reasons."""
    import pandas as pd

    from bayesloop.errors import ERRORS, get_errors
    from bayesloop.laws import LAWS, get_law, resolve_priors
    from bayesloop.structures import RECIPES, STRUCTURES, get_recipe, get_structure

    phi, recipe = phi or "probe", recipe or "none"
    chosen = resolve_priors({**get_structure(phi).all_priors(get_law(law)), **get_errors(errors).priors,
                             **get_recipe(recipe).priors}, pairs(prior, "--prior"))
    if as_json:
        print_json({"law": law, "errors": errors, "phi": phi, "recipe": recipe, "priors": {
            name: {"prior": str(value), "reason": value.reason} for name, value in chosen.items()}})
        return
    rows = [{"parameter": name, "prior": str(value), "reason": value.reason} for name, value in chosen.items()]
    print_table(pd.DataFrame(rows), f"Priors of law {law}, errors {errors}, phi {phi}, recipe {recipe}")
    print_table(pd.DataFrame([{"law": each.name, "mean": each.formula, "source": each.source}
                               for each in LAWS.values()]), "Laws (--law)")
    print_table(pd.DataFrame([{"errors": each.name, "assumes": each.assumes, "misleads": each.misleads}
                               for each in ERRORS.values()]), "Error models (--errors)")
    for option, entries in (("phi", STRUCTURES), ("recipe", RECIPES)):
        print_table(pd.DataFrame([{option: name, "meaning": each.meaning} for name, each in entries.items()]),
                    {"phi": "Structures of φ (--phi)", "recipe": "Recipe terms (--recipe)"}[option])


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
