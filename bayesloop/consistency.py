"""Rows against their own account of compute, and against each other: partial runs, unit slips, twins."""

from __future__ import annotations

import numpy as np
import pandas as pd

from bayesloop.draft import NO_INT, Draft
from bayesloop.hygiene import FLOPS_RATIO, SPENT_LEAST, SPENT_MOST, TOKENS_LEAST
from bayesloop.schema import COLUMNS

_RECIPE = ("probe", "r", "scheme", "bptt_k", "lanes")
_CONFIGURATION = (*_RECIPE, "size", "width", "n_once", "n_rec", "n_inject", "seed")
_MEASURED = ("run_id", "status")


def check_work(draft: Draft) -> None:
    """Find partial runs, and counts, tokens and flops that cannot belong together.

    The simple account 6 (n_once + r n_rec) tokens is below the compute spent by the share of attention and head,
    which shrinks with width; so among runs of one recipe a larger model's ratio is not below a smaller one's.
    """
    flops, budget = draft.values("flops"), draft.values("budget")
    models = draft.values("n_once") + draft.values("r", NO_INT) * draft.values("n_rec")
    ratio = 6 * models * draft.values("tokens") / np.where(np.isnan(flops), budget, flops)
    short = draft.standing & (flops < SPENT_LEAST * budget)
    implied = _ratio_of_smaller(draft.standing & ~short, draft, models, ratio)
    short |= draft.standing & (ratio < TOKENS_LEAST * implied)
    checked = (~np.isnan(flops) & ~np.isnan(budget)) | ~np.isnan(implied)
    _judge_unfinished(draft, short, checked)
    low, high = FLOPS_RATIO
    ratio[~draft.standing] = np.nan
    shown = ("tokens", "flops" if "flops" in draft else "budget")
    draft.refuse("flops", (ratio < low / 10) | (ratio > high * 10), "where 6 (n_once + r n_rec) tokens is far from the "
                 "compute spent", "expected non-embedding parameters, tokens and FLOP: is one of them in another unit?",
                 shown, can_allow=True)
    account = "where 6 (n_once + r n_rec) tokens / compute is"
    draft.warn("flops", (ratio > high) & (ratio <= high * 10), f"{account} above {high:g}: embeddings counted in "
               "n_once or n_rec?", shown)
    draft.warn("flops", (ratio < low) & (ratio >= low / 10), f"{account} below {low:g}: models so small that attention "
               "and head outweigh them, or tokens missing?", shown)
    draft.warn("budget", draft.standing & (flops > SPENT_MOST * budget), "with flops more than 10 % above budget: is "
               "budget the planned compute?", ("budget", "flops"))


def _ratio_of_smaller(rows: np.ndarray, draft: Draft, models: np.ndarray, ratio: np.ndarray) -> np.ndarray:
    """For each row the (lower) median ratio of the others of its recipe with no larger model; NaN below two others."""
    implied = np.full(len(ratio), np.nan)
    usable = rows & np.isfinite(ratio)
    recipe = pd.DataFrame({name: draft.values(name, "") for name in _RECIPE if name in draft})[usable]
    for index in recipe.groupby(list(recipe.columns)).groups.values() if usable.any() else ():
        group = np.asarray(index)
        for i in group:
            others = np.sort(ratio[group[(models[group] <= models[i]) & (group != i)]])
            if len(others) >= 2:
                implied[i] = others[(len(others) - 1) // 2]
    return implied


def _judge_unfinished(draft: Draft, short: np.ndarray, checked: np.ndarray) -> None:
    """A run is unfinished where its state and its account agree; where one of them says so alone, a person decides."""
    status = draft.values("status", "")
    open_state = np.isin(status.astype(str), ("failed", "running"))
    shown = ("tokens", "flops", "budget")
    draft.exclude("unfinished", short & open_state, "unfinished: its status says so and it is short of its budget",
                  ("status", "tokens"))
    draft.refuse("partial", short & ~open_state, f"apparently finished, with less than {SPENT_LEAST:.0%} of the "
                 "budget spent, or fewer tokens than smaller models imply", "remove them, or correct tokens, flops or "
                 "budget", shown, can_allow=True)
    draft.refuse("running", draft.standing & (status == "running") & ~checked, "with status running, and nothing shows "
                 "whether they are complete", "remove them, set their status to done, or give flops and budget",
                 ("status", "loss"), can_allow=True)
    draft.note(draft.standing & open_state, "with another status than done, kept: a tracker's state alone excludes "
               "no run that has a loss", ("status", "loss"))


def check_twins(draft: Draft) -> None:
    """Exclude copies; refuse runs of one configuration and seed that differ; refuse a run_id that stands twice."""
    _name_runs(draft)
    table = draft.table
    columns = [name for name in COLUMNS if name in draft and name not in _MEASURED]
    copies = _repeats(draft, table[columns])
    draft.exclude("copies", copies, "a copy of an earlier row")
    plan = np.where(draft.present("budget"), draft.values("budget"), draft.values("tokens"))
    configuration = table[[name for name in _CONFIGURATION if name in draft]].assign(plan=plan)
    twins = draft.standing & _repeats(draft, configuration, keep=False)
    seeded = draft.values("seed", NO_INT) != NO_INT
    draft.refuse("twins", twins & seeded, "of one configuration and seed with different results: crashed and "
                 "restarted?", "keep the one that finished", ("run_id", "tokens", "loss"), can_allow=True)
    draft.warn("twins", twins & ~seeded, "with the configuration of another and no seed, taken as repetitions",
               ("run_id", "loss"))
    repeated = draft.standing & _repeats(draft, table[["run_id"]], keep=False)
    draft.refuse("run_id", repeated, "with a run_id that stands twice", "a run_id names one run; map the tracker's ID "
                 "rather than its display name", ("run_id",))


def _repeats(draft: Draft, table: pd.DataFrame, keep: str | bool = "first") -> np.ndarray:
    """Rows equal to another standing one: all but the first, or with keep=False all of them."""
    repeats = np.zeros(len(table), dtype=bool)
    where = np.flatnonzero(draft.standing)
    repeats[where] = table.iloc[where].duplicated(keep=keep).to_numpy()  # type: ignore[arg-type]
    return repeats


def _name_runs(draft: Draft) -> None:
    """Name runs that have no run_id by recipe, recurrence and position."""
    given = draft.values("run_id", "").astype(object)
    probe, r = draft.values("probe", ""), draft.values("r", NO_INT)
    named = [name or f"{probe[i]}-r{r[i]}-{i:03d}" for i, name in enumerate(given)]
    draft.table["run_id"] = pd.Series(named, dtype=object)
