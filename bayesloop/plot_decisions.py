"""Figures of decisions: the compute-optimal model against compute, and precision against what the runs cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bayesloop.style import COMPUTE, INK, LOSS, PAGE, add_legend, compute_axis, in_words, new_figure, r_style, styled

LABELS = {"loss": f"optimal {LOSS}", "size": "optimal size (unique parameters)", "tokens": "optimal training tokens"}


@styled
def plot_optimum(ax: Axes, table: pd.DataFrame, name: str = "loss") -> Axes:
    """One quantity of the compute-optimal model against compute, a curve with its interval for each r.

    Crosses are the optima of the observed losses alone, the minima of parabolas in log size; hollow points lie beyond
    the runs.

    Parameters
    ----------
    ax : Axes
    table : DataFrame
        From `optimum`.
    name : {"loss", "size", "tokens"}

    Returns
    -------
    Axes
    """
    for r, own in table.groupby("r"):
        look = r_style(int(str(r)))
        ax.fill_between(own["budget"], own[f"{name}_lower"], own[f"{name}_upper"], color=look["color"], alpha=0.25,
                        linewidth=0)
        ax.plot(own["budget"], own[name], **look)
        beyond = own[own["extrapolates"] != ""]
        ax.plot(beyond["budget"], beyond[name], linestyle="none", marker="o", color=look["color"],
                markerfacecolor="white")
        if f"parabola_{name}" in own:
            ax.plot(own["budget"], own[f"parabola_{name}"], linestyle="none", marker="x", color=look["color"])
    compute_axis(ax)
    ax.set_ylabel(LABELS[name])
    if name != "loss":
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda size, _: in_words(size)))
        ax.yaxis.set_minor_formatter(NullFormatter())
    return ax


@styled
def optimum_figure(table: pd.DataFrame) -> Figure:
    """The frontier of loss, N* and D* against compute, side by side.

    Parameters
    ----------
    table : DataFrame
        From `optimum`.
    """
    figure, axes = new_figure(3, width=PAGE, height=2.9)
    for ax, name in zip(axes, LABELS, strict=True):
        plot_optimum(ax, table, name)
    handles = [Line2D([], [], **r_style(int(r)), label=f"r = {r}") for r in sorted(set(table["r"]))]
    handles.append(Line2D([], [], color=INK, marker="x", linestyle="none", label="optimum of the runs"))
    if (table["extrapolates"] != "").any():
        handles.append(Line2D([], [], color=INK, marker="o", markerfacecolor="white", linestyle="none",
                              label="beyond the runs"))
    add_legend(figure, handles)
    return figure


@styled
def plot_precision(ax: Axes, steps: pd.DataFrame, goal: float | None = None, **line: Any) -> Axes:
    """Expected half-width of an interval against the compute that the runs cost.

    Parameters
    ----------
    ax : Axes
    steps : DataFrame
        From `cheapest`: one row for each number of runs, with `flops` and `half_width`.
    goal : float, optional
        The half-width that was wanted.
    **line
        Passed on to `Axes.plot`.

    Returns
    -------
    Axes
    """
    known = steps[np.isfinite(steps["half_width"])]
    ax.plot(known["flops"], known["half_width"], **{"color": INK, "marker": ".", **line})
    if goal is not None:
        ax.axhline(goal, color=INK, linewidth=0.7, linestyle=":")
    compute_axis(ax)
    ax.set_ylim(0, min(4 * float(known["half_width"].min()), 1.05 * float(known["half_width"].max())))
    ax.set_xlabel(f"{COMPUTE} of all runs")
    ax.set_ylabel("expected half-width of the interval")
    return ax
