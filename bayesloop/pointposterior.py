"""A point fit in the form of a posterior, so that whatever is derived from draws can be derived from an estimate."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import xarray as xr

from bayesloop.laws import get_law
from bayesloop.pointfit import PointFit
from bayesloop.schema import COLUMNS


def as_posterior(point: PointFit, runs: pd.DataFrame) -> xr.DataTree:
    """One draw: the estimate itself, with the scatter of its residuals as sigma.

    Parameters
    ----------
    point : PointFit
    runs : DataFrame
        The runs it was fitted to.

    Returns
    -------
    DataTree
        Groups posterior, constant_data, observed_data and the attributes that decisions read.
    """
    sigma = float(np.std(np.log(runs["loss"]) - np.log(runs["loss"] - point.residuals)))
    values = {**{name: point.parameters[name] for name in get_law(point.law).priors}, "sigma": sigma}
    columns = {name: ("run", runs[name].to_numpy()) for name in COLUMNS if name in runs and name != "loss"}
    tree = xr.DataTree.from_dict({
        "posterior": xr.Dataset({name: (("chain", "draw"), np.full((1, 1), value)) for name, value in values.items()}),
        "constant_data": xr.Dataset(columns),
        "observed_data": xr.Dataset({"loss": ("run", runs["loss"].to_numpy())}),
    })
    tree.attrs = {"law": point.law, "errors": "normal", "phi": "one", "share": "law", "fix": json.dumps({}),
                  "converged": int(point.converged), "verdict": "point fit",
                  "data_sha256": runs.attrs.get("sha256", ""), "data_injection": runs.attrs.get("injection", "rec"),
                  "data_count_convention": runs.attrs.get("count_convention", "exact")}
    return tree
