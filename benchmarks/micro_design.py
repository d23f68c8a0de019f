"""How well the small grid tells φ and its differences: losses simulated at its runs from a known law, fitted again.

    python -m benchmarks.micro_design [--replicates 40]

Two worlds: in `worth`, hyperconnections raise φ; in `alike`, they improve every model alike, r = 1 included, and leave
φ as it is. Two fits: the law with one φ per probe, and the same with a recipe factor on the token term of the
hyperconnections, which only r = 1 runs of that recipe can tell from φ.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from scipy.optimize import OptimizeResult, least_squares

from training.grids import micro, micro_hyperconnections, micro_truncated

PROBES = ("baseline", "truncated", "hyperconnections")
# E, A, B, alpha, beta: near the optimum of 53 runs with the same recipe, measured; φ by probe
LAW = (1.0, 12.3, 1210.0, 0.25, 0.6)
WORLDS = {"worth": ((0.5, 0.35, 0.75), 1.0), "alike": ((0.5, 0.35, 0.5), 0.75)}  # φ, recipe factor
# weak priors of the fit: mean and sd of log E, log A, log B, log alpha, log beta; of φ; of the log recipe factor
PRIOR = np.array([(0.4, 0.5), (4.6, 1.5), (6.9, 2.0), (-1.4, 0.4), (-1.0, 0.4), *[(0.5, 0.5)] * 3, (0.0, 0.3)])


def runs(baseline_budgets: int, probe_budgets: int) -> np.ndarray:
    """Columns n_once, n_rec, r, tokens, probe, budget of the runs at the lowest budgets."""
    rows = []
    for probe, grid in enumerate((micro(), micro_truncated(), micro_hyperconnections())):
        budgets = sorted({run.budget for run in grid})[:probe_budgets if probe else baseline_budgets]
        for run in grid:
            arch = run.architecture
            if run.budget in budgets:
                rows.append((arch.n_once(), arch.n_rec(), arch.r, run.horizon.tokens, probe, run.budget))
    return np.array(rows)


def log_loss(theta: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Expected log loss; `theta` holds log E, A, B, alpha, beta, then φ by probe and the log recipe factor."""
    n_once, n_rec, r, tokens, probe, _ = table.T
    level, size, data, alpha, beta = np.exp(theta[:5])
    n_eff = n_once + r ** theta[5:8][probe.astype(int)] * n_rec
    return np.log(level + size * n_eff**-alpha + data * tokens**-beta * np.exp(theta[8] * (probe == 2)))


def simulate(table: np.ndarray, world: str, noise: float, cell: float, rng: np.random.Generator) -> np.ndarray:
    """Log losses with independent noise and an effect common to each cell of probe, budget and r."""
    phi, factor = WORLDS[world]
    theta = np.array([*np.log(LAW), *phi, np.log(factor)])
    index = np.unique(table[:, [2, 4, 5]], axis=0, return_inverse=True)[1].ravel()
    return log_loss(theta, table) + noise * rng.normal(size=len(table)) + cell * rng.normal(size=index.max() + 1)[index]


def fit(table: np.ndarray, observed: np.ndarray, sigma: float, recipe: bool) -> OptimizeResult:
    """Posterior mode of `theta` under the weak priors, without or with the recipe factor; `jac` is scaled by sigma."""
    def residuals(theta: np.ndarray) -> np.ndarray:
        used = theta if recipe else np.append(theta[:8], 0.0)
        return np.concatenate([(log_loss(used, table) - observed) / sigma, (theta - PRIOR[:, 0]) / PRIOR[:, 1]])

    start = np.array([*np.log(LAW), 0.5, 0.5, 0.5, 0.0])
    return least_squares(residuals, start, x_scale=PRIOR[:, 1])


def estimates(table: np.ndarray, world: str, recipe: bool, noise: float, cell: float, replicates: int) -> np.ndarray:
    """φ of the baseline and both Δφ of each replicate, shape (replicates, 3)."""
    found = []
    for seed in range(replicates):
        observed = simulate(table, world, noise, cell, np.random.default_rng(seed))
        phi = fit(table, observed, float(np.hypot(noise, cell)), recipe).x[5:8]
        found.append([phi[0], phi[1] - phi[0], phi[2] - phi[0]])
    return np.array(found)


def described(found: np.ndarray) -> str:
    """Mean ± sd over replicates."""
    return "  ".join(f"{label} {mean:+.2f} ± {sd:.2f}" for label, mean, sd in zip(
        ("φ", "Δ truncated", "Δ hyperconnections"), found.mean(0), found.std(0, ddof=1), strict=True))


def main(argv: Sequence[str] | None = None) -> None:
    """Print mean ± sd over replicates of φ and both Δφ, by design, world and fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicates", type=int, default=40)
    replicates = parser.parse_args(argv).replicates
    print("budgets of baseline + probes, sd of noise and of cells in log loss, world, fit, mean ± sd over replicates")
    for baseline, probes in ((2, 2), (3, 2), (3, 3), (4, 3), (5, 3)):
        table = runs(baseline, probes)
        unanchored = table[(table[:, 4] != 2) | (table[:, 2] > 1)]
        for sd in (0.01, 0.015):
            for world in WORLDS:
                for name, kept, recipe in (("anchored", table, False), ("recipe", table, True),
                                           ("recipe, no own r = 1", unanchored, True)):
                    found = estimates(kept, world, recipe, sd, sd, replicates)
                    print(f"{baseline} + {probes} ({len(kept)} runs)  {sd}  {world:5}  {name:20}  {described(found)}")


if __name__ == "__main__":
    main()
