"""Do the laws hold at more compute? Fit the lower budgets, predict the runs of the upper ones.

    python -m benchmarks.extrapolation [--probe baseline] [--json FILE] [--laws recurrence ...]

Fits five budgets and predicts the sixth, then fits four and predicts two: by law, and with all laws pooled equally.
Coverage is the share of held-out runs inside their 95 % predictive interval; error is observed minus predicted loss.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console

import bayesloop as bl
from bayesloop.console import print_table

LAWS = ("recurrence", "kaplan_recurrence", "cross_recurrence")
SPLITS = {"five → sixth": 1.5e19, "four → two": 7e18}


def score(predicted: pd.DataFrame, held_out: pd.DataFrame) -> dict[str, float]:
    """Coverage of 95 %, root mean square and mean error in mnats, and half the predictive interval's mean width."""
    error = 1e3 * (held_out["loss"].to_numpy() - predicted["mean"].to_numpy())
    low, high = predicted["predictive_lower"].to_numpy(), predicted["predictive_upper"].to_numpy()
    observed = held_out["loss"].to_numpy()
    return {"coverage": float(np.mean((low < observed) & (observed < high))), "rmse": float(np.sqrt(np.mean(error**2))),
            "mean error": float(error.mean()), "half width": float(500 * np.mean(high - low)),
            **{f"r = {r}": float(error[held_out["r"] == r].mean()) for r in sorted(set(held_out["r"]))}}


def main() -> None:
    """Run the test and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe", default="baseline")
    parser.add_argument("--laws", nargs="+", default=LAWS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    runs = bl.select(bl.read_runs("data/paper_grid.csv"), f"probe == '{options.probe}'")
    rows = []
    for split, limit in SPLITS.items():
        low, high = bl.select(runs, f"budget < {limit}"), bl.select(runs, f"budget > {limit}")
        posts = {law: bl.fit(low, law=law) for law in options.laws}
        for law, post in [*posts.items(), ("all, equally", list(posts.values()))]:
            note = "" if isinstance(post, list) or post.attrs["converged"] else " (not converged)"
            rows.append({"test": split, "law": law + note, "fitted": len(low), "held out": len(high),
                         **score(bl.predict(post, high, force=True), high)})
            Console(stderr=True).print(rows[-1])
    table = pd.DataFrame(rows)
    by_r = [name for name in table if str(name).startswith("r = ")]
    shown = table[["test", "law", "held out"]].assign(
        coverage=table["coverage"].map("{:.0%}".format), rmse=table["rmse"].map("{:.1f}".format),
        error=table["mean error"].map("{:+.1f}".format), half=table["half width"].map("± {:.1f}".format),
        by_r=[", ".join(f"{value:+.0f}" for value in values) for values in table[by_r].to_numpy()])
    names = {"error": "mean error", "half": "interval", "by_r": f"by r = {', '.join(name[4:] for name in by_r)}"}
    print_table(shown.rename(columns=names), "Held-out budgets: coverage of 95 % predictive intervals, errors in mnats")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
