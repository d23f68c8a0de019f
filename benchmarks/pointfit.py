"""The point fit against SciPy's L-BFGS-B on the same resamples: time, and whose optimum is lower.

    python -m benchmarks.pointfit [--probe baseline] [--resamples 8] [--starts 500]

SciPy gets analytic gradients, an objective scaled to order one, tolerances at the limit of double precision, and one
process per core. Its time per resample on a slice stands for all 200. Start it with OMP_NUM_THREADS=1, or NumPy's
threads may slow SciPy down.
"""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import minimize

DELTA = 1e-3
LOW = np.array([-3.0, -5, -5, 0, 0, -3])  # arXiv 2604.21106: e, a, b, alpha, beta, phi
HIGH = np.array([2.0, 35, 35, 2.5, 2.5, 3])
TIGHT = {"maxiter": 10_000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-10}


def objective(theta: np.ndarray, table: dict[str, np.ndarray], weights: Any = 1.0,
              scale: float = 1.0) -> tuple[float, np.ndarray]:
    """Scaled sum of Huber terms of the recurrence law (Chinchilla's if theta lacks phi) and its gradient."""
    e, a, b, alpha, beta = theta[:5]
    looped = len(theta) > 5
    rec = table["n_rec"] * np.exp(theta[5] * table["log_r"]) if looped else table["n_rec"]
    size = table["n_once"] + rec
    log_size = np.log(size)
    floor, p, q = np.exp(e), np.exp(a - alpha * log_size), np.exp(b - beta * table["log_tokens"])
    loss = floor + p + q
    residual = np.log(loss) - table["log_loss"]
    inner = np.minimum(np.maximum(residual, -DELTA), DELTA)
    weighted = weights * inner
    pull = weighted / loss
    on_p, on_q = pull * p, pull * q
    gradient = np.empty(len(theta))
    gradient[:5] = (pull.sum() * floor, on_p.sum(), on_q.sum(), -(on_p @ log_size), -(on_q @ table["log_tokens"]))
    if looped:
        gradient[5] = -alpha * (on_p @ (rec * table["log_r"] / size))
    return scale * float(weighted @ (residual - 0.5 * inner)), scale * gradient


def arrays(runs: pd.DataFrame) -> dict[str, np.ndarray]:
    """What `objective` reads: counts, and the logarithms that do not change between calls."""
    table = {name: runs[name].to_numpy(float) for name in ("n_once", "n_rec", "r", "tokens", "loss")}
    return {**table, **{f"log_{name}": np.log(table[name]) for name in ("r", "tokens", "loss")}}


def scipy_fit(table: dict[str, np.ndarray], start: np.ndarray, weights: Any = 1.0, scale: float = 1e3,
              options: dict[str, Any] | None = None) -> tuple[float, np.ndarray, int]:
    """Unscaled objective, parameters and iterations of one L-BFGS-B run."""
    found = minimize(objective, start, (table, weights, scale), jac=True, method="L-BFGS-B",
                     bounds=list(zip(LOW, HIGH, strict=True))[:len(start)],
                     options=TIGHT if options is None else options)
    return float(found.fun) / scale, found.x, int(found.nit)


def scipy_best(table: dict[str, np.ndarray], starts: int, dims: int,
               job: tuple[int, np.ndarray]) -> tuple[float, float]:
    """Lowest objective over random starts for one resample, and the processor seconds it took."""
    seed, weights = job
    begin = time.process_time()
    points = np.random.default_rng(seed).uniform(LOW[:dims], HIGH[:dims], (starts, dims))
    return min(scipy_fit(table, point, weights)[0] for point in points), time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe", default="baseline")
    parser.add_argument("--r", type=int, help="only runs of this r, with Chinchilla's law")
    parser.add_argument("--where", default="budget > 0", help="pandas query")
    parser.add_argument("--resamples", type=int, default=8, help="of the 200, those that SciPy fits too")
    parser.add_argument("--starts", type=int, default=500)
    args = parser.parse_args()

    from bayesloop.bootstrap import cells, resample
    from bayesloop.pointfit import anchored, point_fit

    runs = anchored(pd.read_csv("data/paper_grid.csv"), args.probe).query(args.where)
    law, names = "recurrence", ["E", "A", "B", "alpha", "beta", "phi"]
    if args.r is not None:
        runs, law, names = runs[runs["r"] == args.r], "chinchilla", names[:5]
    fit = partial(point_fit, runs, law, num_starts=args.starts, num_bootstrap=200, seed=1)
    begin = time.perf_counter()
    fit()
    cold = time.perf_counter() - begin
    begin, cpu_begin = time.perf_counter(), time.process_time()
    boot = fit().bootstrap
    ours, cpu = time.perf_counter() - begin, time.process_time() - cpu_begin
    assert boot is not None

    table, log_y = arrays(runs), np.log(runs["loss"].to_numpy(float))
    unit = cells(runs["budget"].to_numpy(float), runs["r"].to_numpy())
    _, weights = resample("block", unit, log_y, log_y, 200, np.random.default_rng(1).spawn(3)[1])
    weights = weights[:args.resamples]
    theta = np.stack([np.log(boot.draws[name]) if name in "EAB" else boot.draws[name] for name in names], axis=1)
    mine = np.array([objective(point, table, weight)[0] for point, weight in zip(theta, weights, strict=False)])
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        list(pool.map(abs, range(cores)))  # start the processes before the clock
        begin = time.perf_counter()
        found = list(pool.map(partial(scipy_best, table, args.starts, len(names)), enumerate(weights)))
        slice_s = time.perf_counter() - begin
    theirs, theirs_cpu = np.array(found).T
    scipy_s, scipy_cpu = slice_s * 200 / args.resamples, theirs_cpu.sum() * 200 / args.resamples
    level = mine <= theirs * (1 + 1e-6)
    print(f"{len(runs)} runs, {args.starts} starts, 200 resamples, {cores} cores")
    print(f"point_fit {ours:.2f} s (first call, with compilation, {cold:.2f} s); failed refits {boot.failed}, on the "
          f"boundary {boot.on_boundary}")
    print(f"SciPy     {scipy_s:.0f} s, from {args.resamples} resamples in {slice_s:.1f} s")
    print(f"ratio {scipy_s / ours:.0f} in time ({scipy_s / cold:.0f} with compilation), {scipy_cpu / cpu:.0f} in "
          f"processor seconds ({scipy_cpu:.0f} against {cpu:.2f}), which other work on the machine disturbs less")
    print(f"objective equal (1e-6) or lower on {level.mean():.1%}; lower on {np.mean(mine < theirs * (1 - 1e-6)):.1%}; "
          f"worst {np.max(mine / theirs - 1):+.1e}")


if __name__ == "__main__":
    main()
