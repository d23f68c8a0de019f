"""How figures look: one colour per recurrence count, one colour and marker per probe, sizes, units, files."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bayesloop.files import writing

COLUMN, PAGE = 3.4, 7.0  # widths in inches of one column and of a two-column page

LOSS = "validation loss (nats/token)"
COMPUTE = "training compute (FLOP)"
SIZE = "unique non-embedding parameters"

RC: dict[str, Any] = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7.5, "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5, "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7,
    "xtick.major.width": 0.7, "ytick.major.width": 0.7, "xtick.minor.width": 0.5, "lines.linewidth": 1.2,
    "lines.markersize": 4, "legend.frameon": False, "legend.handlelength": 1.6, "svg.hashsalt": "bayesloop",
}

INK, FAINT, ALERT = "#222222", "#b5b5b5", "#B2182B"


class ProbeStyle(NamedTuple):
    """Colour and marker of a probe."""

    color: str
    marker: str


# Okabe and Ito's palette, without its yellow, which is too light for lines on white; markers tell them apart in grey.
_PROBES = {
    "baseline": ProbeStyle("#0072B2", "o"), "truncated": ProbeStyle("#D55E00", "s"),
    "hyperconnections": ProbeStyle("#009E73", "^"),
}
_SPARE = [ProbeStyle(color, marker) for marker, color in zip(
    "DvPXp<>h", ("#CC79A7", "#E69F00", "#56B4E9", "#222222", "#8B5A2B", "#777777", "#5E3C99", "#A6003C"), strict=True)]
_LINES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (5, 1.5, 1.2, 1.5)), (0, (1.2, 1.3)))
_TICKS = ((1,), (1, 2, 5), (1, 2, 3, 5, 7), (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9))  # the first with two in view
_VIRIDIS = matplotlib.colormaps["viridis"]


def probe_style(probe: str, probes: Iterable[str]) -> ProbeStyle:
    """Colour and marker of a probe; `probes`, all those of the posterior, settle what unknown ones get.

    The known probes look the same everywhere. Unknown ones take the spare styles in alphabetical order, so a figure
    of some of them agrees with a figure of all.
    """
    if probe in _PROBES:
        return _PROBES[probe]
    unknown = sorted({*probes, probe} - set(_PROBES))
    return _SPARE[unknown.index(probe) % len(_SPARE)]


def r_style(r: int) -> dict[str, Any]:
    """Colour and line style of a recurrence count: darker is fewer, so that the order survives in grey."""
    doublings = np.log2(max(r, 1))
    color = matplotlib.colors.to_hex(_VIRIDIS(0.02 + 0.24 * min(doublings, 3.4)))
    return {"color": color, "linestyle": _LINES[round(doublings) % len(_LINES)]}


_Draw = TypeVar("_Draw", bound=Callable[..., Any])


def styled(draw: _Draw) -> _Draw:
    """Draw with this package's settings; the user's own stay as they are."""
    @functools.wraps(draw)
    def within(*args: Any, **kwargs: Any) -> Any:
        with matplotlib.rc_context(RC):
            return draw(*args, **kwargs)
    return within  # type: ignore[return-value]


@styled
def new_figure(ncols: int = 1, nrows: int = 1, width: float = COLUMN, height: float = 2.6,
               **subplots: Any) -> tuple[Figure, Any]:
    """A figure that no global state knows of, and its axes (one, or an array as from `Figure.subplots`).

    Parameters
    ----------
    ncols, nrows : int
    width, height : float
        Inches; `COLUMN` and `PAGE` are those of a paper.
    **subplots
        Passed on to `Figure.subplots`, such as ``sharey=True``.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(nrows, ncols, **subplots)


@styled
def save_figure(figure: Figure, path: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Write a figure as SVG and as PNG (200 dpi), each atomically.

    Parameters
    ----------
    figure : Figure
    path : path
        Without suffix.

    Returns
    -------
    tuple of Path
        The SVG and the PNG file.

    Raises
    ------
    InputError
        If the folder does not exist or cannot be written; files that stood there stay whole.
    """
    svg, png = Path(f"{os.fspath(path)}.svg"), Path(f"{os.fspath(path)}.png")
    with writing(svg) as temporary:
        figure.savefig(temporary, format="svg", metadata={"Date": None})  # the same figure gives the same file
    with writing(png) as temporary:
        figure.savefig(temporary, format="png", dpi=200)
    return svg, png


def add_legend(figure: Any, handles: list[Any]) -> None:
    """One legend above the axes; what other axes of the figure have put there stays, each label once."""
    merged = {handle.get_label(): handle for handle in handles}
    for legend in list(figure.legends):
        merged = {handle.get_label(): handle for handle in legend.legend_handles} | merged
        legend.remove()
    columns = _columns([str(label) for label in merged], figure.get_figure(root=True).get_figwidth())
    figure.legend(handles=list(merged.values()), loc="outside upper center", ncols=columns, columnspacing=1.0,
                  handletextpad=0.4, borderaxespad=0.2)


def _columns(labels: list[str], width: float) -> int:
    """How many columns of a legend fit into a width in inches, as matplotlib fills them."""
    entries = np.array([0.33 + 0.057 * len(label) for label in labels])  # handle and gaps, then letters of 7.5 points
    fitting = [columns for columns in range(1, len(entries) + 1)
               if sum(part.max() for part in np.array_split(entries, columns)) <= width]
    return max(fitting, default=1)


def doubt(post: xr.DataTree) -> list[Line2D]:
    """The legend entry that says that the posterior may not be trusted, if so."""
    unsure = not post.attrs.get("converged", 1)
    return [Line2D([], [], color=ALERT, marker="x", linestyle="none", markeredgewidth=1.5,
                   label="sampler not converged")] * unsure


def in_words(size: float) -> str:
    """A number of parameters as people say it: 30M, 1B."""
    unit, suffix = next(((unit, suffix) for unit, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")) if size >= unit),
                        (1, ""))
    return f"{size / unit:g}{suffix}"


def as_power(number: float) -> str:
    """A number in scientific notation, as matplotlib typesets it."""
    mantissa, exponent = f"{number:.2e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    return rf"$10^{{{int(exponent)}}}$" if mantissa == "1" else rf"${mantissa}\times10^{{{int(exponent)}}}$"


def compute_axis(ax: Axes) -> None:
    """Compute along x: logarithmic, with labels that do not meet however few budgets there are."""
    ax.set_xscale("log")
    low, high = np.log10(ax.get_xlim())
    for subs in _TICKS:
        places = np.log10(subs) + np.arange(np.floor(low), np.ceil(high))[:, None]
        if np.sum((places >= low) & (places <= high)) > 1:
            break
    ax.xaxis.set_major_locator(LogLocator(subs=subs))
    ax.xaxis.set_minor_locator(LogLocator(subs="all"))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda compute, _: as_power(compute)))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel(COMPUTE)


def with_minus(text: str) -> str:
    """Hyphens before numbers as minus signs."""
    return text.replace("-", "−")
