"""What a posterior says about models not trained: their loss, and the plain model that a looped one performs like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bayesloop.comparison import borrows_anchor
from bayesloop.curves import design_of, probes_of
from bayesloop.family import Family, family_of
from bayesloop.hull import outside
from bayesloop.laws import Design
from bayesloop.pooling import Pool, Posteriors, pool
from bayesloop.posterior import PosteriorError
from bayesloop.problems import near
from bayesloop.selection import ANCHOR
from bayesloop.structures import get_recipe


def predict(post: Posteriors, configs: pd.DataFrame | Mapping[str, Any], weights: Sequence[float] | None = None,
            family: Mapping[str, Any] | None = None, prob: float = 0.95, seed: int = 0,
            force: bool = False) -> pd.DataFrame:
    """Loss of configurations, trained or not.

    Parameters
    ----------
    post : DataTree or sequence of DataTree
        One posterior, or those of several laws on the same runs: the intervals then include what the laws disagree
        about.
    configs : DataFrame or mapping
        Columns, or values to broadcast: `r`; `width`, or `n_once` and `n_rec`; `tokens` or `budget` (FLOP);
        `probe` (default baseline). With `n_once` and `n_rec` the tokens are needed, and `flops` or `budget` only says
        whether the compute extrapolates.
    weights : sequence of float, optional
        Of the posteriors; equal by default.
    family : mapping, optional
        Fields of `Family` that differ from the recipe of the probe, such as ``{"depth": 24}``.
    prob : float
        Probability of the equal-tailed intervals.
    seed : int
        Of the scatter in the predictive interval.
    force : bool
        Accept a posterior that did not converge.

    Returns
    -------
    DataFrame
        probe, r, width (NaN where counts were given), n_once, n_rec, tokens, flops; mean, sd, lower, upper of the
        expected loss, predictive_lower, predictive_upper of a single run's, nats per token; `extrapolates`: in
        words how the configuration leaves the range of the runs. ``attrs["laws"]`` has each law's mean loss.

    Raises
    ------
    PosteriorError
        If a posterior may not be used, or a configuration is incomplete or of an unknown probe.
    ArchitectureError
        If a model cannot be built, or a budget does not pay for one step.
    """
    pooled = pool(post, weights, force)
    table = _completed(pooled, configs, dict(family or {}))
    design, probes = design_of(table), list(table["probe"])
    expected, observed = pooled.expected_loss(design, probes), pooled.observed_loss(design, probes, seed)
    tails = [(1 - prob) / 2, (1 + prob) / 2]
    table["mean"], table["sd"] = expected.mean(axis=0), expected.std(axis=0, ddof=1)
    table["lower"], table["upper"] = np.quantile(expected, tails, axis=0)
    table["predictive_lower"], table["predictive_upper"] = np.quantile(observed, tails, axis=0)
    table["extrapolates"] = outside(pooled, design, table["flops"].to_numpy(), probes)
    ends = np.cumsum([0, *pooled.counts])
    by_law = {f"{law} ({i + 1})" if pooled.laws.count(law) > 1 else law: expected[a:b].mean(axis=0).tolist()
              for i, (law, a, b) in enumerate(zip(pooled.laws, ends, ends[1:], strict=False))}
    table.attrs = {"prob": prob, "laws": by_law}
    return table


def _completed(pooled: Pool, configs: pd.DataFrame | Mapping[str, Any], changes: dict[str, Any]) -> pd.DataFrame:
    """Configurations with counts, tokens and compute."""
    table = configs if isinstance(configs, pd.DataFrame) else pd.DataFrame(
        {name: np.atleast_1d(value) if np.size(value) > 1 else np.ravel(value)[0] for name, value in configs.items()
         if value is not None}, index=range(max(map(np.size, configs.values()))))
    if "r" not in table:
        raise PosteriorError("a configuration needs r, its recurrence count")
    return pd.DataFrame([_complete(pooled, row, changes) for row in table.to_dict("records")])


def _complete(pooled: Pool, row: Mapping[Any, Any], changes: dict[str, Any]) -> dict[str, Any]:
    given = {str(name): value for name, value in row.items() if pd.notna(value)}
    probe, r = check_probe(pooled, str(given.get("probe", "baseline"))), _count(given["r"])
    for name in ("width", "n_once", "n_rec", "tokens", "budget"):
        if name in given and not (np.isfinite(given[name]) and given[name] > (-1 if name == "n_once" else 0)):
            raise PosteriorError(f"{name} is {given[name]}; expected a positive number")
    complete: dict[str, Any] = {"probe": probe, "r": r, "width": given.get("width", np.nan)}
    if "n_once" in given and "n_rec" in given:
        if "tokens" not in given:
            raise PosteriorError("a configuration given by its counts needs tokens: how many a budget pays for depends "
                                 "on head and attention, so it needs the width")
        complete |= {"n_once": float(given["n_once"]), "n_rec": float(given["n_rec"]), "tokens": float(given["tokens"]),
                     "flops": float(given.get("flops", given.get("budget", np.nan)))}
    elif "width" in given:
        family, width = family_of(pooled.first, probe, r, **changes), _count(given["width"], "width")
        if "tokens" in given:
            tokens, (once, rec) = float(given["tokens"]), family.sizes(width, r)
            complete |= {"n_once": once, "n_rec": rec, "tokens": tokens,
                         "flops": family.model(width, r).flops_per_token * tokens}
        elif "budget" in given:
            run = family.run(width, r, given["budget"])
            complete |= {name: run[name] for name in ("n_once", "n_rec", "tokens", "flops")}
        else:
            raise PosteriorError("a configuration needs tokens or budget")
    else:
        raise PosteriorError("a configuration needs width, or n_once and n_rec")
    return complete


def _count(value: Any, name: str = "r") -> int:
    if float(value) != int(value) or value < 1:
        raise PosteriorError(f"{name} is {value}; expected a whole number ≥ 1")
    return int(value)


def check_probe(pooled: Pool, probe: str) -> str:
    """The probe, if a posterior has runs of it.

    Raises
    ------
    PosteriorError
        If it has none.
    """
    known = probes_of(pooled.first)
    if probe not in known:
        raise PosteriorError(f"no run of probe {probe!r} in this posterior{near(probe, known)}; it has "
                             f"{', '.join(known)}")
    return probe


def equivalent(post: Posteriors, r: int | Sequence[int], width: float | Sequence[float] | None = None,
               plain_size: float | Sequence[float] | None = None, probe: str = "baseline",
               weights: Sequence[float] | None = None, family: Mapping[str, Any] | None = None, prob: float = 0.95,
               force: bool = False) -> pd.DataFrame:
    """The plain model (r = 1) that a looped one performs like, and what each costs to train.

    By the laws here a looped model has the loss of a plain one of N_eff = n_once + r^φ n_rec parameters, at any number
    of tokens.

    Parameters
    ----------
    post, weights, family, prob, force
        As in `predict`.
    r : int or sequence of int
    width : float or sequence, optional
        Width of the looped model.
    plain_size : float or sequence, optional
        In place of `width`: non-embedding parameters of the r = 1 model of the same width, as arXiv 2604.21106 puts it.
    probe : str

    Returns
    -------
    DataFrame
        r, width, n_plain (parameters of the same-width r = 1 model), n_unique of the looped one; n_equivalent with
        lower and upper; unique_ratio and equivalent_ratio (with lower and upper) over n_plain; cost_ratio: training
        FLOPs per token over the same-width r = 1 model's; cost_equivalent: over those of the plain model it performs
        like, with lower and upper.

    Raises
    ------
    PosteriorError
        If the law has no φ, the probe is unknown, neither or both sizes are given, or a recipe term or a trend of φ
        makes the size depend on the tokens.
    ArchitectureError
        If r does not divide the looped layers.
    """
    pooled = pool(post, weights, force)
    check_probe(pooled, probe)
    _check_one_size(pooled, probe)
    if (width is None) == (plain_size is None):
        raise PosteriorError("give the size either as width or as plain_size, that of the same-width r = 1 model")
    sizes = np.atleast_1d(np.asarray(width if plain_size is None else plain_size, float))
    if not (np.isfinite(sizes) & (sizes > 0)).all():
        raise PosteriorError(f"size {sizes.tolist()}: expected positive numbers")
    plain = family_of(pooled.first, probe, 1, **dict(family or {}))
    rows = []
    for count in np.atleast_1d(r):
        looped = family_of(pooled.first, probe, int(count), **dict(family or {}))
        widths = sizes if plain_size is None else plain.width_of(sizes, 1)
        rows += [_equivalent(pooled, probe, int(count), float(at), plain, looped, prob) for at in widths]
    table = pd.DataFrame(rows)
    table.attrs = {"prob": prob, "probe": probe, "notes": _notes(pooled, probe)}
    return table


def _check_one_size(pooled: Pool, probe: str) -> None:
    """Refuse a model whose looped runs perform like another size at every number of tokens."""
    for post in pooled.posts:
        recipe = get_recipe(post.attrs.get("recipe", "none"))
        if recipe.priors and (recipe.looped or probe != ANCHOR):
            raise PosteriorError(f"under the recipe term {recipe.name!r} no one plain size performs like a looped "
                                 f"model of {probe}: it depends on the tokens; predict both losses, or use a fit "
                                 "without it")
        if post.attrs.get("phi") == "trend":
            raise PosteriorError("with φ that moves with compute no one plain size performs like a looped model: it "
                                 "depends on the tokens; predict both losses, or use a fit with phi='probe'")


def _notes(pooled: Pool, probe: str) -> list[str]:
    """That a recipe was compared with plain models of another recipe, if so."""
    if not borrows_anchor(pooled.first, probe):
        return []
    return [f"{probe}: no r = 1 run of this recipe, so the plain models are the {ANCHOR}'s: a part of what it gains "
            "may be the recipe's, not the recurrence's"]


def _equivalent(pooled: Pool, probe: str, r: int, width: float, plain: Family, looped: Family,
                prob: float) -> dict[str, Any]:
    once, rec, cost = looped.counts(width, r)
    once_1, rec_1, cost_1 = plain.counts(width, 1)
    design = Design(*(np.array([value], float) for value in (once, rec, r, 1.0)))
    n_eff = np.exp(pooled.log_n_eff(design, probe)[:, 0])
    ratio_cost = cost / plain.counts(plain.width_of(n_eff, 1), 1)[2]
    n_plain = float(once_1 + rec_1)
    tails = [(1 - prob) / 2, (1 + prob) / 2]
    row: dict[str, Any] = {"probe": probe, "r": r, "width": width, "n_plain": n_plain, "n_unique": float(once + rec),
                           "unique_ratio": float(once + rec) / n_plain, "cost_ratio": float(cost / cost_1)}
    for name, draws in (("n_equivalent", n_eff), ("equivalent_ratio", n_eff / n_plain),
                        ("cost_equivalent", ratio_cost)):
        row[name] = float(draws.mean())
        row[f"{name}_lower"], row[f"{name}_upper"] = (float(value) for value in np.quantile(draws, tails))
    return row
