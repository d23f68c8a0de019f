"""The reproduction table says what the point fit's own tests assert: published beside ours, misses shown."""

from __future__ import annotations

import pandas as pd

import bayesloop as bl
from bayesloop.reproduction import JOINT, PER_R, reproduce

# measured with the injection in n_once: two known misses with phi fixed at 0, one R² of the truncated fit
KNOWN_MISSES = {("phi fixed at 0", "alpha"), ("phi fixed at 0", "E"), ("phi fixed at 0", "beta")}


def test_every_published_number_is_reproduced_or_a_known_miss(runs: pd.DataFrame) -> None:
    table = reproduce(bl.read_runs(runs, injection="once"), num_starts=100)
    assert len(table) == sum(len(fit.numbers) for fit in JOINT + PER_R)
    relative = (table["difference"] / table["published"].where(table["published"] != 0, 1)).abs()
    allowed = table["number"].map({"phi": 0.01, "alpha": 0.01, "beta": 0.01, "E": 0.005, "A": 0.02, "B": 0.02,
                                   "r2": 0.0015})
    missed = {(row.fit, row.number) for row in table[relative > allowed].itertuples()}
    assert missed <= KNOWN_MISSES
    assert not relative.gt(0.04).any()
