"""Leave-one-out prediction by importance sampling (PSIS), as a posterior's log likelihood gives it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import xarray as xr
from arviz_stats import loo, loo_pit

MAX_K = 0.7  # Pareto k above which importance weights are not to be trusted (arXiv 1507.02646)


def pointwise_loo(post: xr.DataTree) -> Any:
    """ArviZ's `loo` run by run, without its warning of large Pareto k, which callers report."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return loo(post, pointwise=True)


def pit(post: xr.DataTree) -> np.ndarray:
    """Leave-one-out probability integral transform of every run, shape (run,); without the warning, as above."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return loo_pit(post)["loss"].to_numpy()


def log_likelihood(post: xr.DataTree) -> np.ndarray:
    """Log likelihood of every run at every draw, chains one after the other, shape (draw, run)."""
    return post["log_likelihood"]["loss"].stack(sample=("chain", "draw")).transpose("sample", "run").to_numpy()
