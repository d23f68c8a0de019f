"""Families of models: what a probe's recipe and a width say about counts, FLOPs and tokens, at any width.

The counts and FLOPs of `architecture` are quadratic in the width, so three trainable widths determine them at every
width, whole or not: that is what an optimum between two trainable widths needs.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from dataclasses import fields as fields_of
from math import ceil
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from bayesloop.architecture import Architecture, ArchitectureError, horizon, iso_depth
from bayesloop.curves import probe_runs, runs_of
from bayesloop.hull import compute_of
from bayesloop.laws import Design
from bayesloop.problems import RunsWarning, near
from bayesloop.selection import ANCHOR

INJECTIONS = ("rec", "once", "none")
RECIPES: dict[str, dict[str, Any]] = {  # arXiv 2604.21106, the iso-depth grid and its two probes
    "baseline": {}, "truncated": {"bptt_k": "half"}, "hyperconnections": {"scheme": "hyperconnect", "lanes": 2},
}
KV_BYTES = 2  # a key or value in 16 bits
MAX_WIDTH = 2**20
OTHER_MODELS = "the models that are assumed"
SAME_COMPUTE = 1.1  # whole steps, and what a recipe's own operations cost, are less
SAME_COUNTS = 0.03  # an injection or its place changes them by less, a layer by more


@dataclass(frozen=True)
class Family:
    """Models of one recipe and effective depth, at any width and recurrence count.

    Parameters
    ----------
    depth, ends : int
        Effective depth in layers, and layers of prelude and of coda at r > 1 (20 and 2 in the paper).
    scheme : str
        How the block is iterated, as in `Architecture`.
    bptt_k : int, "half" or None
        Recurrences that carry gradient: at most this many, ⌈r/2⌉, or all.
    lanes, head_dim, seq_len, vocab_size : int
        As in `Architecture`.
    batch_tokens : int
        Tokens of one optimiser step (262 144 in the paper).
    convention : {"exact", "formula"}
        How parameters are counted for the law; FLOPs are always exact.
    injection : {"rec", "once", "none"}
        Where the law counts the linear injection.

    Raises
    ------
    ArchitectureError
        If a field is out of range.
    """

    depth: int = 20
    ends: int = 2
    scheme: str = "linear"
    bptt_k: int | str | None = None
    lanes: int = 0
    head_dim: int = 128
    seq_len: int = 2048
    vocab_size: int = 32_002
    batch_tokens: int = 262_144
    convention: str = "exact"
    injection: str = "rec"

    def __post_init__(self) -> None:
        if self.injection not in INJECTIONS:
            raise ArchitectureError(f"injection is {self.injection!r}; expected one of {', '.join(INJECTIONS)}")
        if isinstance(self.bptt_k, str) and self.bptt_k != "half":
            raise ArchitectureError(f"bptt_k is {self.bptt_k!r}; expected a number of recurrences, or 'half' for ⌈r/2⌉")
        for name in ("depth", "ends", "lanes", "head_dim", "seq_len", "vocab_size", "batch_tokens"):
            value, least = getattr(self, name), 0 if name in ("ends", "lanes") else 1
            if not isinstance(value, int) or value < least:
                raise ArchitectureError(f"{name} is {value!r}; expected an integer ≥ {least}")

    def model(self, width: int, r: int) -> Architecture:
        """The trainable model of that width.

        Raises
        ------
        ArchitectureError
            If r does not divide the looped layers, or the width is no multiple of the head dimension.
        """
        k = ceil(r / 2) if self.bptt_k == "half" else None if self.bptt_k is None else min(int(self.bptt_k), r)
        return iso_depth(width, r, depth=self.depth, ends=self.ends, scheme=self.scheme, bptt_k=k, lanes=self.lanes,
                         head_dim=self.head_dim, seq_len=self.seq_len, vocab_size=self.vocab_size)

    def counts(self, width: Any, r: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """n_once and n_rec in the family's conventions, and training FLOPs per token, at any widths."""
        exact = [self._counts(self.model(self.head_dim * heads, r)) for heads in (4, 8, 16)]
        at = self.head_dim * np.array([4.0, 8.0, 16.0])
        basis = np.linalg.inv(np.vander(at, 3))
        once, rec, flops = (np.polyval(basis @ np.array(values, float), np.asarray(width, float))
                            for values in zip(*exact, strict=True))
        return once, rec, flops

    def _counts(self, model: Architecture) -> tuple[int, int, int]:
        once, rec = model.n_once(self.convention), model.n_rec(self.convention)
        if self.injection != "rec":
            rec -= model.n_inject
            once += model.n_inject if self.injection == "once" else 0
        return once, rec, model.flops_per_token

    def sizes(self, width: int, r: int) -> tuple[float, float]:
        """n_once and n_rec of a trainable model."""
        once, rec, _ = self._counts(self.model(width, r))
        return float(once), float(rec)

    def width_of(self, n_unique: Any, r: int) -> np.ndarray:
        """The width, whole or not, whose n_once + n_rec is `n_unique`."""
        grid = np.geomspace(1, MAX_WIDTH, 4000)
        once, rec, _ = self.counts(grid, r)
        return np.exp(np.interp(np.log(n_unique), np.log(once + rec), np.log(grid)))

    def design(self, width: Any, r: int, budget: Any) -> Design:
        """Designs that spend a budget exactly, whatever the batch: what the law is minimised over."""
        once, rec, flops = self.counts(width, r)
        return Design(once, rec, np.full(np.shape(once), float(r)), budget / flops)

    def run(self, width: int, r: int, budget: float) -> dict[str, float]:
        """A trainable run: whole optimiser steps that spend a budget most nearly.

        Returns
        -------
        dict
            width, r, budget, n_once, n_rec, tokens, flops, n_steps.

        Raises
        ------
        ArchitectureError
            If the model cannot be built, or the budget does not pay for a step.
        """
        model = self.model(width, r)
        once, rec, per_token = self._counts(model)
        length = horizon(budget, per_token, self.batch_tokens)
        return {"width": width, "r": r, "budget": budget, "n_once": float(once), "n_rec": float(rec),
                "tokens": float(length.tokens), "flops": float(length.tokens * per_token), "n_steps": length.n_steps}

    def inference(self, width: int, r: int) -> dict[str, float]:
        """What a generated token costs at a context of `seq_len`: forward FLOPs, bytes of its keys and values in all
        layers and recurrences (16 bits), and bytes of the weights, tables included (16 bits)."""
        model = replace(self, bptt_k=None).model(width, r)
        return {"inference_flops": model.flops_per_token / 3,  # forward is a third of forward and backward
                "kv_bytes": float(2 * KV_BYTES * model.depth * width), "weight_bytes": float(2 * model.n_total)}

    def trainable(self, width: float) -> list[int]:
        """The multiples of the head dimension on either side of a width."""
        below = max(int(width // self.head_dim), 1) * self.head_dim
        return [below] if below == width else [below, below + self.head_dim]


def family_of(post: xr.DataTree, probe: str, r: int | None = None, **changes: Any) -> Family:
    """The family that a probe's runs come from: recipe, depth and dimensions by the runs' own columns where they have
    them, else by the probe's name and as in the paper; conventions of the table.

    Parameters
    ----------
    post : DataTree
    probe : str
        A probe of the posterior, or a recipe of `RECIPES`.
    r : int, optional
        At r = 1 a probe without r = 1 runs of its own means the baseline's models, which anchor it.
    **changes
        Fields of `Family` that differ.

    Raises
    ------
    PosteriorError
        If the posterior has seen no run of the probe.
    ArchitectureError
        If a field is unknown or out of range.
    """
    known = [field.name for field in fields_of(Family)]
    for name in changes:
        if name not in known:
            raise ArchitectureError(f"{name!r} is not a field of a family of models{near(name, known)}; expected one "
                                    f"of {', '.join(known)}")
    runs = probe_runs(post, probe)
    if r == 1 and not (runs.loc[runs["r"] == 1, "probe"] == probe).any():
        probe = ANCHOR
    convention = str(post.attrs.get("data_count_convention", "exact"))
    fields: dict[str, Any] = {"convention": convention if convention in ("exact", "formula") else "exact",
                              "injection": post.attrs.get("data_injection", "rec")}
    if fields["injection"] not in INJECTIONS:
        fields["injection"] = "rec"
    family = Family(**{**fields, **_layers_of(runs), **recipe_of(runs_of(post), probe), **changes})
    if not set(changes) & {"depth", "ends", "scheme", "lanes", "head_dim"}:
        _compare_counts(family, runs[runs["probe"] == probe])
    if not set(changes) & {"vocab_size", "seq_len"}:  # said on purpose
        _compare_compute(family, runs[runs["probe"] == probe])
    return family


def _layers_of(runs: pd.DataFrame) -> dict[str, int]:
    """Depth and dimensions that the columns of runs agree about."""
    found = {name: runs[name] for name in ("head_dim", "seq_len", "vocab_size", "batch_tokens") if name in runs}
    if {"n_prelude", "n_recur", "n_coda"} <= set(runs.columns):
        looped = runs[runs["r"] > 1]
        depth = runs["n_prelude"] + runs["r"] * runs["n_recur"] + runs["n_coda"]
        found["depth"] = depth.where(runs["n_recur"] > 0, -1)
        if (looped["n_prelude"] == looped["n_coda"]).all():
            found["ends"] = looped["n_prelude"]
    return {name: int(values.iloc[0]) for name, values in found.items()
            if values.nunique() == 1 and values.iloc[0] >= (name != "ends")}


def recipe_of(runs: pd.DataFrame, probe: str) -> dict[str, Any]:
    """Scheme, truncation and lanes of a probe: by the columns of its runs where they say it, else by its name."""
    own = runs[(runs["probe"] == probe) & (runs["r"] > 1)]
    if own.empty or "scheme" not in own or not own["scheme"].iloc[0]:
        return RECIPES.get(probe, {})
    longest = own.iloc[int(own["r"].to_numpy().argmax())]  # a short loop does not tell ⌈r/2⌉ from a number
    k, r, lanes = int(longest.get("bptt_k", -1)), int(longest["r"]), max(int(longest.get("lanes", 0)), 0)
    return {"scheme": str(longest["scheme"]), "lanes": lanes if longest["scheme"] == "hyperconnect" else 0,
            "bptt_k": ("half" if k == ceil(r / 2) else k) if 0 < k < r else None}


def _compare_counts(family: Family, runs: pd.DataFrame) -> None:
    """Doubt a family whose models are not those that were run."""
    for r, own in runs.groupby("r"):
        run = own.iloc[0]
        fault = _other_model(family, run, int(str(r)))
        if fault:
            warnings.warn(f"{OTHER_MODELS} (depth {family.depth}, {family.ends} layers at each end) are "
                          f"not those that were run: r = {r}{fault}; give depth, ends and head_dim (--model)",
                          RunsWarning, stacklevel=3)
            return


def _compare_compute(family: Family, runs: pd.DataFrame) -> None:
    """Doubt budgets that are not the models' FLOPs: those of planned models would pay for other numbers of tokens."""
    if "width" not in runs:
        return
    runs = runs[runs["width"] > 0].assign(compute=compute_of).dropna(subset="compute")
    try:
        ratios = [family.counts(own["width"], int(str(r)))[2] * own["tokens"] / own["compute"]
                  for r, own in runs.groupby("r")]
    except ArchitectureError:
        return
    middle = float(np.median(np.concatenate(ratios))) if ratios else 1.0
    if abs(np.log(middle)) > np.log(SAME_COMPUTE):
        warnings.warn(f"the models would cost {middle:.3g} times the compute that the table gives for its runs (a "
                      "count without head and attention, 6 N D?): tokens and FLOPs of models that were not run follow "
                      "the exact count", RunsWarning, stacklevel=3)


def _other_model(family: Family, run: pd.Series, r: int) -> str:
    """How the family's model differs from a run: in its count at the run's width, or, without one, in its parts."""
    total = run["n_once"] + run["n_rec"]
    if run.get("width", -1) > 0:
        try:
            made = sum(family.sizes(int(run["width"]), r))
        except ArchitectureError as error:
            return f", width {run['width']:g}: {error}"
        return "" if abs(made / total - 1) < SAME_COUNTS else (
            f", width {run['width']:g} would have {made:.4g} parameters, but has {total:.4g}")
    try:
        made = float(family.counts(family.width_of(total, r), r)[0])
    except ArchitectureError as error:
        return f": {error}"
    # at r = 1 all may stand in n_rec, and says nothing
    return "" if r == 1 or abs(made - run["n_once"]) < SAME_COUNTS * total else (
        f" of {total:.4g} parameters would run {made:.4g} of them once, but runs {run['n_once']:.4g}")
