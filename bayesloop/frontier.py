"""Compute-optimal models: size, width, tokens and loss at a budget, for each recurrence count, with exact FLOPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bayesloop.curves import probe_runs
from bayesloop.decisions import check_probe
from bayesloop.family import Family, family_of
from bayesloop.hull import outside
from bayesloop.isoflop import Polynomials, polynomials, vertex
from bayesloop.laws import Design
from bayesloop.pooling import Pool, Posteriors, pool
from bayesloop.posterior import PosteriorError
from bayesloop.selection import BUDGET_TOLERANCE

COARSE, FINE = np.geomspace(8, 2**18, 64), 96  # widths of the first look; points of the second


@dataclass(frozen=True)
class Optima:
    """The compute-optimal model at every budget, draw by draw.

    Attributes
    ----------
    r : int
    family : Family
    budgets : array, shape (budget,)
        FLOP.
    width, size, tokens, loss : array, shape (draw, budget)
        Width (not whole), n_once + n_rec, tokens, and expected loss; NaN where the law has no optimum.
    """

    r: int
    family: Family
    budgets: np.ndarray
    width: np.ndarray
    size: np.ndarray
    tokens: np.ndarray
    loss: np.ndarray


def minimise(pooled: Pool, probe: str, r: int, budgets: np.ndarray, **changes: Any) -> Optima:
    """Minimise the expected loss over the width at given budgets, at every draw.

    A look at widths a factor of 1.2 apart, then at 96 in the range where any draw's optimum lies, then a parabola
    through the lowest three: the width is within 0.1 % of a much finer search (tested).
    """
    family = family_of(pooled.first, probe, r, **changes)
    coarse = np.broadcast_to(COARSE, (len(budgets), len(COARSE)))
    lowest = _losses(pooled, probe, r, family, budgets, coarse).argmin(axis=-1)
    low, high = (COARSE[np.clip(edge, 0, len(COARSE) - 1)] for edge in (lowest.min(axis=0) - 1, lowest.max(axis=0) + 1))
    fine = np.geomspace(low, high, FINE, axis=-1)
    loss = _losses(pooled, probe, r, family, budgets, fine)
    found = [vertex(np.log(fine[i]), loss[:, i]) for i in range(len(budgets))]
    width, best = np.exp([place for place, _ in found]).T, np.array([value for _, value in found]).T
    once, rec, flops = family.counts(width, r)
    return Optima(r, family, budgets, width, once + rec, budgets / flops, best)


def _losses(pooled: Pool, probe: str, r: int, family: Family, budgets: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """Expected loss of widths (budget, point) at their budgets, shape (draw, budget, point)."""
    design = family.design(widths, r, budgets[:, None])
    flat = Design(*(np.ravel(values) for values in design))
    return pooled.expected_loss(flat, probe).reshape(-1, *widths.shape)


@dataclass(frozen=True)
class Frontier:
    """Compute-optimal models of one probe.

    Attributes
    ----------
    pooled : Pool
    probe : str
    budgets : array, shape (budget,)
    optima : dict of int to Optima
        By recurrence count.
    plain : Optima
        At r = 1.
    """

    pooled: Pool
    probe: str
    budgets: np.ndarray
    optima: dict[int, Optima]
    plain: Optima

    def observed(self, r: int, degree: int) -> Polynomials:
        """Optima of the observed losses alone."""
        runs = probe_runs(self.pooled.first, self.probe)
        return polynomials(runs[runs["r"] == r], self.budgets, degree)


def solve(post: Posteriors, r: Sequence[int] | None = None, budgets: Sequence[float] | None = None,
          probe: str = "baseline", weights: Sequence[float] | None = None, family: Mapping[str, Any] | None = None,
          force: bool = False) -> Frontier:
    """Find the compute-optimal models that `optimum` and `exponents` describe; arguments and errors are theirs."""
    pooled, changes = pool(post, weights, force), dict(family or {})
    runs = probe_runs(pooled.first, check_probe(pooled, probe))
    counts = sorted({int(count) for count in (runs["r"] if r is None else np.atleast_1d(r))})
    wanted = _budgets(runs, budgets)
    optima = {count: minimise(pooled, probe, count, wanted, **changes) for count in {1, *counts}}
    for found in optima.values():
        if np.isnan(found.width).all(axis=0).any():
            raise PosteriorError(f"at r = {found.r} the law has no compute-optimal width: more parameters or more "
                                 "tokens always help; runs over a longer range of sizes and budgets would tell")
    return Frontier(pooled, probe, wanted, {count: optima[count] for count in counts}, optima[1])


def _budgets(runs: pd.DataFrame, budgets: Sequence[float] | None) -> np.ndarray:
    """The budgets asked for, by increasing size, or those of the runs."""
    wanted = np.unique(runs["budget"].dropna() if budgets is None else np.asarray(budgets, float))
    if not len(wanted) or not (np.isfinite(wanted) & (wanted > 0)).all():
        raise PosteriorError(f"budgets {wanted.tolist()}: expected positive numbers of FLOP; the runs' own are used "
                             "where none is given and the runs have them")
    apart = np.concatenate([[True], np.diff(np.log(wanted)) > BUDGET_TOLERANCE])  # planned budgets may be rounded
    return wanted[apart]


def optimum(post: Posteriors, r: Sequence[int] | None = None, budgets: Sequence[float] | None = None,
            probe: str = "baseline", weights: Sequence[float] | None = None, family: Mapping[str, Any] | None = None,
            prob: float = 0.95, force: bool = False) -> pd.DataFrame:
    """The compute-optimal model of each recurrence count and budget, and what looping costs against r = 1.

    Parameters
    ----------
    post, weights, family, prob, force
        As in `predict`.
    r : sequence of int, optional
        Default: those that were run.
    budgets : sequence of float, optional
        FLOP; default: those of the runs.
    probe : str

    Returns
    -------
    DataFrame
        One row for each r and budget. size, width, tokens, loss: medians over draws of the optimum, each with _lower
        and _upper; gap: loss above the r = 1 optimum, with bounds; best_width: the better of the two trainable widths
        around the optimum, with best_tokens, best_steps and best_penalty (loss above the optimum, nats);
        inference_flops, kv_bytes, weight_bytes of that model, per token at full context; parabola_size, parabola_loss,
        parabola_gap, cubic_size, cubic_loss: from the observed losses alone; extrapolates, as in `predict`.

    Raises
    ------
    PosteriorError, ArchitectureError
        As `predict`, and if the law has no optimum within any practical width.
    """
    return describe(solve(post, r, budgets, probe, weights, family, force), prob)


def describe(frontier: Frontier, prob: float = 0.95) -> pd.DataFrame:
    """The table of `optimum`."""
    pooled, probe, budgets = frontier.pooled, frontier.probe, frontier.budgets
    tables, plain_parabola = [], frontier.observed(1, 2)
    for r, found in frontier.optima.items():
        table = _summary(found, frontier.plain, prob).assign(**_trainable(pooled, probe, found))
        parabola, cubic = frontier.observed(r, 2), frontier.observed(r, 3)
        middle = found.family.design(table["width"].to_numpy(), r, budgets)
        tables.append(table.assign(
            parabola_size=parabola.size, parabola_loss=parabola.loss, parabola_gap=parabola.loss - plain_parabola.loss,
            cubic_size=cubic.size, cubic_loss=cubic.loss, extrapolates=outside(pooled, middle, budgets, probe)))
    table = pd.concat(tables, ignore_index=True)
    table.attrs = {"prob": prob, "probe": probe, "laws": pooled.laws}
    return table


def _summary(found: Optima, plain: Optima, prob: float) -> pd.DataFrame:
    """Medians and intervals over the draws that have an optimum."""
    draws = {"size": found.size, "width": found.width, "tokens": found.tokens, "loss": found.loss,
             "gap": found.loss - plain.loss}
    table = pd.DataFrame({"r": found.r, "budget": found.budgets})
    for name, values in draws.items():
        low, middle, high = np.nanquantile(values, [(1 - prob) / 2, 0.5, (1 + prob) / 2], axis=0)
        table = table.assign(**{name: middle, f"{name}_lower": low, f"{name}_upper": high})
    return table


def _trainable(pooled: Pool, probe: str, found: Optima) -> dict[str, list[float]]:
    """For each budget the better trainable width, its run and what it costs at inference."""
    rows = []
    for budget, width, best in zip(found.budgets, np.nanmedian(found.width, axis=0), np.nanmean(found.loss, axis=0),
                                   strict=True):
        runs = pd.DataFrame([found.family.run(choice, found.r, budget) for choice in found.family.trainable(width)])
        design = Design(*(runs[name].to_numpy(float) for name in Design._fields))
        losses = pooled.expected_loss(design, probe).mean(axis=0)
        chosen = runs.iloc[int(losses.argmin())]
        rows.append({"best_width": int(chosen["width"]), "best_tokens": chosen["tokens"],
                     "best_steps": int(chosen["n_steps"]), "best_penalty": losses.min() - best,
                     **found.family.inference(int(chosen["width"]), found.r)})
    return {name: [row[name] for row in rows] for name in rows[0]}
