"""φ across probes: each probe's φ, its difference from a reference, and what the runs cannot tell apart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from bayesloop.identification import cells_without_runs
from bayesloop.layout import ANCHORED_BY_DEFINITION
from bayesloop.posterior import PosteriorError
from bayesloop.selection import ANCHOR

OVER_R = "mean"  # label of the average over the recurrence counts that were run


def compare(post: xr.DataTree | Sequence[xr.DataTree], reference: str = ANCHOR,
            rope: float | tuple[float, float] | None = None, prob: float = 0.95, force: bool = False) -> pd.DataFrame:
    """φ of each probe and its difference from a reference probe.

    Parameters
    ----------
    post : DataTree or sequence of DataTree
        One posterior with several probes: differences come from joint draws, so runs that probes share count once.
        Several posteriors: differences of independent draws, with a note where the posteriors share runs.
    reference : str
        The probe that differences are taken from.
    rope : float or (low, high), optional
        Region of practical equivalence of a difference; one number means ± that number.
    prob : float
        Probability of the equal-tailed intervals.
    force : bool
        Accept a posterior that did not converge.

    Returns
    -------
    DataFrame
        One row per probe (and, where φ varies with r, per r, with the average over r last). Columns: probe, [r],
        mean, sd, lower, upper of φ; delta_mean, delta_sd, delta_lower, delta_upper, p_positive = P(Δφ > 0) and,
        with `rope`, in_rope. The reference's own differences are NaN. ``attrs["notes"]`` says what to keep in mind.

    Raises
    ------
    PosteriorError
        If a posterior has no φ by probe, did not converge, or the reference is not among the probes.
    """
    posts = [post] if isinstance(post, xr.DataTree) else list(post)
    low, high = _region(rope, prob)
    phi = _collect(posts, force)
    if reference not in phi:
        raise PosteriorError(f"reference {reference!r} is not among the probes; name one of {', '.join(phi)} "
                             "(reference=, --reference)")
    rows = []
    for probe, draws in phi.items():
        shared = [r for r in draws["r"].values if r in phi[reference]["r"].values] if "r" in draws.dims else [None]
        for r in shared:
            own, base = (array if r is None else array.sel(r=r) for array in (draws, phi[reference]))
            row: dict[str, Any] = {"probe": probe} if r is None else {"probe": probe, "r": str(r)}
            row |= _described("", own.values, prob)
            if r == OVER_R:  # over the same r, or the two averages would differ by what they are taken over
                own, base = (array.sel(r=shared[:-1]).mean("r") for array in (draws, phi[reference]))
            difference = np.full(1, np.nan) if probe == reference else own.values - base.values
            row |= _described("delta_", difference, prob)
            row["p_positive"] = np.nan if probe == reference else float(np.mean(difference > 0))
            if rope is not None:
                inside = np.mean((difference > low) & (difference < high))
                row["in_rope"] = np.nan if probe == reference else float(inside)
            rows.append(row)
    table = pd.DataFrame(rows)
    table.attrs = {"reference": reference, "prob": prob, "rope": rope, "notes": _notes(posts, phi, reference)}
    return table


def _region(rope: Any, prob: float) -> tuple[float, float]:
    """The region of practical equivalence as two numbers, checked along with the probability."""
    if not 0 < prob < 1:
        raise PosteriorError(f"prob is {prob}; expected a probability between 0 and 1, such as 0.95")
    low, high = (np.nan, np.nan) if rope is None else rope if isinstance(rope, tuple | list) else (-rope, rope)
    if rope is not None and not low < high:
        raise PosteriorError(f"rope is {rope}; expected a positive number, or a lower and a higher one")
    return float(low), float(high)


def _described(prefix: str, values: np.ndarray, prob: float) -> dict[str, float]:
    lower, upper = np.quantile(values, [(1 - prob) / 2, (1 + prob) / 2])
    sd = float(values.std(ddof=1)) if values.size > 1 else np.nan
    return {f"{prefix}mean": float(values.mean()), f"{prefix}sd": sd, f"{prefix}lower": float(lower),
            f"{prefix}upper": float(upper)}


def _collect(posts: list[xr.DataTree], force: bool = False) -> dict[str, xr.DataArray]:
    """Draws of φ by probe, dims (sample[, r]), r without the counts that have no runs, their average appended."""
    if not posts:
        raise PosteriorError("no posterior to compare; give at least one")
    found: dict[str, xr.DataArray] = {}
    for number, post in enumerate(posts):
        if "phi" not in post["posterior"]:
            raise PosteriorError("a posterior without φ: it was fixed, or the law has none; fit with a free φ")
        if not post.attrs.get("converged") and not force:
            raise PosteriorError(f"a posterior that has not converged cannot be compared ({post.attrs.get('verdict')})")
        phi = post["posterior"].to_dataset()["phi"]
        if "probe" not in phi.dims:
            raise PosteriorError("a posterior with one φ for all runs; fit with phi='probe' to compare probes")
        empty = cells_without_runs(post)
        draws = phi.stack(sample=("chain", "draw")).reset_index("sample", drop=True)
        if number:  # draws of separate posteriors have no common order
            draws = draws.isel(sample=np.random.default_rng(number).permutation(draws.sizes["sample"]))
        for probe in map(str, phi["probe"].values):
            own = draws.sel(probe=probe, drop=True)
            if "r" in own.dims:
                own = own.sel(r=[r for r in own["r"].values if (probe, int(r)) not in empty])
                average = own.mean("r").expand_dims(r=[OVER_R])
                own = xr.concat([own.assign_coords(r=own["r"].astype(str)), average], "r")
            found[probe if probe not in found else f"{probe} ({number + 1})"] = own
    shortest = min(draws.sizes["sample"] for draws in found.values())
    found = {name: draws.isel(sample=slice(shortest)) for name, draws in found.items()}
    if len({"r" in draws.dims for draws in found.values()}) > 1:
        raise PosteriorError("the posteriors differ in the structure of φ; fit all with the same phi=")
    return found


def _notes(posts: list[xr.DataTree], phi: Mapping[str, Any], reference: str) -> list[str]:
    notes = []
    shared = [len(_identities(a) & _identities(b)) for a, b in combinations(posts, 2)]
    if any(shared):
        notes.append(f"the posteriors share {max(shared)} runs, but the differences treat them as independent: wrong "
                     "by what those runs have in common; fit all probes in one table instead")
    if any(post.attrs["share"] == "none" and post["posterior"].sizes.get("probe", 1) > 1 for post in posts):
        notes.append('the probes were fitted apart (share="none"), each with its copy of the shared r = 1 runs: the '
                     'differences ignore what they have in common; fit with share="law" for credible differences')
    models = {tuple(str(post.attrs.get(name)) for name in ("law", "errors", "data_injection")) for post in posts}
    if len(models) > 1:
        shown = " against ".join(", ".join(model) for model in sorted(models))
        notes.append(f"the posteriors differ in law, errors or injection: {shown}; a difference of φ between them "
                     "mixes the recipe with the model")
    for post in posts:
        for probe in map(str, post["posterior"].to_dataset()["phi"]["probe"].to_numpy()):
            adjusted = post.attrs.get("recipe", "none") != "none"
            if borrows_anchor(post, probe):
                notes.append(f"{probe}: " + (_TOLD_BY_SHAPE if adjusted else _BORROWED_ANCHOR))
            elif probe not in (ANCHOR, *ANCHORED_BY_DEFINITION) and not adjusted:
                notes.append(f"{probe}: {_OWN_ANCHOR}")
        notes += json.loads(post.attrs.get("doubts", "[]"))
    return list(dict.fromkeys(notes))


_BORROWED_ANCHOR = (
    "no r = 1 run of this recipe, so its φ leans on the baseline's: Δφ says what size of plain model it performs like, "
    "not that a recurrence is worth more; it takes r = 1 runs of the recipe to tell")
_TOLD_BY_SHAPE = (
    "no r = 1 run of this recipe, so its effect and its φ are told apart only by how the gain changes with r, which is "
    "an assumption; it takes r = 1 runs of the recipe to test it")
_OWN_ANCHOR = (
    "has r = 1 runs of its own, but this model knows no effect of the recipe apart from φ: what the recipe does to "
    "every model alike is counted as φ; look at the losses at r = 1 before reading Δφ as the worth of a recurrence")


def _identities(post: xr.DataTree, which: Any = slice(None)) -> set[tuple]:
    """What makes a run the same run wherever it appears."""
    data = post["constant_data"].to_dataset().assign(loss=post["observed_data"].to_dataset()["loss"])
    columns = [data[name].to_numpy()[which].tolist() for name in ("n_once", "n_rec", "r", "tokens", "loss")]
    return set(zip(*columns, strict=True))


def borrows_anchor(post: xr.DataTree, probe: str) -> bool:
    """Whether a probe is set against the baseline's r = 1 runs without being the same computation there."""
    return probe not in (ANCHOR, *ANCHORED_BY_DEFINITION) and not has_anchor(post, probe)


def has_anchor(post: xr.DataTree, probe: str) -> bool:
    """Whether a posterior has r = 1 runs of the probe itself; a copy of the baseline's is none."""
    data = post["constant_data"].to_dataset()
    plain = data["r"].to_numpy() == 1
    own, anchor = (_identities(post, plain & (data["probe"].to_numpy() == name)) for name in (probe, ANCHOR))
    return bool(own - anchor)
