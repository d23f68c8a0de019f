"""Laws, error models and structures of φ by what they predict: groups of runs left out, the rest fitted again.

Leaving out one run asks little of a law where its neighbours stay; a cell, a budget or a recurrence count asks what
the law is for. Every refit is exact. Stacking weights (Yao, Vehtari, Simpson and Gelman 2018, arXiv 1704.02030) then
say how to mix the posteriors so that the mixture predicts best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from scipy.special import logsumexp

from bayesloop.curves import runs_of
from bayesloop.inference import fit
from bayesloop.laws import LawError
from bayesloop.posterior import PosteriorError
from bayesloop.prediction import MAX_K, pointwise_loo
from bayesloop.refits import model_of, refit, score
from bayesloop.robust import phi_quantities
from bayesloop.selection import ANCHOR, group_budgets

FIELDS = ("law", "errors", "phi", "recipe")
DEFAULTS = ("recurrence", "normal", "probe", "none")
CANDIDATES = ("recurrence", "kaplan_recurrence", "cross_recurrence", "recurrence/budget", "recurrence/smooth",
              "recurrence/normal/probe_r", "cross_recurrence/normal/probe_r")
WITH_RECIPES = ("cross_recurrence/normal/probe_r/data_factor",)  # where there is more than the baseline
SCHEMES = {
    "run": "each run by itself, by importance sampling (PSIS)", "cell": "each (probe, budget, r) cell",
    "budget": "each budget", "r": "each recurrence count", "top": "the largest budget, from the lower ones",
}
EM_STEPS = 20_000  # a fraction of a second; weights that go to 0 do so slowly
BATCHES = 10  # of a chain, for the Monte Carlo error of a mean
# a group that the others say little about is likely under a few draws only (a φ that only the left-out r informs: one);
# the logarithm of their mean is then off, mostly too low, by more than its own Monte Carlo error says
MIN_DRAWS = 5.0


@dataclass(frozen=True)
class HeldOut:
    """What `held_out` returns.

    Attributes
    ----------
    table : DataFrame
        One row per model and scheme. Columns: model, law, errors, phi, recipe, converged; scheme, groups (left out,
        one at a time); elpd (log density of the groups, each jointly, summed over groups) with its Monte Carlo error
        `mc_se`; behind (how much less than the best model) and behind_se, over groups; each (log density of every
        left-out run by itself, summed); rmse (nats, of the predictive mean) and covered (share of the runs in the
        central 95 % predictive interval); draws (smallest effective number that a group's density rests on); unsound
        (groups whose short refit has not converged or whose density rests on fewer than `MIN_DRAWS`, or for `run`
        those with a Pareto k above 0.7) and worst_k; weight (stacking over the groups; NaN for fewer than five).
    averages : DataFrame
        φ and Δφ under the mixtures: scheme of the weights, quantity, mean, sd, lower, upper (95 %); rows whose
        scheme is a model's name are that model's own.
    posts : list of DataTree
        The posteriors of all runs.
    """

    table: pd.DataFrame
    averages: pd.DataFrame
    posts: list[xr.DataTree]


def held_out(runs: pd.DataFrame | Sequence[xr.DataTree], models: Sequence[str] | None = None,
             reference: str = ANCHOR, seed: int = 0, progress: Callable[[str, int, int], None] | None = None,
             **options: Any) -> HeldOut:
    """Compare models by exact refits without a cell, a budget or a recurrence count of the runs.

    Parameters
    ----------
    runs : DataFrame or sequence of DataTree
        A table, to which every model is fitted, or posteriors of one table.
    models : sequence of str, optional
        LAW[/ERRORS[/PHI[/RECIPE]]], such as ``"cross_recurrence/normal/probe_r"``; what is left out is normal, probe
        and none. The default set holds each law, error model and structure worth a look, not all combinations.
    reference : str
        The probe that differences of φ are taken from.
    seed : int
    progress : callable, optional
        Called as ``progress(model, done, total)``.
    **options
        Passed to `fit`.

    Returns
    -------
    HeldOut

    Raises
    ------
    LawError, PosteriorError
        If a model's name is malformed, or the posteriors are of different runs or have their probes apart.
    """
    if isinstance(runs, pd.DataFrame):
        names = default_models(runs) if models is None else models
        choices = {name: parse(name) for name in names}
        posts = {name: fit(runs, **choice, **options, seed=seed, progress=_labelled(progress, f"{name}: all runs"))
                 for name, choice in choices.items()}
    else:
        posts = _named(runs)
    if len({str(post.attrs["data_sha256"]) for post in posts.values()}) != 1:
        raise PosteriorError("held-out prediction is compared on the same runs, but these posteriors are of different "
                             "ones; fit them to one table")
    scored = {name: _scored(post, seed, _labelled(progress, f"{name}: refits")) for name, post in posts.items()}
    parts = [_rows(scheme, {name: found[scheme] for name, found in scored.items()})
             for scheme in next(iter(scored.values()))]
    table = pd.concat(parts, ignore_index=True)
    about = pd.DataFrame([{"model": name, **{field: post.attrs.get(field, default) for field, default in
                           zip(FIELDS, DEFAULTS, strict=True)}, "converged": bool(post.attrs["converged"])}
                          for name, post in posts.items()])
    return HeldOut(about.merge(table, on="model", sort=False), _averages(posts, table, reference, seed),
                   list(posts.values()))


def _named(posts: Sequence[xr.DataTree]) -> dict[str, xr.DataTree]:
    """Posteriors by the names of their models; those of one model, with other priors, are numbered."""
    found: dict[str, xr.DataTree] = {}
    for number, post in enumerate(posts, 1):
        name = "/".join(str(post.attrs.get(field, default)) for field, default in zip(FIELDS, DEFAULTS, strict=True))
        found[name if name not in found else f"{name} ({number})"] = post
    return found


def parse(name: str) -> dict[str, Any]:
    """A model's name as options of `fit`.

    Raises
    ------
    LawError
        If it has more than four parts or an empty one.
    """
    parts = name.split("/")
    if len(parts) > len(FIELDS) or not all(parts):
        raise LawError(f"model {name!r}: expected LAW[/ERRORS[/PHI[/RECIPE]]], such as "
                       "cross_recurrence/normal/probe_r")
    return dict(zip(FIELDS, [*parts, *DEFAULTS[len(parts):]], strict=True))


def default_models(runs: pd.DataFrame) -> tuple[str, ...]:
    """The models that a table of runs can be compared under."""
    return CANDIDATES + WITH_RECIPES * bool((runs["probe"] != ANCHOR).any())


def groups(runs: pd.DataFrame) -> dict[str, list[np.ndarray]]:
    """For each scheme but `run` the runs of each group, boolean arrays; schemes of a single group are left out."""
    keys: dict[str, list[tuple]] = {"r": [(r,) for r in runs["r"]]}
    if runs["budget"].notna().all():
        budget = group_budgets(runs["budget"].to_numpy(float))
        keys = {"cell": list(zip(runs["probe"], budget, runs["r"], strict=True)), "budget": [(b,) for b in budget],
                **keys}
    found = {scheme: [np.array([own == key for own in of_run]) for key in sorted(set(of_run))]
             for scheme, of_run in keys.items()}
    if "budget" in found:
        found["top"] = [found["budget"][-1]]
    return {scheme: masks for scheme, masks in found.items() if not masks[0].all()}


def stack(lpd: np.ndarray) -> np.ndarray:
    """Weights of the mixture that predicts best.

    Parameters
    ----------
    lpd : array, shape (group, model)
        Log predictive densities.

    Returns
    -------
    array, shape (model,)
        Not negative, summing to one; the maximum of Σ log Σ weight · density, which is concave.
    """
    density = np.exp(lpd - lpd.max(axis=1, keepdims=True))
    weights = np.full(lpd.shape[1], 1 / lpd.shape[1])
    for _ in range(EM_STEPS):  # expectation-maximisation of a mixture whose parts are known
        weights = weights * np.mean(density / (density @ weights)[:, None], axis=0)
    return np.where(weights < 1e-9, 0.0, weights)


def _labelled(progress: Callable[[str, int, int], None] | None, label: str) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, total: progress(label, done, total)


def _scored(post: xr.DataTree, seed: int, progress: Callable[[int, int], None] | None) -> dict[str, dict[str, Any]]:
    """By scheme: log density of each group, and how its runs were predicted."""
    model, schemes = model_of(post), groups(runs_of(post))
    masks = np.array(list({mask.tobytes(): mask for group in schemes.values() for mask in group}.values()))
    place = {mask.tobytes(): i for i, mask in enumerate(masks)}
    refits = refit(model, ~masks, seed=seed, progress=progress)
    found = score(model, refits, ~masks, seed)
    observed = model.layout.loss
    middle, (low, high) = found.predicted.mean(axis=1), np.quantile(found.predicted, [0.025, 0.975], axis=1)
    importance = pointwise_loo(post)
    k = np.asarray(importance.pareto_k)
    elpd_i = np.asarray(importance.elpd_i)
    out: dict[str, dict[str, Any]] = {"run": {"lpd": elpd_i, "each": elpd_i.sum(), "unsound": int(np.sum(k > MAX_K)),
                                              "worst_k": float(k.max())}}
    for scheme, group in schemes.items():
        at = [place[mask.tobytes()] for mask in group]
        lpd, error = np.array([log_mean(found.joint[i]) for i in at]).T
        few = np.array([effective(found.joint[i]) for i in at])
        each = sum(float(np.sum(_log_mean_exp(found.each[i][:, mask]))) for i, mask in zip(at, group, strict=True))
        miss = np.concatenate([(observed - middle[i])[mask] for i, mask in zip(at, group, strict=True)])
        inside = np.concatenate([((low[i] < observed) & (observed < high[i]))[mask]
                                 for i, mask in zip(at, group, strict=True)])
        out[scheme] = {"lpd": lpd, "mc_se": float(np.sqrt(np.sum(error**2))), "each": each,
                       "rmse": float(np.sqrt(np.mean(miss**2))), "covered": float(inside.mean()),
                       "draws": float(few.min()), "unsound": int(np.sum(~refits.sound[at] | (few < MIN_DRAWS)))}
    return out


def _log_mean_exp(draws: np.ndarray) -> np.ndarray:
    return logsumexp(draws, axis=0) - np.log(len(draws))


def log_mean(draws: np.ndarray) -> tuple[float, float]:
    """Logarithm of the mean of exp(draws) along a chain, and its Monte Carlo error by batch means."""
    batches = _log_mean_exp(draws[: len(draws) // BATCHES * BATCHES].reshape(BATCHES, -1).T)
    middle = float(_log_mean_exp(draws))
    return middle, float(np.std(np.exp(batches - middle), ddof=1) / np.sqrt(BATCHES))


def effective(draws: np.ndarray) -> float:
    """Effective number of draws that the mean of exp(draws) rests on, Kish's (Σ w)² / Σ w²: 1 where one has it all."""
    return float(np.exp(2 * logsumexp(draws) - logsumexp(2 * draws)))


def _rows(scheme: str, found: dict[str, dict[str, Any]]) -> pd.DataFrame:
    lpd = np.stack([one["lpd"] for one in found.values()], axis=1)
    behind = lpd[:, [lpd.sum(axis=0).argmax()]] - lpd
    error = np.sqrt(len(lpd)) * behind.std(axis=0, ddof=1) if len(lpd) > 1 else np.full(lpd.shape[1], np.nan)
    weights = stack(lpd) if len(lpd) >= 5 else np.full(lpd.shape[1], np.nan)
    numbers = [{name: one.get(name, np.nan) for name in ("mc_se", "each", "rmse", "covered", "draws", "unsound",
                                                     "worst_k")}
               for one in found.values()]
    return pd.DataFrame({"model": list(found), "scheme": scheme, "groups": len(lpd), "elpd": lpd.sum(axis=0),
                         "behind": behind.sum(axis=0), "behind_se": error, "weight": weights}).join(
                             pd.DataFrame(numbers))


def _averages(posts: dict[str, xr.DataTree], table: pd.DataFrame, reference: str, seed: int) -> pd.DataFrame:
    draws = {name: phi_quantities(post, reference) for name, post in posts.items() if "phi" in post["posterior"]}
    common = [name for name in next(iter(draws.values()), {}) if all(name in own for own in draws.values())]
    rng, rows = np.random.default_rng(seed), []
    mixtures = {name: {name: 1.0} for name in draws}
    for scheme, part in table[table["weight"].notna() & table["model"].isin(draws)].groupby("scheme", sort=False):
        mixtures[str(scheme)] = dict(zip(part["model"], part["weight"], strict=True))
    for label, weights in mixtures.items():
        for quantity in common:
            values = np.concatenate([rng.choice(draws[name][quantity], round(4000 * weight))
                                     for name, weight in weights.items()])
            lower, upper = np.quantile(values, [0.025, 0.975])
            rows.append({"scheme": label, "quantity": quantity, "mean": values.mean(), "sd": values.std(ddof=1),
                         "lower": lower, "upper": upper})
    return pd.DataFrame(rows)
