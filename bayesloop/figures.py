"""Whole figures, as the commands write them: composed of the axes of `plots`."""

from __future__ import annotations

import xarray as xr
from matplotlib.figure import Figure

from bayesloop.plots import plot_differences, plot_forest, plot_iso_flop, recurrences
from bayesloop.style import PAGE, new_figure


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
    if len(figure.legends) > 1:  # the second says all that the first does
        figure.legends[0].remove()
    return figure


def iso_flop_figure(post: xr.DataTree, probe: str) -> Figure:
    """Loss against size, a panel for each r, with posterior bands and minima.

    Parameters
    ----------
    post : DataTree
    probe : str

    Returns
    -------
    Figure
    """
    figure, axes = new_figure(len(recurrences(post, probe)), width=PAGE, height=3.0, sharex=True, sharey=True)
    plot_iso_flop(axes, post, probe)
    return figure
