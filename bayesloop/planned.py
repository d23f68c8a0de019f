"""A posterior's own model over other runs, trained or planned, and its parameters there at posterior draws.

Law, error model, structure of φ, recipe term, priors and fixed values are the posterior's. A recipe that it has not
seen gets a φ near that of a known one and no recipe effect; an r that it has not seen, the mean φ over those it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from bayesloop.laws import Prior, get_law
from bayesloop.layout import recipe_applies
from bayesloop.model import Model, build_model
from bayesloop.posterior import PosteriorError, attribute
from bayesloop.structures import get_recipe

ALLOWED = "data_factor"  # the recipe term that planning allows for where the posterior has none


def planned_model(post: xr.DataTree, runs: pd.DataFrame, recipes: Sequence[str] = ()) -> Model:
    """The model of a posterior over other runs.

    Parameters
    ----------
    post : DataTree
    runs : DataFrame
        probe, r, n_once, n_rec, tokens; budget where the error model needs it.
    recipes : sequence of str
        Probes that may have a recipe effect although the posterior's model has none. The model then has one for every
        recipe (`Recipe`); it is for the caller to hold the others at 0.

    Raises
    ------
    PosteriorError
        If the law has no φ, the probes were fitted apart, or `recipes` adds nothing to the posterior's own term.
    LawError
        If the runs lack what the model needs.
    """
    attrs = post.attrs
    own, phi = str(attrs.get("recipe", "none")), str(attrs.get("phi", "probe"))
    if attrs.get("share") == "none" or not get_law(attrs["law"]).looped:
        raise PosteriorError("planning needs a posterior of a law with φ whose probes share the law (share='law')")
    if recipes and get_recipe(own).priors:
        raise PosteriorError(f"the posterior's model has the recipe term {own!r} for every recipe already; leave out "
                             "recipes= (--recipe)")
    needed = [name for name in ("probe", "r", "n_once", "n_rec", "tokens", "budget") if name in runs]
    term = ALLOWED if recipes else own
    if not recipe_applies(runs["probe"].to_numpy(str), runs["r"].to_numpy(), get_recipe(term).looped).any():
        term = "none"  # no such run: its effect plays no part
    model = build_model(runs[needed].assign(loss=1.0), attrs["law"], attrs["errors"], phi=phi, recipe=term)
    priors = {name: Prior.parse(text) for name, text in attribute(post, "priors").items() if name in model.priors}
    fix = {name: value for name, value in attribute(post, "fix").items() if name in model.priors}
    unknown = [name for name in recipes if name not in model.layout.recipes]
    if unknown:
        raise PosteriorError(f"{unknown[0]!r} can have no recipe effect: it is the baseline, or no run of it is known "
                             f"or planned; expected some of {', '.join(model.layout.recipes)}")
    free = {name: prior for name, prior in {**model.priors, **priors}.items() if name not in fix}
    return replace(model, priors=free, fix=fix, compute=float(attrs.get("compute", model.compute)))


def values_of(post: xr.DataTree, model: Model, draws: xr.Dataset, like: str | None = None,
              shift: float = 0.0) -> dict[str, np.ndarray]:
    """Parameters of a posterior's model over other runs, fixed ones included.

    Parameters
    ----------
    post : DataTree
    model : Model
        From `planned_model`.
    draws : Dataset
        Draws of the posterior along `sample`.
    like : str, optional
        Probe that a new one's φ is taken from; default, or where it is unknown, the first.
    shift : float
        What is added to it.

    Returns
    -------
    dict of str to array, shape (draw, …)
        By name, with the parameter's own shape.
    """
    values = {}
    for name in [*model.free, *model.fix]:
        if name in draws:
            values[name] = _laid_out(draws[name], model, name, like, shift)
        else:  # fixed, or a recipe effect that the posterior does not know
            values[name] = np.full((draws.sizes["sample"], *model.shape(name)), attribute(post, "fix").get(name, 0.0))
    return values


def _laid_out(value: xr.DataArray, model: Model, name: str, like: str | None, shift: float) -> np.ndarray:
    """Draws of one parameter with the shape it has in the model, shape (draw, …)."""
    moved: Mapping[str, float] = {"phi": shift, "phi_mean": shift}
    parts: Any = value
    for dim in model.dims(name):
        known, entries = list(value[dim].to_numpy()) if dim in value.dims else [], []
        for label in model.coords[dim]:
            if not known:  # one φ for every run
                entries.append(parts)
            elif label in known:
                entries.append(parts.sel({dim: label}, drop=True))
            elif dim == "probe":
                entries.append(parts.sel({dim: like if like in known else known[0]}, drop=True) + moved.get(name, 0.0))
            else:
                entries.append(parts.mean(dim) if dim == "r" else 0.0 * parts.isel({dim: 0}, drop=True))
        parts = xr.concat(entries, dim)
    return parts.transpose("sample", *model.dims(name)).to_numpy()


def unseen_r(post: xr.DataTree, runs: pd.DataFrame) -> list[int]:
    """Recurrence counts of runs that a φ by r of the posterior does not know."""
    phi = post["posterior"].get("phi")
    known = set() if phi is None or "r" not in phi.dims else set(phi["r"].to_numpy().tolist())
    return sorted({int(r) for r in runs["r"] if r > 1} - known) if known else []
