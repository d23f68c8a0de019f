"""The laws, error models and priors written again in plain NumPy and SciPy, to compare the package with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from bayesloop import read_runs, select
from tests.tables import PAPER

LINKS = {
    "recurrence": lambda E, P, Q: E + P + Q,
    "chinchilla": lambda E, P, Q: E + P + Q,
    "kaplan_recurrence": lambda E, P, Q, kappa: E + (P ** (1 / kappa) + Q ** (1 / kappa)) ** kappa,
    "cross_recurrence": lambda E, P, Q, x: E + P + Q + x * P * Q / E,
}
TOGETHER = {"budget": ["budget"], "cell": ["probe", "budget", "r"]}
EXTRA = {"kaplan_recurrence": ("kappa",), "cross_recurrence": ("x",)}
# close to the posterior of the published baseline
TRUTH = {"E": 1.57, "A": 30.0, "B": 860.0, "alpha": 0.2, "beta": 0.36, "phi": 0.44, "sigma": 0.004, "nu": 8.0,
         "kappa": 0.9, "x": 0.1}


def baseline(where: str = "probe == 'baseline'") -> pd.DataFrame:
    """Runs of the published grid."""
    return select(read_runs(PAPER), where)


def mean(law: str, values: Mapping[str, Any], phi: Any, design: Any) -> np.ndarray:
    """Expected loss of the runs, nats per token; phi is given per run."""
    n_once, n_rec, r, tokens = (np.asarray(column, float) for column in design)
    weight = 1.0 if law == "chinchilla" else r ** np.asarray(phi, float)
    P = values["A"] * (n_once + weight * n_rec) ** -values["alpha"]
    Q = values["B"] * tokens ** -values["beta"]
    return LINKS[law](values["E"], P, Q, **{name: values[name] for name in EXTRA.get(law, ())})


def log_likelihood(errors: str, loss: Any, expected: np.ndarray, log_se: Any, values: Mapping[str, Any],
                   runs: pd.DataFrame | None = None) -> np.ndarray:
    """Log density of the losses (not of their logarithms); jointly, as one number, where runs miss together."""
    scale = np.sqrt(values["sigma"] ** 2 + np.asarray(log_se) ** 2)
    z = np.log(loss) - np.log(expected)
    if errors in TOGETHER:
        assert runs is not None
        key = runs[TOGETHER[errors]].astype(str).agg(" ".join, axis=1).to_numpy()
        same = key[:, None] == key
        covariance = values[f"sigma_{errors}"] ** 2 * same + np.diag(np.broadcast_to(scale, len(z)) ** 2)
        return stats.multivariate_normal(cov=covariance).logpdf(z) - np.log(loss).sum()
    density = stats.norm.logpdf(z, 0, scale) if errors == "normal" else stats.t.logpdf(z, values["nu"], 0, scale)
    return density - np.log(loss)


def prior(text: str) -> Any:
    """The SciPy distribution of a prior such as ``LogNormal(0.4, 0.5)``."""
    family, _, rest = text.partition("(")
    args = [float(part) for part in rest.rstrip(")").split(",")]
    make = {
        "Normal": lambda loc, scale: stats.norm(loc, scale),
        "LogNormal": lambda loc, scale: stats.lognorm(scale, scale=np.exp(loc)),
        "HalfNormal": lambda scale: stats.halfnorm(scale=scale),
        "Uniform": lambda low, high: stats.uniform(low, high - low),
        "Gamma": lambda shape, rate: stats.gamma(shape, scale=1 / rate),
        "Exponential": lambda rate: stats.expon(scale=1 / rate),
        "StudentT": lambda df, loc, scale: stats.t(df, loc, scale),
        "TruncatedNormal": lambda loc, scale, low, high: stats.truncnorm((low - loc) / scale, (high - loc) / scale,
                                                                         loc, scale),
    }
    return make[family](*args)
