"""Can one believe the interval? Convergence, residuals by cell, held-out prediction, sensitivity, robust spread."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from arviz_stats import psense_summary

from bayesloop.curves import residuals
from bayesloop.errors import get_errors
from bayesloop.identification import NARROWED, prior_ratios
from bayesloop.influence import Sensitivity, sensitivity
from bayesloop.posterior import PosteriorError, summarise
from bayesloop.prediction import MAX_K, pit, pointwise_loo
from bayesloop.robust import robust_intervals
from bayesloop.selection import ANCHOR
from bayesloop.wording import many

SENSITIVE = 0.05  # power-scaling sensitivity that counts (arXiv 2107.14054)
MAX_MOVE = 1.0  # posterior standard deviations by which φ may move without being named a warning
COVERED = (0.5, 0.8, 0.95)


@dataclass(frozen=True)
class Check:
    """What `check` finds.

    Attributes
    ----------
    cells : DataFrame
        Mean residual (nats) and number of runs by probe, r and budget.
    together : float
        Share of the residual variance that lies between cells; about 1 / (runs of a cell) where runs miss
        independently, which is `together_expected`. Both NaN where runs have no budget.
    loo : dict
        elpd, se, p (effective number of parameters), and `bad`, the runs whose Pareto k is above 0.7.
    coverage : DataFrame
        Share of runs inside the central predictive intervals given all other runs, beside the nominal one.
    parameters : DataFrame
        By parameter: mean, sd, left (width of the posterior over its prior's, see `prior_ratios`), and the
        power-scaling sensitivities to prior and likelihood.
    robust : DataFrame
        As from `robust_intervals`; empty where it does not apply.
    moves, bagged : DataFrame
        As in `Sensitivity`; empty where it does not apply, and `bagged` without refits.
    verdict : list of str
        Sentences, what to do among them.
    ok : bool
        Whether no sentence is a warning.
    """

    cells: pd.DataFrame
    together: float
    together_expected: float
    loo: dict[str, Any]
    coverage: pd.DataFrame
    parameters: pd.DataFrame
    robust: pd.DataFrame
    moves: pd.DataFrame
    bagged: pd.DataFrame
    verdict: list[str]
    ok: bool


def check(post: xr.DataTree, reference: str = ANCHOR, refits: bool = False,
          progress: Callable[[int, int], None] | None = None) -> Check:
    """Look at a posterior from all sides.

    Parameters
    ----------
    post : DataTree
        From `fit` or `load`.
    reference : str
        The probe that differences of φ are taken from.
    refits : bool
        Refit without cells and groups of runs, and to resampled cells (see `sensitivity`): a minute or more.
    progress : callable, optional
        Called as ``progress(done, total)`` with the iterations of the refits.

    Returns
    -------
    Check
    """
    seen = residuals(post)
    cells, together, expected = _cells(seen)
    scores = _loo(post)
    coverage = _coverage(post)
    table = _parameters(post)
    try:
        robust = robust_intervals(post, reference)
    except PosteriorError as error:
        robust = pd.DataFrame()
        robust.attrs["reason"] = str(error)
    try:
        found = sensitivity(post, reference, refits, progress=progress)
    except PosteriorError:
        found = Sensitivity(pd.DataFrame(), pd.DataFrame())
    told = [*_verdict(post, together, expected, scores, coverage, table, robust), *_carriers(found)]
    return Check(cells, together, expected, scores, coverage, table, robust, found.moves, found.bagged,
                 [text for text, _ in told], all(fine for _, fine in told))


def _cells(seen: pd.DataFrame) -> tuple[pd.DataFrame, float, float]:
    keys = ["probe", "r", "budget"]
    grouped = seen.groupby(keys, sort=False, dropna=False)["residual"]
    cells = grouped.agg(mean="mean", runs="size").reset_index()
    if seen["budget"].isna().any():
        return cells, np.nan, np.nan
    centred = seen["residual"] - seen["residual"].mean()
    between = (grouped.transform("mean") - seen["residual"].mean()) ** 2
    expected = (len(cells) - 1) / (len(seen) - 1)
    return cells, float(between.sum() / (centred**2).sum()), float(expected)


def _loo(post: xr.DataTree) -> dict[str, Any]:
    found = pointwise_loo(post)
    k = np.asarray(found.pareto_k)
    names = np.asarray(post["observed_data"]["run"].values)
    return {"elpd": float(found.elpd), "se": float(found.se), "p": float(found.p),
            "bad": {str(name): float(value) for name, value in zip(names[k > MAX_K], k[k > MAX_K], strict=True)}}


def _coverage(post: xr.DataTree) -> pd.DataFrame:
    values = pit(post)
    inside = [float(np.mean(np.abs(values - 0.5) <= prob / 2)) for prob in COVERED]
    error = [np.sqrt(prob * (1 - prob) / len(values)) for prob in COVERED]
    return pd.DataFrame({"interval": COVERED, "covered": inside, "standard error": error})


def _parameters(post: xr.DataTree) -> pd.DataFrame:
    table = summarise(post)[["mean", "sd"]].copy()
    table["left"] = pd.Series(prior_ratios(post)).reindex(table.index)
    advice = logging.getLogger("arviz_stats.psense")  # its own; ours is in the verdict
    level = advice.level
    advice.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pareto k of reweighting, and divisions by a spread of nothing
        found = psense_summary(post)
    advice.setLevel(level)
    table["prior_sensitivity"] = found["prior"].to_numpy(float)
    table["likelihood_sensitivity"] = found["likelihood"].to_numpy(float)
    return table


def _verdict(post: xr.DataTree, together: float, expected: float, scores: dict[str, Any], coverage: pd.DataFrame,
             table: pd.DataFrame, robust: pd.DataFrame) -> list[tuple[str, bool]]:
    told = [(str(post.attrs["verdict"]), bool(post.attrs["converged"]))]
    independent = get_errors(post.attrs["errors"]).factor is None
    if together != together:
        told.append(("not every run has a budget, so whether runs of one (budget, r) cell miss together was not looked "
                     "at; give a column `budget`", False))
    elif together > 1.5 * expected:
        told.append((f"runs of a (probe, budget, r) cell miss together: {together:.0%} of the residual variance lies "
                     f"between cells, where independent runs give about {expected:.0%}"
                     + ("; intervals that take runs for independent are too narrow: see the robust ones, other laws, "
                        "one φ for each r (--phi probe_r) and recipe terms" if independent else ""), not independent))
    else:
        told.append((f"runs miss independently as far as cells tell: {together:.0%} of the residual variance lies "
                     f"between cells, about {expected:.0%} expected", True))
    if scores["bad"]:
        runs = ", ".join(f"{name} ({k:.2f})" for name, k in list(scores["bad"].items())[:5])
        told.append((f"{many(len(scores['bad']), 'run')} with more than a share of their own (Pareto k above {MAX_K}): "
                     f"{runs}; refit without and compare", False))
    off = coverage[np.abs(coverage["covered"] - coverage["interval"]) > 3 * coverage["standard error"]]
    for nominal, covered in zip(off["interval"], off["covered"], strict=True):
        told.append((f"the {nominal:.0%} predictive interval covers {covered:.0%} of the runs", False))
    told += _sensitivity(table)
    if len(robust):
        told.append(_spread(robust))
    if warning := get_errors(post.attrs["errors"]).warning:
        told.append((warning, False))
    return told


def _sensitivity(table: pd.DataFrame) -> list[tuple[str, bool]]:
    names = [str(name) for name in table.index]
    left = dict(zip(names, table["left"].to_numpy(float), strict=True))
    moves = dict(zip(names, table["prior_sensitivity"].to_numpy(float), strict=True))
    told = [(f"{name} is dominated by its prior: {share:.0%} of the prior's width is left", not name.startswith("phi"))
            for name, share in left.items() if share > NARROWED]
    moved = [name for name in names if name.startswith("phi") and moves[name] > SENSITIVE]
    if moved:
        told.append((f"{', '.join(moved)} moves with the priors (power scaling above {SENSITIVE}): vary them", False))
    return told


def _carriers(found: Sensitivity) -> list[tuple[str, bool]]:
    """Which runs and cells carry φ most, and what the bagged posterior says."""
    told = []
    for kind, title in (("run", "the run"), ("cell", "the cell"), ("group", "all runs"), ("counts", "counts with")):
        own = found.moves[found.moves["kind"] == kind] if len(found.moves) else found.moves
        if not len(own) or own["in_sd"].isna().all():
            continue
        worst = own.iloc[int(np.nanargmax(own["in_sd"].abs()))]
        to_first_order = ", to first order" if worst["how"] == "first order" else ""
        change = f"moves {worst['quantity']} by {worst['change']:+.3f} ({abs(worst['in_sd']):.1f} sd{to_first_order})"
        text = (f"{title} {worst['without']}: {change}" if kind == "counts"
                else f"{title} {worst['without']} carries most: leaving it out {change}")
        told.append((text, abs(worst["in_sd"]) < MAX_MOVE))
    if len(found.bagged):
        rows = ", ".join(f"{row.Index} {row.mean:+.3f} ± {row.sd:.3f}" for row in found.bagged.itertuples())
        told.append((f"bagged over (budget, r) cells: {rows}", True))
    return told


def _spread(robust: pd.DataFrame) -> tuple[str, bool]:
    ours, theirs = robust["sd"].to_numpy(float), robust["robust_sd"].to_numpy(float)
    worst = int(np.argmax(theirs / ours))
    ratio = theirs[worst] / ours[worst]
    if ratio <= 1.5:
        return f"the spread over (budget, r) cells is at most {ratio:.1f} times the posterior's", True
    return (f"the spread over (budget, r) cells is up to {ratio:.1f} times the posterior's ({robust.index[worst]!s}: "
            f"± {theirs[worst]:.3f} against ± {ours[worst]:.3f}); quote the robust interval", False)
