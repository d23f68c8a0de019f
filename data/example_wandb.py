"""Makes `example_wandb.csv`: 20 simulated runs, in the form in which a tracker exports somebody else's.

    python data/example_wandb.py [FILE]

The losses follow the recurrence law with the parameters of `TRUTH` and a relative scatter of 0.3 %; nothing was
trained.
"""

from __future__ import annotations

import csv
import sys
from itertools import product
from pathlib import Path

import numpy as np

from bayesloop.architecture import horizon, iso_depth

TRUTH = {"E": 1.75, "A": 60.0, "alpha": 0.25, "B": 900.0, "beta": 0.37, "phi": 0.6, "sigma": 0.003}
BUDGETS, WIDTHS, LOOPS, DEPTH = (3e17, 1.2e18), (384, 512, 640), (1, 2, 4), 12
LETTERS = list("0123456789abcdefghijklmnopqrstuvwxyz")
BATCH = 131_072  # tokens of a step
CRASHED = 11     # the run that ended with the machine, by its place
REPEATED = 4     # the run that was started a second time, with the same seed


def loss_of(n_once: int, n_rec: int, r: int, tokens: int) -> float:
    """The law, without scatter, in nats per token."""
    n_eff = n_once + r ** TRUTH["phi"] * n_rec
    return TRUTH["E"] + TRUTH["A"] * n_eff ** -TRUTH["alpha"] + TRUTH["B"] * tokens ** -TRUTH["beta"]


def rows() -> list[dict[str, object]]:
    """One row for each run, under the tracker's column names."""
    rng = np.random.default_rng(20)
    plan = list(product(BUDGETS, LOOPS, WIDTHS))
    plan.append(plan[CRASHED])    # tried again after the crash
    plan.append(plan[REPEATED])
    table = []
    for place, (budget, r, width) in enumerate(plan):
        model = iso_depth(width, r, depth=DEPTH)
        tokens = horizon(budget, model.flops_per_token, BATCH).tokens
        loss = loss_of(model.n_once(), model.n_rec(), r, tokens) * np.exp(TRUTH["sigma"] * rng.normal())
        crashed = place == CRASHED
        table.append({
            "Name": f"loop{r}-d{width}-{budget:.0e}".replace("+", ""), "ID": "".join(rng.choice(LETTERS, 8)),
            "State": "crashed" if crashed else "finished",
            "Runtime": int(rng.integers(100, 900) if crashed else budget / 2e14),
            "model.d_model": width, "model.n_prelude": model.n_prelude, "model.n_recur": model.n_recur,
            "model.n_coda": model.n_coda, "model.n_loops": r, "model.injection": "linear", "seed": 17,
            "budget_flops": f"{budget:g}", "train/tokens_B": f"{(0.31 if crashed else 1) * tokens / 1e9:.4f}",
            "val/loss": "" if crashed else f"{loss:.4f}"})
    return table


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("example_wandb.csv")
    with open(target, "w", newline="") as file:
        writer = csv.DictWriter(file, rows()[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows())
