"""Figures of a check: residuals by cell, calibration of the predictions, weight of single runs, what moves φ."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from scipy import stats

from bayesloop.curves import probes_of, runs_of
from bayesloop.files import make_folder
from bayesloop.plot_loss import plot_residuals
from bayesloop.posterior import PosteriorError
from bayesloop.prediction import MAX_K, pit, pointwise_loo
from bayesloop.style import ALERT, FAINT, INK, PAGE, add_legend, new_figure, probe_style, save_figure, styled

if TYPE_CHECKING:
    from bayesloop.checks import Check

SHOWN = 12  # changes in the figure of what moves φ


@styled
def plot_pit(ax: Axes, post: xr.DataTree, prob: float = 0.95) -> Axes:
    """Distribution of the leave-one-out PIT values, minus what predictions with the right spread would give.

    The band holds the whole curve with the given probability (Kolmogorov's distribution, runs as independent). A
    curve like ∩ − ∪ says that predictions lie too high or too low, an S that they are too wide or too narrow.

    Parameters
    ----------
    ax : Axes
    post : DataTree
    prob : float

    Returns
    -------
    Axes
    """
    values = np.sort(pit(post))
    n = len(values)
    half = stats.kstwo(n).ppf(prob)
    ax.axhspan(-half, half, color=FAINT, alpha=0.45, linewidth=0)
    ax.axhline(0, color=INK, linewidth=0.8)
    ax.step(values, np.arange(1, n + 1) / n - values, where="post", color=probe_style("baseline", []).color)
    ax.set(xlim=(0, 1), xlabel="leave-one-out PIT", ylabel="distribution − uniform")
    return ax


@styled
def plot_pareto_k(ax: Axes, post: xr.DataTree) -> Axes:
    """Pareto k of every run, by probe, and the limit above which its leave-one-out density is not to be trusted."""
    k = np.asarray(pointwise_loo(post).pareto_k)
    runs, probes = runs_of(post), probes_of(post)
    handles = []
    for probe in probes:
        own, look = np.flatnonzero((runs["probe"] == probe).to_numpy()), probe_style(probe, probes)
        ax.plot(own, k[own], look.marker, color=look.color, markersize=3)
        handles.append(Line2D([], [], color=look.color, marker=look.marker, linestyle="none", label=probe))
    ax.axhline(MAX_K, color=ALERT, linewidth=0.8)
    ax.set(xlabel="run", ylabel="Pareto k")
    add_legend(ax.figure, handles)
    return ax


@styled
def plot_moves(ax: Axes, moves: pd.DataFrame) -> Axes:
    """What moves φ or Δφ most when it is left out or counted otherwise, in posterior standard deviations.

    Raises
    ------
    PosteriorError
        If no change is known.
    """
    known = moves[moves["in_sd"].notna()] if len(moves) else moves
    if known.empty:
        raise PosteriorError("nothing is known of what moves φ: the posterior has no φ, or its probes apart")
    order = known["in_sd"].abs().sort_values(ascending=False).index[:SHOWN]
    rows = known.loc[order].iloc[::-1]
    height = np.arange(len(rows))
    ax.barh(height, rows["in_sd"], color=np.where(rows["in_sd"].abs() > 1, ALERT, INK), height=0.6)
    ax.axvline(0, color=INK, linewidth=0.8)
    ax.set_yticks(height, [f"{row.quantity} without {row.without}" if row.kind != "counts"
                           else f"{row.quantity}, {row.without}" for row in rows.itertuples()])
    ax.set_xlabel("change in posterior standard deviations")
    return ax


def save_check_figures(post: xr.DataTree, found: Check, folder: str | os.PathLike[str]) -> list[Path]:
    """Write ``residuals``, ``pit``, ``pareto_k`` and, where φ is free, ``moves`` into a folder, as SVG and PNG.

    Raises
    ------
    InputError
        If the folder cannot be written.
    """
    target = make_folder(folder)
    written: list[Path] = []
    figure, ax = new_figure(width=PAGE, height=2.4)
    plot_residuals(ax, post)
    written += save_figure(figure, target / "residuals")
    figure, ax = new_figure(height=2.4)
    plot_pit(ax, post)
    written += save_figure(figure, target / "pit")
    figure, ax = new_figure(height=2.6)
    plot_pareto_k(ax, post)
    written += save_figure(figure, target / "pareto_k")
    if len(found.moves) and found.moves["in_sd"].notna().any():
        figure, ax = new_figure(width=PAGE, height=3.2)
        plot_moves(ax, found.moves)
        written += save_figure(figure, target / "moves")
    return written
