"""The command `plan`: what a design would tell, the cheapest part that is enough, the runs worth most."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesloop.cli import Json, Probability, Seed, command
from bayesloop.cli_options import (
    Csv,
    Figure_,
    Force,
    Model,
    Several,
    changes,
    counts,
    emit,
    load_all,
    several,
)
from bayesloop.console import print_table, progress, say, warn
from bayesloop.schema import InputError
from bayesloop.wording import many, percent, short

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

SHOWN = 12  # candidates printed; --out and --json have all
INDEPENDENT = ("these intervals assume that runs miss the law independently, but runs of one (budget, r) cell miss "
               "together (on the paper's grid the block bootstrap of φ is nearly twice as wide): plan with a margin, "
               "or with a larger --scatter")


@command
def plan(posterior: Annotated[Path, typer.Argument(help="Posterior file: what is known now.")],
         design: Annotated[Path | None, typer.Option(help=r"Planned runs: TOML with \[\[runs]], or a table.")] = None,
         budget: Annotated[str | None, typer.Option(help=f"Budgets of planned runs, FLOP. {Several}")] = None,
         size: Annotated[str | None, typer.Option(help=f"Their sizes, 64 features each. {Several}")] = None,
         width: Annotated[str | None, typer.Option(help=f"Their widths, in place of sizes. {Several}")] = None,
         r: Annotated[str, typer.Option(help=f"Their recurrence counts. {Several}")] = "1,2,4,8",
         probe: Annotated[str, typer.Option(help="Their recipe, known or new; the target is its φ.")] = "baseline",
         reference: Annotated[str, typer.Option(help="Probe that Δφ is taken from.")] = "baseline",
         delta: Annotated[float, typer.Option(help="Δφ to detect; a new probe is taken to have it.")] = 0.1,
         precision: Annotated[float | None, typer.Option(
             help="Find the cheapest part of the runs with the interval within ± this.")] = None,
         unit: Annotated[str | None, typer.Option(
             help="With --precision, leave out a cell or a run (default) at a time.")] = None,
         cost: Annotated[str | None, typer.Option(help="With --precision, save flops or runs (default).")] = None,
         rank: Annotated[bool, typer.Option("--rank", help="Rank planned runs by what each tells per FLOP.")] = False,
         target: Annotated[str, typer.Option(help="With --precision or --rank: phi or delta.")] = "phi",
         recipe: Annotated[bool, typer.Option("--recipe", help=(
             "Allow that the recipe changes all its runs alike, looped or not."))] = False,
         alone: Annotated[bool, typer.Option("--alone", help="Do not count the posterior's own runs.")] = False,
         scatter: Annotated[float | None, typer.Option(help="Relative scatter of a run, in place of sigma.")] = None,
         refits: Annotated[int, typer.Option(min=0, help="Check by fitting this many simulated tables.")] = 0,
         mfu: Annotated[float, typer.Option(min=0.01, max=1.0, help="Share of the peak that training reaches.")] = 0.4,
         peak: Annotated[float, typer.Option(help="Peak of an accelerator in TFLOP/s.")] = 989.0,
         model: Model = None, prob: Probability = 0.95, force: Force = False, seed: Seed = 0, figure: Figure_ = None,
         out_: Csv = None, as_json: Json = False) -> None:
    """What planned runs would tell about φ and Δφ; with --precision the cheapest ones, with --rank the best ones."""
    post = load_all([posterior])[0]
    if target not in ("phi", "delta"):
        raise InputError(f"--target {target!r}: expected phi or delta")
    if target == "delta" and probe == reference:
        raise InputError(f"--target delta: Δφ of {probe} against itself is 0; give another --probe or --reference")
    if precision is None and (unit or cost):
        raise InputError(f"--{'unit' if unit else 'cost'} says what --precision leaves out or saves; it needs it")
    if figure and precision is None:
        raise InputError("--figure draws precision against compute; it needs --precision")
    runs = _planned(post, design, budget, size, width, r, probe, model)
    allow = recipe and post.attrs.get("recipe", "none") == "none"  # else the posterior's model has it already
    shared: dict[str, Any] = {"recipes": [probe] if allow else [], "scatter": scatter, "force": force}
    aim = {"probe": probe, "reference": reference if target == "delta" else None}
    named = f"φ of {probe}" if target == "phi" else f"Δφ of {probe} against {reference}"
    if rank:
        _show_rank(post, runs, {**shared, **aim}, named, out_, as_json)
    elif precision is not None:
        own = {"existing": runs is not None and not alone, "unit": unit or "run", "cost": cost or "runs", "prob": prob}
        _show_cheapest(post, precision, runs, {**shared, **aim, **own}, named, (mfu, peak), figure, out_, as_json)
    else:
        _show_plan(post, runs, {**shared, "existing": not alone, "reference": reference, "delta": delta, "prob": prob,
                                "mfu": mfu, "peak": 1e12 * peak}, (refits, seed), out_, as_json)
    if not as_json:
        _say_doubts(post, runs, scatter)


def _say_doubts(post: xr.DataTree, runs: pd.DataFrame | None, scatter: float | None) -> None:
    """What the plan takes for granted."""
    from bayesloop.errors import get_errors
    from bayesloop.identification import cells_without_runs
    from bayesloop.planned import unseen_r

    new = [] if runs is None else unseen_r(post, runs)
    if new:
        warn(f"no run at r = {', '.join(map(str, new))} yet: its φ is taken to be the mean over the r that were run")
    untold = [] if runs is None else sorted({*cells_without_runs(post)} & {*zip(runs["probe"], runs["r"], strict=True)})
    for name, count in untold:
        warn(f"no run of {name} at r = {count} yet: its φ there is drawn from what the model says of an unknown φ")
    if scatter is None and get_errors(post.attrs["errors"]).factor is None:
        warn(INDEPENDENT)


def _planned(post: xr.DataTree, design: Path | None, budget: str | None, size: str | None, width: str | None, r: str,
             probe: str, model: list[str] | None) -> pd.DataFrame | None:
    """The planned runs, or none where the posterior's own are meant."""
    from bayesloop.designs import design_runs, read_design

    if design is not None:
        if budget or size or width:
            raise InputError("give the planned runs either by --design or by --budget with --size or --width")
        if design.suffix == ".toml":
            return read_design(post, design)
        from bayesloop.runs import read_runs
        return read_runs(design, injection=str(post.attrs.get("data_injection", "rec")))
    if budget is None:
        if size or width:
            raise InputError("planned runs need --budget, in FLOP")
        return None
    widths = [int(value) for value in several(width, "width")] if width else None
    return design_runs(post, several(budget, "budget"), counts(r) or [1], widths=widths,
                       sizes=several(size, "size") if size else None, probe=probe, model=changes(model))


def _show_plan(post: xr.DataTree, runs: pd.DataFrame | None, asked: dict[str, Any], check: tuple[int, int],
               out: Path | None, as_json: bool) -> None:
    import pandas as pd

    from bayesloop.plan_check import refit
    from bayesloop.planning import plan as expect

    table, refitted = expect(post, runs, **asked), None
    if check[0]:
        with progress("refits") as advance:
            refitted = refit(post, runs, existing=asked["existing"], reference=asked["reference"],
                             delta=asked["delta"], recipes=asked["recipes"], scatter=asked["scatter"],
                             number=check[0], seed=check[1], progress=advance)
    emit(table, "plan", out, as_json, **({"refits": refitted.to_dict("records")} if refitted is not None else {}))
    if as_json:
        return
    about = table.attrs
    shown = pd.DataFrame({
        "quantity": [f"Δφ {name}" if kind == "delta" else f"φ {name}" for kind, name
                     in zip(table["quantity"], table["probe"], strict=True)],
        f"{percent(about['prob'])} interval": [f"± {half:.3f} [{low:.3f}, {high:.3f}]" for half, low, high in zip(
            table["half_width"], table["half_width_lower"], table["half_width_upper"], strict=True)],
        f"P(detect {about['delta']:g})": table["p_detect"].map("{:.2f}".format).replace("nan", ""),
        "detectable at 0.8": table["detectable"].map("{:.3f}".format).replace("nan", "")})
    if refitted is not None:
        joined = table.merge(refitted, on=["quantity", "probe"], how="left", suffixes=("", "_refit"))
        shown["sd"], shown[f"sd of {check[0]} refits"] = table["sd"], joined["sd_refit"]
    print_table(shown, f"What {many(about['n_runs'], 'planned run')} would tell beside {about['n_existing']} there "
                       "are")
    say(f"planned compute {about['flops']:.3g} FLOP, about {short(about['gpu_hours'])} GPU hours at {asked['mfu']:.0%} "
        f"of {asked['peak'] / 1e12:g} TFLOP/s")


def _show_cheapest(post: xr.DataTree, goal: float, runs: pd.DataFrame | None, asked: dict[str, Any], named: str,
                   speed: tuple[float, float], figure: Path | None, out: Path | None, as_json: bool) -> None:
    import pandas as pd

    from bayesloop.designs import gpu_hours
    from bayesloop.planning import cheapest

    with progress("leaving out") as advance:
        chosen, steps = cheapest(post, goal, runs, progress=advance, **asked)
    if figure:
        from bayesloop.plot_decisions import plot_precision
        from bayesloop.style import new_figure, save_figure
        drawn, ax = new_figure()
        plot_precision(ax, steps, goal)
        save_figure(drawn, figure)
    emit(chosen, "chosen", out, as_json, goal=goal, target=named, steps=steps.to_dict("records"))
    if as_json:
        return
    whole, flops = steps.iloc[-1], float(chosen["flops"].sum()) if "flops" in chosen else float("nan")
    columns = [name for name in ("probe", "budget", "r") if name in chosen]
    cells = chosen.groupby(columns, sort=True).agg(
        runs=("tokens", "size"), widths=("width", lambda values: ", ".join(f"{value:g}" for value in sorted(values)))
    ).reset_index() if "width" in chosen else chosen.groupby(columns).size().rename("runs").reset_index()
    print_table(pd.DataFrame(cells), "Runs that are enough")
    say(f"{len(chosen)} of {whole['n_runs']:.0f} runs give {named} to ± {goal:g} ({whole['half_width']:.3f} by all): "
        f"{flops:.3g} of {whole['flops']:.3g} FLOP ({flops / whole['flops']:.0%}), about "
        f"{short(gpu_hours(flops, speed[0], 1e12 * speed[1]))} GPU hours")


def _show_rank(post: xr.DataTree, runs: pd.DataFrame | None, asked: dict[str, Any], named: str, out: Path | None,
               as_json: bool) -> None:
    from bayesloop.planning import rank

    if runs is None:
        raise InputError("--rank needs candidates: --budget with --size or --width, or --design")
    table = rank(post, runs, **asked)
    emit(table, "rank", out, as_json)
    if as_json:
        return
    shown = table.head(SHOWN)[["probe", "r", "budget", "width"]].assign(
        tokens=table["tokens"].map(short), reduction=table["reduction"].map("{:.2%}".format),
        per_flop=table["per_flop"].map("{:.2%}".format))
    print_table(shown.rename(columns={"reduction": "less variance", "per_flop": "per 1e18 FLOP"}),
                f"Runs worth most for {named}, now ± {table.attrs['sd']:.3f} (sd)")
    if len(table) > SHOWN:
        say(f"the best {SHOWN} of {len(table)}; --out or --json has all")
