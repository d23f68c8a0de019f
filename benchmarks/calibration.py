"""Simulation-based calibration: are the posteriors of data simulated from the prior right?

    python -m benchmarks.calibration [--replicates 500] [--law NAME ...] [--errors NAME ...] [--where CONDITION]

Parameters come from the default priors, losses from the model at the design of the published baseline. Over many such
data sets the rank of the true value among posterior draws is uniform, whatever the parameter (Talts et al. 2018, arXiv
1804.06788). What is shown is the difference between the ranks' ECDF and the uniform one, with a band that a calibrated
sampler leaves somewhere with probability 5 % (Säilynoja et al. 2022, arXiv 2103.10522).

A data set whose chain does not pass is sampled again, longer and with smaller steps; none is left out, whether it
passes then or not. Results are kept in benchmarks/results/calibration.json after every 50 data sets, the figure beside
it; a run that was broken off goes on from there when it is started again, and what is whole is only printed: give
another --out to begin anew.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy import stats

from bayesloop import read_runs, select
from bayesloop.convergence import diagnose
from bayesloop.errors import ERRORS
from bayesloop.laws import LAWS
from bayesloop.model import Model, build_model
from bayesloop.sampling import Draws, Settings, run_nuts
from bayesloop.schema import replacing
from bayesloop.simulation import simulate

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FIRST, RETRY = Settings(500, 500), Settings(1500, 1500, 0.99, 12)
PIECE = 50  # data sets between two writes
LEVELS = 100  # values a rank can have: 99 thinned draws
MAX_RHAT, MIN_ESS = 1.05, 100.0  # for one chain in two halves; ranks of 99 draws need no more
NULL = 4000  # simulated sets of uniform ranks


@dataclass(frozen=True)
class Calibration:
    """Ranks of true values among posterior draws, over simulated data sets.

    Attributes
    ----------
    counts : dict of str to int array, shape (LEVELS,)
        By parameter, how many data sets have each rank.
    replicates, redrawn : int
        Data sets, and prior draws thrown away as impossible among all those asked for.
    failed_first, failed : int
        Data sets whose chain did not pass at once, and after the retry; both kinds are counted in the ranks.
    failed_truth : list of dict
        True parameters of the data sets that did not pass after the retry either.
    divergences_first, divergences : int
        Divergent transitions after warm-up in the first attempts, and in what the ranks come from.
    wall_s, cpu_s : float
        Seconds, compilation included.
    """

    counts: dict[str, np.ndarray]
    replicates: int
    redrawn: int
    failed_first: int
    failed: int
    failed_truth: list[dict[str, Any]]
    divergences_first: int
    divergences: int
    wall_s: float
    cpu_s: float

    @property
    def cover(self) -> dict[str, dict[str, float]]:
        """By parameter, share of the data sets whose central 50, 80 and 96 % interval holds the true value."""
        return {name: _coverage(counts) for name, counts in self.counts.items()}

    def __add__(self, more: Calibration) -> Calibration:
        """Both, of different data sets of one simulation."""
        counts = {name: array + more.counts[name] for name, array in self.counts.items()}
        own = {field.name: getattr(self, field.name) + getattr(more, field.name) for field in fields(self)
               if field.name not in ("counts", "redrawn")}
        return Calibration(counts=counts, redrawn=self.redrawn, **own)


def calibrate(model: Model, replicates: int, seed: int = 0, fitted: Model | None = None, first: Settings = FIRST,
              retry: Settings | None = RETRY, progress: Callable[[int], None] | None = None,
              sets: range | None = None) -> Calibration:
    """Simulate data sets from a model's prior and rank the true parameters among draws of their posteriors.

    Parameters
    ----------
    model : Model
        Simulates, and fits unless `fitted` is given.
    replicates, seed : int
    fitted : Model, optional
        Another model of the same runs and parameters that fits, to see whether the difference is caught.
    first, retry : Settings
        Of the one chain for each data set, and of its repetition where it does not pass, if any.
    progress : callable, optional
        As in `run_nuts`, for the first attempts.
    sets : range, optional
        Which of the simulated data sets to fit: all by default. Parts add up to the whole.
    """
    wall, cpu = time.perf_counter(), time.process_time()
    fitted = fitted or model
    keys = jax.random.split(jax.random.key(seed), 3)
    simulated = simulate(model, keys[0], replicates)
    own = np.arange(replicates) if sets is None else np.array(sets)
    parameters = {name: values[own] for name, values in simulated.parameters.items()}

    def sample(which: np.ndarray, key: jax.Array, settings: Settings, **more: Any) -> tuple[Draws, np.ndarray]:
        data = {**fitted.layout.data, "loss": simulated.loss[which]}
        chain_keys = jax.random.split(key, replicates)[which]
        draws = run_nuts(fitted, data, chain_keys, settings, batched=("loss",), **more)
        return draws, np.array([not _passes(fitted, draws, i, settings) for i in range(len(which))])

    draws, failed = sample(own, keys[1], first, progress=progress)
    thinned = {name: _thin(draws.values[name]) for name in fitted.priors}
    diverging = draws.stats["diverging"].sum(1)
    failed_first, divergences_first = int(failed.sum()), int(diverging.sum())
    which = np.flatnonzero(failed)
    if failed_first and retry:
        again, failed = sample(own[which], keys[2], retry)
        for name, values in thinned.items():
            values[which] = _thin(again.values[name])
        diverging[which] = again.stats["diverging"].sum(1)
        which = which[failed]
    truth = [{name: values[i].tolist() for name, values in parameters.items()} for i in which]
    ranks = _ranks(thinned, parameters)
    return Calibration(
        {name: np.bincount(rank, minlength=LEVELS) for name, rank in ranks.items()}, len(own), simulated.redrawn,
        failed_first, len(which), truth, divergences_first, int(diverging.sum()), time.perf_counter() - wall,
        time.process_time() - cpu)


def _passes(model: Model, draws: Draws, chain: int, settings: Settings) -> bool:
    stats = {name: values[chain] for name, values in draws.stats.items()}
    if stats["diverging"].any() or (stats["n_steps"] >= 2**settings.max_tree_depth - 1).any():
        return False
    found = [diagnose(values[chain].reshape(2, -1, *values.shape[2:])[(..., *place)])
             for name, values in draws.values.items() if name in model.priors for place in np.ndindex(values.shape[2:])]
    return all(one["rhat"] <= MAX_RHAT and one["ess_bulk"] >= MIN_ESS for one in found)


def _thin(values: np.ndarray) -> np.ndarray:
    """99 equally spaced draws of each data set's chain."""
    return values[:, np.linspace(0, values.shape[1] - 1, LEVELS - 1).round().astype(int)].copy()


def _ranks(thinned: dict[str, np.ndarray], truth: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Number of draws below the true value, by scalar parameter: shape (data set,)."""
    ranks = {}
    for name, values in thinned.items():
        below = (values < truth[name][:, None]).sum(1)
        for place in np.ndindex(below.shape[1:]):
            label = name if below[0].size == 1 else name + str(list(place))
            ranks[label] = below[(slice(None), *place)]
    return ranks


def _coverage(counts: np.ndarray) -> dict[str, float]:
    """Share within the central intervals, by their probability in per cent, exact for 100 equally likely ranks."""
    centred = np.abs(np.arange(LEVELS) - (LEVELS - 1) / 2)
    return {str(level): float(counts[centred < level / 200 * LEVELS].sum() / counts.sum()) for level in (50, 80, 96)}


@lru_cache
def null(replicates: int) -> np.ndarray:
    """Smallest pointwise p value over the ECDF, of simulated sets of uniform ranks: sorted, shape (NULL,)."""
    rng = np.random.default_rng(0)
    return np.sort([_smallest(rng.multinomial(replicates, np.full(LEVELS, 1 / LEVELS))) for _ in range(NULL)])


def _smallest(counts: np.ndarray) -> float:
    """Smallest two-sided p value of the counts up to each rank, each binomial when ranks are uniform."""
    below, n = np.cumsum(counts)[:-1], counts.sum()
    share = np.arange(1, LEVELS) / LEVELS
    return 2 * float(np.minimum(stats.binom.cdf(below, n, share), stats.binom.sf(below - 1, n, share)).min())


def p_value(counts: np.ndarray) -> float:
    """Probability that a calibrated sampler leaves as narrow a band as these ranks do."""
    return float((1 + np.searchsorted(null(int(counts.sum())), _smallest(counts) * (1 + 1e-9))) / (1 + NULL))


def chi2_p(counts: np.ndarray) -> float:
    """p value of the χ² test of 20 equal bins."""
    return float(stats.chisquare(counts.reshape(20, -1).sum(1)).pvalue)


def band(replicates: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges of the 95 % simultaneous band of the ECDF minus the uniform one, at 1/100, …, 99/100."""
    gamma = np.quantile(null(replicates), 0.05)
    share = np.arange(1, LEVELS) / LEVELS
    low, high = stats.binom.ppf([[gamma / 2], [1 - gamma / 2]], replicates, share)
    return low / replicates - share, high / replicates - share


def draw(results: dict[str, Any], path: Path) -> None:
    """Figure of all results: one row for each law and error model, one panel for each parameter."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "calibration"
    from matplotlib.figure import Figure

    columns = max(len(result["counts"]) for result in results.values())
    figure = Figure(figsize=(1.7 * columns, 1.5 * len(results)), layout="constrained")
    panels = figure.subplots(len(results), columns, sharex=True, sharey=True, squeeze=False)
    share = np.arange(1, LEVELS) / LEVELS
    for row, (label, result) in zip(panels, results.items(), strict=True):
        low, high = band(result["replicates"])
        for panel, (name, counts) in zip(row, result["counts"].items(), strict=False):
            panel.fill_between(share, low, high, color="0.85", lw=0)
            panel.plot(share, np.cumsum(counts)[:-1] / sum(counts) - share, lw=1)
            panel.set_title(name, fontsize=8, pad=2)
            panel.tick_params(labelsize=6)
        for panel in row[len(result["counts"]):]:
            panel.set_axis_off()
        row[0].set_ylabel(label.replace(" x ", "\n"), fontsize=7)
    figure.supxlabel("normalised rank", fontsize=8)
    figure.suptitle("ECDF of ranks minus uniform, with 95 % simultaneous band", fontsize=9)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="svg", metadata={"Date": None})


def describe(label: str, found: Calibration) -> None:
    """Print a calibration as a table."""
    n, rate = found.replicates, found.cpu_s / found.replicates
    print(f"\n{label}: {n} data sets, {60 * n / found.wall_s:.0f} a minute, {rate:.2f} CPU seconds each; "
          f"{found.redrawn} impossible prior draws drawn again")
    print(f"  first attempt: {found.failed_first} did not pass, {found.divergences_first} divergences; after one "
          f"stricter attempt: {found.failed} did not pass, {found.divergences} divergences; all are counted")
    print(f"  {'':8} {'p (ECDF)':>9} {'p (chi2)':>9}   inside the central 50, 80, 96 %")
    for name, counts in found.counts.items():
        cover = ", ".join(f"{100 * share:.1f}" for share in found.cover[name].values())
        print(f"  {name:8} {p_value(counts):9.4f} {chi2_p(counts):9.4f}   {cover}")
    worst = min(found.counts, key=lambda name: p_value(found.counts[name]))
    smallest = min(p_value(found.counts[worst]) * len(found.counts), 1.0)
    print(f"  {'calibrated' if smallest > 0.05 else 'NOT CALIBRATED'}: smallest p, of {worst}, times "
          f"{len(found.counts)} parameters is {smallest:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicates", type=int, default=500)
    parser.add_argument("--law", nargs="+", choices=list(LAWS), default=list(LAWS))
    parser.add_argument("--errors", nargs="+", choices=list(ERRORS), default=list(ERRORS))
    parser.add_argument("--where", default="probe == 'baseline'", help="runs that give the design")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "calibration.json")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    runs = select(read_runs(ROOT / "data" / "paper_grid.csv"), args.where)
    results = json.loads(args.out.read_text()) if args.out.exists() else {}
    for law in args.law:
        for errors in args.errors:
            label = f"{law} x {errors}"
            model = build_model(runs, law, errors)
            about = {"where": args.where, "seed": args.seed, "of": args.replicates}
            found = _stored(results.get(label, {}), about)
            count = _counter(label, args.replicates)
            for first in range(found.replicates if found else 0, args.replicates, PIECE):
                sets = range(first, min(first + PIECE, args.replicates))
                piece = calibrate(model, args.replicates, args.seed, progress=count, sets=sets)
                found = found + piece if found else piece
                results[label] = _record(found) | about
                keep(results, args.out)
            if found:
                describe(label, found)


def _stored(result: dict[str, Any], about: dict[str, Any]) -> Calibration | None:
    """What was kept of a calibration of the same data sets, if anything."""
    if {name: result.get(name) for name in about} != about:
        return None
    known = {field.name: result[field.name] for field in fields(Calibration)}
    return Calibration(**known | {"counts": {name: np.array(counts) for name, counts in result["counts"].items()}})


def _record(found: Calibration) -> dict[str, Any]:
    counts = {name: counts.tolist() for name, counts in found.counts.items()}
    tests = {name: {"p_ecdf": p_value(array), "p_chi2": chi2_p(array)} for name, array in found.counts.items()}
    return {**found.__dict__, "counts": counts, "cover": found.cover, "tests": tests}


def keep(results: dict[str, Any], path: Path) -> None:
    """Write results, a line each, and their figure beside them."""
    with replacing(path) as temporary:
        lines = (f"{json.dumps(label)}: {json.dumps(result)}" for label, result in results.items())
        Path(temporary).write_text("{\n" + ",\n".join(lines) + "\n}\n")
    draw(results, path.with_suffix(".svg"))


def _counter(label: str, replicates: int) -> Callable[[int], None]:
    """Progress on standard error, where that is a terminal."""
    done, total = 0, replicates * (FIRST.num_warmup + FIRST.num_samples)

    def count(iterations: int) -> None:
        nonlocal done
        done += iterations
        if sys.stderr.isatty():
            end = "\n" if done >= total else ""
            print(f"\r{label}: {done / total:.0%} of {replicates} data sets", end=end, file=sys.stderr, flush=True)

    return count


if __name__ == "__main__":
    main()
