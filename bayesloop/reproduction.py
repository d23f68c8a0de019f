"""The published measurement beside ours: the point fits of arXiv 2604.21106 (v3), redone on the runs of its figure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pandas as pd

from bayesloop.pointfit import PointFit, point_fit
from bayesloop.selection import anchored, select

LOW, LOWER, UPPER = "budget <= 4.64e18", "budget <= 2.15e18", "budget >= 4.64e18"


@dataclass(frozen=True)
class Published:
    """A published fit: which runs, which law, and the numbers printed for it."""

    name: str
    numbers: dict[str, float]
    probe: str = "baseline"
    where: str | None = None
    law: str = "recurrence"
    fix: dict[str, float] = field(default_factory=dict)

    def runs(self, runs: pd.DataFrame) -> pd.DataFrame:
        """The runs of this fit out of the whole table."""
        chosen = select(runs, self.where) if self.where else runs
        return anchored(chosen, self.probe)


# Joint fits and fits of the four lower budgets; per-r fits of the Chinchilla law.
JOINT = (
    Published("joint, all 116 runs", {"phi": 0.459, "alpha": 0.199, "beta": 0.369, "E": 1.57, "r2": 0.9972}),
    Published("phi fixed at 0", {"phi": 0, "alpha": 0.227, "beta": 0.390, "E": 1.71, "r2": 0.9858}, fix={"phi": 0}),
    Published("phi fixed at 1", {"phi": 1, "alpha": 0.218, "beta": 0.410, "E": 1.66, "r2": 0.9552}, fix={"phi": 1}),
    Published("low half, C ≤ 2.15e18", {"phi": 0.44}, where=LOWER),
    Published("high half, C ≥ 4.64e18", {"phi": 0.49}, where=UPPER),
    Published("lower four budgets: baseline", {"phi": 0.453, "alpha": 0.266, "beta": 0.457, "E": 1.85, "r2": 0.9959},
              where=LOW),
    Published("  truncated", {"phi": 0.380, "alpha": 0.255, "beta": 0.484, "E": 1.87, "r2": 0.9827},
              "truncated", LOW),
    Published("  truncated without r = 2", {"phi": 0.373, "alpha": 0.265, "beta": 0.492, "E": 1.89, "r2": 0.9958},
              "truncated", f"{LOW} and r != 2"),
    Published("  hyperconnections",
              {"phi": 0.646, "alpha": 0.308, "beta": 0.464, "E": 1.93, "r2": 0.9900}, "hyperconnections", LOW),
)
_PER_R = (  # r, A, alpha, B, beta, E, R²
    (1, 58, 0.251, 150, 0.267, 1.56, 0.9979), (2, 33, 0.216, 910, 0.365, 1.60, 0.9983),
    (4, 23, 0.191, 1300, 0.388, 1.56, 0.9976), (8, 41, 0.235, 780, 0.362, 1.69, 0.9980))
PER_R = tuple(
    Published(f"r = {r}", dict(zip(("A", "alpha", "B", "beta", "E", "r2"), numbers, strict=True)),
              where=f"r == {r}", law="chinchilla") for r, *numbers in _PER_R)
PHI_INTERVAL = (0.41, 0.53)  # published 95 % block-bootstrap interval of the joint fit


def reproduce(runs: pd.DataFrame, num_starts: int = 500, seed: int = 0,
              progress: Callable[[int, int], None] | None = None) -> pd.DataFrame:
    """Refit everything the paper prints.

    Parameters
    ----------
    runs : DataFrame
        The whole table of the paper's runs (baseline and both probes), in one injection convention.
    num_starts, seed : int
        As in `point_fit`.
    progress : callable, optional
        Called with (fits done, fits in all).

    Returns
    -------
    DataFrame
        One row per fit and number: fit, number, published, ours, difference.
    """
    rows, fits = [], JOINT + PER_R
    for done, published in enumerate(fits, 1):
        fit = point_fit(published.runs(runs), law=published.law, fix=published.fix, num_starts=num_starts,
                        num_bootstrap=0, seed=seed)
        rows += [{"fit": published.name, "number": name, "published": value, "ours": number_of(fit, name),
                  "difference": number_of(fit, name) - value} for name, value in published.numbers.items()]
        if progress:
            progress(done, len(fits))
    return pd.DataFrame(rows)


def number_of(fit: PointFit, name: str) -> float:
    """A parameter of a point fit, or its `r2`."""
    return fit.r2 if name == "r2" else fit.parameters[name]
