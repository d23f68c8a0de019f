"""How the compute-optimal size and tokens grow with compute: N* ∝ C^a, D* ∝ C^b, by three definitions.

They differ, because training FLOPs per token grow slower than the size (head and attention); name the one you show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bayesloop.curves import probe_runs
from bayesloop.family import Family
from bayesloop.frontier import Frontier, solve
from bayesloop.laws import Law, get_law
from bayesloop.pooling import Posteriors

DEFINITIONS = {
    "closed form": "β/(gβ+α) and α/(gβ+α), with F ∝ N^g fitted over the sizes run",
    "exact FLOPs": "slope of log N* and log D* over the budgets, the law minimised with exact FLOPs",
    "parabolas": "slope through the minima of parabolas in log N, without a law; interval from redrawn losses",
}


def exponents(post: Posteriors, r: Sequence[int] | None = None, budgets: Sequence[float] | None = None,
              probe: str = "baseline", weights: Sequence[float] | None = None,
              family: Mapping[str, Any] | None = None, prob: float = 0.95, force: bool = False) -> pd.DataFrame:
    """Exponents of the compute-optimal size and tokens by each of `DEFINITIONS`.

    Parameters
    ----------
    post, r, budgets, probe, weights, family, prob, force
        As in `optimum`.

    Returns
    -------
    DataFrame
        One row for each definition and r: size, tokens (medians over draws), each with _lower and _upper; NaN where a
        definition does not apply: fewer than two budgets, or, for the closed form, a law whose terms do not keep one
        ratio along the optimum.
    """
    return growth(solve(post, r, budgets, probe, weights, family, force), prob)


def growth(frontier: Frontier, prob: float = 0.95) -> pd.DataFrame:
    """The table of `exponents`."""
    pooled, probe, wanted = frontier.pooled, frontier.probe, frontier.budgets
    runs = probe_runs(pooled.first, probe)
    rows = []
    for count, found in frontier.optima.items():
        models, own = found.family, runs[runs["r"] == count]
        alpha, beta = pooled.values("alpha", probe), pooled.values("beta", probe)
        g = _flops_exponent(own, models, count) if all(map(_keeps_ratio, pooled.laws)) else np.nan
        parabola = frontier.observed(count, 2)
        middle, drawn = (wanted / models.counts(models.width_of(size, count), count)[2]
                         for size in (parabola.size, parabola.sizes))
        draws = {"closed form": (beta / (g * beta + alpha), alpha / (g * beta + alpha)),
                 "exact FLOPs": (_slope(wanted, found.size), _slope(wanted, found.tokens)),
                 "parabolas": (_slope(wanted, parabola.sizes), _slope(wanted, drawn))}
        for name, pair in draws.items():
            row: dict[str, Any] = {"definition": name, "r": count}
            for label, values in zip(("size", "tokens"), pair, strict=True):
                row |= _described(label, values, prob)
            if name == "parabolas":  # the estimate is that of the runs; redrawn losses say how sure it is
                row |= {"size": _slope(wanted, parabola.size[None])[0], "tokens": _slope(wanted, middle[None])[0]}
            rows.append(row)
    table = pd.DataFrame(rows).sort_values("definition", key=lambda names: names.map(list(DEFINITIONS).index),
                                           kind="stable", ignore_index=True)
    table.attrs = {"prob": prob, "probe": probe, "definitions": DEFINITIONS}
    return table


def _keeps_ratio(law: str | Law) -> bool:
    """Whether P and Q keep one ratio along the optimum: so if doubling both doubles what they add to E."""
    combine, extra = get_law(law).combine, dict.fromkeys(get_law(law).extra, 0.7)
    return bool(np.isclose(combine(1.5, 0.6, 1.0, **extra) - 1.5, 2 * (combine(1.5, 0.3, 0.5, **extra) - 1.5)))


def _flops_exponent(runs: pd.DataFrame, family: Family, r: int) -> float:
    """g of F ∝ N^g, by least squares over the sizes run."""
    size = (runs["n_once"] + runs["n_rec"]).to_numpy(float)
    if len(np.unique(size)) < 2:
        return np.nan
    return float(np.polyfit(np.log(size), np.log(family.counts(family.width_of(size, r), r)[2]), 1)[0])


def _slope(budgets: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Slope of log values (draw, budget) over log budget, from the budgets where there is a value, shape (draw,)."""
    known = np.isfinite(values)
    x = np.where(known, np.log(budgets), np.nan)
    y = np.where(known, np.log(np.where(known, values, 1.0)), np.nan)
    enough = known.sum(axis=1) > 1
    slope = np.full(len(values), np.nan)
    x, y = x[enough], y[enough]
    x = x - np.nanmean(x, axis=1, keepdims=True)
    slope[enough] = np.nansum(x * y, axis=1) / np.nansum(x * x, axis=1)
    return slope


def _described(label: str, values: np.ndarray, prob: float) -> dict[str, float]:
    values = values[np.isfinite(values)]
    low, middle, high = (np.quantile(values, [(1 - prob) / 2, 0.5, (1 + prob) / 2]) if len(values)
                         else np.full(3, np.nan))
    return {label: float(middle), f"{label}_lower": float(low), f"{label}_upper": float(high)}
