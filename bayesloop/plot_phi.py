"""Figures of φ: what a recurrence is worth in each recipe, and the differences between recipes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bayesloop.curves import probes_of
from bayesloop.posterior import PosteriorError
from bayesloop.style import FAINT, INK, ProbeStyle, add_legend, doubt, probe_style, styled, with_minus

OUTER, INNER = (2.5, 97.5), (25.0, 75.0)  # percentiles of the 95 % and the 50 % interval


class _Row(NamedTuple):
    probe: str
    r: int | None
    draws: np.ndarray


@styled
def plot_forest(ax: Axes, post: xr.DataTree) -> Axes:
    """φ of every probe, and of every r where it varies with r: median, 50 % and 95 % interval of the posterior.

    Parameters
    ----------
    ax : Axes
    post : DataTree
        From `fit` or `load`, with phi free.

    Returns
    -------
    Axes

    Raises
    ------
    PosteriorError
        If phi is fixed or absent.
    """
    _draw_rows(ax, post, _phi_rows(post))
    for worth in (0, 1):  # nothing, and a unique block
        if ax.get_xlim()[0] <= worth <= ax.get_xlim()[1]:
            ax.axvline(worth, color=FAINT, linewidth=0.8, zorder=0)
    ax.set_xlabel("recurrence exponent φ")
    add_legend(ax.figure, [*_interval_handles(), *doubt(post)])
    return ax


@styled
def plot_differences(ax: Axes, post: xr.DataTree, reference: str = "baseline",
                     rope: tuple[float, float] | None = None) -> Axes:
    """Δφ of every probe against a reference, draw by draw: median, 50 % and 95 % interval, and zero.

    Parameters
    ----------
    ax : Axes
    post : DataTree
        From `fit` or `load`, with a phi for each probe.
    reference : str
        The probe that is subtracted, at equal r where phi varies with r.
    rope : tuple of float, optional
        Lower and upper end of the differences that make no difference in practice; drawn as a band.

    Returns
    -------
    Axes

    Raises
    ------
    PosteriorError
        If phi is fixed or absent, the reference is not among the probes, or nothing else is.
    """
    rows = _phi_rows(post)
    base = {row.r: row.draws for row in rows if row.probe == reference}
    others = [_Row(row.probe, row.r, row.draws - base[row.r]) for row in rows if row.probe != reference and base]
    if not others:
        raise PosteriorError(f"no difference of φ against {reference!r}: the posterior has φ for "
                             f"{', '.join(dict.fromkeys(row.probe for row in rows))}; expected the reference and "
                             "another probe, from a fit with phi=\"probe\" or \"probe_r\"")
    handles = _interval_handles()
    if rope is not None:
        ax.axvspan(*rope, color=FAINT, alpha=0.45, linewidth=0, zorder=0)
        label = with_minus(f"ROPE {rope[0]:.3g} to {rope[1]:.3g}")
        handles.append(Patch(color=FAINT, alpha=0.45, linewidth=0, label=label))
    _draw_rows(ax, post, others)
    ax.axvline(0, color=INK, linewidth=0.8, zorder=1)
    apart = ", separate fits" if post.attrs.get("share") == "none" else ""
    ax.set_xlabel(f"Δφ against {reference}{apart}")
    add_legend(ax.figure, [*handles, *doubt(post)])
    return ax


def _phi_rows(post: xr.DataTree) -> list[_Row]:
    if "phi" not in post["posterior"]:
        raise PosteriorError("this posterior has no free φ (it is fixed, or the law has none); fit a law with φ free")
    phi = post["posterior"]["phi"].stack(sample=("chain", "draw"))
    rows = []
    for probe in phi["probe"].to_numpy() if "probe" in phi.dims else ["all probes"]:
        own = phi.sel(probe=probe) if "probe" in phi.dims else phi
        if "r" in own.dims:
            rows += [_Row(str(probe), int(r), own.sel(r=r).to_numpy()) for r in own["r"].to_numpy()]
        else:
            rows.append(_Row(str(probe), None, own.to_numpy()))
    return rows


def _draw_rows(ax: Axes, post: xr.DataTree, rows: list[_Row]) -> None:
    labels: dict[float, str] = {}
    y = 0.0
    for before, row in zip([None, *rows], rows, strict=False):
        if row.r is not None and (before is None or before.probe != row.probe):
            labels[y] = row.probe
            y += 1
        low, high = np.percentile(row.draws, OUTER)
        middle = np.median(row.draws)
        look = ProbeStyle(INK, "o") if row.probe == "all probes" else probe_style(row.probe, probes_of(post))
        ax.plot([low, high], [y, y], color=look.color, linewidth=1)
        ax.plot(np.percentile(row.draws, INNER), [y, y], color=look.color, linewidth=3.5, solid_capstyle="butt")
        ax.plot(middle, y, color=look.color, marker=look.marker, markersize=5, markeredgecolor="white",
                markeredgewidth=0.6)
        value = with_minus(f"{middle:.2f} [{low:.2f}, {high:.2f}]")
        labels[y] = f"{row.probe}\n{value}" if row.r is None else f"r = {row.r}   {value}"
        y += 1
    ax.set_yticks(list(labels), list(labels.values()))
    for text in ax.get_yticklabels():
        text.set_fontweight("normal" if "[" in text.get_text() else "bold")
    ax.set_ylim(y - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def _interval_handles() -> list[Any]:
    return [Line2D([], [], color=INK, marker="o", linestyle="none", markersize=5, label="median"),
            Line2D([], [], color=INK, linewidth=3.5, label="50 %"),
            Line2D([], [], color=INK, linewidth=1, label="95 %")]
