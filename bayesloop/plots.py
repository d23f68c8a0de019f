"""Figures of a posterior: axes in, axes out; nothing is computed but quantiles of draws and the law at draws.

Every function draws one legend at most, names units on its axes, and marks a posterior that has not converged.
Make axes with `style.new_figure` and files with `style.save_figure`, or bring your own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bayesloop.curves import (
    IsoFlop,
    iso_flop_curves,
    parabola_minimum,
    probe_runs,
    probes_of,
    residuals,
)
from bayesloop.posterior import PosteriorError, attribute
from bayesloop.style import COMPUTE, FAINT, INK, LOSS, SIZE, ProbeStyle, probe_style, r_style, styled

OUTER, INNER = (2.5, 97.5), (25.0, 75.0)  # percentiles of the 95 % and the 50 % interval
ALERT = "#B2182B"


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
    _legend(ax.figure, post, _interval_handles())
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
        handles.append(Patch(color=FAINT, alpha=0.45, linewidth=0, label=_minus(f"ROPE {rope[0]:.3g} to {rope[1]:.3g}")))
    _draw_rows(ax, post, others)
    ax.axvline(0, color=INK, linewidth=0.8, zorder=1)
    apart = ", separate fits" if post.attrs.get("share") == "none" else ""
    ax.set_xlabel(f"Δφ against {reference}{apart}")
    _legend(ax.figure, post, handles)
    return ax


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
    _legend(figure, post, [
        *(Line2D([], [], color=INK, marker=probe_style(name, probes).marker, linestyle="none", label=f"runs, {name}")
          for name in dict.fromkeys(probe_runs(post, probe)["probe"])),
        Line2D([], [], color=INK, label="expected loss by budget (FLOP)"),
        Patch(color=INK, alpha=0.25, linewidth=0, label="95 % interval"),
        Line2D([], [], color=INK, linestyle="none", **_MINIMUM, label="its minimum")])
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
    runs = residuals(post).assign(size=lambda table: table["n_once"] + table["n_rec"])
    probes = probes_of(post)
    order = {probe: place for place, probe in enumerate(probes)}
    runs = runs.assign(place=runs["probe"].map(order)).sort_values(["budget", "r", "place", "size"])
    x, ticks = 0.0, {}
    for budget, group in runs.groupby("budget", dropna=False):
        start = x
        for (r, probe), cell in group.groupby(["r", "probe"], sort=False):
            missed = 1e3 * cell["residual"].to_numpy()
            spread = np.linspace(-0.3, 0.3, len(cell)) if len(cell) > 1 else np.zeros(1)
            ax.plot(x + spread, missed, linestyle="none", marker=probe_style(probe, probes).marker, markersize=3,
                    color=r_style(r)["color"])
            ax.hlines(np.median(missed), x - 0.4, x + 0.4, color=INK, linewidth=1.2)
            x += 1
        ticks[(start + x - 1) / 2] = "no budget" if pd.isna(budget) else _power(float(str(budget)))
        ax.axvline(x, color=FAINT, linewidth=0.6)
        x += 1
    ax.axhline(0, color=INK, linewidth=0.7, zorder=0)
    ax.set_xticks(list(ticks), list(ticks.values()))
    ax.tick_params(axis="x", length=0)
    ax.set_xlabel(f"budget: {COMPUTE}")
    ax.set_ylabel("observed − expected loss\n(mnats/token)")
    handles = [Line2D([], [], color=r_style(r)["color"], marker=".", markersize=7, linestyle="none", label=f"r = {r}")
               for r in sorted(set(runs["r"]))]
    handles += [Line2D([], [], color=FAINT, marker=probe_style(probe, probes).marker, linestyle="none", label=probe)
                for probe in probes if len(probes) > 1]
    _legend(ax.figure, post, [*handles, Line2D([], [], color=INK, label="median of the column")])
    return ax


@styled
def plot_frontier(ax: Axes, post: xr.DataTree, probe: str = "baseline", contrast: xr.DataTree | None = None) -> Axes:
    """Compute-optimal loss against compute for each r: the law with 95 % band, and the runs' own optima as crosses.

    Parameters
    ----------
    ax : Axes
    post : DataTree
    probe : str
    contrast : DataTree, optional
        Another posterior of the same runs, such as one with ``fix={"phi": 1}``, drawn as dashed grey curves without
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
            ax.plot(budgets, [np.median(curve.minimum[1]) for curve in iso_flop_curves(contrast, probe, r)],
                    color="#8a8a8a", linestyle="--", linewidth=0.9, zorder=1)
    if contrast is not None:
        fixed = ", ".join(f"{'φ' if name == 'phi' else name} = {value:g}"
                          for name, value in attribute(contrast, "fix").items())
        handles.append(Line2D([], [], color="#8a8a8a", linestyle="--", label=f"every r, {fixed or 'contrast'}"))
    handles.append(Line2D([], [], color=INK, marker="x", linestyle="none", label="optimum of the runs"))
    ax.set_xscale("log")
    ax.set_xlabel(COMPUTE)
    ax.set_ylabel(f"compute-optimal {LOSS}")
    ax.legend(handles=[*handles, *_doubt(post)])
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


def _label_budgets(ax: Axes, curves: list[IsoFlop]) -> None:
    for curve in curves:
        ax.annotate(_power(curve.budget), (curve.size[-1], np.median(curve.loss[:, -1])), xytext=(4, 0),
                    textcoords="offset points", va="center", fontsize=7, color=INK, annotation_clip=False)


def _size_axis(ax: Axes) -> None:
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(LogLocator(subs=(1,) if high > 50 * low else (1, 3) if high > 8 * low else (1, 2, 5)))
    ax.xaxis.set_minor_locator(LogLocator(subs="all"))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda size, _: _count(size)))
    ax.xaxis.set_minor_formatter(NullFormatter())


def _count(size: float) -> str:
    """A number of parameters in words: 30M, 1B."""
    unit, suffix = next(((unit, suffix) for unit, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")) if size >= unit),
                        (1, ""))
    return f"{size / unit:g}{suffix}"


def _power(number: float) -> str:
    mantissa, exponent = f"{number:.2e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    return rf"$10^{{{int(exponent)}}}$" if mantissa == "1" else rf"${mantissa}\times10^{{{int(exponent)}}}$"


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
        value = _minus(f"{middle:.2f} [{low:.2f}, {high:.2f}]")
        labels[y] = f"{row.probe}\n{value}" if row.r is None else f"r = {row.r}   {value}"
        y += 1
    ax.set_yticks(list(labels), list(labels.values()))
    for text in ax.get_yticklabels():
        text.set_weight("normal" if "[" in text.get_text() else "bold")
    ax.set_ylim(y - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _interval_handles() -> list[Any]:
    return [Line2D([], [], color=INK, marker="o", linestyle="none", markersize=5, label="median"),
            Line2D([], [], color=INK, linewidth=3.2, label="50 %"), Line2D([], [], color=INK, linewidth=1.1, label="95 %")]


def _legend(figure: Any, post: xr.DataTree, handles: list[Any]) -> None:
    """One legend above the axes; what other axes of the figure have put there stays, each label once."""
    merged = {handle.get_label(): handle for handle in [*handles, *_doubt(post)]}
    for legend in list(figure.legends):
        merged = {handle.get_label(): handle for handle in legend.legend_handles} | merged
        legend.remove()
    columns = _columns([str(label) for label in merged], figure.get_figure(root=True).get_figwidth())
    figure.legend(handles=list(merged.values()), loc="outside upper center", ncols=columns, columnspacing=1.0,
                  handletextpad=0.4, borderaxespad=0.2)


def _columns(labels: list[str], width: float) -> int:
    """How many columns of a legend fit into a width in inches, as matplotlib fills them."""
    entries = np.array([0.4 + 0.062 * len(label) for label in labels])  # handle and gaps, then letters of 7.5 points
    fitting = [columns for columns in range(1, len(entries) + 1)
               if sum(part.max() for part in np.array_split(entries, columns)) <= width]
    return max(fitting, default=1)


def _doubt(post: xr.DataTree) -> list[Line2D]:
    """The legend entry that says that the posterior may not be trusted, if so."""
    unsure = not post.attrs.get("converged", 1)
    return [Line2D([], [], color=ALERT, marker="x", linestyle="none", markeredgewidth=1.5,
                   label="sampler not converged")] * unsure
