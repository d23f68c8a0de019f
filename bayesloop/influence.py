"""What carries φ: how far it moves without a run, a cell or a group of runs, or under another counting convention.

Without refits: single runs by importance sampling (PSIS), cells to first order. With refits: all exactly, and the
bagged posterior (Huggins and Miller, arXiv 1912.07104): draws pooled over refits to resampled (budget, r) cells,
whose spread holds that of the posterior and that of the runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from arviz_stats.base import array_stats

from bayesloop.bootstrap import cells
from bayesloop.curves import runs_of
from bayesloop.errors import get_errors
from bayesloop.laws import Design
from bayesloop.model import Model
from bayesloop.prediction import MAX_K, log_likelihood
from bayesloop.refits import Refits, model_of, refit
from bayesloop.robust import influences, phi_quantities
from bayesloop.selection import ANCHOR

NUM_RESAMPLES = 60


@dataclass(frozen=True)
class Sensitivity:
    """What `sensitivity` finds.

    Attributes
    ----------
    moves : DataFrame
        One row per change and quantity (φ and Δφ by probe, averaged over r). Columns: kind (run, cell, group or
        counts), without (which), how (PSIS, first order or refit), quantity, change of the posterior mean, in_sd (the
        change in posterior standard deviations), k (Pareto k, for runs). NaN where only a refit could tell,
        or where the refit has not converged.
    bagged : DataFrame
        Index: quantity. Columns: mean, sd, lower, upper (95 %) of the pooled draws; between_sd, the spread of the
        refits' means alone. Empty without refits. ``attrs`` count the resamples and the unsound among them.
    """

    moves: pd.DataFrame
    bagged: pd.DataFrame


def sensitivity(post: xr.DataTree, reference: str = ANCHOR, refits: bool = False, num_resamples: int = NUM_RESAMPLES,
                seed: int = 0, progress: Callable[[int, int], None] | None = None) -> Sensitivity:
    """How far φ and Δφ move when runs are left out or counted otherwise.

    Parameters
    ----------
    post : DataTree
        From `fit`, with φ free and ``share="law"``.
    reference : str
        The probe that differences are taken from.
    refits : bool
        Refit exactly: without each cell, without each run whose Pareto k is above 0.7, without the looped runs of
        each probe and r, with the injection counted otherwise, and to resampled cells. Takes a minute or more.
    num_resamples : int
        Resamples of the bagged posterior.
    seed, progress
        As in `fit`; progress of the refits.

    Returns
    -------
    Sensitivity

    Raises
    ------
    PosteriorError
        If φ is not free, or the probes were fitted apart.
    """
    values = {name: draws for name, draws in phi_quantities(post, reference).items() if not _by_r(name)}
    runs, model = runs_of(post), model_of(post)
    rows = _by_importance(post, values)
    if not refits:
        return Sensitivity(pd.DataFrame(rows + _first_order(post, runs, values)), pd.DataFrame())
    bad = dict.fromkeys(row["without"] for row in rows if row["how"] == "refit")
    names = [str(name) for name in post["observed_data"].to_dataset()["run"].to_numpy()]
    changes = [("run", name, np.array([other != name for other in names], float), model.layout.design) for name in bad]
    changes += [*_left_out(runs, model), *_recounted(runs, model)]
    resampled = _resampled(runs, num_resamples, seed)
    weight = np.concatenate([np.array([change[2] for change in changes]).reshape(-1, len(runs)), resampled])
    designs = [change[3] for change in changes] + [model.layout.design] * len(resampled)
    found = refit(model, weight, Design(*map(np.stack, zip(*designs, strict=True))), seed=seed, progress=progress)
    after = _quantities(post, model, found, reference)
    rows = [row for row in rows if row["how"] != "refit"]
    for place, (kind, without, *_) in enumerate(changes):
        mean = {name: draws[place].mean() if found.sound[place] else np.nan for name, draws in after.items()}
        rows += [_move(kind, without, "refit", name, mean[name], draws) for name, draws in values.items()]
    return Sensitivity(pd.DataFrame(rows), _bagged(after, found.sound, len(changes)))


def _by_r(name: str) -> bool:
    return ", " in name


def _move(kind: str, without: str, how: str, quantity: str, mean: float, draws: np.ndarray,
          k: float = np.nan) -> dict[str, Any]:
    change = mean - draws.mean()
    return {"kind": kind, "without": without, "how": how, "quantity": quantity, "change": change,
            "in_sd": change / draws.std(), "k": k}


def _by_importance(post: xr.DataTree, values: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    log_weights, ks = array_stats.psislw(log_likelihood(post).T)  # it turns the sign itself
    weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    names: Any = post["observed_data"]["run"].to_numpy()
    rows = []
    for run, own, k in zip(names, weights, np.asarray(ks), strict=True):
        for name, draws in values.items():
            fine = k <= MAX_K
            rows.append(_move("run", str(run), "PSIS" if fine else "refit", name,
                              own @ draws if fine else np.nan, draws, float(k)))
    return rows


def _first_order(post: xr.DataTree, runs: pd.DataFrame, values: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Cells by their influence; not where runs miss together, nor without budgets."""
    if get_errors(post.attrs["errors"]).factor is not None or runs["budget"].isna().any():
        return []
    labels = _cell_labels(runs)
    known = list(dict.fromkeys(labels))
    density = log_likelihood(post)
    cluster = np.array([known.index(label) for label in labels])
    return [_move("cell", label, "first order", name, draws.mean() - pull, draws) for name, draws in values.items()
            for label, pull in zip(known, influences(draws, density, cluster), strict=True)]


def _cell_labels(runs: pd.DataFrame) -> list[str]:
    return [f"{probe}, {budget:.3g} FLOP, r = {r}"
            for probe, budget, r in zip(runs["probe"], runs["budget"], runs["r"], strict=True)]


def _left_out(runs: pd.DataFrame, model: Model) -> Iterator[tuple[str, str, np.ndarray, Design]]:
    """Cells, and the looped runs of a probe and r, where others remain."""
    by_group = [f"{probe}, r = {r}" if r > 1 else "" for probe, r in zip(runs["probe"], runs["r"], strict=True)]
    kinds = {"group": by_group} if runs["budget"].isna().any() else {"cell": _cell_labels(runs), "group": by_group}
    for kind, labels in kinds.items():
        for label in [label for label in dict.fromkeys(labels) if label]:
            yield kind, label, np.array([own != label for own in labels], float), model.layout.design


def _recounted(runs: pd.DataFrame, model: Model) -> Iterator[tuple[str, str, np.ndarray, Design]]:
    """The injection counted once, or not at all, where it is inside n_rec."""
    inject = runs["n_inject"].to_numpy(float) if "n_inject" in runs else np.zeros(len(runs))
    if np.nan_to_num(inject).any() and not np.isnan(inject).any():
        design = model.layout.design
        for name, once in (("once", inject), ("none", 0.0)):
            yield "counts", f"injection {name}", np.ones(len(runs)), design._replace(
                n_once=design.n_once + once, n_rec=design.n_rec - inject)


def _resampled(runs: pd.DataFrame, num: int, seed: int) -> np.ndarray:
    """How often each run counts when (budget, r) cells are drawn with replacement, shape (resample, run)."""
    if runs["budget"].isna().any():
        return np.empty((0, len(runs)))
    unit = cells(runs["budget"].to_numpy(float), runs["r"].to_numpy())
    count = int(unit.max()) + 1
    return np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), num)[:, unit].astype(float)


def _quantities(post: xr.DataTree, model: Model, found: Refits, reference: str) -> dict[str, np.ndarray]:
    """φ and Δφ of every refit, each of shape (refit, draw)."""
    phi = xr.DataArray(found.values["phi"], dims=("chain", "draw", *model.dims("phi")),
                       coords={dim: model.coords[dim] for dim in model.dims("phi")})
    tree = xr.DataTree.from_dict({"posterior": xr.Dataset({"phi": phi})})
    return {name: draws.reshape(phi.shape[:2]) for name, draws in phi_quantities(tree, reference).items()
            if not _by_r(name)}


def _bagged(after: dict[str, np.ndarray], sound: np.ndarray, start: int) -> pd.DataFrame:
    kept = np.flatnonzero(sound[start:]) + start
    rows = {}
    for name, draws in after.items() if len(kept) > 1 else ():
        lower, upper = np.quantile(draws[kept], [0.025, 0.975])
        rows[name] = {"mean": draws[kept].mean(), "sd": draws[kept].std(), "lower": lower, "upper": upper,
                      "between_sd": draws[kept].mean(axis=1).std(ddof=1)}
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("quantity")
    table.attrs = {"resamples": len(sound) - start, "unsound": int((~sound[start:]).sum())}
    return table
