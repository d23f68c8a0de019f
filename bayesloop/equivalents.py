"""The plain model that a looped one performs like, and what both cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from bayesloop.comparison import borrows_anchor
from bayesloop.decisions import check_probe
from bayesloop.family import Family, family_of
from bayesloop.hull import outside
from bayesloop.laws import Design
from bayesloop.layout import recipe_applies
from bayesloop.pooling import Pool, Posteriors, pool
from bayesloop.posterior import PosteriorError
from bayesloop.selection import ANCHOR
from bayesloop.structures import get_recipe, get_structure

FARTHEST, POINTS = 1e3, 1201  # plain sizes tried around the looped model's: up to this factor, so many


def equivalent(post: Posteriors, r: int | Sequence[int], width: float | Sequence[float] | None = None,
               plain_size: float | Sequence[float] | None = None, probe: str = "baseline",
               tokens: float | Sequence[float] | None = None, weights: Sequence[float] | None = None,
               family: Mapping[str, Any] | None = None, prob: float = 0.95, force: bool = False) -> pd.DataFrame:
    """The plain model (r = 1) that a looped one performs like, and what each costs to train.

    By most fits a looped model has the loss of a plain one of N_eff = n_once + r^φ n_rec parameters, at any number of
    tokens. Where a recipe has an effect besides φ, or φ moves with compute, the size depends on the tokens, and is that
    of the baseline's plain model that reaches the same loss on as many.

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
    tokens : float or sequence, optional
        Training tokens of both models; needed where the size depends on them.

    Returns
    -------
    DataFrame
        r, width, tokens (where given), n_plain (parameters of the same-width r = 1 model), n_unique of the looped one;
        n_equivalent (median) with lower and upper; unique_ratio and equivalent_ratio (with lower and upper) over
        n_plain; cost_ratio: training FLOPs per token over the same-width r = 1 model's; cost_equivalent: over those of
        the plain model it performs like, with lower and upper; unmatched: share of the draws in which no plain model
        of a thousandth to a thousand times the size does, their size 0 or infinite; extrapolates: in words how the
        looped model leaves the range of the runs.

    Raises
    ------
    PosteriorError
        If the law has no φ, the probe is unknown, neither or both sizes are given, or the tokens are missing.
    ArchitectureError
        If r does not divide the looped layers.
    """
    pooled = pool(post, weights, force)
    check_probe(pooled, probe)
    depends = any(depends_on_tokens(one, probe) for one in pooled.posts)
    if depends and tokens is None:
        raise PosteriorError(f"by this fit the plain size that a looped model of {probe} performs like depends on the "
                             "tokens; give them: tokens= (--tokens)")
    if (width is None) == (plain_size is None):
        raise PosteriorError("give the size either as width or as plain_size, that of the same-width r = 1 model")
    sizes = _positive(width if plain_size is None else plain_size, "size")
    lengths = [None] if tokens is None else list(_positive(tokens, "tokens"))
    plain = family_of(pooled.first, ANCHOR if depends else probe, 1, **dict(family or {}))
    rows, designs = [], []
    for count in np.atleast_1d(r):
        looped = family_of(pooled.first, probe, int(count), **dict(family or {}))
        widths = sizes if plain_size is None else plain.width_of(sizes, 1)
        for at, length in product(widths, lengths):
            once, rec, cost = (float(value) for value in looped.counts(float(at), int(count)))
            design = Design(*(np.array([value]) for value in (once, rec, float(count), length or 1.0)))
            n_eff = _same_loss(pooled, design, probe) if depends else np.exp(pooled.log_n_eff(design, probe)[:, 0])
            given = {} if length is None else {"tokens": float(length)}
            rows.append({"probe": probe, "r": int(count), "width": float(at), **given,
                         **_compared(n_eff, once + rec, cost, float(at), plain, prob)})
            designs.append((once, rec, float(count), length or np.nan))
    every = Design(*np.array(designs).T)
    table = pd.DataFrame(rows).assign(extrapolates=outside(pooled, every, np.full(len(rows), np.nan), probe))
    table.attrs = {"prob": prob, "probe": probe, "notes": _notes(pooled, probe, depends)}
    return table


def _positive(values: Any, name: str) -> np.ndarray:
    found = np.atleast_1d(np.asarray(values, float))
    if not (np.isfinite(found) & (found > 0)).all():
        raise PosteriorError(f"{name} {found.tolist()}: expected positive numbers")
    return found


def depends_on_tokens(post: xr.DataTree, probe: str) -> bool:
    """Whether the plain size that a looped model of the probe performs like depends on the tokens."""
    recipe = get_recipe(post.attrs.get("recipe", "none"))
    applies = recipe_applies([probe], np.array([2]), recipe.looped)[0]
    return bool(recipe.priors and applies) or get_structure(post.attrs.get("phi", "probe")).trend


def _same_loss(pooled: Pool, design: Design, probe: str) -> np.ndarray:
    """Size of the baseline's plain model that has the looped model's loss on as many tokens, shape (draw,)."""
    loss = pooled.expected_loss(design, probe)[:, 0]
    sizes = float(design.n_once[0] + design.n_rec[0]) * np.geomspace(1 / FARTHEST, FARTHEST, POINTS)
    plain = pooled.expected_loss(Design(np.zeros(POINTS), sizes, np.ones(POINTS),
                                        np.full(POINTS, design.tokens[0])), ANCHOR)
    found = [np.interp(-mine, -theirs, np.log(sizes), left=-np.inf, right=np.inf)  # the loss falls with size
             for mine, theirs in zip(loss, plain, strict=True)]
    return np.exp(np.array(found))


def _compared(n_eff: np.ndarray, n_unique: float, cost: float, width: float, plain: Family,
              prob: float) -> dict[str, Any]:
    once, rec, cost_1 = (float(value) for value in plain.counts(width, 1))
    n_plain, matched = once + rec, np.isfinite(n_eff) & (n_eff > 0)
    row: dict[str, Any] = {"n_plain": n_plain, "n_unique": n_unique, "unique_ratio": n_unique / n_plain,
                           "cost_ratio": cost / cost_1}
    own = np.where(n_eff > 0, 0.0, np.inf)  # a model of endless size costs endlessly more, none costs nothing
    own[matched] = cost / plain.counts(plain.width_of(n_eff[matched], 1), 1)[2]
    for name, draws in (("n_equivalent", n_eff), ("equivalent_ratio", n_eff / n_plain), ("cost_equivalent", own)):
        # some may be infinite, between which and the next nothing can be interpolated
        ends = np.quantile(draws, [0.5, (1 - prob) / 2, (1 + prob) / 2], method="nearest")
        row |= {name: float(ends[0]), f"{name}_lower": float(ends[1]), f"{name}_upper": float(ends[2])}
    return {**row, "unmatched": float(1 - matched.mean())}


def _notes(pooled: Pool, probe: str, depends: bool) -> list[str]:
    """What the plain models are, where they are not the recipe's own."""
    if depends:
        return [f"{probe}: compared with the baseline's plain models on as many tokens; all that the recipe changes "
                "counts, not the recurrence alone"] if probe != ANCHOR else []
    if not borrows_anchor(pooled.first, probe):
        return []
    return [f"{probe}: no r = 1 run of this recipe, so the plain models are the {ANCHOR}'s: a part of what it gains "
            "may be the recipe's, not the recurrence's"]
