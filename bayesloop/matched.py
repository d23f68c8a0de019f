"""Matched differences: a recipe against the baseline at equal budget, r and width, in nats, almost without a model.

Recipes may train on other amounts of tokens at equal budget (truncated backpropagation on about 1.3 times as many).
What that alone would change is taken from a law, the only place where one enters; with posteriors of several laws
every correction is shown. Beside the differences stands what another φ alone would do, by r: a recurrence that is
worth more must help the more, the more recurrences there are, and not at all at r = 1, where φ plays no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from bayesloop.curves import design_of, expected_loss, probes_of, runs_of
from bayesloop.posterior import PosteriorError
from bayesloop.selection import ANCHOR, group_budgets

WIDTHS = ("width", "size")  # columns that say which models are as wide as each other


def matched_differences(post: xr.DataTree | Sequence[xr.DataTree], reference: str = ANCHOR) -> pd.DataFrame:
    """Loss of every probe minus that of the reference at equal budget, r and width, corrected for tokens.

    Parameters
    ----------
    post : DataTree or sequence of DataTree
        From `fit`: the first one's runs are matched, and each gives its own correction. One that has seen the
        reference only, such as a fit of the baseline at more budgets, corrects as well; its `pure` is NaN.
    reference : str
        The probe that is subtracted.

    Returns
    -------
    DataFrame
        One row per posterior, probe and r. Columns: law, recipe (of the posterior that corrects), probe, r, pairs;
        `raw`, the mean difference as observed; `corrected` and its standard error `se`: the scatter of the budgets'
        means and the correction's posterior sd in quadrature; `pure` and `pure_sd`: what the posterior's φ of the
        probe, averaged over r, would do at the reference's runs instead of the reference's φ. All in nats per token.

    Raises
    ------
    PosteriorError
        If the runs have no budget or width, no two runs match, or φ is not by probe.

    Notes
    -----
    The correction is law(reference's model, probe's tokens) − law(reference's model, reference's tokens). Parameters
    that a recipe adds or leaves out are part of the recipe and are not corrected for.
    """
    posts = [post] if isinstance(post, xr.DataTree) else list(post)
    pairs = _pairs(runs_of(posts[0]), reference)
    rows = []
    for each in posts:
        for probe in dict.fromkeys(pairs["probe"]):
            for r in sorted(set(pairs.loc[pairs["probe"] == probe, "r"])):
                group = pairs[(pairs["probe"] == probe) & (pairs["r"] == r)]
                rows.append({"law": each.attrs["law"], "recipe": each.attrs.get("recipe", "none"), "probe": probe,
                             "r": int(r), **_difference(each, probe, reference, group)})
    return pd.DataFrame(rows)


def _pairs(runs: pd.DataFrame, reference: str) -> pd.DataFrame:
    """One row per pair: the reference's run, with the probe's name, tokens and loss; repeated runs are averaged."""
    width = next((name for name in WIDTHS if name in runs), None)
    if width is None or runs["budget"].isna().any():
        raise PosteriorError("runs can be matched only where their budget and their width (or size) are known; give "
                             "columns `budget` and `width`")
    runs = runs.assign(group=group_budgets(runs["budget"].to_numpy(float)))
    key = ["group", "r", width]
    each = runs.groupby(["probe", *key])[["n_once", "n_rec", "tokens", "loss"]].mean().reset_index()
    base = each[each["probe"] == reference].drop(columns="probe")
    others = each.loc[each["probe"] != reference, ["probe", *key, "tokens", "loss"]]
    pairs = base.merge(others, on=key, suffixes=("", "_probe"))
    if pairs.empty:
        raise PosteriorError(f"no run of another probe has the budget, r and {width} of a run of {reference}; "
                             "matched differences need such pairs")
    order = {probe: place for place, probe in enumerate(dict.fromkeys(runs["probe"]))}
    return pairs.sort_values("probe", key=lambda names: names.map(order), kind="stable")


def _difference(post: xr.DataTree, probe: str, reference: str, pairs: pd.DataFrame) -> dict[str, Any]:
    design = design_of(pairs)
    plain = expected_loss(post, design, reference)
    by_tokens = expected_loss(post, design._replace(tokens=pairs["tokens_probe"].to_numpy(float)), reference) - plain
    raw = (pairs["loss_probe"] - pairs["loss"]).to_numpy(float)
    corrected = raw - by_tokens.mean(axis=0)
    by_budget = pd.Series(corrected).groupby(pairs["group"].to_numpy()).mean()
    scatter = by_budget.std(ddof=1) / np.sqrt(len(by_budget)) if len(by_budget) > 1 else np.nan
    pure = np.full(1, np.nan)
    if probe in probes_of(post):
        bare = _without_recipe(post)
        pure = (expected_loss(bare, design, probe) - expected_loss(bare, design, reference)).mean(axis=1)
    return {"pairs": len(pairs), "raw": raw.mean(), "corrected": corrected.mean(),
            "se": float(np.hypot(scatter, by_tokens.mean(axis=1).std())), "pure": pure.mean(), "pure_sd": pure.std()}


def _without_recipe(post: xr.DataTree) -> xr.DataTree:
    """The posterior with φ averaged over r and no recipe effects: what a change of φ alone amounts to."""
    draws = post["posterior"].to_dataset()
    if "phi" not in draws or "probe" not in draws["phi"].dims:
        raise PosteriorError("what another φ would do needs φ by probe; fit with phi='probe' or 'probe_r'")
    if "r" in draws["phi"].dims:
        draws["phi"] = draws["phi"].mean("r")
    draws = draws.drop_vars(["rho", "delta"], errors="ignore")
    bare = xr.DataTree.from_dict({"posterior": draws})
    structure = "trend" if post.attrs.get("phi") == "trend" else "probe"
    bare.attrs = {**post.attrs, "phi": structure, "recipe": "none"}
    return bare
