"""What a posterior says about models that were not trained: their loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bayesloop.curves import design_of, probes_of
from bayesloop.family import family_of
from bayesloop.hull import outside
from bayesloop.pooling import Pool, Posteriors, pool
from bayesloop.posterior import PosteriorError
from bayesloop.problems import near


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
