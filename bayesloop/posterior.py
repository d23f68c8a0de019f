"""Posterior files: netCDF that this package and any ArviZ open."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from bayesloop.convergence import diagnose
from bayesloop.files import writing
from bayesloop.schema import InputError


class PosteriorError(InputError):
    """A file that is not a posterior of this package, or one that may not be used for what was asked."""


def save(post: xr.DataTree, path: str | os.PathLike[str]) -> None:
    """Write a posterior as netCDF, atomically.

    Raises
    ------
    PosteriorError
        If the file cannot be written; what stood there before is untouched.
    """
    with writing(path, PosteriorError) as temporary:
        post.to_netcdf(temporary, engine="h5netcdf")


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a place where nothing can be written, before hours are spent on what should stand there.

    Raises
    ------
    PosteriorError
        If the folder does not exist or cannot be written, or the path is a folder.
    """
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir() or not os.access(target.parent, os.W_OK):
        reason = "it is a folder" if target.is_dir() else f"{target.parent} is no folder that can be written"
        raise PosteriorError(f"{target}: cannot be written ({reason}); choose a writable place")


def load(path: str | os.PathLike[str]) -> xr.DataTree:
    """Read a posterior written by `save`, into memory.

    Raises
    ------
    PosteriorError
        If the file is missing, not netCDF, or not a posterior of this package.
    """
    try:
        with xr.open_datatree(os.fspath(path), engine="h5netcdf") as tree:
            post = tree.load()
    except FileNotFoundError:
        raise PosteriorError(f"{os.fspath(path)}: no such file; `bayesloop fit RUNS --out FILE` writes one") from None
    except (OSError, ValueError):  # HDF5's own words name signatures and times, which help nobody
        raise PosteriorError(f"{os.fspath(path)}: not a netCDF file that can be read; expected a posterior written by "
                             "`bayesloop fit RUNS --out FILE` (a table of runs goes to `bayesloop fit`)") from None
    if "posterior" not in post.children or "law" not in post.attrs:
        raise PosteriorError(f"{os.fspath(path)}: not a posterior written by bayesloop; expected a group `posterior` "
                             "and the attribute `law`")
    return post


def attribute(post: xr.DataTree, name: str, default: Any = None) -> Any:
    """An attribute that is stored as JSON, such as `priors`, `fix`, `versions`, `doubts`; where absent, a default."""
    if default is not None and name not in post.attrs:
        return default
    return json.loads(post.attrs[name])


def summarise(post: xr.DataTree, prob: float = 0.95) -> pd.DataFrame:
    """Posterior of every parameter.

    Parameters
    ----------
    post : DataTree
        From `fit`.
    prob : float
        Probability of the equal-tailed interval.

    Returns
    -------
    DataFrame
        Index: parameter, with its coordinates in brackets. Columns: mean, sd, lower, upper, rhat, ess_bulk, ess_tail.
    """
    rows = {}
    for name, draws in parameters(post).items():
        for label, place in elements(name, draws):
            value = draws.to_numpy()[(..., *place)]
            lower, upper = np.quantile(value, [(1 - prob) / 2, (1 + prob) / 2])
            rows[label] = {"mean": value.mean(), "sd": value.std(ddof=1), "lower": lower, "upper": upper,
                           **diagnose(value)}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("parameter")


def parameters(post: xr.DataTree) -> dict[str, xr.DataArray]:
    """The sampled parameters, dims (chain, draw, …)."""
    return {str(name): values for name, values in post["posterior"].data_vars.items()}


def elements(name: str, draws: xr.DataArray) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Each element of a parameter of dims (chain, draw, …): its name with its coordinates in brackets, its place."""
    for place in np.ndindex(draws.shape[2:]):
        labels = [str(draws[dim].values[i]) for dim, i in zip(draws.dims[2:], place, strict=True)]
        yield name + (f"[{', '.join(labels)}]" if labels else ""), place
