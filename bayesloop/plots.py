"""Figures of a posterior: axes in, axes out; nothing is computed but quantiles of draws and the law at draws.

Every figure has one legend, names the units on its axes, and marks a posterior whose sampler has not converged.
Make axes with `new_figure` and files with `save_figure`, or bring your own axes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import xarray as xr
from matplotlib.figure import Figure

from bayesloop.curves import probes_of, runs_of
from bayesloop.plot_curves import curves_figure, plot_curves
from bayesloop.plot_loss import plot_frontier, plot_iso_flop, plot_residuals, recurrences
from bayesloop.plot_matched import plot_matched
from bayesloop.plot_phi import plot_differences, plot_forest
from bayesloop.style import COLUMN, PAGE, new_figure, probe_style, r_style, save_figure

__all__ = ["COLUMN", "PAGE", "comparison_figure", "curves_figure", "drawn_figures", "figures", "file_name",
           "iso_flop_figure", "new_figure", "plot_curves", "plot_differences", "plot_forest", "plot_frontier",
           "plot_iso_flop", "plot_matched", "plot_residuals", "probe_style", "r_style", "recurrences", "save_figure"]


def figures(post: xr.DataTree, reference: str = "baseline", rope: tuple[float, float] | None = None,
            contrast: xr.DataTree | None = None) -> Iterator[tuple[str, Figure]]:
    """All figures that a posterior allows, each with a name that is fit for a file, drawn one at a time.

    Parameters
    ----------
    post : DataTree
        From `fit` or `load`.
    reference, rope
        As in `plot_differences`.
    contrast
        As in `plot_frontier`; drawn for the probes it has seen.

    Yields
    ------
    tuple of str and Figure
        ``forest`` and ``differences`` where phi is free and varies; ``iso_flop_PROBE`` and ``frontier_PROBE`` for
        every probe with budgets; ``residuals``.
    """
    for kind, probe, figure in drawn_figures(post, reference, rope, contrast):
        yield f"{kind}_{file_name(probe)}" if probe else kind, figure


def drawn_figures(post: xr.DataTree, reference: str = "baseline", rope: tuple[float, float] | None = None,
                  contrast: xr.DataTree | None = None) -> Iterator[tuple[str, str, Figure]]:
    """As `figures`, but each with its kind and the probe it is about.

    Parameters
    ----------
    post, reference, rope, contrast
        As in `figures`.

    Yields
    ------
    tuple of str, str and Figure
        The kind, the probe (empty where the figure is about all of them), and the figure.
    """
    yield from ((kind, "", figure) for kind, figure in _phi_figures(post, reference, rope))
    runs = runs_of(post)
    for probe in dict.fromkeys(runs.loc[runs["budget"].notna(), "probe"]):
        yield "iso_flop", probe, iso_flop_figure(post, probe)
        figure, ax = new_figure(height=3.0)
        plot_frontier(ax, post, probe, contrast if contrast is not None and probe in probes_of(contrast) else None)
        yield "frontier", probe, figure
    figure, ax = new_figure(width=PAGE, height=2.4)
    plot_residuals(ax, post)
    yield "residuals", "", figure


def file_name(probe: str) -> str:
    """A probe's name as a part of a file's."""
    return re.sub(r"[^\w.-]+", "_", probe)


def iso_flop_figure(post: xr.DataTree, probe: str) -> Figure:
    """Loss against size, a panel for each r, with posterior bands and minima: `plot_iso_flop` at a fitting size."""
    counts = recurrences(post, probe)
    figure, axes = new_figure(len(counts), width=PAGE * min(max(len(counts), 2), 4) / 4, height=2.9, sharex=True,
                              sharey=True)
    plot_iso_flop(axes, post, probe)
    return figure


def comparison_figure(post: xr.DataTree, reference: str = "baseline", rope: float | None = None) -> Figure:
    """φ of every probe, beside the differences from a reference.

    Parameters
    ----------
    post : DataTree
        With a phi for each probe.
    reference : str
    rope : float, optional
        Half-width of the region of practical equivalence, shown as a band.

    Returns
    -------
    Figure
    """
    rows = int(post["posterior"]["phi"].isel(chain=0, draw=0).size)
    figure, (left, right) = new_figure(2, width=PAGE, height=1.5 + 0.22 * rows)
    plot_forest(left, post)
    plot_differences(right, post, reference, None if rope is None else (-rope, rope))
    return figure


def _phi_figures(post: xr.DataTree, reference: str, rope: tuple[float, float] | None) -> Iterator[tuple[str, Figure]]:
    if "phi" not in post["posterior"]:
        return
    phi = post["posterior"]["phi"]
    probes = list(phi["probe"].to_numpy()) if "probe" in phi.dims else []
    row = 0.22 * (phi.sizes["r"] + 1) if "r" in phi.dims else 0.36  # inches for one probe
    figure, ax = new_figure(height=0.85 + row * max(len(probes), 1))
    plot_forest(ax, post)
    yield "forest", figure
    if reference in probes and len(probes) > 1:
        figure, ax = new_figure(height=0.85 + row * (len(probes) - 1))
        plot_differences(ax, post, reference, rope)
        yield "differences", figure
