"""A cluster-robust spread beside the posterior's: what the runs say when those of a cell may miss together.

The sandwich variance over cells, computed from posterior draws alone (the Bayesian infinitesimal jackknife, Giordano
and Broderick, arXiv 2305.06466): the influence of a cell on a quantity is the posterior covariance of the quantity
with the cell's log likelihood. Where runs are independent it agrees with the posterior's own variance.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr
from scipy import stats

from bayesloop.bootstrap import cells
from bayesloop.curves import runs_of
from bayesloop.errors import get_errors
from bayesloop.identification import cells_without_runs
from bayesloop.posterior import PosteriorError
from bayesloop.prediction import log_likelihood


def influences(values: np.ndarray, density: np.ndarray, cluster: np.ndarray) -> np.ndarray:
    """How far each cluster of runs pulls the posterior mean of a quantity.

    Parameters
    ----------
    values : array, shape (draw,)
    density : array, shape (draw, run)
        Log likelihood of independent runs.
    cluster : int array, shape (run,)
        Number of each run's cluster, from 0.

    Returns
    -------
    array, shape (cluster,)
        About the change of the posterior mean if the cluster were counted twice.
    """
    member = cluster[:, None] == np.arange(cluster.max() + 1)
    by_cluster = density @ member
    return (values - values.mean()) @ (by_cluster - by_cluster.mean(axis=0)) / (len(values) - 1)


def robust_spread(values: np.ndarray, density: np.ndarray, cluster: np.ndarray) -> float:
    """Standard deviation of a quantity over resampled clusters, with the small-sample factor G / (G − 1)."""
    pull = influences(values, density, cluster)
    return float(np.sqrt(len(pull) / (len(pull) - 1) * np.sum((pull - pull.mean()) ** 2)))


def robust_intervals(post: xr.DataTree, reference: str = "baseline", prob: float = 0.95) -> pd.DataFrame:
    """Every φ and Δφ with the posterior's spread and the cluster-robust one over (budget, r) cells.

    Parameters
    ----------
    post : DataTree
        From `fit`, with φ free and errors that are independent between runs.
    reference : str
        The probe that differences are taken from.
    prob : float
        Probability of the robust interval, from Student's t with one degree of freedom less than there are cells.

    Returns
    -------
    DataFrame
        Index: quantity. Columns: mean, sd, robust_sd, lower, upper.

    Raises
    ------
    PosteriorError
        If φ is not free, the runs have no budget, or the error model lets runs miss together already.
    """
    if get_errors(post.attrs["errors"]).factor is not None:
        raise PosteriorError(f"errors={post.attrs['errors']!r} let runs miss together already; the robust interval is "
                             "for errors that are independent between runs")
    runs = runs_of(post)
    if runs["budget"].isna().any():
        raise PosteriorError("the robust interval is over (budget, r) cells, but some runs have no budget")
    cluster = cells(runs["budget"].to_numpy(float), runs["r"].to_numpy())
    density = log_likelihood(post)
    width = stats.t(cluster.max()).ppf((1 + prob) / 2)
    rows = {}
    for name, values in phi_quantities(post, reference).items():
        spread = robust_spread(values, density, cluster)
        rows[name] = {"mean": values.mean(), "sd": values.std(ddof=1), "robust_sd": spread,
                      "lower": values.mean() - width * spread, "upper": values.mean() + width * spread}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("quantity")


def phi_quantities(post: xr.DataTree, reference: str) -> dict[str, np.ndarray]:
    """Draws of φ of every probe (and r, and averaged over r) and of its difference from the reference, by name.

    Raises
    ------
    PosteriorError
        If φ is not free.
    """
    if "phi" not in post["posterior"]:
        raise PosteriorError("a posterior without φ: it was fixed, or the law has none; fit with a free φ")
    phi = post["posterior"]["phi"].stack(sample=("chain", "draw"))
    if "probe" not in phi.dims:
        return {"φ": phi.to_numpy()}
    found: dict[str, np.ndarray] = {}
    empty = cells_without_runs(post)
    for symbol, base in (("φ", None), ("Δφ", reference)):
        for probe in [str(name) for name in phi["probe"].values if base is None or str(name) != base]:
            if base is not None and base not in phi["probe"].values:
                continue
            own = phi.sel(probe=probe) - (phi.sel(probe=base) if base else 0.0)
            if "r" in own.dims:  # those that both have runs of
                own = own.sel(r=[r for r in own["r"].values if not {(probe, int(r)), (str(base), int(r))} & {*empty}])
                if not own.sizes["r"]:
                    continue
                found |= {f"{symbol}[{probe}, {r}]": own.sel(r=r).to_numpy() for r in own["r"].values}
                own = own.mean("r")
            found[f"{symbol}[{probe}]"] = own.to_numpy()
    return found
