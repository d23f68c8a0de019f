"""A plan checked by simulation: losses drawn from the posterior's own model, fitted by the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pandas as pd
import xarray as xr

from bayesloop.inference import fit
from bayesloop.model import Model
from bayesloop.planned import planned_model, values_of
from bayesloop.planning import checked_design, known_runs
from bayesloop.selection import ANCHOR
from bayesloop.simulation import simulate


def refit(post: xr.DataTree, design: pd.DataFrame | None, existing: bool = True, reference: str = ANCHOR,
          delta: float = 0.1, recipes: Sequence[str] = (), scatter: float | None = None, number: int = 3,
          seed: int = 0, progress: Callable[[int, int], None] | None = None) -> pd.DataFrame:
    """Check `plan` by simulation: draw losses of the runs from the posterior, fit them, and look at φ's spread.

    Parameters
    ----------
    post, design, existing, reference, delta
        As in `plan`.
    recipes : sequence of str
        As in `plan`, but if there are any, every recipe is fitted with an effect.
    scatter : float, optional
        Relative scatter of a run by itself in the simulated tables, in place of the posterior's sigma.
    number, seed : int
        Of the simulated tables; one whose fit did not converge is not counted.
    progress : callable, optional
        Called with (tables done, tables).

    Returns
    -------
    DataFrame
        As `plan`: quantity, probe, sd (mean over the refits), bias (mean of estimate minus truth) and number.
    """
    runs = pd.concat([*([known_runs(post, True)] if existing else []), checked_design(design)], ignore_index=True)
    runs = runs.drop(columns=["loss_se"], errors="ignore").assign(run_id=[str(i) for i in range(len(runs))])
    model = planned_model(post, runs, recipes)
    options: dict[str, Any] = {"law": model.law, "errors": model.errors, "phi": model.structure.name,
                               "recipe": model.recipe.name, "priors": model.priors, "fix": model.fix}
    draws = post["posterior"].to_dataset().stack(sample=("chain", "draw"))
    rng, found, used = np.random.default_rng(seed), [], 0
    for done in range(number):
        one = draws.isel(sample=[rng.integers(draws.sizes["sample"])])
        truth = values_of(post, model, one, reference, delta)
        free = {name: value[0] for name, value in truth.items() if name not in model.fix}
        if scatter is not None:
            free["sigma"] = np.array(scatter)
        losses = simulate(model, jax.random.key(int(rng.integers(2**31))), 1, free).loss[0]
        again = fit(runs.assign(loss=losses), **options, seed=int(rng.integers(2**31)))
        if progress:
            progress(done + 1, number)
        if not again.attrs["converged"]:
            continue
        flat = again["posterior"].to_dataset().stack(sample=("chain", "draw")).transpose("sample", ...)
        fitted = {str(name): value.to_numpy() for name, value in flat.data_vars.items()}
        used += 1
        known = _quantities(model, runs, truth, model.compute, reference)
        for name, values in _quantities(model, runs, fitted, again.attrs["compute"], reference).items():
            found.append((*name, values.std(ddof=1), values.mean() - known[name][0]))
    table = pd.DataFrame(found, columns=["quantity", "probe", "sd", "bias"])
    return table.groupby(["quantity", "probe"], sort=False).mean().reset_index().assign(number=used)


def _quantities(model: Model, runs: pd.DataFrame, values: Mapping[str, np.ndarray], compute: float,
                reference: str) -> dict[tuple[str, str], np.ndarray]:
    """φ of each probe at the model's compute, from values at another, and Δφ: means over the r of their runs, (draw,).

    A difference is over the r that both probes have runs of, as in `compare`.
    """
    if "phi" not in values:
        return {}

    by_r, phi, counts = "r" in model.dims("phi"), {}, {}
    for i, probe in enumerate(model.layout.probes):
        own = values["phi"][:, i] if "probe" in model.dims("phi") else values["phi"]
        if "phi_slope" in values:
            own = own + values["phi_slope"] * np.log10(model.compute / compute)
        phi[probe] = own if by_r else own[:, None]
        counts[probe] = set(runs.loc[runs["probe"] == probe, "r"])

    def mean(phi: np.ndarray, counts: set) -> np.ndarray:
        own = [j for j, r in enumerate(model.layout.recurrences) if r in counts] if by_r else [0]
        return phi[:, own].mean(axis=1) if own else np.zeros(0)

    found = {("phi", probe): mean(own, counts[probe]) for probe, own in phi.items()}
    for probe in [probe for probe in phi if probe != reference and reference in phi]:
        found["delta", probe] = mean(phi[probe] - phi[reference], counts[probe] & counts[reference])
    return {name: draws for name, draws in found.items() if len(draws)}
