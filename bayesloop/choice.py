"""The model that `fit` takes where none is named.

It is the one that predicted held-out cells and budgets of the published runs best and whose intervals of Δφ held the
truth in simulation (`benchmarks/findings.py`, `benchmarks/coverage.py`), for tables like those that it was measured on;
smaller ones, and those of a single recipe, get the published model.
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from bayesloop.selection import ANCHOR, group_budgets

# looped r of every recipe, budgets, and looped runs for each φ from which on a table may carry the larger model; the
# published one has 3, 4 and 17
LEAST_R, LEAST_BUDGETS, LEAST_RUNS = 2, 3, 6


class Choice(NamedTuple):
    """Names of law, structure of φ and recipe term; why them in words, none where they were asked for; and whether that
    is because the table lacks something."""

    law: str
    phi: str
    recipe: str
    reason: str = ""
    lacks: bool = False


PUBLISHED = Choice("recurrence", "probe", "none")


def settle(runs: pd.DataFrame, law: str | None, phi: str | None, recipe: str | None, whole: bool = True) -> Choice:
    """What is named, and for the rest the paper's; the table's own choice where nothing is named.

    Parameters
    ----------
    runs : DataFrame
        From `read_runs`.
    law, phi, recipe : str, optional
    whole : bool
        Whether the fit is of all parameters and probes together; where not, the table decides nothing.
    """
    if whole and law is phi is recipe is None:
        return choose(runs)
    return Choice(law or PUBLISHED.law, phi or PUBLISHED.phi, recipe or PUBLISHED.recipe)


def choose(runs: pd.DataFrame) -> Choice:
    """The model for a table of runs.

    Parameters
    ----------
    runs : DataFrame
        From `read_runs`.

    Returns
    -------
    Choice
        One φ for each recipe in the published law where there is one recipe; a φ for each recipe and r, a factor of
        each recipe on the data term, and the cross law where there are several with what tells them apart.
    """
    looped = runs[runs["r"] > 1]
    probes = list(dict.fromkeys(looped["probe"]))
    if len(probes) < 2:
        return PUBLISHED
    few = [str(probe) for probe, own in looped.groupby("probe", sort=False) if own["r"].nunique() < LEAST_R]
    known = "budget" in runs and runs["budget"].notna().all()
    budgets = len(set(group_budgets(runs["budget"].to_numpy(float)))) if known else 0
    lacks = [*(f"a second looped r of {probe}" for probe in few),
             *([f"{LEAST_BUDGETS} budgets (it names {budgets})"] if budgets < LEAST_BUDGETS else []),
             *(["an r = 1 run"] if (runs["r"] > 1).all() else []),
             *([f"{LEAST_RUNS} looped runs for each recipe and r"] if _per_phi(looped) < LEAST_RUNS else []),
             *([f"a recipe named {ANCHOR}"] if ANCHOR not in probes else [])]
    if lacks:
        return PUBLISHED._replace(lacks=True, reason=(
            f"one φ for each recipe and no recipe term, as the table lacks {', '.join(lacks)}: where a recipe does "
            "anything else than change φ, or φ varies with r, intervals of Δφ are too narrow and miss the truth"))
    return Choice("cross_recurrence", "probe_r", "data_factor", (
        "several recipes: a φ for each recipe and r, a factor of each recipe on the data term, and the cross law, "
        "which predict held-out runs best, and cover the truth in simulation where a recipe acts on φ and on the data "
        "term (--law recurrence --phi probe for the paper's)"))


def _per_phi(looped: pd.DataFrame) -> float:
    """Looped runs for each recipe and r, on average."""
    return len(looped) / len(looped.groupby(["probe", "r"]))
