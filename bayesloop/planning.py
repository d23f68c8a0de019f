"""Which runs to train: what a design would tell, the cheapest part of it that is enough, and the run worth most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from scipy.stats import norm

from bayesloop.curves import design_of, runs_of
from bayesloop.designs import MFU, PEAK, DesignError, gpu_hours
from bayesloop.hull import compute_of
from bayesloop.information import Information, information
from bayesloop.layout import training_compute
from bayesloop.posterior import PosteriorError
from bayesloop.selection import ANCHOR, group_budgets
from bayesloop.wording import many

POWER = 0.8  # probability at which a difference counts as detectable
UNITS, COSTS = ("cell", "run"), ("flops", "runs")


def plan(post: xr.DataTree, design: pd.DataFrame | None = None, existing: bool = True, reference: str = ANCHOR,
         delta: float = 0.1, recipes: Sequence[str] = (), scatter: float | None = None, prob: float = 0.95,
         mfu: float = MFU, peak: float = PEAK, force: bool = False) -> pd.DataFrame:
    """What a design would tell about φ and Δφ, and what it costs.

    The expected posterior is that of a Normal approximation, with the posterior's own law, error model, structure of φ
    and recipe term, averaged over posterior draws (see `information`).

    Parameters
    ----------
    post : DataTree
        What is known now: it stands for the truth that the design would meet.
    design : DataFrame, optional
        From `design_runs`, `read_design` or `read_runs`: probe, r, n_once, n_rec, tokens, flops.
    existing : bool
        Whether the posterior's own runs count too.
    reference : str
        Probe that differences are taken from.
    delta : float
        Difference of φ whose detection is asked for; a new probe's φ is taken to differ by it.
    recipes : sequence of str
        Probes whose runs may share a recipe effect, where the posterior's model has none: a factor on the data term.
    scatter : float, optional
        Relative scatter of a run in place of the posterior's.
    prob : float
        Probability of the intervals; a difference is detected when its interval leaves out 0 on the right side.
    mfu, peak : float
        Share of the peak in FLOP/s, for GPU hours.
    force : bool
        Accept a posterior that did not converge.

    Returns
    -------
    DataFrame
        One row for φ and one for Δφ of every looped probe: quantity, probe, sd, half_width (means over draws),
        half_width_lower, half_width_upper (5 and 95 % of draws), p_detect, detectable: the difference detected with
        probability 0.8. ``attrs``: n_runs, flops and gpu_hours of the design alone.

    Raises
    ------
    PosteriorError, DesignError
        If the posterior cannot be planned with, or there are no runs.
    """
    own, planned = known_runs(post, force), checked_design(design)
    runs = pd.concat([*([own] if existing else []), planned], ignore_index=True)
    if runs.empty:
        raise DesignError("no runs: give a design, or count those of the posterior")
    about = information(post, runs, recipes, reference, delta, scatter)
    if reference != ANCHOR and reference not in about.probes:
        raise PosteriorError(f"reference {reference!r}: no looped run of it; expected one of {', '.join(about.probes)}")
    every, z = np.arange(len(runs)), float(norm.ppf((1 + prob) / 2))
    rows = []
    for probe in about.probes:
        for base in (None, reference):
            if probe == base or (base and base not in about.probes):
                continue
            if base and about.by_r and not about.shared(probe, base):
                continue
            target = about.target(probe, base)
            if not target.any():
                continue  # recipes that share a φ
            sd = np.sqrt(about.variance(target, every))
            row: dict[str, Any] = {"quantity": "delta" if base else "phi", "probe": probe, "sd": sd.mean(),
                                   "half_width": z * sd.mean(), "half_width_lower": z * np.quantile(sd, 0.05),
                                   "half_width_upper": z * np.quantile(sd, 0.95), "p_detect": np.nan,
                                   "detectable": np.nan}
            if base:
                row["p_detect"] = norm.cdf(abs(delta) / sd - z).mean()
                row["detectable"] = (z + norm.ppf(POWER)) * sd.mean()
            rows.append(row)
    table = pd.DataFrame(rows)
    cost = float(_compute(planned).sum()) if len(planned) else 0.0
    table.attrs = {"n_runs": len(planned), "n_existing": len(own) * existing, "flops": cost,
                   "gpu_hours": gpu_hours(cost, mfu, peak), "delta": delta, "prob": prob, "reference": reference}
    return table


def cheapest(post: xr.DataTree, goal: float, design: pd.DataFrame | None = None, existing: bool = False,
             probe: str = ANCHOR, reference: str | None = None, unit: str = "cell", cost: str = "flops",
             recipes: Sequence[str] = (), scatter: float | None = None, prob: float = 0.95, force: bool = False,
             progress: Callable[[int, int], None] | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The cheapest part of a design whose interval is expected to be within ± `goal`.

    Runs are left out one unit at a time, always the one whose loss widens the interval least for what it saves: a
    greedy search, which need not find the very cheapest.

    Parameters
    ----------
    post, recipes, scatter, prob, force
        As in `plan`.
    goal : float
        Half-width of the interval.
    design : DataFrame, optional
        Default: the posterior's own runs.
    existing : bool
        Whether the posterior's own runs are there already, at no cost.
    probe, reference : str
        The target: φ of the probe, or with a reference Δφ.
    unit : {"cell", "run"}
        What is left out at a time: all runs of one (probe, budget, r), or single runs.
    cost : {"flops", "runs"}
        What is saved.
    progress : callable, optional
        Called with (units left out, units).

    Returns
    -------
    chosen : DataFrame
        The runs that are enough.
    steps : DataFrame
        n_runs, flops, half_width as runs are left out, fewest first; it stops where the interval is three times as
        wide as wanted.

    Raises
    ------
    DesignError
        If the whole design is not enough, or an option is unknown.
    """
    if unit not in UNITS or cost not in COSTS:
        raise DesignError(f"unit {unit!r} and cost {cost!r}: expected one of {', '.join(UNITS)}, and one of "
                          f"{', '.join(COSTS)}")
    own = known_runs(post, force)
    planned = own if design is None else checked_design(design)
    runs = pd.concat([planned, *([own] if existing and design is not None else [])], ignore_index=True)
    about = information(post, runs, recipes, reference or probe, 0.0, scatter)
    target, z = about.target(probe, reference), norm.ppf((1 + prob) / 2)
    units = _units(planned, unit)
    flops = _compute(planned)
    price = np.array([flops[rows].sum() if cost == "flops" else len(rows) for rows in units])
    left, kept = list(range(len(units))), np.arange(len(runs))
    steps, order = [], []
    while True:
        half = float(z * np.sqrt(about.variance(target, kept)).mean())
        mine = kept[kept < len(planned)]
        steps.append({"n_runs": len(mine), "flops": flops[mine].sum(), "half_width": half})
        order.append(mine)
        if not left or half > 3 * max(goal, steps[0]["half_width"]):
            break  # what is left tells little
        widening = _widening(about, target, kept, [units[i] for i in left]) / price[left]
        out = left.pop(int(np.argmin(widening)))
        kept = np.setdiff1d(kept, units[out])
        if progress:
            progress(len(units) - len(left), len(units))
    enough = [i for i, step in enumerate(steps) if step["half_width"] <= goal]
    if not enough:
        whose = "posterior's own" if design is None else "whole design of"
        raise DesignError(f"the {whose} {many(len(planned), 'run')} are expected to give "
                          f"± {steps[0]['half_width']:.3g} and not ± {goal:g}; add runs, or ask for less")
    chosen = planned.iloc[order[max(enough)]].reset_index(drop=True)
    return chosen, pd.DataFrame(steps[::-1])


def rank(post: xr.DataTree, candidates: pd.DataFrame, probe: str = ANCHOR, reference: str | None = None,
         recipes: Sequence[str] = (), scatter: float | None = None, force: bool = False) -> pd.DataFrame:
    """Candidate runs by how much each would reduce the variance of φ or Δφ per FLOP, beside the runs there are.

    Parameters
    ----------
    post, probe, reference, recipes, scatter, force
        As in `cheapest`.
    candidates : DataFrame
        As `design` in `plan`.

    Returns
    -------
    DataFrame
        The candidates, best first, with `reduction`: expected share of the variance that the run takes away, and
        `per_flop`: reduction per 1e18 FLOP. ``attrs["sd"]``: expected standard deviation without them.
    """
    own, planned = known_runs(post, force), checked_design(candidates)
    if planned.empty:
        raise DesignError("no candidates: give budgets, widths and r, or a design")
    runs = pd.concat([own, planned], ignore_index=True)
    about = information(post, runs, recipes, reference or probe, 0.0, scatter)
    target = about.target(probe, reference)
    covariance = about.covariance(np.arange(len(own)))
    rows = about.rows[:, len(own):]
    before = np.einsum("i,dij,j->d", target, covariance, target)
    along = np.einsum("dri,dij,j->dr", rows, covariance, target)
    new = 1 + np.einsum("dri,dij,drj->dr", rows, covariance, rows)
    reduction = (along**2 / new / before[:, None]).mean(axis=0)
    table = planned.assign(reduction=reduction, per_flop=reduction / (_compute(planned) / 1e18))
    table = table.sort_values("per_flop", ascending=False, ignore_index=True)
    table.attrs = {"sd": float(np.sqrt(before).mean()), "n_existing": len(own), "probe": probe, "reference": reference}
    return table


def known_runs(post: xr.DataTree, force: bool) -> pd.DataFrame:
    """The posterior's own runs, if it may be planned with.

    Raises
    ------
    PosteriorError
        If it did not converge and is not forced.
    """
    if not post.attrs.get("converged") and not force:
        raise PosteriorError(f"the posterior did not converge ({post.attrs.get('verdict')}); sample longer, or use "
                             "force=True (--force)")
    return runs_of(post)


def checked_design(design: pd.DataFrame | None) -> pd.DataFrame:
    """The planned runs, none where there is no design.

    Raises
    ------
    DesignError
        If a column is missing.
    """
    needed = ["probe", "r", "n_once", "n_rec", "tokens"]
    if design is None:
        return pd.DataFrame({name: pd.Series(dtype=float) for name in needed})
    lacking = [name for name in needed if name not in design]
    if lacking:
        raise DesignError(f"the design lacks {', '.join(lacking)}; make it with design_runs or read_design")
    return design.reset_index(drop=True)


def _compute(runs: pd.DataFrame) -> np.ndarray:
    """Training FLOP of runs: spent or planned, and where neither is known 6 FLOP per executed parameter and token."""
    return np.where(np.isnan(compute_of(runs)), training_compute(design_of(runs)), compute_of(runs))


def _units(runs: pd.DataFrame, unit: str) -> list[np.ndarray]:
    """Rows of each unit: single runs, or those of one probe, budget and r."""
    if unit == "run" or "budget" not in runs or runs["budget"].isna().any():
        return [np.array([i]) for i in range(len(runs))]
    groups = runs.assign(group=group_budgets(runs["budget"].to_numpy(float))).groupby(["probe", "group", "r"],
                                                                                      sort=False).indices
    return [np.asarray(rows) for rows in groups.values()]


def _widening(about: Information, target: np.ndarray, kept: np.ndarray, units: list[np.ndarray]) -> np.ndarray:
    """Mean over draws of the rise of the target's log variance if a unit is left out, shape (unit,)."""
    covariance = about.covariance(kept)
    variance = np.einsum("i,dij,j->d", target, covariance, target)
    rises = []
    for rows in units:
        part = about.rows[:, rows]
        pull = part @ covariance
        rest = np.eye(len(rows)) - pull @ part.transpose(0, 2, 1)
        along = pull @ target
        rise = np.einsum("dr,dr->d", along, np.linalg.solve(rest, along[..., None])[..., 0])
        rises.append(np.log1p(rise / variance).mean())
    return np.array(rises)
