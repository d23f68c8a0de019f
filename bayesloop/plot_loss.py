"""Figures of loss: iso-FLOP curves, residuals, and the frontier of compute-optimal loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bayesloop.curves import IsoFlop, iso_flop_curves, parabola_minimum, probe_runs, probes_of, residuals
from bayesloop.posterior import PosteriorError, attribute
from bayesloop.style import (
    COMPUTE,
    FAINT,
    INK,
    LOSS,
    SIZE,
    add_legend,
    as_power,
    compute_axis,
    doubt,
    in_words,
    probe_style,
    r_style,
    styled,
)

GREY = "#8a8a8a"
OUTER = (2.5, 97.5)  # percentiles of the 95 % interval


@styled
def plot_iso_flop(axes: Sequence[Axes] | np.ndarray, post: xr.DataTree, probe: str = "baseline") -> np.ndarray:
    """Loss against size, one panel per r and one curve per budget: runs, expected loss with 95 % band, and minima.

    Parameters
    ----------
    axes : sequence of Axes
        One for each of `recurrences` (post, probe); best with shared axes.
    post : DataTree
    probe : str

    Returns
    -------
    array of Axes

    Raises
    ------
    PosteriorError
        If the posterior has no runs of the probe, or they have no budgets.
    ValueError
        If the number of axes is not that of the recurrence counts.
    """
    panels = np.atleast_1d(np.asarray(axes, dtype=object)).ravel()
    counts = recurrences(post, probe)
    if len(panels) != len(counts):
        raise ValueError(f"{len(panels)} axes for {len(counts)} recurrence counts ({', '.join(map(str, counts))}) of "
                         f"probe {probe!r}; expected one each")
    probes = probes_of(post)
    for ax, r in zip(panels, counts, strict=True):
        color = r_style(r)["color"]
        curves = iso_flop_curves(post, probe, r)
        for curve in curves:
            _draw_iso_flop(ax, curve, color, probes)
        if ax is panels[-1]:
            _label_budgets(ax, curves)
        _size_axis(ax)
        ax.set_title(f"r = {r}" if len(counts) > 1 or r > 1 else "not looped (r = 1)")
    panels[0].set_ylabel(LOSS)
    figure = panels[0].figure
    figure.supxlabel(SIZE, fontsize=8)
    add_legend(figure, [
        *(Line2D([], [], color=INK, marker=probe_style(name, probes).marker, linestyle="none", label=f"runs, {name}")
          for name in dict.fromkeys(probe_runs(post, probe)["probe"])),
        Line2D([], [], color=INK, label="expected loss by budget (FLOP)"),
        Patch(color=INK, alpha=0.25, linewidth=0, label="95 % interval"),
        Line2D([], [], color=INK, linestyle="none", **_MINIMUM, label="its minimum"), *doubt(post)])
    return panels


@styled
def plot_residuals(ax: Axes, post: xr.DataTree) -> Axes:
    """Observed minus expected loss of every run, in one column for each (budget, r) cell, its median as a bar.

    Within a column the runs stand in the order of their size. The error model is about what is left here: columns
    that lie off zero as a whole are errors that runs of one cell share.

    Parameters
    ----------
    ax : Axes
        Best as wide as a page.
    post : DataTree

    Returns
    -------
    Axes
    """
    runs = residuals(post)
    probes = probes_of(post)
    x, ticks = 0, {}
    budgets = runs["budget"].fillna(np.inf)
    for budget in np.unique(budgets):
        group = runs[budgets == budget]
        if x:
            ax.axvline(x - 1, color=FAINT, linewidth=0.6)
        start = x
        for r in sorted(set(group["r"])):
            for probe in probes:
                cell = group[(group["r"] == r) & (group["probe"] == probe)]
                if len(cell):
                    _draw_column(ax, x, cell, r_style(r)["color"], probe_style(probe, probes).marker)
                    x += 1
        ticks[(start + x - 1) / 2] = as_power(budget) if np.isfinite(budget) else "no budget"
        x += 1
    ax.axhline(0, color=INK, linewidth=0.7, zorder=0)
    ax.set_xlim(-1, x - 1)
    ax.set_xticks(list(ticks), list(ticks.values()))
    ax.tick_params(axis="x", length=0)
    ax.set_xlabel(f"budget: {COMPUTE}")
    ax.set_ylabel("observed − expected loss\n(mnats/token)")
    handles = [Line2D([], [], color=r_style(r)["color"], marker=".", markersize=7, linestyle="none", label=f"r = {r}")
               for r in sorted(set(runs["r"]))]
    handles += [Line2D([], [], color=FAINT, marker=probe_style(probe, probes).marker, linestyle="none", label=probe)
                for probe in probes if len(probes) > 1]
    add_legend(ax.figure, [*handles, Line2D([], [], color=INK, label="median of the column"), *doubt(post)])
    return ax


@styled
def plot_frontier(ax: Axes, post: xr.DataTree, probe: str = "baseline", contrast: xr.DataTree | None = None) -> Axes:
    """Compute-optimal loss against compute for each r: the law with 95 % band, and the runs' own optima as crosses.

    Both are optima among the sizes run. The law's is the lowest point of its iso-FLOP curve, even where that is an
    end of the curve. The runs' is the minimum of a parabola in log size, and is not drawn where it lies beyond them.

    Parameters
    ----------
    ax : Axes
    post : DataTree
    probe : str
    contrast : DataTree, optional
        Another posterior of the same runs, such as one with ``fix={"phi": 1}``, drawn as thin grey curves without
        band: arXiv 2604.21106, figure 1.

    Returns
    -------
    Axes

    Raises
    ------
    PosteriorError
        If the posterior has no runs of the probe, or they have no budgets.
    """
    handles = []
    for r in recurrences(post, probe):
        look = r_style(r)
        curves = iso_flop_curves(post, probe, r)
        budgets = [curve.budget for curve in curves]
        low, middle, high = np.percentile([curve.minimum[1] for curve in curves], (OUTER[0], 50, OUTER[1]), axis=1)
        ax.fill_between(budgets, low, high, color=look["color"], alpha=0.25, linewidth=0)
        ax.plot(budgets, middle, **look)
        ax.plot(budgets, [parabola_minimum(curve.runs)[1] for curve in curves], linestyle="none", marker="x",
                color=look["color"])
        handles.append(Line2D([], [], **look, label=f"r = {r}"))
        if contrast is not None:
            others = iso_flop_curves(contrast, probe, r)
            ax.plot([other.budget for other in others], [np.median(other.minimum[1]) for other in others],
                    color=GREY, linewidth=0.8, zorder=1)
    if contrast is not None:
        fixed = ", ".join(f"{'φ' if name == 'phi' else name} = {value:g}"
                          for name, value in attribute(contrast, "fix").items())
        handles.append(Line2D([], [], color=GREY, linewidth=0.8, label=f"every r, {fixed or 'contrast'}"))
    handles.append(Line2D([], [], color=INK, marker="x", linestyle="none", label="optimum of the runs"))
    compute_axis(ax)
    ax.set_ylabel(f"compute-optimal {LOSS}")
    ax.legend(handles=[*handles, *doubt(post)], handlelength=2.4)  # long enough to show the dashes
    return ax


def recurrences(post: xr.DataTree, probe: str) -> list[int]:
    """The recurrence counts at which a probe has runs with a budget, its anchor's r = 1 included.

    Raises
    ------
    PosteriorError
        If the posterior has no runs of the probe, or none has a budget.
    """
    runs = probe_runs(post, probe)
    counts = sorted({int(r) for r in runs.loc[runs["budget"].notna(), "r"]})
    if not counts:
        raise PosteriorError(f"the runs of probe {probe!r} have no budgets, so there are no iso-FLOP sets; fit a table "
                             "with the column `budget`")
    return counts


_MINIMUM: dict[str, Any] = {"marker": "D", "markersize": 3.5, "markerfacecolor": "white", "markeredgecolor": INK,
                            "markeredgewidth": 0.9}


def _draw_iso_flop(ax: Axes, curve: IsoFlop, color: str, probes: list[str]) -> None:
    low, middle, high = np.percentile(curve.loss, (OUTER[0], 50, OUTER[1]), axis=0)
    ax.fill_between(curve.size, low, high, color=color, alpha=0.25, linewidth=0)
    ax.plot(curve.size, middle, color=color)
    for probe, runs in curve.runs.groupby("probe"):
        ax.plot(runs["n_once"] + runs["n_rec"], runs["loss"], linestyle="none", color=color, markersize=3.5,
                marker=probe_style(str(probe), probes).marker)
    lowest = middle.argmin()
    if 0 < lowest < len(middle) - 1:  # at an end, the optimum lies beyond the sizes run
        ax.plot(curve.size[lowest], middle[lowest], linestyle="none", zorder=3, **_MINIMUM)


def _draw_column(ax: Axes, x: float, cell: pd.DataFrame, color: str, marker: str) -> None:
    by_size = cell.iloc[np.argsort((cell["n_once"] + cell["n_rec"]).to_numpy())]
    missed = 1e3 * by_size["residual"].to_numpy()
    spread = np.linspace(-0.3, 0.3, len(cell)) if len(cell) > 1 else np.zeros(1)
    ax.plot(x + spread, missed, linestyle="none", marker=marker, markersize=3, color=color)
    ax.hlines(np.median(missed), x - 0.4, x + 0.4, color=INK, linewidth=1.2)


def _label_budgets(ax: Axes, curves: list[IsoFlop]) -> None:
    for curve in curves:
        ax.annotate(as_power(curve.budget), (curve.size[-1], np.median(curve.loss[:, -1])), xytext=(4, 0),
                    textcoords="offset points", va="center", fontsize=7, color=INK, annotation_clip=False)


def _size_axis(ax: Axes) -> None:
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(LogLocator(subs=(1,) if high > 50 * low else (1, 3) if high > 8 * low else (1, 2, 5)))
    ax.xaxis.set_minor_locator(LogLocator(subs="all"))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda size, _: in_words(size)))
    ax.xaxis.set_minor_formatter(NullFormatter())
