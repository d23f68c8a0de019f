"""Where the runs have been: whether a configuration lies among them, and if not, on which side and how far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import xarray as xr
from scipy.spatial import ConvexHull, QhullError

from bayesloop.curves import design_of, runs_of
from bayesloop.laws import Design
from bayesloop.pooling import Pool

SLACK = 1e-3  # relative; steps and batches are whole, so equal budgets differ by this much
AXES = ("N_eff", "D", "C", "r")


def outside(pool: Pool, design: Design, flops: np.ndarray, probe: str | Sequence[str]) -> list[str]:
    """In words, how each configuration leaves the range of the runs; empty where it does not.

    The axes are the effective size at the mean of φ, tokens, training compute and recurrence count, each over all
    runs of the posterior; and, for what is inside on every axis, the convex hull of the runs over log N_eff and log D.

    Parameters
    ----------
    pool : Pool
    design : Design
        Arrays of shape (run,).
    flops : array, shape (run,)
        Training compute, FLOP; NaN where unknown, which is not judged then.
    probe : str or sequence of str

    Returns
    -------
    list of str
        Such as ``C 20.0× above, D 3.1× above``.
    """
    seen = _logs(pool, *_of_runs(pool.first))
    asked = _logs(pool, design, np.asarray(flops, float), probe)
    unknown = np.isnan(seen).all(axis=0)
    low, high = np.nanmin(seen, axis=0, initial=np.inf), np.nanmax(seen, axis=0, initial=-np.inf)
    hull = _hull(seen[:, :2])
    words = []
    for point in asked:
        parts = [f"{name} {np.exp(gap):.3g}× {side}" for name, here, least, most, blind
                 in zip(AXES, point, low, high, unknown, strict=True)
                 for gap, side in ((here - most, "above"), (least - here, "below")) if gap > SLACK and not blind]
        if not parts and hull is not None and (hull[:, :2] @ point[:2] + hull[:, 2] > SLACK).any():
            parts = ["N_eff and D in a combination that was not run"]
        words.append(", ".join(parts))
    return words


def _of_runs(post: xr.DataTree) -> tuple[Design, np.ndarray, list[str]]:
    runs = runs_of(post)
    return design_of(runs), compute_of(runs), list(runs["probe"])


def compute_of(runs: pd.DataFrame) -> np.ndarray:
    """Training compute of runs: spent, else planned, else unknown (NaN)."""
    compute = pd.Series(np.nan, index=runs.index)
    for name in ("budget", "flops"):
        if name in runs:
            compute = runs[name].where(runs[name] > 0, compute)
    return compute.to_numpy(float)


def _logs(pool: Pool, design: Design, flops: np.ndarray, probe: str | Sequence[str]) -> np.ndarray:
    """log N_eff, log D, log C and log r, shape (run, 4)."""
    size = pool.log_n_eff(design, probe).mean(axis=0)
    return np.column_stack([size, np.log(design.tokens), np.log(flops), np.log(design.r)])


def _hull(points: np.ndarray) -> np.ndarray | None:
    """Normals and offsets of the convex hull, or None where the points lie on a line."""
    try:
        return ConvexHull(points).equations
    except QhullError:
        return None
