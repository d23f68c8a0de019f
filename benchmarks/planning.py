"""What the paper's runs and designs can resolve, by the planner, and checked by fitting what it chose.

    python -m benchmarks.planning [--json FILE]

How few of the 116 baseline runs give φ to ± 0.05, and what fitting only those gives; what the paper's case study (20
runs of one r over the four lower budgets) resolves; which runs would settle Δφ of the hyperconnections.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pandas as pd
import xarray as xr

import bayesloop as bl
from bayesloop.console import print_table, say

GOAL = 0.05
CASE_STUDY = {4.64e17: (6, 8, 10, 12), 1e18: (6, 8, 10, 12, 14), 2.15e18: (8, 10, 12, 14, 16),
              4.64e18: (10, 12, 14, 16, 18, 20)}  # arXiv 2604.21106: sizes of the four lower budgets


def how_few(runs: pd.DataFrame, post: xr.DataTree) -> pd.DataFrame:
    """The smallest and the cheapest sets of runs that are expected to be enough, with φ from fitting them alone."""
    rows = []
    for unit in ("run", "cell"):
        for cost in ("runs", "flops"):
            chosen, steps = bl.cheapest(post, GOAL, unit=unit, cost=cost)
            keys = ["budget", "r", "width"]
            subset = runs.merge(chosen[keys], on=keys)
            phi = bl.fit(subset)["posterior"]["phi"]
            rows.append({"left out by": unit, "saving": cost, "runs": len(subset), "FLOP": float(chosen["flops"].sum()),
                         "share of FLOP": float(chosen["flops"].sum() / steps["flops"].max()),
                         "φ refitted": float(phi.mean()), "± (1.96 sd)": 1.96 * float(phi.std())})
    return pd.DataFrame(rows)


def case_study(post: xr.DataTree) -> pd.DataFrame:
    """What 20 runs of one r of a new recipe resolve, without and with a recipe effect, and with r = 1 runs of it."""
    rows = []
    for r in (2, 4, 8):
        looped = _grid(post, [r], "new")
        plain = _grid(post, [1], "new")[lambda runs: runs["budget"] < 2e18]
        for label, design, recipes in (("anchored", looped, []), ("recipe effect", looped, ["new"]),
                                       ("recipe effect, 9 runs at r = 1", pd.concat([looped, plain]), ["new"])):
            table = bl.plan(post, design, recipes=recipes).set_index(["quantity", "probe"])
            row = table.loc[("delta", "new")]
            rows.append({"r": r, "model": label, "runs": len(design), "FLOP": float(design["flops"].sum()),
                         "Δφ ±": row["half_width"], "P(detect 0.1)": row["p_detect"],
                         "detectable at 0.8": row["detectable"]})
    return pd.DataFrame(rows)


def what_next(post: xr.DataTree) -> pd.DataFrame:
    """The single runs worth most per FLOP for the hyperconnections' Δφ, without and with a recipe effect."""
    candidates = pd.concat([_grid(post, [1, 2, 4, 8], probe) for probe in ("baseline", "hyperconnections")])
    tables = []
    for recipes in ([], ["hyperconnections"]):
        table = bl.rank(post, candidates, probe="hyperconnections", reference="baseline", recipes=recipes)
        tables.append(table.head(5)[["probe", "r", "budget", "width", "reduction", "per_flop"]].assign(
            model="recipe effect" if recipes else "anchored", sd=table.attrs["sd"]))
    return pd.concat(tables, ignore_index=True)


def _grid(post: xr.DataTree, r: list[int], probe: str) -> pd.DataFrame:
    return pd.concat([bl.design_runs(post, [budget], r, sizes=sizes, probe=probe)
                      for budget, sizes in CASE_STUDY.items()], ignore_index=True)


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    runs = bl.read_runs("data/paper_grid.csv")
    baseline = bl.select(runs, "probe == 'baseline'")
    three = bl.fit(bl.select(runs, "budget <= 4.64e18"), "recurrence")
    tables = {f"How few of the 116 runs give φ to ± {GOAL}": how_few(baseline, bl.fit(baseline)),
              "The case study: 20 runs of one r, new recipe, beside the three probes' runs": case_study(three),
              "Runs worth most for Δφ of the hyperconnections": what_next(three)}
    for title, table in tables.items():
        print_table(table, title)
    if options.json:
        found = {title: table.to_dict("records") for title, table in tables.items()}
        options.json.write_text(json.dumps(found, indent=2))
        say(f"written to {options.json}")


if __name__ == "__main__":
    main()
