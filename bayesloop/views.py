"""Tables as people read them: the numbers of a result as text, for the terminal and the report alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from bayesloop.selection import ANCHOR
from bayesloop.wording import intervals, percent, plus_minus, short, spread

if TYPE_CHECKING:
    from bayesloop.checks import Check


def comparison_view(table: pd.DataFrame) -> pd.DataFrame:
    """What `compare` returns."""
    shown = table[[name for name in ("probe", "r") if name in table]].copy()
    several = bool(table["delta_mean"].notna().any())
    form = "{:.2f}" if "r" in table else "{:.3f}"  # a column more has to fit in
    for name, prefix in (("φ", ""), ("Δφ", "delta_")) if several else (("φ", ""),):
        shown[name] = plus_minus(table, f"{prefix}mean", f"{prefix}sd", form)
        shown[f"{percent(table.attrs['prob'])} of {name}"] = intervals(table[f"{prefix}lower"],
                                                                       table[f"{prefix}upper"], form)
    if several:
        shown["P(Δφ > 0)"] = table["p_positive"]
    if several and table.attrs["rope"] is not None:
        shown["in ROPE"] = table["in_rope"]
    return shown


def matched_view(table: pd.DataFrame) -> pd.DataFrame:
    """What `matched_differences` returns, in mnats."""
    return pd.DataFrame({
        "probe": table["probe"], "r": table["r"], "pairs": table["pairs"], "raw": (1e3 * table["raw"]).round(1),
        "corrected": plus_minus(table, "corrected", "se", "{:+.1f}", 1e3),
        "Δφ alone": plus_minus(table, "pure", "pure_sd", "{:+.1f}", 1e3)})


def assumptions_view(table: pd.DataFrame) -> pd.DataFrame:
    """Δφ of every probe under each recipe term, a column for each r, and what each predicts (`compare_assumptions`)."""
    wide = table.assign(value=plus_minus(table, "delta_mean", "delta_sd", "{:+.2f}"))
    shown = wide.pivot(index=["probe", "recipe"], columns="r", values="value").reset_index()
    order = ["probe", "recipe", *dict.fromkeys(wide["r"])]
    scores = wide.drop_duplicates("recipe").set_index("recipe")
    shown["elpd"] = [scores.loc[name, "elpd"] for name in shown["recipe"]]
    return shown[[*order, "elpd"]].rename(columns={r: f"Δφ, r = {r}" if r != "mean" else "Δφ, mean over r"
                                                   for r in order[2:]}).rename_axis(columns=None)


def parameters_view(summary: pd.DataFrame) -> pd.DataFrame:
    """What `summarise` returns."""
    shown = summary.reset_index().assign(**{"95 % interval": intervals(summary["lower"], summary["upper"])})
    names = {"rhat": "R-hat", "ess_bulk": "ESS bulk", "ess_tail": "ESS tail"}
    return shown[["parameter", "mean", "sd", "95 % interval", *names]].rename(columns=names)


def cells_view(found: Check) -> pd.DataFrame:
    """Mean residual in mnats by probe, r and budget."""
    budgets = found.cells["budget"].map(lambda budget: f"{budget:.3g}" if budget == budget else "no budget")
    order = found.cells["budget"].argsort()
    cells = found.cells.assign(mean=1e3 * found.cells["mean"], budget=budgets).pivot(
        index=["probe", "r"], columns="budget", values="mean")[list(dict.fromkeys(budgets.iloc[order]))]
    return cells.rename_axis(columns=None).round(1).reset_index()


def sensitivity_view(found: Check) -> pd.DataFrame:
    """How far the runs have narrowed each parameter, and what moves it."""
    return found.parameters.reset_index().rename(columns={
        "left": "width / prior's", "prior_sensitivity": "prior sens.", "likelihood_sensitivity": "data sens."})


def robust_view(table: pd.DataFrame) -> pd.DataFrame:
    """What `robust_intervals` returns."""
    return pd.DataFrame({
        "quantity": table.index, "posterior": plus_minus(table, "mean", "sd"),
        "robust": ["± " + f"{sd:.3f}" for sd in table["robust_sd"]],
        "robust interval": intervals(table["lower"], table["upper"], "{:.3f}")})


def coverage_view(found: Check) -> pd.DataFrame:
    """How many runs lie in the predictive intervals."""
    shares = found.coverage.map("{:.1%}".format)
    return shares.set_axis(["predictive interval", "runs inside", "standard error"], axis=1)


def optimum_view(table: pd.DataFrame) -> pd.DataFrame:
    """What `optimum` returns."""
    return _named(table, {
        "r": table["r"], "budget": table["budget"], "N*": spread(table, "size"), "D*": spread(table, "tokens"),
        "loss": table["loss"].map("{:.4f}".format), "gap to r = 1": spread(table, "gap", "{:.3f}"),
        "runs' gap": table["parabola_gap"].map("{:.3f}".format).replace("nan", "")})


def equivalent_view(table: pd.DataFrame) -> pd.DataFrame:
    """What `equivalent` returns."""
    return _named(table, {
        "r": table["r"], "width": table["width"].map("{:.0f}".format),
        **({"tokens": table["tokens"].map(short)} if "tokens" in table else {}),
        "N at r = 1": table["n_plain"].map(short), "unique": table["n_unique"].map(short),
        "performs like": spread(table, "n_equivalent"),
        "share of N": spread(table, "equivalent_ratio", "{:.3f}"), "cost": table["cost_ratio"].map("{:.3f}×".format),
        "cost / its equal": spread(table, "cost_equivalent", "{:.2f}")})


def exponents_view(exponents: pd.DataFrame) -> pd.DataFrame:
    """What `exponents` returns, without the definitions that do not apply."""
    a, b = (spread(exponents, name, "{:.2f}") for name in ("size", "tokens"))
    return _named(exponents, {"definition": exponents["definition"], "r": exponents["r"], "a": a, "b": b})[
        exponents["size"].notna()]


def runs_view(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs with the difference between their loss and what the law expects of them."""
    shown: dict[str, Any] = {"run": runs["run"]} if "run" in runs else {}
    shown |= {"probe": runs["probe"], "r": runs["r"]}
    if runs["budget"].notna().any():
        shown["budget (FLOP)"] = runs["budget"].map("{:.3g}".format).replace("nan", "")
    if "width" in runs:
        shown["width"] = runs["width"]
    return pd.DataFrame({
        **shown, "unique": (runs["n_once"] + runs["n_rec"]).map(short), "tokens": runs["tokens"].map(short),
        "loss": runs["loss"].map("{:.4f}".format), "residual (mnats)": (1e3 * runs["residual"]).map("{:+.1f}".format)})


def _named(table: pd.DataFrame, columns: dict[str, Any]) -> pd.DataFrame:
    """Columns, behind the probe's name where the table holds another than the baseline."""
    probes = list(table["probe"]) if "probe" in table else []
    named = {"probe": probes} if set(probes) - {ANCHOR} else {}
    return pd.DataFrame({**named, **columns})
