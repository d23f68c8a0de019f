"""Resampling for the point fit: what is drawn again, and what the refits say.

A resample is a set of weights and a set of log losses for the same runs, so all refits share one design.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bayesloop.selection import group_budgets

BOOTSTRAPS = {
    "block": "(budget, r) cells drawn with replacement, each kept whole (arXiv 2604.21106, the interval on phi)",
    "runs": "runs drawn with replacement, as if independent",
    "wild": "the fit's log losses plus its residuals, those of a (budget, r) cell times one random sign",
}


def cells(budget: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Number of the (budget, r) cell of each run, shape (run,)."""
    pairs = np.stack([group_budgets(budget), np.asarray(r, int)], axis=1)
    return np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)


def resample(kind: str, unit: np.ndarray, log_y: np.ndarray, fitted: np.ndarray, num: int,
             rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw resamples.

    Parameters
    ----------
    kind : str
        A key of `BOOTSTRAPS`.
    unit : array of int
        What is drawn or flipped together: the cell of each run, or its own number, from 0, shape (run,).
    log_y, fitted : array
        Logarithm of the observed and the fitted loss, shape (run,).
    num : int
        Number of resamples.

    Returns
    -------
    log_y, weights : arrays
        Each of shape (num, run); a weight says how often the run was drawn.

    Raises
    ------
    ValueError
        If the kind is unknown.
    """
    if kind not in BOOTSTRAPS:
        raise ValueError(f"bootstrap {kind!r} is unknown; expected one of {', '.join(BOOTSTRAPS)}")
    count = int(unit.max()) + 1
    if kind == "wild":
        signs = rng.choice([-1.0, 1.0], (num, count))[:, unit]
        return fitted + signs * (log_y - fitted), np.ones((num, len(unit)))
    drawn = rng.multinomial(count, np.full(count, 1 / count), num)
    return np.tile(log_y, (num, 1)), drawn[:, unit].astype(float)


@dataclass(frozen=True)
class Bootstrap:
    """Refits of resamples.

    Attributes
    ----------
    kind : str
        A key of `BOOTSTRAPS`.
    draws : mapping of str to array
        Natural parameters by name, each of shape (resample,); NaN where the refit failed.
    failed : int
        Resamples whose refit did not converge.
    on_boundary : int
        Resamples whose optimum lies on a bound of the search.
    """

    kind: str
    draws: Mapping[str, np.ndarray]
    failed: int
    on_boundary: int

    def interval(self, name: str, prob: float = 0.95) -> tuple[float, float]:
        """Percentile interval of one parameter that holds `prob` of the refits; NaN if none succeeded."""
        draws = self.draws[name][np.isfinite(self.draws[name])]
        if not len(draws):
            return float("nan"), float("nan")
        low, high = np.quantile(draws, [(1 - prob) / 2, (1 + prob) / 2])
        return float(low), float(high)

    def to_dict(self) -> dict[str, Any]:
        """Plain Python values in full precision, ready for JSON; a failed draw is None."""
        return {
            "kind": self.kind, "failed": self.failed, "on_boundary": self.on_boundary, "prob": 0.95,
            "interval": {name: [None if np.isnan(end) else end for end in self.interval(name)]
                         for name in self.draws},
            "draws": {name: [float(value) if np.isfinite(value) else None for value in values]
                      for name, values in self.draws.items()},
        }
