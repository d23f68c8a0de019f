"""What the paper's runs say under different assumptions: each finding by one command.

    python -m benchmarks.findings [cells | structures | recipes | matched | errors] [--keep FOLDER]

With --keep, posteriors are stored in a folder and read from it the next time.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from arviz_stats import loo

import bayesloop as bl
from bayesloop.compilation import enable_cache
from bayesloop.curves import residuals
from bayesloop.matched import matched_differences
from bayesloop.structures import RECIPES

LOW, BASELINE = "budget <= 4.64e18", "probe == 'baseline'"


class Fits:
    """Posteriors of the paper's runs, each fitted once."""

    def __init__(self, keep: Path | None) -> None:
        self.runs, self.keep, self.known = bl.read_runs("data/paper_grid.csv"), keep, {}

    def __call__(self, where: str = LOW, **options: Any) -> xr.DataTree:
        name = "_".join(["base" if where == BASELINE else "low", *map(str, options.values())])
        path = self.keep / f"{name}.nc" if self.keep else None
        if name not in self.known:
            if path and path.exists():
                self.known[name] = bl.load(path)
            else:
                self.known[name] = bl.fit(bl.select(self.runs, where), **options)
                if path:
                    bl.save(self.known[name], path)
        return self.known[name]


def pm(draws: Any) -> str:
    """Mean ± sd of draws."""
    return f"{float(np.mean(draws)):+.3f} ± {float(np.std(draws)):.3f}"


def delta(post: xr.DataTree, probe: str) -> str:
    """Δφ of a probe against the baseline, averaged over r."""
    phi = post["posterior"]["phi"]
    phi = phi.mean("r") if "r" in phi.dims else phi
    return pm(phi.sel(probe=probe) - phi.sel(probe="baseline"))


def evidence(post: xr.DataTree) -> dict[str, Any]:
    """Expected log predictive density, root mean square residual, and whether the sampler was content."""
    found = loo(post)
    rmse = 1e3 * float(np.sqrt((residuals(post)["residual"] ** 2).mean()))
    return {"elpd_loo": round(float(found.elpd), 1), "bad k": int((found.pareto_k > 0.7).sum()),
            "RMSE mnats": round(rmse, 1), "converged": bool(post.attrs["converged"]), "retries": post.attrs["retries"]}


def cells(fits: Fits) -> None:
    """An intercept for each cell swallows the anchor: measured φ 0.576 ± 0.036, Δφ hyperconnections −0.38 ± 0.03."""
    rows = []
    for errors in ("normal", "cell"):
        base, low = fits(BASELINE, errors=errors), fits(errors=errors)
        rows.append({"errors": errors, "φ baseline": pm(base["posterior"]["phi"]),
                     "E": pm(base["posterior"]["E"]), "Δφ truncated": delta(low, "truncated"),
                     "Δφ hyperconnections": delta(low, "hyperconnections"), **evidence(low)})
    print(pd.DataFrame(rows).to_string(index=False))


def structures(fits: Fits) -> None:
    """One φ per probe is not what happened: φ by r, and pooled over r with τ 0.20 ± 0.06."""
    free = fits(phi="probe_r")
    phi = free["posterior"]["phi"].mean(("chain", "draw"))
    print(phi.to_pandas().round(2).to_string())
    rows = []
    for structure, name in (("probe", None), ("probe_r", None), ("probe_r_pooled", "tau"), ("trend", "phi_slope")):
        post = fits(phi=structure)
        rows.append({"phi": structure, "": f"{name} {pm(post['posterior'][name])}" if name else "",
                     "Δφ truncated": delta(post, "truncated"),
                     "Δφ hyperconnections": delta(post, "hyperconnections"), **evidence(post)})
    print(pd.DataFrame(rows).to_string(index=False))


def recipes(fits: Fits) -> None:
    """The hyperconnections' Δφ depends on what their recipe may do besides: +0.37, +0.02, −0.42, +0.16 measured.

    Those were measured with effects of looping that the baseline has too (`looped_…`).
    """
    rows = []
    for recipe in RECIPES:
        post = fits(law="cross_recurrence", phi="probe_r", recipe=recipe)
        rows.append({"recipe": recipe, "Δφ truncated": delta(post, "truncated"),
                     "Δφ hyperconnections": delta(post, "hyperconnections"), **evidence(post)})
        for name in ("rho", "delta"):
            if name in post["posterior"]:
                value = post["posterior"][name]
                rows[-1] |= {f"{name} {probe[:5]}": pm(value.sel(recipe=probe)) for probe in value["recipe"].values}
    print(pd.DataFrame(rows).to_string(index=False))


def errors(fits: Fits) -> None:
    """φ under each error model."""
    rows = []
    for name in ("normal", "student_t", "budget", "smooth", "cell"):
        base, low = fits(BASELINE, errors=name), fits(errors=name)
        rows.append({"errors": name, "φ baseline": pm(base["posterior"]["phi"]),
                     "Δφ truncated": delta(low, "truncated"),
                     "Δφ hyperconnections": delta(low, "hyperconnections"), **evidence(low)})
    print(pd.DataFrame(rows).to_string(index=False))


def matched(fits: Fits) -> None:
    """Without a model: −46, −40, −38 mnats for hyperconnections at r = 2, 4, 8; truncation +34, +21, +9."""
    table = matched_differences([fits(errors="normal"), fits(BASELINE, errors="normal")])
    numbers = ["raw", "corrected", "se", "pure", "pure_sd"]
    print(table.assign(**{name: (1e3 * table[name]).round(1) for name in numbers}).to_string(index=False))


FINDINGS = {"cells": cells, "matched": matched, "structures": structures, "recipes": recipes, "errors": errors}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("finding", nargs="*", choices=[*FINDINGS, []], help="all when none is given")
    parser.add_argument("--keep", type=Path, help="folder for posteriors")
    args = parser.parse_args()
    enable_cache()
    if args.keep:
        args.keep.mkdir(parents=True, exist_ok=True)
    fits = Fits(args.keep)
    for name in args.finding or FINDINGS:
        print(f"\n{name}: {FINDINGS[name].__doc__}")
        FINDINGS[name](fits)


if __name__ == "__main__":
    main()
