"""The law at posterior draws: expected losses of designs, iso-FLOP curves and their minima. No figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr
from scipy.interpolate import PchipInterpolator

from bayesloop.laws import Design, get_law
from bayesloop.layout import recipe_applies
from bayesloop.posterior import PosteriorError, attribute
from bayesloop.selection import BUDGET_TOLERANCE, anchored
from bayesloop.structures import get_recipe, get_structure, mean_loss

MAX_DRAWS = 1000  # quantiles of a band move by less than its line width with more


def runs_of(post: xr.DataTree) -> pd.DataFrame:
    """The runs a posterior was fitted to, in their order, with `loss`; `budget` is NaN where the table had none."""
    runs = pd.DataFrame({name: column.to_numpy() for name, column in post["constant_data"].data_vars.items()})
    runs["loss"] = post["observed_data"]["loss"].to_numpy()
    return runs if "budget" in runs else runs.assign(budget=np.nan)


def probes_of(post: xr.DataTree) -> list[str]:
    """Probes of the runs, in order of appearance."""
    return list(dict.fromkeys(runs_of(post)["probe"]))


def probe_runs(post: xr.DataTree, probe: str) -> pd.DataFrame:
    """The runs of a probe, and at r = 1, where it has none of its own, those that anchor it.

    Raises
    ------
    PosteriorError
        If the posterior has seen no run of that probe.
    """
    runs = runs_of(post)
    own = runs[runs["probe"] == probe]
    if own.empty:
        raise PosteriorError(f"no run of probe {probe!r} in this posterior; expected one of "
                             f"{', '.join(probes_of(post))}")
    return own if (own["r"] == 1).any() else anchored(runs, probe)


def expected_loss(post: xr.DataTree, design: Design, probe: str | Sequence[str],
                  max_draws: int = MAX_DRAWS) -> np.ndarray:
    """The law at draws from the posterior, for any designs.

    Parameters
    ----------
    post : DataTree
        From `fit` or `load`.
    design : Design
        Arrays of shape (run,): n_once, n_rec, r, tokens.
    probe : str or sequence of str
        Whose phi and recipe effect (and, with ``share="none"``, whose law) hold: one for all, or one for each run.
    max_draws : int
        More draws than this are thinned evenly.

    Returns
    -------
    array, shape (draw, run)
        Expected loss, nats per token. Recipe effects are in it, at r = 1 too (see `layout.recipe_applies`); what an
        error model adds for runs that miss together is not.

    Raises
    ------
    PosteriorError
        If the posterior has no phi for a probe, or for one of the recurrence counts.
    """
    design = Design(*(np.atleast_1d(np.asarray(values, float)) for values in design))
    values = values_at(post, design.r, probe, max_draws)
    structure = get_structure(post.attrs.get("phi", "probe"))
    loss = np.asarray(mean_loss(get_law(post.attrs["law"]), structure, values, design, post.attrs.get("compute", 1.0)))
    return np.broadcast_to(loss, (max(len(value) for value in values.values()), len(design.r)))


def values_at(post: xr.DataTree, r: np.ndarray, probe: str | Sequence[str],
              max_draws: int = MAX_DRAWS) -> dict[str, np.ndarray]:
    """All parameters at draws from the posterior, as runs of those recurrence counts and probes have them.

    Returns
    -------
    dict of str to array, shape (draw, run), (draw, 1) or, where fixed, (1, 1)

    Raises
    ------
    PosteriorError
        As `expected_loss`.
    """
    probes = np.broadcast_to(np.asarray(probe, dtype=object), r.shape)
    draws = post["posterior"].to_dataset().stack(sample=("chain", "draw"))
    draws = draws.isel(sample=slice(None, None, -(-draws.sizes["sample"] // max_draws)))
    recipe = get_recipe(post.attrs.get("recipe", "none"))
    applies = recipe_applies(probes, r, recipe.looped)
    values = {str(name): _per_run(value, probes, r, applies) for name, value in draws.data_vars.items()
              if name != "phi_mean"}
    for name, value in attribute(post, "fix").items():
        values[name] = np.full((1, 1), value) * (applies if name in recipe.priors else 1.0)
    return values


def _per_run(value: xr.DataArray, probes: np.ndarray, r: np.ndarray, applies: np.ndarray) -> np.ndarray:
    """Draws of one parameter as (draw, run), or (draw, 1) where all runs share it; a recipe's effect 0 elsewhere."""
    wanted: dict[str, np.ndarray] = {"probe": probes, "r": r, "recipe": probes}
    at = {}
    for dim in [dim for dim in wanted if dim in value.dims]:
        known, labels = value[dim].to_numpy(), wanted[dim]
        unknown = ~np.isin(labels.astype(known.dtype), known)
        if dim == "recipe":
            labels, unknown = np.where(unknown & ~applies, known[0], labels), unknown & applies
        if value.name == "phi":  # at r = 1 any phi does, since r^phi is 1
            labels, unknown = np.where(unknown & (r == 1), known[0], labels), unknown & (r != 1)
        if unknown.any():
            lacking = labels[unknown][0]
            advice = "; use a fit with one φ for each probe (--phi probe), or run it" if dim == "r" else ""
            raise PosteriorError(f"the posterior has no {value.name} for {dim} = "
                                 f"{f'{lacking:g}' if dim == 'r' else lacking}; it has {', '.join(map(str, known))}"
                                 f"{advice}")
        at[dim] = xr.DataArray(labels.astype(known.dtype), dims="run")
    if not at:
        return value.to_numpy()[:, None]
    chosen = value.sel(at).transpose("sample", "run").to_numpy()
    return chosen * applies if "recipe" in at else chosen


def design_of(runs: pd.DataFrame) -> Design:
    """What a law needs to know of a table of runs."""
    return Design(*(runs[name].to_numpy(float) for name in Design._fields))


def residuals(post: xr.DataTree) -> pd.DataFrame:
    """The runs with `residual`: observed loss minus the posterior mean of the expected loss, nats per token."""
    runs = runs_of(post)
    expected = expected_loss(post, design_of(runs), list(runs["probe"])).mean(axis=0)
    return runs.assign(residual=runs["loss"] - expected)


@dataclass(frozen=True)
class IsoFlop:
    """Expected loss along the sizes of one probe, recurrence count and budget.

    Attributes
    ----------
    probe, r, budget : str, int, float
    runs : DataFrame
        The runs that span the curve.
    design : Design
        The designs along it, arrays of shape (point,), by increasing size.
    loss : array, shape (draw, point)
        Expected loss, nats per token.
    """

    probe: str
    r: int
    budget: float
    runs: pd.DataFrame
    design: Design
    loss: np.ndarray

    @property
    def size(self) -> np.ndarray:
        """Unique non-embedding parameters along the curve, shape (point,)."""
        return self.design.n_once + self.design.n_rec

    @property
    def minimum(self) -> tuple[np.ndarray, np.ndarray]:
        """Size and expected loss at the lowest point of every draw, each of shape (draw,).

        The size is NaN where that point is an end of the curve: the optimum then lies beyond the sizes run.
        """
        lowest = self.loss.argmin(axis=1)
        inside = (lowest > 0) & (lowest < len(self.size) - 1)
        return np.where(inside, self.size[lowest], np.nan), self.loss.min(axis=1)


def iso_flop(post: xr.DataTree, probe: str, r: int, budget: float, n_points: int = 81,
             max_draws: int = MAX_DRAWS) -> IsoFlop:
    """Expected loss against size at one budget, along the family of models that the runs themselves show.

    Between the sizes run, the share of the recurrent block and the logarithm of the tokens are interpolated over
    the logarithm of the size (monotone cubic, exact at the runs), so that any table will do; nothing is
    extrapolated. Runs of one size are averaged. On the paper's grid the tokens come out within 0.1 % of those of the
    architecture halfway between two sizes (measured).

    Raises
    ------
    PosteriorError
        If no run of that probe has that recurrence count and budget.
    """
    own = probe_runs(post, probe)
    own = own[(own["r"] == r) & np.isclose(own["budget"], budget, rtol=BUDGET_TOLERANCE, atol=0)]
    if own.empty:
        raise PosteriorError(f"no run of probe {probe!r} with r = {r} and budget {budget:.4g} FLOP in this posterior")
    design = _along(own, r, n_points)
    owner = str(own["probe"].iloc[0])  # the baseline, where its r = 1 runs stand in for the probe's
    return IsoFlop(probe, r, budget, own, design, expected_loss(post, design, owner, max_draws))


def _along(runs: pd.DataFrame, r: int, n_points: int) -> Design:
    n_once, n_rec, _, tokens = design_of(runs)
    path = pd.DataFrame({"share": n_rec / (n_once + n_rec), "log_tokens": np.log(tokens)},
                        index=np.log(n_once + n_rec)).groupby(level=0).mean()
    known = path.index.to_numpy()
    if len(known) == 1:
        points, (share, log_tokens) = known, path.to_numpy().T
    else:  # always n_points in all: the law is compiled for each number of them
        between = np.linspace(known[0], known[-1], max(n_points - len(known), 0) + 2)[1:-1]
        points = np.sort(np.concatenate([known, between]))
        share, log_tokens = PchipInterpolator(known, path.to_numpy())(points).T
    return Design(np.exp(points) * (1 - share), np.exp(points) * share, np.full(len(points), float(r)),
                  np.exp(log_tokens))


def iso_flop_curves(post: xr.DataTree, probe: str, r: int) -> list[IsoFlop]:
    """The iso-FLOP curves of a probe at one recurrence count, by increasing budget; none where no budget is known."""
    own = probe_runs(post, probe)
    budgets = np.unique(own.loc[own["r"] == r, "budget"].dropna())
    return [iso_flop(post, probe, r, budget) for budget in budgets]


def parabola_minimum(runs: pd.DataFrame) -> tuple[float, float]:
    """Size and loss at the minimum of a parabola in log size through observed losses: the optimum without a law.

    As in arXiv 2604.21106. NaN where fewer than three sizes were run, the parabola opens downwards, or its minimum
    lies beyond the sizes run.
    """
    log_size = np.log((runs["n_once"] + runs["n_rec"]).to_numpy(float))
    if len(np.unique(log_size)) < 3:
        return np.nan, np.nan
    centre = log_size.mean()
    curvature, slope, level = np.polyfit(log_size - centre, runs["loss"].to_numpy(float), 2)
    lowest = centre - slope / (2 * curvature) if curvature > 0 else np.nan
    if not log_size.min() <= lowest <= log_size.max():
        return np.nan, np.nan
    return float(np.exp(lowest)), float(level + slope * (lowest - centre) / 2)
