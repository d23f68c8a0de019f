"""Has a sampler converged? The evidence, and a verdict in words with what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from arviz_stats.base import array_stats

MAX_RHAT, MIN_ESS = 1.01, 400.0  # Vehtari et al. 2021, arXiv 1903.08008
MAX_DIVERGING = 1e-3  # share of transitions; a few in thousands are left where the prior's tail is sharp (measured)


@dataclass(frozen=True)
class Convergence:
    """Diagnostics of one sampling attempt.

    Attributes
    ----------
    rhat, ess_bulk, ess_tail : float
        The worst over all parameters: rank-normalised split R-hat, effective sample sizes.
    worst : dict of str to str
        The parameter each of them belongs to.
    divergences : int
        Divergent transitions after warm-up.
    saturated : float
        Share of transitions at the limit of the tree depth.
    draws : int
        Draws after warm-up, all chains.
    problems : tuple of str
        What failed; empty when converged.
    """

    rhat: float
    ess_bulk: float
    ess_tail: float
    worst: dict[str, str]
    divergences: int
    saturated: float
    draws: int
    problems: tuple[str, ...]

    @property
    def converged(self) -> bool:
        """Whether nothing failed."""
        return not self.problems

    @property
    def verdict(self) -> str:
        """One sentence: converged with its evidence, or not with the reasons and what to do."""
        if self.converged:
            diverged = (f"{self.divergences} of {self.draws} transitions diverged (up to {MAX_DIVERGING:.1%} are borne)"
                        if self.divergences else "no divergences")
            return (f"converged: R-hat at most {self.rhat:.4f}, effective sample size at least {self.ess_bulk:.0f} "
                    f"(bulk) and {self.ess_tail:.0f} (tail) of {self.draws} draws, {diverged}, "
                    "tree depth never saturated")
        return ("NOT CONVERGED: " + "; ".join(self.problems) + ". Do not use this posterior. Look for a parameter the "
                "runs do not identify (fix it or tighten its prior), or sample longer (num_warmup, num_samples)")

    def to_dict(self) -> dict[str, Any]:
        """All fields, with the verdict."""
        return {**asdict(self), "converged": self.converged, "verdict": self.verdict}


def assess(values: Mapping[str, np.ndarray], stats: Mapping[str, np.ndarray], max_tree_depth: int,
           labels: Mapping[str, list[list]] | None = None) -> Convergence:
    """Diagnose draws.

    Parameters
    ----------
    values : mapping of str to array, shape (chain, draw, …)
        Free parameters.
    stats : mapping of str to array, shape (chain, draw)
        `diverging` and `n_steps`.
    max_tree_depth : int
        The limit the sampler had.
    labels : mapping of str to list, optional
        Coordinates along each further dimension of a parameter, by which it is named.

    Returns
    -------
    Convergence
    """
    diagnostics: dict[str, dict[str, float]] = {"rhat": {}, "ess_bulk": {}, "ess_tail": {}}
    for name, value in values.items():
        for place in np.ndindex(value.shape[2:]):
            names = [str(own[i]) for own, i in zip((labels or {}).get(name, ()), place, strict=False)] or place
            label = name + (f"[{', '.join(map(str, names))}]" if place else "")
            for kind, found in diagnose(value[(..., *place)]).items():
                diagnostics[kind][label] = found
    worst = {"rhat": max(diagnostics["rhat"], key=diagnostics["rhat"].__getitem__)}
    worst |= {kind: min(diagnostics[kind], key=diagnostics[kind].__getitem__) for kind in ("ess_bulk", "ess_tail")}
    extreme = {kind: diagnostics[kind][name] for kind, name in worst.items()}
    diverging, steps = int(stats["diverging"].sum()), np.asarray(stats["n_steps"])
    saturated = float(np.mean(steps >= 2**max_tree_depth - 1))
    problems = []
    if extreme["rhat"] > MAX_RHAT:
        problems.append(f"R-hat of {worst['rhat']} is {extreme['rhat']:.3f} (at most {MAX_RHAT})")
    for kind, label in (("ess_bulk", "bulk"), ("ess_tail", "tail")):
        if extreme[kind] < MIN_ESS:
            problems.append(f"{label} effective sample size of {worst[kind]} is {extreme[kind]:.0f} "
                            f"(at least {MIN_ESS:.0f})")
    if diverging > MAX_DIVERGING * steps.size:
        problems.append(f"{diverging} of {steps.size} transitions diverged")
    if saturated:
        problems.append(f"{saturated:.1%} of transitions reached the tree-depth limit of {max_tree_depth}")
    return Convergence(**extreme, worst=worst, divergences=diverging, saturated=saturated, draws=steps.size,
                       problems=tuple(problems))


def diagnose(values: np.ndarray) -> dict[str, float]:
    """R-hat and effective sample sizes of one quantity.

    Parameters
    ----------
    values : array, shape (chain, draw)

    Returns
    -------
    dict
        `rhat` (rank-normalised, split), `ess_bulk`, `ess_tail` (5 % and 95 % quantiles). A chain that never moved
        has none of them: infinity and zeros stand for the worst there is.
    """
    axes = {"chain_axis": 0, "draw_axis": 1}
    found = {"rhat": array_stats.rhat(values, **axes), "ess_bulk": array_stats.ess(values, method="bulk", **axes),
             "ess_tail": array_stats.ess(values, method="tail", prob=0.05, **axes)}
    return {kind: float(number) if np.isfinite(number) else float("inf") if kind == "rhat" else 0.0
            for kind, number in found.items()}
