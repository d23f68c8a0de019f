"""Fit: from a table of runs to a posterior that carries its evidence."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import xarray as xr
from arviz_base import from_dict

import bayesloop
from bayesloop.choice import settle
from bayesloop.convergence import Convergence, assess
from bayesloop.errors import ErrorModel, pointwise
from bayesloop.identification import doubts
from bayesloop.laws import Law, LawError, get_law
from bayesloop.model import Model, build_model
from bayesloop.runs import check_identifiable, fingerprint
from bayesloop.sampling import Draws, Faint, Settings, counted, one_by_one, quick_compile, run_nuts
from bayesloop.schema import SCHEMA_VERSION

# more runs than this are first fitted as if each were a part of one, all together as many as FAINT_RUNS
MANY_RUNS, FAINT_RUNS = 1000, 200
STRICTER = (0.99, 12)  # target_accept_prob and max_tree_depth of the one retry, which also doubles both counts


def fit(runs: pd.DataFrame, law: str | Law | None = None, errors: str | ErrorModel = "normal", phi: str | None = None,
        share: str = "law", priors: Mapping[str, Any] | None = None, fix: Mapping[str, float] | None = None,
        recipe: str | None = None, num_warmup: int = 1000, num_samples: int = 1000, num_chains: int = 4, seed: int = 0,
        target_accept_prob: float = 0.95, max_tree_depth: int = 10,
        progress: Callable[[int, int], None] | None = None) -> xr.DataTree:
    """Sample the posterior of a scaling law.

    Parameters
    ----------
    runs : DataFrame
        As from `read_runs` or `select`.
    law, errors, phi : str
        Names of a law, an error model and a structure of phi (`LAWS`, `ERRORS`, `STRUCTURES`). Where none of law, phi
        and recipe is named, nor anything fixed or fitted apart, the table decides about all three (`choice.choose`);
        else the others are the paper's: recurrence, probe, none.
    share : {"law", "none"}
        ``"law"``: the probes share everything but phi, so that shared r = 1 runs count once and differences of phi
        are meaningful. ``"none"``: separate fits as in the paper.
    priors : mapping, optional
        Changed priors by parameter, a `Prior` or text such as ``"Normal(0.5, 0.2)"``.
    fix : mapping, optional
        Parameters held at a value.
    recipe : str
        Name of a recipe term (`RECIPES`): what every probe but the baseline does to its runs besides changing phi.
    num_warmup, num_samples, num_chains, seed, target_accept_prob, max_tree_depth
        As in NumPyro; the counts of iterations are rounded up to a multiple of 50.
    progress : callable, optional
        Called as ``progress(done, total)`` with iterations, all chains together.

    Returns
    -------
    DataTree
        Groups posterior, sample_stats, log_likelihood, log_prior, prior, prior_predictive, posterior_predictive,
        observed_data, constant_data; dims chain, draw, run, probe, r. The attributes carry law, priors, data hash,
        versions, seed, the verdict on convergence (`converged`: 1 or 0, `verdict`: a sentence) and `doubts`: what the
        runs did not decide. A fit that has not converged, or has any divergence, is repeated once with a stricter
        sampler, and says so.

    Raises
    ------
    LawError, RunsError
        If a name, prior or fixed value is impossible, or the table cannot identify the law.
    """
    choice = settle(runs, law if law is None else get_law(law).name, phi, recipe, share == "law" and not fix)
    model = build_model(runs, law or choice.law, errors, choice.phi, share, priors, fix, choice.recipe)
    n_free = sum(math.prod(model.shape(name)) for name in model.free)
    check_identifiable(runs, law_has_phi="phi" in model.free, n_parameters=n_free)
    if model.errors.warning:
        warnings.warn(model.errors.warning, stacklevel=2)
    settings = Settings(num_warmup, num_samples, target_accept_prob, max_tree_depth)
    _check_sampling(settings, num_chains, seed)
    draws, convergence = _attempt(model, settings, num_chains, seed, progress)
    attempts = [convergence]
    if not convergence.converged or convergence.divergences:
        stricter = (max(own, least) for own, least in zip((target_accept_prob, max_tree_depth), STRICTER, strict=True))
        settings = Settings(2 * num_warmup, 2 * num_samples, *stricter)  # type: ignore[arg-type]
        draws, convergence = _attempt(model, settings, num_chains, seed + 1, progress)
        attempts.append(convergence)
    tree = _tree(model, draws, seed)
    tree.attrs.update(_provenance(model, runs, settings, num_chains, seed), **_evidence(attempts))
    tree.attrs.update(choice=choice.reason, choice_lacks=int(choice.lacks))
    tree.attrs.update(sampler_seed=seed + len(attempts) - 1, doubts=json.dumps(doubts(tree)))
    return tree


def _check_sampling(settings: Settings, num_chains: int, seed: int) -> None:
    for name, value, low, high in (
            ("num_warmup", settings.num_warmup, 1, 10**7), ("num_samples", settings.num_samples, 4, 10**7),
            ("num_chains", num_chains, 1, 10**4), ("seed", seed, 0, 2**32 - 2),
            ("target_accept_prob", settings.target_accept_prob, 0.01, 0.9999),
            ("max_tree_depth", settings.max_tree_depth, 1, 20)):
        if not low <= value <= high:
            raise LawError(f"{name} is {value}; expected {low} to {high}")


def _attempt(model: Model, settings: Settings, num_chains: int, seed: int,
             progress: Callable[[int, int], None] | None) -> tuple[Draws, Convergence]:
    keys = jax.random.split(jax.random.key(seed), num_chains)
    data, n_runs = dict(model.layout.data), len(model.layout.loss)
    faint = None
    if n_runs > MANY_RUNS:
        data["weight"], share = np.ones(n_runs), FAINT_RUNS / n_runs
        faint = Faint({"weight": np.full(n_runs, share)}, share)
    draws = run_nuts(model, data, keys, settings, progress=counted(progress, num_chains, settings, faint), faint=faint)
    free = {name: draws.values[name] for name in model.free}
    labels = {name: [model.coords[dim] for dim in model.dims(name)] for name in free}
    return draws, assess(free, draws.stats, settings.max_tree_depth, labels)


def _tree(model: Model, draws: Draws, seed: int) -> xr.DataTree:
    posterior = {name: draws.values[name] for name in model.free}
    n_chains, n_draws = draws.stats["n_steps"].shape
    keys = jax.random.split(jax.random.key(seed), n_chains + 2)
    simulate = _simulator(model, {name: value[0] for name, value in posterior.items()}, keys[0])
    parts = [simulate({name: value[i] for name, value in posterior.items()}, keys[i]) for i in range(n_chains)]
    log_likelihood, replicated, log_prior = jax.tree.map(lambda *arrays: np.stack(arrays), *parts)
    prior = jax.vmap(model.sample_prior)(jax.random.split(keys[-1], n_draws))
    _, prior_loss, _ = simulate(prior, keys[-2])
    stats = {**draws.stats, "tree_depth": np.ceil(np.log2(draws.stats["n_steps"] + 1)).astype(int)}
    groups = {
        "posterior": posterior, "sample_stats": stats, "log_likelihood": {"loss": log_likelihood},
        "log_prior": log_prior, "posterior_predictive": {"loss": replicated},
        "prior": {name: np.asarray(value)[None] for name, value in prior.items()},
        "prior_predictive": {"loss": np.asarray(prior_loss)[None]},
        "observed_data": {"loss": model.layout.loss}, "constant_data": model.layout.columns,
    }
    dims = {name: list(model.dims(name)) for name in model.free}
    dims |= {"loss": ["run"], **{name: ["run"] for name in model.layout.columns}}
    used = {"run", *(dim for name in model.free for dim in model.dims(name))}
    return from_dict(groups, coords={dim: model.coords[dim] for dim in used}, dims=dims)


def _simulator(model: Model, example: dict[str, Any], key: Any) -> Callable:
    """Compiled (draws, key) → log likelihood and replicated loss by draw and run, log prior by parameter."""
    data = {name: jax.tree.map(jnp.asarray, value) for name, value in model.layout.data.items()}

    def one(values: dict, key: Any) -> tuple[Any, Any, dict]:
        _, loss = model.predictive({**values, **model.fixed}, data)
        return pointwise(loss, data["loss"]), loss.sample(key), model.log_prior(values)

    def many(values: dict, key: Any) -> tuple[Any, Any, dict]:
        return one_by_one(one, values, jax.random.split(key, len(next(iter(values.values())))))

    return quick_compile(jax.jit(many).lower(example, key))


def _provenance(model: Model, runs: pd.DataFrame, settings: Settings, num_chains: int, seed: int) -> dict[str, Any]:
    """What the posterior was made from; netCDF takes numbers and text only."""
    packages = ("bayesloop", "numpyro", "jax", "numpy", "xarray", "arviz-base")
    table = {name: runs.attrs.get(name, "unknown") for name in ("source", "injection", "count_convention")}
    return {
        "law": model.law.name, "errors": model.errors.name, "phi": model.structure.name, "share": model.share,
        "recipe": model.recipe.name, "compute": model.compute,
        "priors": json.dumps({name: str(model.priors.get(name, "Normal(phi_mean, tau)")) for name in model.free}),
        "fix": json.dumps(model.fix), "seed": seed, "num_chains": num_chains, **asdict(settings),
        "data_sha256": fingerprint(runs), **{f"data_{name}": value for name, value in table.items()},
        "data_where": " and ".join(f"({where})" for where in runs.attrs.get("where", [])),
        "data_declared": json.dumps(runs.attrs.get("declared", {})),
        "data_excluded": json.dumps(runs.attrs.get("excluded", [])),
        "versions": json.dumps({name: _version(name) for name in packages}), "schema_version": SCHEMA_VERSION,
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # used from a checkout without being installed
        return bayesloop.__version__ if package == "bayesloop" else "unknown"


def _evidence(attempts: list[Convergence]) -> dict[str, Any]:
    final = attempts[-1]
    return {"converged": int(final.converged), "verdict": final.verdict, "retries": len(attempts) - 1,
            "convergence": json.dumps([attempt.to_dict() for attempt in attempts])}
