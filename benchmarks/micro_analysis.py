"""The analysis of data/micro_grid.h5 that data/README.md announces: what is there, matched differences, φ, figures.

    python -m benchmarks.micro_analysis [data/micro_grid.h5] [--out out/micro]

Losses are nats per byte. Set OMP_NUM_THREADS=1 on a busy machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

import bayesloop as bl
from bayesloop.curves import parabola_minimum, residuals
from bayesloop.plots import PAGE, iso_flop_figure, new_figure, plot_matched, save_figure
from benchmarks.micro_design import PROBES, fit, log_loss

CELL = ["budget", "r", "width"]
PLANNED = {"baseline": 4, "truncated": 3, "hyperconnections": 4}  # runs of a budget and width: every r of the recipe
SEED = 42


def complete(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs of one seed whose probe, budget and width have every r of the design, so that r is balanced."""
    runs = runs[runs["seed"] == SEED]
    found = runs.groupby(["probe", "budget", "width"])["run_id"].transform("size")
    return runs[found == runs["probe"].map(PLANNED)].reset_index(drop=True)


def recipe_fit(runs: pd.DataFrame, recipe: bool) -> dict[str, tuple[float, float]]:
    """Posterior mode and Laplace sd of φ, both Δφ, and the recipe factor of hyperconnections on the token term."""
    table = np.column_stack([runs[["n_once", "n_rec", "r", "tokens"]].to_numpy(float),
                             runs["probe"].map(PROBES.index), runs["budget"]])
    observed, sigma, probes = np.log(runs["loss"].to_numpy()), 0.02, set(runs["probe"])
    for _ in range(10):  # sigma and the mode settle together
        found = fit(table, observed, sigma, recipe)
        used = found.x if recipe else np.append(found.x[:8], 0.0)
        free = len(runs) - 5 - len(probes) - recipe
        sigma = float(np.sqrt(np.sum((log_loss(used, table) - observed) ** 2) / free))
    covariance = np.linalg.inv(found.jac.T @ found.jac)
    ways = {"phi baseline": (5, None)}
    ways |= {f"delta {probe}": (5 + i, 5) for i, probe in enumerate(PROBES) if i and probe in probes}
    ways |= {"log recipe factor": (8, None)} if recipe else {}
    out = {"sigma": (sigma, np.nan)}
    for name, (plus, minus) in ways.items():
        way = np.zeros(9)
        way[plus] = 1
        if minus is not None:
            way[minus] = -1
        out[name] = (float(way @ found.x), float(np.sqrt(way @ covariance @ way)))
    return out


def show_optima(runs: pd.DataFrame) -> None:
    """Minimum of a parabola through each iso-FLOP curve: size, loss; `edge` where it lies outside the grid."""
    for (probe, budget), group in runs.groupby(["probe", "budget"]):
        cells = []
        for r, cell in group.groupby("r"):
            size, loss = parabola_minimum(cell)
            best = cell.loc[cell["loss"].idxmin()]
            cells.append(f"r={r} {loss:.3f} at N={size:,.0f}" if np.isfinite(size) else
                         f"r={r} edge, best {best['loss']:.3f} at d={best['width']}")
        print(f"  {probe:17} {budget:.3g}  " + "; ".join(cells))


def show_seeds(runs: pd.DataFrame) -> None:
    """Standard deviation between seeds of the cells that were repeated, pooled, in log loss."""
    cells = runs.assign(log_loss=np.log(runs["loss"])).groupby(["probe", *CELL])["log_loss"].agg(["var", "size"])
    cells = cells[cells["size"] > 1]
    if len(cells):
        pooled = np.sqrt(np.average(cells["var"], weights=cells["size"] - 1))
        print(f"seeds: {len(cells)} cells, {cells['size'].sum()} runs, sd of log loss {pooled:.4f}\n")


def show_phi(runs: pd.DataFrame, label: str, seed: int, **options: str) -> xr.DataTree:
    """Sample the law, with one φ per probe unless told otherwise, and print φ and Δφ."""
    post = bl.fit(runs, **{"law": "recurrence", **options}, num_warmup=500, num_samples=500, seed=seed)
    rmse = float(np.sqrt((residuals(post)["residual"] ** 2).mean()))
    print(f"\n{label}: {len(runs)} runs, {post.attrs['verdict']}, RMSE {rmse:.4f}")
    if post.attrs["converged"]:
        columns = ["probe", "r", "mean", "sd", "delta_mean", "delta_sd", "p_positive"]
        print(bl.compare(post).reindex(columns=columns).dropna(axis=1, how="all").round(3).to_string(index=False))
    return post


def show_chinchilla(runs: pd.DataFrame, label: str, seed: int) -> None:
    """Sample the law without recurrence on the runs of one r."""
    post = bl.fit(runs, law="chinchilla", num_warmup=500, num_samples=500, seed=seed)
    told = ", ".join(f"{name} {row['mean']:.3g} ± {row['sd']:.2g}" for name, row in bl.summarise(post).iterrows())
    print(f"{label}: {told}; {'converged' if post.attrs['converged'] else post.attrs['verdict']}")


def show_matched(post: xr.DataTree, out: Path) -> None:
    """Matched differences by r, as a table and beside those of the published runs as a figure."""
    table = bl.matched_differences(post)
    print("\nloss minus baseline at equal budget, r and width, nats per byte; corrected: at equal tokens")
    print(table.drop(columns=["law", "recipe"]).round(4).to_string(index=False))
    published = bl.fit(bl.select(bl.read_runs("data/paper_grid.csv"), "budget <= 4.64e18"), "recurrence")
    figure, (left, right) = new_figure(2, width=PAGE, height=2.9)
    plot_matched(left, bl.matched_differences(published)).set_title("published runs", fontsize=9)
    plot_matched(right, table, "mnats per byte").set_title("this repository's small grid", fontsize=9)
    save_figure(figure, out / "matched")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the analysis and print it; figures go to `--out`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="?", default=Path("data/micro_grid.h5"))
    parser.add_argument("--out", type=Path, default=Path("out/micro"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    everything = bl.read_runs(options.runs)
    runs = complete(everything)
    show_seeds(everything)
    print(runs.pivot_table(index=["probe", "r"], columns="budget", values="loss", aggfunc="size", fill_value=0))
    print("\nloss by width")
    print(runs.pivot_table(index=["probe", "budget", "width"], columns="r", values="loss").round(4).to_string())
    print("\niso-FLOP optima")
    show_optima(runs)
    options.out.mkdir(parents=True, exist_ok=True)
    show_phi(bl.select(runs, "probe == 'baseline'"), "baseline, all budgets", options.seed)
    for r in sorted(set(runs["r"])):
        own = bl.select(runs, f"probe == 'baseline' and r == {r}")
        show_chinchilla(own, f"baseline, r = {r} by itself", options.seed)
    shared = runs.loc[runs["probe"] == "hyperconnections", "budget"].unique()
    common = bl.select(runs, f"budget in {sorted(map(float, shared))}")
    without = bl.select(common, "probe != 'hyperconnections' or r > 1")
    for label, table in (("with", common), ("without", without)):
        post = show_phi(table, f"common budgets, {label} the r = 1 hyperconnection runs", options.seed)
        for recipe in (False, True):
            text = "  ".join(f"{k} {m:+.3f} ± {s:.3f}" for k, (m, s) in recipe_fit(table, recipe).items())
            print(f"mode{', recipe factor on hyperconnections' if recipe else ''}: {text}")
        if label == "with":
            for recipe in ("none", "data_factor"):
                show_phi(table, f"the same, φ by r, Kaplan type, recipe term {recipe}", options.seed,
                         law="kaplan_recurrence", phi="probe_r", recipe=recipe)
            show_matched(post, options.out)
            for probe in sorted(set(common["probe"])):
                save_figure(iso_flop_figure(post, probe), options.out / f"iso_flop_{probe}")


if __name__ == "__main__":
    main()
