"""Figures of training: the loss curves of the runs of a sweep."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bayesloop.schema import Run
from bayesloop.style import COLUMN, FAINT, PAGE, add_legend, new_figure, probe_style, r_style, styled

MAX_POINTS = 200  # of a curve; evenly spaced in its steps, as they were written


@styled
def plot_curves(ax: Axes, runs: Sequence[Run], probes: Sequence[str] = ()) -> Axes:
    """Training loss against tokens, a line for each run in the colour of its r; markers are evaluations.

    Parameters
    ----------
    ax : Axes
    runs : sequence of Run
        From `schema.read_sweep` or `schema.read_run`, with `train` or `eval` curves; others are left out.
    probes : sequence of str
        All probes of the figure, which settle the markers of unknown ones.

    Returns
    -------
    Axes
    """
    known = list(probes) or [_probe(run) for run in runs]
    for run in sorted(runs, key=lambda run: -int(run.attrs.get("r", 1))):  # few recurrences on top
        look = r_style(int(run.attrs.get("r", 1)))
        if len(run.train.get("loss", ())):
            chosen = np.unique(np.linspace(0, len(run.train["loss"]) - 1, MAX_POINTS).astype(int))
            ax.plot(run.train["tokens"][chosen], run.train["loss"][chosen], color=look["color"], linewidth=0.5,
                    alpha=0.55)
        if len(run.eval.get("loss", ())):
            ax.plot(run.eval["tokens"], run.eval["loss"], linestyle="none", color=look["color"], zorder=3,
                    marker=probe_style(_probe(run), known).marker, markersize=3.5, markeredgecolor="white",
                    markeredgewidth=0.4)
    ax.set_xscale("log")
    ax.set_xlabel("training tokens")
    ax.set_ylabel("loss (nats/token)")
    handles = [Line2D([], [], color=r_style(r)["color"], label=f"r = {r}")
               for r in sorted({int(run.attrs.get("r", 1)) for run in runs})]
    handles.append(Line2D([], [], color=FAINT, linewidth=0.7, label="training"))
    handles += [Line2D([], [], color=FAINT, linestyle="none", marker=probe_style(probe, known).marker, label=probe)
                for probe in dict.fromkeys(map(_probe, runs))]
    add_legend(ax.figure, handles)
    return ax


@styled
def curves_figure(runs: Sequence[Run]) -> Figure:
    """`plot_curves` with a panel for each probe."""
    probes = list(dict.fromkeys(map(_probe, runs)))
    figure, axes = new_figure(len(probes), width=min(COLUMN * len(probes), PAGE), height=2.9, sharex=True, sharey=True)
    for ax, probe in zip(np.atleast_1d(axes), probes, strict=True):
        plot_curves(ax, [run for run in runs if _probe(run) == probe], probes)
        if len(probes) > 1:
            ax.set_title(probe)
            ax.label_outer()
    return figure


def _probe(run: Run) -> str:
    return str(run.attrs.get("probe", "baseline"))
