"""From the start of a process to a posterior on disk, beside PyMC with nutpie, and how it grows with the runs.

    python -m benchmarks.inference [start peers growth] [--rounds 3] [--out FILE.json]

Every fit is a fresh process on the published baseline, 4 chains of 1000 + 1000 draws, and what stands side by side
is measured in turns in one run; seconds are the median over rounds. CPU seconds suffer less from other
work on the machine. Results are kept in benchmarks/results/inference.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "data" / "paper_grid.csv"
BASELINE = ["--where", "probe == 'baseline'"]
SIZES = (1, 10, 100)  # times the 116 runs of the baseline
NAMES = ("E", "A", "B", "alpha", "beta", "phi", "sigma")


def run(module: str, *arguments: Any, **environment: str) -> dict[str, Any]:
    """What a benchmark process prints as its last line."""
    process = subprocess.run([sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)], cwd=ROOT, text=True,
                             capture_output=True, env={**os.environ, **environment})
    if process.returncode:
        sys.exit(f"{module} failed:\n{process.stderr}")
    return json.loads(process.stdout.splitlines()[-1])


def median(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The round with the median time to the posterior on disk, with all rounds' times."""
    ordered = sorted(rounds, key=lambda one: one["stages"]["saved"])
    return {**ordered[(len(ordered) - 1) // 2], "rounds": [one["stages"]["saved"] for one in rounds]}


def in_turns(rounds: int, methods: dict[str, Callable[[], dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Each method once a round; medians by name."""
    found: dict[str, list] = {name: [] for name in methods}
    for _ in range(rounds):
        for name, method in methods.items():
            found[name].append(method())
    return {name: median(ones) for name, ones in found.items()}


def start(rounds: int, folder: Path) -> dict[str, Any]:
    """Cold and with a filled compilation cache."""
    def warm() -> dict[str, Any]:
        return run("one_fit", TABLE, folder / "warm.nc", *BASELINE, "--cache", XDG_CACHE_HOME=str(folder / "cache"))

    warm()  # fills the cache
    found = in_turns(rounds, {"cold": lambda: run("one_fit", TABLE, folder / "cold.nc", *BASELINE), "warm": warm})
    print(f"\n{'to a posterior on disk':28}{'seconds':>9}{'CPU s':>8}   seconds at the end of each stage")
    for name, one in found.items():
        stages = ", ".join(f"{stage} {second:.1f}" for stage, second in one["stages"].items())
        print(f"{name:28}{one['stages']['saved']:9.1f}{one['cpu_s']:8.1f}   {stages}")
    return found


def peers(rounds: int, folder: Path) -> dict[str, Any]:
    """This package, and the same model in PyMC with nutpie, in the coordinates of either."""
    files = {name: folder / f"{name}.nc" for name in ("bayesloop", "nutpie natural", "nutpie centred")}

    def one(name: str) -> dict[str, Any]:
        if name == "bayesloop":
            return run("one_fit", TABLE, files[name], *BASELINE)
        return run("peer_fit", TABLE, files[name], *BASELINE, "--coordinates", name.split()[1])

    found = in_turns(rounds, {name: partial(one, name) for name in files})
    draws = {name: posterior(file) for name, file in files.items()}
    ours = found["bayesloop"]
    print(f"\n{'':18}{'seconds':>9}{'ratio':>7}{'CPU s':>8}{'ratio':>7}{'ESS phi':>9}{'ESS/s':>8}{'ratio':>7}"
          f"{'steps':>8}{'apart':>7}")
    for name, fit in found.items():
        fit["ess_phi"] = ess(draws[name]["phi"], "bulk")
        fit["ess_per_s"] = fit["ess_phi"] / fit["stages"]["saved"]
        fit["apart"] = apart(draws[name], draws["bayesloop"]) if name != "bayesloop" else {}
        worst = max((abs(z) for pair in fit["apart"].values() for z in pair), default=0.0)
        print(f"{name:18}{fit['stages']['saved']:9.1f}{fit['stages']['saved'] / ours['stages']['saved']:7.1f}"
              f"{fit['cpu_s']:8.1f}{fit['cpu_s'] / ours['cpu_s']:7.1f}{fit['ess_phi']:9.0f}{fit['ess_per_s']:8.0f}"
              f"{fit['ess_per_s'] / ours['ess_per_s']:7.2f}{fit['n_steps']:8.0f}{worst:7.1f}")
    print("steps: leapfrog steps a draw; ESS/s: of phi, per second from the start of the process; apart: largest of "
          f"{2 * len(NAMES)} differences\nof posterior means and sds from bayesloop's, in Monte Carlo standard errors")
    return found


def posterior(file: Path) -> dict[str, np.ndarray]:
    """Draws of every parameter, shape (chain, draw)."""
    with xr.open_datatree(file, engine="h5netcdf") as tree:
        group = tree["posterior"].load()
        return {name: group[name].values.reshape(*group[name].shape[:2]) for name in NAMES}


def ess(draws: np.ndarray, method: str) -> float:
    from arviz_stats.base import array_stats

    return float(array_stats.ess(draws, chain_axis=0, draw_axis=1, method=method))


def apart(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> dict[str, tuple[float, float]]:
    """Differences of means and of sds of log-scaled parameters, in Monte Carlo standard errors."""
    found = {}
    for name in NAMES:
        a, b = (draws[name] if name == "phi" else np.log(draws[name]) for draws in (one, other))
        mean = (a.mean() - b.mean()) / np.hypot(*(x.std() / np.sqrt(ess(x, "mean")) for x in (a, b)))
        squares = [(x - x.mean()) ** 2 for x in (a, b)]
        spread = np.hypot(*(x.std() / np.sqrt(ess(x, "mean")) for x in squares))
        found[name] = (float(mean), float((squares[0].mean() - squares[1].mean()) / spread))
    return found


def growth(rounds: int, folder: Path) -> dict[str, Any]:
    """Time, memory and file at 1, 10 and 100 times the runs, of one process each."""
    found = {}
    print(f"\n{'runs':>8}{'seconds':>9}{'CPU s':>8}{'steps':>7}{'MiB at peak':>13}{'MiB on disk':>13}{'converged':>11}")
    for times in SIZES:
        one = run("one_fit", grown(times, folder / f"runs-{times}.csv"), folder / f"grown-{times}.nc")
        found[str(one["runs"])] = one
        print(f"{one['runs']:8}{one['stages']['saved']:9.1f}{one['cpu_s']:8.1f}{one['n_steps']:7.0f}"
              f"{one['peak_mib']:13.0f}{one['file_mib']:13.1f}{'yes' if one['converged'] else 'NO':>11}", flush=True)
    return found


def grown(times: int, path: Path) -> Path:
    """A table with the baseline's design several times over, tokens jittered by 30 %, losses simulated."""
    import jax
    import pandas as pd

    from bayesloop import read_runs, select
    from bayesloop.model import build_model
    from bayesloop.simulation import simulate

    runs = select(read_runs(TABLE), "probe == 'baseline'")
    runs = pd.concat([runs] * times, ignore_index=True)
    jitter = np.random.default_rng(times).normal(0, 0.3, len(runs))
    runs = runs.assign(run_id=[f"run-{i}" for i in range(len(runs))], tokens=(runs["tokens"] * np.exp(jitter)).round())
    truth = {"E": 1.57, "A": 30.0, "B": 860.0, "alpha": 0.2, "beta": 0.36, "phi": 0.44, "sigma": 0.004}
    loss = simulate(build_model(runs), jax.random.key(times), 1, truth).loss[0]
    columns = ["run_id", "probe", "r", "n_once", "n_rec", "tokens", "loss_se"]
    runs[columns].assign(loss=loss).to_csv(path, index=False)
    return path


PARTS = {"start": start, "peers": peers, "growth": growth}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "inference.json")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; expected one of {', '.join(PARTS)}")
    from bayesloop.schema import replacing
    from benchmarks.peer_fit import check_priors

    check_priors()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(args.out.read_text()) if args.out.exists() else {}
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start")
    loads = results.setdefault("load_at_start", {})
    with tempfile.TemporaryDirectory() as folder:
        for part in args.parts or PARTS:
            loads[part] = os.getloadavg()[0]
            results[part] = PARTS[part](args.rounds, Path(folder))
            with replacing(args.out) as temporary:
                Path(temporary).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
