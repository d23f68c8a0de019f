"""The commands predict, optimum and equivalent. `cli` has what all commands share, `cli_plan` the command plan."""

from __future__ import annotations

from itertools import product
from typing import Annotated

import typer

from bayesloop.cli import Json, Probability, command
from bayesloop.cli_options import (
    Csv,
    Figure_,
    Force,
    Model,
    Posteriors,
    Probe,
    Several,
    Weights,
    changes,
    counts,
    emit,
    load_all,
    several,
    shares,
)
from bayesloop.console import print_table, say, warn
from bayesloop.schema import InputError
from bayesloop.wording import intervals, percent, short


@command
def predict(posteriors: Posteriors, r: Annotated[str, typer.Option(help=f"Recurrence counts. {Several}")] = "1",
            width: Annotated[str | None, typer.Option(help=f"Widths. {Several}")] = None,
            n_once: Annotated[str | None, typer.Option(help="Parameters run once, in place of the width.")] = None,
            n_rec: Annotated[str | None, typer.Option(help="Parameters of the block, in place of the width.")] = None,
            tokens: Annotated[str | None, typer.Option(help=f"Training tokens. {Several}")] = None,
            budget: Annotated[str | None, typer.Option(help=f"Training FLOPs, in place of tokens. {Several}")] = None,
            probe: Probe = "baseline", weights: Weights = None, model: Model = None, prob: Probability = 0.95,
            force: Force = False, out_: Csv = None, as_json: Json = False) -> None:
    """Loss of any configuration, trained or not, with intervals; says when it extrapolates."""
    import pandas as pd

    from bayesloop.decisions import predict as forecast

    if width and tokens and budget:
        raise InputError("--tokens and --budget are both given; a width needs one of them, the other follows")
    asked = {"r": r, "width": width, "n_once": n_once, "n_rec": n_rec, "tokens": tokens, "budget": budget}
    lists = {name: several(text, name) for name, text in asked.items() if text is not None}
    configs = pd.DataFrame(list(product(*lists.values())), columns=list(lists)).assign(probe=probe)
    table = forecast(load_all(posteriors), configs, weights=shares(weights), family=changes(model), prob=prob,
                     force=force)
    emit(table, "prediction", out_, as_json)
    if as_json:
        return
    shown = pd.DataFrame({
        "r": table["r"], "width": [f"{value:g}" if value == value else "" for value in table["width"]],
        "unique": [short(size) for size in table["n_once"] + table["n_rec"]], "tokens": table["tokens"].map(short),
        "C (FLOP)": table["flops"].map("{:.3g}".format), "loss": table["mean"].map("{:.4f}".format)})
    shown[f"{percent(prob)} of loss"] = intervals(table["lower"], table["upper"], "{:.4f}")
    shown["of a run"] = intervals(table["predictive_lower"], table["predictive_upper"], "{:.4f}")
    print_table(shown, f"Predicted loss, {probe}, nats per token")
    for row, words in zip(shown.itertuples(index=False), table["extrapolates"], strict=True):
        if words:
            warn(f"r = {row[0]}, {row[2]} parameters, {row[3]} tokens extrapolates: {words} the runs")
    _say_laws(table.attrs["laws"], bool((table["extrapolates"] != "").any()))


@command
def optimum(posteriors: Posteriors,
            r: Annotated[str | None, typer.Option(help=f"Recurrence counts; default those run. {Several}")] = None,
            budget: Annotated[str | None, typer.Option(help=f"FLOPs; default those run. {Several}")] = None,
            probe: Probe = "baseline", weights: Weights = None, model: Model = None, prob: Probability = 0.95,
            force: Force = False, figure: Figure_ = None, out_: Csv = None, as_json: Json = False) -> None:
    """Compute-optimal size, width, tokens and loss for each r, the gap to r = 1, and their growth with compute."""
    import pandas as pd

    from bayesloop.frontier import describe, solve
    from bayesloop.growth import DEFINITIONS, growth
    from bayesloop.views import exponents_view, optimum_view

    frontier = solve(load_all(posteriors), counts(r), several(budget, "budget") if budget else None, probe,
                     shares(weights), changes(model), force)
    table, exponents = describe(frontier, prob), growth(frontier, prob)
    if figure:
        from bayesloop.plot_decisions import optimum_figure
        from bayesloop.style import save_figure
        save_figure(optimum_figure(table), figure)
    emit(table, "optimum", out_, as_json, exponents=exponents.to_dict("records"), definitions=DEFINITIONS)
    if as_json:
        return
    interval = percent(prob)
    print_table(optimum_view(table.drop(columns="probe", errors="ignore")),
                f"Compute-optimal models, {probe}: medians with {interval} intervals; loss in nats per token")
    practical = pd.DataFrame({
        "r": table["r"], "budget": table["budget"], "width": table["best_width"], "steps": table["best_steps"],
        "tokens": table["best_tokens"].map(short), "costs": table["best_penalty"].map("{:.4f}".format),
        "parabola N*": table["parabola_size"].map(short), "cubic N*": table["cubic_size"].map(short),
        "inference FLOP": table["inference_flops"].map("{:.3g}".format),
        "KV bytes": table["kv_bytes"].map(short), "weight bytes": table["weight_bytes"].map(short)})
    print_table(practical, "Trainable widths (costs: nats above the optimum), optima of the runs, inference per token")
    print_table(exponents_view(exponents), f"N* ∝ C^a, D* ∝ C^b: a and b with {interval} intervals")
    for name, words in DEFINITIONS.items():
        say(f"{name}: {words}")
    for row in table[table["extrapolates"] != ""].itertuples():
        warn(f"r = {row.r}, C = {row.budget:.3g} extrapolates: {row.extrapolates} the runs")


@command
def equivalent(posteriors: Posteriors,
               r: Annotated[str | None, typer.Option(help=f"Recurrence counts. {Several}")] = "2,4,8",
               width: Annotated[str | None, typer.Option(help=f"Widths of the looped model. {Several}")] = None,
               plain_size: Annotated[str | None, typer.Option(
                   help=f"In place of the width: parameters of the r = 1 model of that width. {Several}")] = None,
               tokens: Annotated[str | None, typer.Option(
                   help=f"Training tokens of both, where the answer depends on them. {Several}")] = None,
               probe: Probe = "baseline", weights: Weights = None, model: Model = None, prob: Probability = 0.95,
               force: Force = False, out_: Csv = None, as_json: Json = False) -> None:
    """The plain model that a looped one performs like, its size and its cost."""
    from bayesloop.equivalents import equivalent as like
    from bayesloop.views import equivalent_view

    if width is None and plain_size is None:
        plain_size = "1B"
    table = like(load_all(posteriors), counts(r) or [1], width=several(width, "width") if width else None,
                 plain_size=several(plain_size, "plain-size") if plain_size else None, probe=probe,
                 tokens=several(tokens, "tokens") if tokens else None, weights=shares(weights), family=changes(model),
                 prob=prob, force=force)
    emit(table, "equivalent", out_, as_json)
    if as_json:
        return
    print_table(equivalent_view(table.drop(columns="probe")),
                f"Plain models that looped ones perform like, {probe}, {percent(prob)} intervals")
    say("cost: training FLOPs per token over the r = 1 model of the same width; cost / its equal: over the plain model "
        "it performs like")
    if (table["unmatched"] > 0).any():
        say(f"in up to {table['unmatched'].max():.1%} of the draws no plain model within a factor of a thousand has "
            "that loss")
    for row in table[table["extrapolates"] != ""].itertuples():
        warn(f"r = {row.r}, width {row.width:.0f} extrapolates: {row.extrapolates} the runs")
    for note in table.attrs["notes"]:
        warn(note)


def _say_laws(by_law: dict[str, list[float]], beyond: bool) -> None:
    """What each law expects, or that only one was asked."""
    if len(by_law) > 1:
        for law, losses in by_law.items():
            say(f"law {law}: {', '.join(f'{loss:.4f}' for loss in losses)}")
    elif beyond:
        warn(f"only the law {next(iter(by_law))} was asked: the interval holds if that law does beyond the runs; give "
             "the posteriors of other laws too, and what they disagree about is included")
