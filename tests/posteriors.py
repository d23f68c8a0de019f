"""Small posteriors without sampling: draws around known values, over a small table of runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pandas as pd
import xarray as xr
from arviz_base import from_dict

from bayesloop.architecture import iso_depth
from bayesloop.errors import ERRORS
from bayesloop.laws import LAWS
from bayesloop.model import Model
from bayesloop.structures import RECIPES, STRUCTURES

TRUTH = {"E": 1.6, "A": 40.0, "B": 700.0, "alpha": 0.22, "beta": 0.36, "sigma": 0.004}
PHI = {"baseline": 0.45, "truncated": 0.3, "hyperconnections": 0.7}

# every law with φ, error model, structure of φ and recipe term, one away from the default
LOOPED_MODELS = [*({"law": name} for name, one in LAWS.items() if one.looped), *({"errors": name} for name in ERRORS),
                 *({"phi": name} for name in STRUCTURES), *({"recipe": name} for name in RECIPES if name != "none")]


def grid(looped: Sequence[str] = ("baseline",), counts: Sequence[int] = (2, 4), budgets: Sequence[float] = (3e17, 6e17),
         widths: Sequence[int] = (256, 384, 512, 640, 768)) -> pd.DataFrame:
    """Runs of the baseline at r = 1 and of the probes at the other counts, with the truth as their loss."""
    recipes = [("baseline", 1), *((probe, r) for probe in looped for r in counts)]
    rows = []
    for probe, r in recipes:
        for budget in budgets:
            for width in widths:
                model = iso_depth(width, r)
                rows.append({"probe": probe, "r": r, "budget": budget, "width": width, "n_once": float(model.n_once()),
                             "n_rec": float(model.n_rec()), "tokens": budget / model.flops_per_token})
    runs = pd.DataFrame(rows)
    phi = np.array([PHI.get(probe, 0.5) for probe in runs["probe"]])
    return runs.assign(loss=law(TRUTH, phi, runs))


def law(values: Mapping[str, Any], phi: Any, runs: Any) -> Any:
    """The recurrence law, written once more in numpy."""
    n_eff = runs["n_once"] + runs["r"] ** phi * runs["n_rec"]
    return values["E"] + values["A"] * n_eff ** -values["alpha"] + values["B"] * runs["tokens"] ** -values["beta"]


def posterior(runs: pd.DataFrame, phi_dims: Sequence[str] = ("probe",), fix: Mapping[str, float] | None = None,
              n_chains: int = 2, n_draws: int = 30, **attrs: Any) -> xr.DataTree:
    """A posterior in the form that `fit` returns, around the truth; every draw differs."""
    rng = np.random.default_rng(1)
    fix = dict(fix or {})
    shape = (n_chains, n_draws)
    draws = {name: (("chain", "draw"), value * np.exp(0.002 * rng.normal(size=shape)))
             for name, value in TRUTH.items() if name not in fix}
    coords = {"probe": list(dict.fromkeys(runs.loc[runs["r"] > 1, "probe"])) or ["baseline"],
              "r": sorted(set(runs.loc[runs["r"] > 1, "r"])) or [1]}
    if "phi" not in fix:
        centre = xr.DataArray([PHI.get(probe, 0.5) for probe in coords["probe"]], {"probe": coords["probe"]})
        by_r = xr.DataArray([0.02 * i for i in range(len(coords["r"]))], {"r": coords["r"]})
        phi = centre + by_r
        phi = phi.isel({dim: 0 for dim in ("probe", "r") if dim not in phi_dims}, drop=True)
        noise = 0.02 * rng.normal(size=(*shape, *phi.shape))
        draws["phi"] = (("chain", "draw", *phi.dims), phi.to_numpy() + noise)
    group = xr.Dataset(draws, {dim: coords[dim] for dim in phi_dims if "phi" not in fix})
    tree = xr.DataTree.from_dict({
        "posterior": group,
        "constant_data": xr.Dataset({name: ("run", column.to_numpy()) for name, column in runs.items()
                                     if name != "loss"}),
        "observed_data": xr.Dataset({"loss": ("run", runs["loss"].to_numpy())}),
    })
    tree.attrs = {"law": "recurrence", "errors": "normal", "fix": json.dumps(fix), "share": "law",
                  "converged": 1, **attrs}
    return tree


def prior_as_posterior(model: Model, n: int = 20, runs: pd.DataFrame | None = None) -> xr.DataTree:
    """Draws from the prior in the form of a posterior, the level near the truth so that losses are losses.

    With the model's runs, in the form that `fit` returns.
    """
    draws = jax.vmap(model.sample_prior)(jax.random.split(jax.random.key(2), n))
    draws = {name: np.full_like(value, TRUTH[name]) if name in TRUTH else np.asarray(value)
             for name, value in draws.items()}
    tree = from_dict({"posterior": {name: value[None] for name, value in draws.items()}},
                     coords={dim: model.coords[dim] for dim in ("probe", "r", "recipe") if model.coords[dim]},
                     dims={name: list(model.dims(name)) for name in draws})
    tree.attrs = {"law": model.law.name, "phi": model.structure.name, "recipe": model.recipe.name,
                  "errors": model.errors.name, "compute": model.compute, "fix": json.dumps(model.fix),
                  "priors": json.dumps({name: str(prior) for name, prior in model.priors.items()}),
                  "share": "law", "converged": 1}
    if runs is not None:
        tree["constant_data"] = xr.Dataset({name: ("run", column.to_numpy()) for name, column in runs.items()
                                            if name != "loss"})
        tree["observed_data"] = xr.Dataset({"loss": ("run", runs["loss"].to_numpy())})
    return tree
