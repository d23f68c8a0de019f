"""Δφ under several assumptions about what a recipe does besides: what holds under all, what depends on which.

A recipe that helps every looped run alike and one whose recurrences are worth more look the same to a fit that allows
for the second only. So the same runs are fitted under each assumption, and no single Δφ is put in front that its own
profile over r, or another assumption that predicts as well, contradicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from bayesloop.comparison import OVER_R, compare, has_anchor
from bayesloop.curves import probes_of
from bayesloop.inference import fit
from bayesloop.layout import ANCHORED_BY_DEFINITION
from bayesloop.matched import matched_differences
from bayesloop.posterior import PosteriorError
from bayesloop.prediction import MAX_K, pointwise_loo
from bayesloop.selection import ANCHOR

ASSUMED = ("none", "data_factor", "offset", "both")
CREDIBLE = 0.975  # probability from which the sign of a difference counts as told


@dataclass(frozen=True)
class Assumptions:
    """What `compare_assumptions` returns.

    Attributes
    ----------
    table : DataFrame
        One row per assumption, probe and r, the average over r last. Columns: law, recipe, probe, r, delta_mean,
        delta_sd, delta_lower, delta_upper, p_positive; elpd (expected log predictive density, PSIS-LOO), behind (by
        how much less than the best) and behind_se, bad_k (runs whose Pareto k is above 0.7: do not trust elpd).
    matched : DataFrame
        As from `matched_differences`; empty where no two runs match.
    verdict : list of str
        Sentences.
    posts : list of DataTree
        The posteriors, one for each assumption.
    """

    table: pd.DataFrame
    matched: pd.DataFrame
    verdict: list[str]
    posts: list[xr.DataTree]


def compare_assumptions(runs: pd.DataFrame | Sequence[xr.DataTree], law: str = "cross_recurrence",
                        recipes: Sequence[str] = ASSUMED, reference: str = ANCHOR, prob: float = 0.95,
                        progress: Callable[[str, int, int], None] | None = None, **options: Any) -> Assumptions:
    """Δφ of every probe under each assumption about recipes, beside matched differences, with a verdict in words.

    Parameters
    ----------
    runs : DataFrame or sequence of DataTree
        A table of runs, which is fitted once for each recipe term with φ by probe and r; or such posteriors of one
        table, made before.
    law : str
        The law of the fits; its default is the one that predicts the published runs best.
    recipes : sequence of str
        Names in `RECIPES`.
    reference : str
        The probe that differences are taken from.
    prob : float
        Probability of the intervals.
    progress : callable, optional
        Called as ``progress(recipe, done, total)``.
    **options
        Passed to `fit`.

    Returns
    -------
    Assumptions

    Raises
    ------
    PosteriorError
        If the posteriors are not of the same runs, or none has converged; single ones that have not are left out, and
        the verdict says so.
    """
    if isinstance(runs, pd.DataFrame):
        posts = []
        for recipe in recipes:
            advance = (lambda done, total, recipe=recipe: progress(recipe, done, total)) if progress else None
            posts.append(fit(runs, law=law, phi="probe_r", recipe=recipe, progress=advance, **options))
    else:
        posts = list(runs)
    if len({post.attrs["data_sha256"] for post in posts}) != 1:
        raise PosteriorError("assumptions are compared on the same runs, but these posteriors are of different ones; "
                             "fit them to one table")
    posts, left_out = _sound(posts)
    table = _table(posts, reference, prob)
    table.attrs["left_out"] = len(left_out)
    try:
        matched = matched_differences(list({post.attrs["law"]: post for post in reversed(posts)}.values()), reference)
    except PosteriorError:
        matched = pd.DataFrame()
    probes = [probe for probe in probes_of(posts[0]) if probe != reference]
    verdict = [*left_out, _best(table), *(sentence for probe in probes
                               for sentence in _verdict(probe, posts, table, matched, reference))]
    return Assumptions(table, matched, verdict, posts)


def _sound(posts: Sequence[xr.DataTree]) -> tuple[list[xr.DataTree], list[str]]:
    """The posteriors that have converged, and a sentence on each other."""
    kept = [post for post in posts if post.attrs["converged"]]
    if not kept:
        raise PosteriorError(f"under no assumption the sampler has converged ({posts[0].attrs['verdict']}); these runs "
                             "do not carry such models: give more runs")
    return kept, [f"recipe term {post.attrs.get('recipe', 'none')!r} is left out: {post.attrs['verdict']}"
                  for post in posts if not post.attrs["converged"]]


def _table(posts: Sequence[xr.DataTree], reference: str, prob: float) -> pd.DataFrame:
    scores = [_score(post) for post in posts]
    best = max(scores, key=lambda score: score["elpd_i"].sum())["elpd_i"]
    parts = []
    for post, score in zip(posts, scores, strict=True):
        own = compare(post, reference, prob=prob)
        own = own[own["probe"] != reference].assign(law=post.attrs["law"], recipe=post.attrs.get("recipe", "none"))
        own["r"] = own.get("r", OVER_R)
        gap = best - score["elpd_i"]
        spread = float(np.sqrt(len(gap) * gap.var()))
        parts.append(own.assign(elpd=score["elpd_i"].sum(), behind=gap.sum(), behind_se=spread, bad_k=score["bad_k"]))
    names = ["law", "recipe", "probe", "r", "delta_mean", "delta_sd", "delta_lower", "delta_upper", "p_positive",
             "elpd", "behind", "behind_se", "bad_k"]
    return pd.concat(parts, ignore_index=True)[names]


def _score(post: xr.DataTree) -> dict[str, Any]:
    found = pointwise_loo(post)
    return {"elpd_i": np.asarray(found.elpd_i), "bad_k": int(np.sum(np.asarray(found.pareto_k) > MAX_K))}


def _best(table: pd.DataFrame) -> str:
    each = table.drop_duplicates(["law", "recipe"]).sort_values("behind")
    best, others = each.iloc[0], each.iloc[1:]
    behind = [f"{row.recipe} by {row.behind:.0f} ± {row.behind_se:.0f}" for row in others.itertuples()]
    return (f"recipe term {best['recipe']!r} predicts runs left out best (elpd {best['elpd']:.0f})"
            + (f"; behind it: {', '.join(behind)}" if behind else ""))


def _verdict(probe: str, posts: Sequence[xr.DataTree], table: pd.DataFrame, matched: pd.DataFrame,
             reference: str) -> list[str]:
    sentences = [under_assumptions(table, probe)[1]]
    anchored = next((post for post in posts if post.attrs.get("recipe", "none") == "none"), posts[0])
    sentences += single_difference(anchored, probe, matched, reference)[1]
    return [*sentences, _settle(probe, posts[0])]


def under_assumptions(table: pd.DataFrame, probe: str) -> tuple[bool, str]:
    """Whether a probe's Δφ, averaged over r, has one sign under every assumption, and a sentence that says so.

    Parameters
    ----------
    table : DataFrame
        `Assumptions.table`.
    probe : str
    """
    own = table[(table["probe"] == probe) & (table["r"] == OVER_R)]
    ranges = ", ".join(f"{row.recipe} {row.delta_mean:+.2f} ± {row.delta_sd:.2f}" for row in own.itertuples())
    kinds = {_sign(p) for p in own["p_positive"]}
    if table.attrs.get("left_out") or len(own) < 2:
        return False, (f"{probe}: Δφ, averaged over r, under what could be sampled: {ranges}; that is not every "
                       "assumption")
    if len(kinds) == 1 and kinds != {"open"}:
        return True, f"{probe}: Δφ, averaged over r, is {kinds.pop()} under every assumption ({ranges})"
    if {"positive", "negative"} <= kinds:
        return False, (f"{probe}: even the sign of Δφ depends on what the recipe may do besides ({ranges}); "
                       "no Δφ should be quoted without its assumption")
    return False, f"{probe}: whether Δφ differs from 0 depends on the assumption ({ranges})"


def single_difference(post: xr.DataTree, probe: str, matched: pd.DataFrame,
                      reference: str = ANCHOR) -> tuple[bool, list[str]]:
    """Whether one Δφ may stand for a probe, or its profile over r contradicts that.

    Parameters
    ----------
    post : DataTree
        With φ by probe; φ by r, where it is free, is one witness.
    probe, reference : str
    matched : DataFrame
        From `matched_differences`, the other witness; may be empty.

    Returns
    -------
    tuple of bool and list of str
        Whether nothing contradicts it, and what the witnesses say, in sentences.
    """
    told = _profile(probe, post, reference)
    if len(matched) and probe in set(matched["probe"]):
        told.append(_matched_sentence(probe, matched))
    return all(fine for _, fine in told), [text for text, _ in told]


def _sign(p_positive: float) -> str:
    return "positive" if p_positive >= CREDIBLE else "negative" if p_positive <= 1 - CREDIBLE else "open"


def _profile(probe: str, post: xr.DataTree, reference: str) -> list[tuple[str, bool]]:
    """Whether one Δφ describes all r, where φ is free by r."""
    phi = post["posterior"]["phi"]
    if "r" not in phi.dims or phi.sizes["r"] < 2:
        return []
    delta = (phi.sel(probe=probe) - phi.sel(probe=reference)).stack(sample=("chain", "draw"))
    mean = delta.mean("sample")
    spread = delta.sel(r=mean.idxmax()) - delta.sel(r=mean.idxmin())
    steps = ", ".join(f"{value:+.2f}" for value in mean.values)
    at = ", ".join(str(r) for r in mean["r"].values)
    if float((spread > 0).mean()) < CREDIBLE:
        return [(f"{probe}: one Δφ for all r is not contradicted ({steps} at r = {at})", True)]
    return [(f"{probe}: no single Δφ describes it: {steps} at r = {at} (recipe term "
             f"{post.attrs.get('recipe', 'none')})", False)]


def _matched_sentence(probe: str, matched: pd.DataFrame) -> tuple[str, bool]:
    own = matched[(matched["probe"] == probe) & (matched["law"] == matched["law"].iloc[0])]
    plain, own = own[own["r"] == 1], own[own["r"] > 1]
    at = ", ".join(str(r) for r in own["r"])
    seen = ", ".join(f"{1e3 * value:+.0f}" for value in own["corrected"])
    pure = ", ".join(f"{1e3 * value:+.0f}" for value in own["pure"])
    text = (f"{probe}: at equal budget, r and width, corrected for tokens, the loss changes by {seen} mnats at "
            f"r = {at}; the mean Δφ alone would change it by {pure}")
    if len(plain):
        text += (f"; at r = 1, where φ plays no part, it changes by {1e3 * plain['corrected'].iloc[0]:+.0f} "
                 f"± {1e3 * plain['se'].iloc[0]:.0f} mnats")
    if len(own) < 2:
        return text, True
    first, last = own.iloc[0], own.iloc[-1]
    trend = np.sign(first["corrected"]) * (last["corrected"] - first["corrected"])
    if trend + 2 * np.hypot(first["se"], last["se"]) < abs(last["pure"]) - abs(first["pure"]):
        return f"{text}: the difference does not grow with r as that of another φ must", False
    return text, True


def _settle(probe: str, post: xr.DataTree) -> str:
    if has_anchor(post, probe):
        return f"{probe}: its own r = 1 runs tell an effect of the recipe from the worth of a recurrence"
    if probe in ANCHORED_BY_DEFINITION:
        return (f"{probe}: at r = 1 it is the baseline's own computation, so the anchored Δφ needs no further "
                "assumption but the law; whether an effect that does not depend on r is real, runs at other r and "
                "repeated seeds would tell")
    data = post["constant_data"].to_dataset()
    own = data["probe"].to_numpy() == probe
    budgets: list[float] = sorted(set(data["budget"].to_numpy()[own])) if "budget" in data else []
    where = f" at the budgets it has ({', '.join(f'{budget:.3g}' for budget in budgets)} FLOP)" if len(budgets) else ""
    return f"{probe}: what would settle it are r = 1 runs of this recipe{where}; the table has none"
