"""The same model in PyMC, sampled by nutpie, in a fresh process; `benchmarks.inference` calls it.

    python -m benchmarks.peer_fit RUNS OUT [--coordinates natural|centred] [--where CONDITION]

The recurrence law with Normal errors of log loss and the package's default priors. `natural` is the model as one
writes it in PyMC; `centred` gets the package's coordinates and a mass matrix with correlations.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time

import numpy as np

from benchmarks.one_fit import since_start

# families and arguments of the package's defaults; `benchmarks.inference` checks that they still are
PRIORS = {"E": (0.4, 0.5), "A": (4.6, 1.5), "B": (6.9, 2.0), "alpha": (-1.4, 0.4), "beta": (-1.0, 0.4),
          "phi": (0.5, 0.5), "sigma": (-5.3, 1.0)}  # LogNormal, but phi: Normal


def check_priors() -> None:
    """Exit if the priors here are no longer the package's defaults."""
    from bayesloop.errors import ERRORS
    from bayesloop.laws import LAWS

    defaults = {**LAWS["recurrence"].priors, **ERRORS["normal"].priors}
    families = {name: "Normal" if name == "phi" else "LogNormal" for name in PRIORS}
    if {name: (prior.family, prior.args) for name, prior in defaults.items()} != {
            name: (families[name], args) for name, args in PRIORS.items()}:
        raise SystemExit("benchmarks/peer_fit.py: PRIORS differ from the package's defaults; change them there")


def build(table, coordinates: str):
    """The PyMC model of a table of runs."""
    import pymc as pm
    import pytensor.tensor as pt

    n_once, n_rec, log_r, log_tokens, log_loss = (
        table["n_once"].to_numpy(float), table["n_rec"].to_numpy(float), np.log(table["r"].to_numpy(float)),
        np.log(table["tokens"].to_numpy(float)), np.log(table["loss"].to_numpy(float)))
    log_se = table["loss_se"].to_numpy(float) / table["loss"].to_numpy(float)
    reference = np.log(n_once + n_rec).mean(), log_tokens.mean()
    with pm.Model() as model:
        alpha, beta, sigma = (pm.LogNormal(name, *PRIORS[name]) for name in ("alpha", "beta", "sigma"))
        phi = pm.Normal("phi", *PRIORS["phi"])
        if coordinates == "natural":
            log_e, log_a, log_b = (pt.log(pm.LogNormal(name, *PRIORS[name])) for name in ("E", "A", "B"))
        else:
            total, *ratios = (pm.Flat(name) for name in ("total", "p_over_e", "q_over_e"))
            log_e = total - pt.log1p(pt.exp(ratios[0]) + pt.exp(ratios[1]))
            log_a = log_e + ratios[0] + alpha * reference[0]
            log_b = log_e + ratios[1] + beta * reference[1]
            for name, value in (("E", log_e), ("A", log_a), ("B", log_b)):
                pm.Potential(f"prior_{name}", pm.logp(pm.Normal.dist(*PRIORS[name]), value))
                pm.Deterministic(name, pt.exp(value))
        log_n = pt.log(n_once + pt.exp(phi * log_r) * n_rec)
        mean = pt.exp(log_e) + pt.exp(log_a - alpha * log_n) + pt.exp(log_b - beta * log_tokens)
        pm.Normal("log_loss", pt.log(mean), pt.sqrt(sigma**2 + log_se**2), observed=log_loss)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs")
    parser.add_argument("out")
    parser.add_argument("--coordinates", choices=["natural", "centred"], default="natural")
    parser.add_argument("--where", help="pandas query")
    args = parser.parse_args()
    stages = {"python": since_start()}
    import nutpie
    import pandas as pd
    import pymc  # noqa: F401
    stages["imports"] = since_start()
    table = pd.read_csv(args.runs)
    table = table.query(args.where) if args.where else table
    compiled = nutpie.compile_pymc_model(build(table, args.coordinates))
    stages["compiled"] = since_start()
    more = {"low_rank_modified_mass_matrix": True} if args.coordinates == "centred" else {}
    post = nutpie.sample(compiled, draws=1000, tune=1000, chains=4, seed=0, progress_bar=False, target_accept=0.95,
                         **more)
    stages["sampled"] = since_start()
    post.to_netcdf(args.out)
    stages["saved"] = since_start()
    print(json.dumps({"stages": stages, "cpu_s": time.process_time(), "runs": len(table),
                      "divergences": int(post["sample_stats"]["diverging"].sum()),
                      "n_steps": float(post["sample_stats"]["n_steps"].mean()),
                      "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                      "file_mib": os.path.getsize(args.out) / 2**20}))


if __name__ == "__main__":
    main()
