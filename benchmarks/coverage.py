"""Coverage of Δφ under misspecification: eight scenarios on the published design.

    python -m benchmarks.coverage [SCENARIO …] [--replicates 500] [--methods NAME …] [--out FOLDER]

The scenarios (a) to (f), their targets and the methods were fixed here before any run; (g) and (h) were added after
them, since they break what the method that passed assumes about recipes. For each scenario and method: coverage of
the 50, 80 and 95 % intervals of Δφ, bias, width relative to the method that is specified correctly for the scenario,
and how often the wrong sign is called credible (at 95 %; where the target is 0, any sign is wrong). Truths (measured
on the published runs): additive law E 1.7, A 37, alpha 0.214, B 4650, beta 0.45; φ baseline 0.45, Δφ truncated −0.1,
hyperconnections 0 under (f) and +0.2 elsewhere; noise 0.002 nats between runs.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

import bayesloop as bl
from bayesloop.compilation import enable_cache
from bayesloop.model import Model, build_model
from bayesloop.refits import sound
from bayesloop.sampling import Settings, run_nuts, run_pilot
from bayesloop.schema import replacing

NOISE, SMOOTH, LENGTH = 0.002, 0.008, 2.0  # nats, nats, factors of e
LAW = {"E": 1.7, "A": 37.0, "alpha": 0.214, "B": 4650.0, "beta": 0.45}
KAPPA = 0.7
PHI = {"baseline": 0.45, "truncated": 0.35, "hyperconnections": 0.65}
BY_R = {2: 0.15, 4: 0.0, 8: -0.1}  # added to the probes' φ, not the baseline's, under (d)
RHO = -0.14  # the recipe effect under (f)
PROBES = ("truncated", "hyperconnections")
METHODS: dict[str, dict[str, str]] = {
    "normal": {}, "budget": {"errors": "budget"}, "smooth": {"errors": "smooth"},
    "cross": {"law": "cross_recurrence"}, "kaplan": {"law": "kaplan_recurrence"}, "by_r": {"phi": "probe_r"},
    "pooled": {"phi": "probe_r_pooled"}, "factor": {"recipe": "data_factor"},
    "cross_by_r_factor": {"law": "cross_recurrence", "phi": "probe_r", "recipe": "data_factor"},
    "cross_by_r_both": {"law": "cross_recurrence", "phi": "probe_r", "recipe": "both"},
}


@dataclass(frozen=True)
class Scenario:
    """How losses arise; `correct` names the method that is specified correctly, or nearest to it.

    `target` gives Δφ of a probe by r; where φ varies with r the mean over r is judged as well.
    """

    meaning: str
    correct: str
    phi: Callable[[str, int], float]
    kappa: float = 1.0
    misfit: str = "none"
    rho: float = 0.0
    delta: float = 0.0
    pi: float = 0.0

    def target(self, probe: str, r: int) -> float:
        """True Δφ."""
        return self.phi(probe, r) - self.phi("baseline", r)


def _constant(probe: str, r: int) -> float:
    return PHI[probe]


def _by_r(probe: str, r: int) -> float:
    return PHI[probe] + (BY_R.get(r, 0.0) if probe != "baseline" else 0.0)


def _no_change(probe: str, r: int) -> float:
    return PHI["baseline"]


SCENARIOS = {
    "a": Scenario("additive law, independent noise", "normal", _constant),
    "b": Scenario("Kaplan-type law, independent noise", "kaplan", _constant, kappa=KAPPA),
    "c": Scenario("a smooth misfit of 0.008 nats, common to all r and probes", "smooth", _constant, misfit="common"),
    "d": Scenario("φ of the probes varies with r", "by_r", _by_r),
    "e": Scenario("a smooth misfit of 0.008 nats for each (probe, r)", "smooth", _constant, misfit="apart"),
    "f": Scenario("a factor exp(−0.14) on the hyperconnections' data term, Δφ = 0", "factor", _no_change, rho=RHO),
    "g": Scenario("0.04 nats off the hyperconnections' loss, Δφ = 0", "cross_by_r_both", _no_change, delta=-0.04),
    "h": Scenario("a factor 0.97 on the hyperconnections' size term, Δφ = 0", "none", _no_change, pi=-0.03),
}


def simulate(scenario: Scenario, runs: pd.DataFrame, num: int, seed: int) -> np.ndarray:
    """Losses of replicates, shape (replicate, run), written in numpy apart from the package's laws."""
    rng = np.random.default_rng(seed)
    phi = np.array([scenario.phi(probe, int(r)) for probe, r in zip(runs["probe"], runs["r"], strict=True)])
    n_eff = runs["n_once"].to_numpy(float) + runs["r"].to_numpy(float) ** phi * runs["n_rec"].to_numpy(float)
    tokens, hyper = runs["tokens"].to_numpy(float), (runs["probe"] == "hyperconnections").to_numpy()
    p = LAW["A"] * n_eff ** -LAW["alpha"] * (1 + scenario.pi * hyper)
    q = LAW["B"] * tokens ** -LAW["beta"] * np.exp(scenario.rho * hyper)
    mean = LAW["E"] + (p ** (1 / scenario.kappa) + q ** (1 / scenario.kappa)) ** scenario.kappa + scenario.delta * hyper
    noise = NOISE * rng.normal(size=(num, len(runs)))
    if scenario.misfit == "none":
        return mean + noise
    group = (runs["probe"] + runs["r"].astype(str)).to_numpy() if scenario.misfit == "apart" else np.zeros(len(runs))
    place = np.stack([np.log(n_eff), np.log(tokens)], axis=-1)
    kernel = np.exp(-((place[:, None] - place) ** 2).sum(axis=-1) / (2 * LENGTH**2)) * (group[:, None] == group)
    root = np.linalg.cholesky(SMOOTH**2 * kernel + 1e-12 * np.eye(len(runs)))
    return mean + noise + rng.normal(size=(num, len(runs))) @ root.T


def sample(model: Model, losses: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws of φ, shape (replicate, draw, …), one chain for each replicate, and whether each chain is sound.

    The replicates of a scenario differ by their noise alone, so the chains start where one of the first ended.
    """
    keys = jax.random.split(jax.random.key(seed), len(losses) + 1)
    pilot = run_pilot(model, {**model.layout.data, "loss": losses[0]}, keys[-1], Settings(1000))
    draws = run_nuts(model, {**model.layout.data, "loss": losses}, keys[:-1], Settings(150, 600), batched=("loss",),
                     pilot=pilot)
    return draws.values["phi"], sound(draws)


def judge(scenario: Scenario, model: Model, phi: np.ndarray) -> list[dict[str, Any]]:
    """Coverage, bias, width and wrong signs of Δφ, by probe and r (`mean`: averaged over r)."""
    probes, counts, rows = model.layout.probes, model.layout.recurrences, []
    for probe in PROBES:
        delta = phi[:, :, probes.index(probe)] - phi[:, :, probes.index("baseline")]
        true = np.array([scenario.target(probe, r) for r in counts])
        cases = [("mean", delta.mean(axis=-1) if delta.ndim == 3 else delta, true.mean())]
        if delta.ndim == 3:
            cases += [(str(r), delta[:, :, i], true[i]) for i, r in enumerate(counts)]
        for name, values, target in cases:
            row: dict[str, Any] = {"probe": probe, "r": name, "target": target, "bias": values.mean() - target}
            for prob in (0.5, 0.8, 0.95):
                low, high = np.quantile(values, [(1 - prob) / 2, (1 + prob) / 2], axis=1)
                row[f"covers {prob:g}"] = np.mean((low <= target) & (target <= high))
            row["width"] = np.mean(high - low)
            row["wrong sign"] = np.mean(((low > 0) & (target <= 0)) | ((high < 0) & (target >= 0)))
            rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="*", help=f"of {', '.join(SCENARIOS)}; all when none is given")
    parser.add_argument("--replicates", type=int, default=500)
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder of coverage_SCENARIO.csv, where other methods' rows stay")
    args = parser.parse_args()
    enable_cache()
    runs = bl.select(bl.read_runs("data/paper_grid.csv"), "budget <= 4.64e18")
    for name in args.scenario or SCENARIOS:
        rows = cover(SCENARIOS[name], name, runs, args.methods, args.replicates, args.seed)
        path = args.out / f"coverage_{name}.csv" if args.out else None
        table = merged(pd.DataFrame(rows), path)
        print(table.round(3).to_string(index=False))
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary:
                table.to_csv(temporary, index=False)


def cover(scenario: Scenario, name: str, runs: pd.DataFrame, methods: list[str], replicates: int,
          seed: int) -> list[dict[str, Any]]:
    """Rows of `judge` for every method; all see the same losses."""
    rows: list[dict[str, Any]] = []
    losses = simulate(scenario, runs, replicates, zlib.crc32(f"{name}{seed}".encode()))
    for method in methods:
        model = build_model(runs.assign(loss_se=0.0), **METHODS[method])
        phi, sound = sample(model, losses, seed)
        common = {"scenario": name, "method": method, "correct": method == scenario.correct, "sound": sound.mean()}
        found = [{**common, **row} for row in judge(scenario, model, phi[sound])] if sound.any() else [common]
        print(pd.DataFrame(found[:2]).round(3).to_string(index=False), flush=True)
        rows += found
    return rows


def merged(table: pd.DataFrame, path: Path | None) -> pd.DataFrame:
    """A scenario's rows with those that a file has of other methods, and widths relative to the correct method's."""
    if path and path.exists():
        kept = pd.read_csv(path, dtype={"r": str})
        table = pd.concat([kept[~kept["method"].isin(table["method"])], table], ignore_index=True)
    if "width" not in table:
        raise SystemExit("no replicate was sampled soundly")
    right = table[table["correct"]].set_index(["probe", "r"])["width"]
    relative = [row.width / right.get((row.probe, row.r), np.nan) for row in table.itertuples()]
    return table.assign(**{"relative width": relative})


if __name__ == "__main__":
    main()
