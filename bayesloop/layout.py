"""The runs of a fit as arrays, with the place of each run among probes, recurrence counts, recipes and cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bayesloop.laws import Design, LawError
from bayesloop.schema import COLUMNS
from bayesloop.selection import ANCHOR, anchored, group_budgets

ANCHORED_BY_DEFINITION = ("truncated",)  # at r = 1 there is nothing to truncate: the baseline's run is the probe's own
SHARE = ("law", "none")


@dataclass(frozen=True)
class Layout:
    """The runs of a fit as arrays, with the index of each run's probe and recurrence count.

    Attributes
    ----------
    design : Design
        Arrays of shape (run,): counts, recurrences, tokens.
    loss : array, shape (run,)
        Observed loss, nats per token.
    log_se : array, shape (run,)
        Standard error of log loss as a measurement; 0 where unknown.
    run : list of str
        Labels of the runs, unique.
    columns : dict of str to array
        The table's other columns, for the record.
    probes : list of str
        Probes that have a phi.
    recurrences : list of int
        The r > 1 of the runs.
    probe_index, r_index : int array, shape (run,)
        Positions in `probes` and `recurrences`; 0 where r = 1, since r^phi is 1 there whatever phi is.
    recipes : list of str
        Probes that a recipe effect may belong to: all but the baseline, unless it belongs to looped runs.
    recipe_index : int array, shape (run,)
        Position in `recipes`; their number where no recipe effect applies (`recipe_applies`).
    budget, cell : int array, shape (run,), or None
        Number of the run's budget, and of its (probe, budget, r) cell; None where a run has no budget.
    reference : tuple of float
        Size N_ref and tokens D_ref of the centred coordinates: geometric means over the runs.
    """

    design: Design
    loss: np.ndarray
    log_se: np.ndarray
    run: list[str]
    columns: dict[str, np.ndarray]
    probes: list[str]
    recurrences: list[int]
    probe_index: np.ndarray
    r_index: np.ndarray
    recipes: list[str]
    recipe_index: np.ndarray
    budget: np.ndarray | None
    cell: np.ndarray | None
    reference: tuple[float, ...]

    @classmethod
    def of(cls, runs: pd.DataFrame, share: str = "law", looped: bool = False) -> Layout:
        """Layout of a table of runs.

        With ``share="none"`` every probe gets its own copy of the baseline's r = 1 runs at the budgets it has.
        With `looped`, recipe effects belong to looped runs (`recipe_applies`).

        Raises
        ------
        LawError
            If `share` is unknown.
        """
        if share not in SHARE:
            raise LawError(f"share is {share!r}; expected one of {', '.join(SHARE)}")
        probes = list(dict.fromkeys(runs.loc[runs["r"] > 1, "probe"])) or list(dict.fromkeys(runs["probe"]))
        runs = runs.assign(run_id=_labels(runs))
        if share == "none":
            apart = {probe: anchored(runs, probe) for probe in probes}
            _check_apart(runs, apart)
            runs = pd.concat([own.assign(probe=probe, run_id=own["run_id"] + f" @ {probe}")
                              for probe, own in apart.items()], ignore_index=True)
        recurrences = sorted({int(r) for r in runs["r"] if r > 1}) or [1]
        design = Design(*(runs[name].to_numpy(float) for name in ("n_once", "n_rec", "r", "tokens")))
        loss = runs["loss"].to_numpy(float)
        log_se = runs["loss_se"].to_numpy(float) / loss if "loss_se" in runs else np.zeros(len(runs))
        columns = {name: runs[name].to_numpy(str if COLUMNS[name].dtype is str else COLUMNS[name].dtype)
                   for name in COLUMNS if name in runs and name not in ("run_id", "loss", "status")}
        reference = tuple(float(np.exp(np.log(scale).mean()))
                          for scale in (design.n_once + design.n_rec, design.tokens))
        return cls(design, loss, np.nan_to_num(log_se), list(runs["run_id"]), columns, probes, recurrences,
                   np.array([probes.index(probe) if probe in probes else 0 for probe in runs["probe"]]),
                   np.array([recurrences.index(int(r)) if r > 1 else 0 for r in runs["r"]]),
                   *_recipes(runs, looped), *_cells(runs), reference)

    @property
    def index(self) -> dict[str, np.ndarray]:
        """Position of each run along the dims that parameters may have."""
        return {"probe": self.probe_index, "r": self.r_index, "recipe": self.recipe_index}

    @property
    def compute(self) -> float:
        """Geometric mean of the runs' compute (`training_compute`), FLOP."""
        return float(np.exp(np.log(training_compute(self.design)).mean()))

    @property
    def data(self) -> dict[str, Any]:
        """What the model is called with; other losses may be put in while the model stays."""
        return {"design": self.design, "loss": self.loss, "log_se": self.log_se}


def _check_apart(runs: pd.DataFrame, apart: Mapping[str, pd.DataFrame]) -> None:
    """Refuse separate fits in which a probe has no anchor, or a run no fit."""
    for probe, own in apart.items():
        if not (own["r"] == 1).any():
            raise LawError(f"probe {probe!r} has no r = 1 run to anchor a fit of its own; name the probe of the shared "
                           f'r = 1 runs {ANCHOR!r}, at the budgets {probe} has, or fit with share="law"')
    used = set().union(*(own["run_id"] for own in apart.values()))
    left = [label for label in runs["run_id"] if label not in used]
    if left:
        raise LawError(f"{len(left)} runs belong to no separate fit, such as {left[0]}: r = 1 runs at budgets that no "
                       "probe has; leave them out (--where) or fit with share=\"law\"")


def _labels(runs: pd.DataFrame) -> list[str]:
    """The runs' ids, or their places in the table where ids are missing or repeated."""
    ids = [str(label) for label in runs["run_id"]] if "run_id" in runs else []
    return ids if len(set(ids)) == len(runs) else [str(place) for place in range(len(runs))]


def training_compute(design: Design) -> Any:
    """Training compute that follows from a design alone: 6 FLOP per executed parameter and token, shape (run,).

    It leaves out attention, embedding and what truncated backpropagation saves: tenths of a factor of ten.
    """
    return 6 * (design.n_once + design.r * design.n_rec) * design.tokens


def recipe_applies(probe: Sequence[str] | np.ndarray, r: np.ndarray, looped: bool = False) -> np.ndarray:
    """Whether a recipe effect applies to runs: to every run of the recipe, at any r.

    Not to the baseline, from which effects are taken; nor at r = 1 to a recipe that is the same computation there
    as the baseline (truncation), whose effect on looped runs alone is an assumption. With `looped`, to all looped
    runs, the baseline's included, and to none at r = 1. Boolean, shape (run,).
    """
    probe, r = np.asarray(probe, dtype=str), np.asarray(r)
    if looped:
        return r > 1
    return (probe != ANCHOR) & ~((r == 1) & np.isin(probe, ANCHORED_BY_DEFINITION))


def _recipes(runs: pd.DataFrame, looped: bool) -> tuple[list[str], np.ndarray]:
    applies = recipe_applies(runs["probe"].to_numpy(str), runs["r"].to_numpy(), looped)
    recipes = list(dict.fromkeys(runs.loc[applies, "probe"]))
    return recipes, np.array([recipes.index(probe) if yes else len(recipes)
                              for probe, yes in zip(runs["probe"], applies, strict=True)])


def _cells(runs: pd.DataFrame) -> tuple[np.ndarray | None, np.ndarray | None]:
    if "budget" not in runs or runs["budget"].isna().any():
        return None, None
    budget = group_budgets(runs["budget"].to_numpy(float))
    keys = list(zip(runs["probe"], budget, runs["r"], strict=True))
    place = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return budget, np.array([place[key] for key in keys])
