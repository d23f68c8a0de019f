"""Figure of matched differences: what a recipe does at each r, and what another φ alone would do."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from bayesloop.style import INK, add_legend, probe_style, styled


@styled
def plot_matched(ax: Axes, table: pd.DataFrame, unit: str = "mnats per token") -> Axes:
    """Differences in loss at equal budget, r and width by r, beside those of Δφ alone.

    Parameters
    ----------
    ax : Axes
    table : DataFrame
        From `matched_differences`; of several posteriors the first one's correction is drawn.
    unit : str
        Of a thousandth of the loss.

    Returns
    -------
    Axes
    """
    own = table[(table["law"] == table["law"].iloc[0]) & (table["recipe"] == table["recipe"].iloc[0])]
    probes = list(dict.fromkeys(own["probe"]))
    looks = {probe: probe_style(probe, ["baseline", *probes]) for probe in probes}
    for number, (probe, look) in enumerate(looks.items()):
        rows = own[own["probe"] == probe]
        place = np.log2(rows["r"].to_numpy(float)) + 0.05 * (number - (len(probes) - 1) / 2)
        ax.errorbar(place, 1e3 * rows["corrected"], 1e3 * rows["se"], color=look.color, marker=look.marker,
                    markersize=5, linestyle="none", capsize=2)
        ax.plot(place, 1e3 * rows["pure"], color=look.color, linestyle="--", linewidth=1)
    ax.axhline(0, color=INK, linewidth=0.8, zorder=0)
    counts = sorted(set(own["r"]))
    ax.set_xticks(np.log2(counts), [str(r) for r in counts])
    ax.set_xlabel("recurrence count r")
    ax.set_ylabel(f"loss minus baseline, {unit}")
    add_legend(ax.figure, [
        *(Line2D([], [], color=look.color, marker=look.marker, linestyle="none", markersize=5,
                 label=f"{probe}, matched runs ± se") for probe, look in looks.items()),
        Line2D([], [], color=INK, linestyle="--", linewidth=1, label="what Δφ alone would do")])
    return ax
