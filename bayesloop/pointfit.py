"""The frequentist reference: Huber multi-start point fit with a bootstrap, as in arXiv 2604.21106.

The objective is the sum over runs of the Huber function (delta 1e-3) of log predicted minus log observed loss,
minimised from many random starts inside a box (see `optimise`). One data set gives one fit: a probe's runs with the
r = 1 runs that anchor them (`anchored`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bayesloop.bootstrap import BOOTSTRAPS, Bootstrap, cells, resample
from bayesloop.laws import Design, Law, get_law
from bayesloop.optimise import Huber, box, huber_terms, log_parameter, to_natural
from bayesloop.schema import InputError

SAME = 1e-6          # objectives that differ by less than this share count as equal
APART = 1e-3         # optima further apart than this in any search coordinate are distinct
SHOWN = 20           # ties listed at most
# What is polished for each resample: the starts that fit it best, others at random, and optima of the fit itself.
BEST, RANDOM, OPTIMA = 8, 4, 4
CHUNK = 50           # resamples between two reports of progress

Progress = Callable[[int, int], None]


class PointFitError(InputError):
    """Runs or options that cannot be fitted; the message says what was expected."""


@dataclass(frozen=True)
class PointFit:
    """A point fit.

    Attributes
    ----------
    law : str
    parameters : dict of str to float
        Natural units, fixed ones included.
    objective : float
        Sum of Huber terms at the optimum.
    converged : bool
        Whether the best start satisfied the stopping rule.
    r2 : float
        1 − residual over total sum of squares of the loss in nats.
    rmse, max_residual : float
        Root mean square and largest absolute residual, nats per token.
    max_log_residual : float
        Largest absolute residual in log loss.
    residuals : array
        Observed minus fitted loss, nats per token, in the order of the runs.
    reached : float
        Share of the starts that ended within one part in a million of the best objective.
    ties : list of dict
        Other optima as good as the best (same tolerance): if there are any, the data do not decide between them.
    on_boundary : list of str
        Free parameters at a bound of the search.
    settings : dict
        Everything that changes the answer: delta, reduction, scale, box, starts, seed, fixed values, injection.
    bootstrap : Bootstrap or None
    """

    law: str
    parameters: dict[str, float]
    objective: float
    converged: bool
    r2: float
    rmse: float
    max_residual: float
    max_log_residual: float
    residuals: np.ndarray
    reached: float
    ties: list[dict[str, float]]
    on_boundary: list[str]
    settings: dict[str, Any]
    bootstrap: Bootstrap | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain Python values in full precision, ready for JSON."""
        values = {**vars(self), "residuals": [float(value) for value in self.residuals]}
        values["bootstrap"] = None if self.bootstrap is None else self.bootstrap.to_dict()
        return values


def point_fit(runs: pd.DataFrame, law: str | Law = "recurrence", fix: Mapping[str, float] | None = None,
              num_starts: int = 500, num_bootstrap: int = 200, bootstrap: str = "block", delta: float = 1e-3,
              seed: int = 0, progress: Progress | None = None) -> PointFit:
    """Fit a law to runs by the Huber estimator of arXiv 2604.21106 and bootstrap it.

    Parameters
    ----------
    runs : DataFrame
        Columns n_once, n_rec, r, tokens, loss, probe; budget too unless ``bootstrap="runs"``.
        Looped runs of one probe only (`anchored` picks them).
    law : str or Law
        A key of `LAWS`.
    fix : mapping, optional
        Natural parameters held fixed, for example ``{"phi": 1.0}``.
    num_starts : int
        Starts drawn uniformly in the box. Every start is brought to an optimum of the data; for a resample, the
        starts are ranked by its own objective and the best of them, some others at random and the optima of the
        data are brought to its optimum.
    num_bootstrap : int
        Resamples; 0 for none.
    bootstrap : str
        A key of `BOOTSTRAPS`.
    delta : float
        Where the Huber function turns linear, in log loss.
    seed : int
        Of the starts and the resamples.
    progress : callable, optional
        Called with (refits done, num_bootstrap).

    Returns
    -------
    PointFit

    Raises
    ------
    PointFitError
        If a column is missing or holds values the law cannot take, the runs are too few or of several recipes, or
        an option is out of range.
    """
    law = get_law(law)
    bounds = _bounds(law, fix or {})
    _check_options(num_starts, num_bootstrap, bootstrap, delta)
    _check_runs(runs, law, bounds, needs_budget=num_bootstrap > 0 and bootstrap != "runs")
    design = Design(*(runs[name].to_numpy(float) for name in Design._fields))
    problem = Huber(law, design, bounds, float(delta))
    loss = runs["loss"].to_numpy(float)
    for_starts, for_resamples, for_choice = np.random.default_rng(seed).spawn(3)

    starts = problem.amplitudes(problem.starts(num_starts, for_starts), np.log(loss), np.ones(len(loss)))
    theta, value, converged = problem.polish(starts, np.log(loss), np.ones(len(loss)))
    order = np.lexsort((value, ~converged))
    theta, value = theta[order], value[order]
    fitted = problem.predict(theta[:1])[0]
    refits = None
    if num_bootstrap:
        unit = (np.arange(len(loss)) if bootstrap == "runs"
                else cells(runs["budget"].to_numpy(float), runs["r"].to_numpy()))
        log_y, weights = resample(bootstrap, unit, np.log(loss), fitted, num_bootstrap, for_resamples)
        refits = _refit(problem, bootstrap, log_y, weights, starts, _distinct(theta, value), for_choice,
                        progress)
    settings = {
        "delta": float(delta), "reduction": "sum", "residual": "log loss", "num_starts": num_starts, "seed": seed,
        "fix": {name: float(number) for name, number in (fix or {}).items()},
        "box": {name: [*map(float, ends)] for name, ends in zip(law.priors, box(law), strict=True)},
        "logarithms_in_box": [name for name in law.priors if log_parameter(law, name)],
        "bootstrap": bootstrap if num_bootstrap else None, "num_bootstrap": num_bootstrap,
        "injection": runs.attrs.get("injection"),
    }
    return PointFit(
        law=law.name, parameters=_named(law, theta[0]), objective=float(value[0]),
        converged=bool(converged[order[0]]), **_quality(loss, fitted), reached=float(np.mean(value <= _near(value[0]))),
        ties=_ties(law, theta, value), on_boundary=_at_bounds(law, bounds, theta[0]), settings=settings,
        bootstrap=refits)


def _bounds(law: Law, fix: Mapping[str, float]) -> np.ndarray:
    """The law's box with fixed parameters' bounds drawn together."""
    bounds = box(law)
    names = list(law.priors)
    for name, value in fix.items():
        if name not in names:
            raise PointFitError(f"fix {name!r}: no such parameter; law {law.name} has {', '.join(names)}")
        if not np.isfinite(value) or (log_parameter(law, name) and value <= 0):
            raise PointFitError(f"fix {name} = {value}: expected a finite number"
                                + (" above 0" if log_parameter(law, name) else ""))
        bounds[names.index(name)] = np.log(value) if log_parameter(law, name) else value
    return bounds


def _check_options(num_starts: int, num_bootstrap: int, bootstrap: str, delta: float) -> None:
    if num_starts < 1:
        raise PointFitError(f"num_starts = {num_starts}: expected at least 1")
    if num_bootstrap < 0:
        raise PointFitError(f"num_bootstrap = {num_bootstrap}: expected 0 (none) or more")
    if bootstrap not in BOOTSTRAPS:
        raise PointFitError(f"bootstrap {bootstrap!r} is unknown; expected one of {', '.join(BOOTSTRAPS)}")
    if not (np.isfinite(delta) and delta > 0):
        raise PointFitError(f"delta = {delta}: expected a positive number")


def _check_runs(runs: pd.DataFrame, law: Law, bounds: np.ndarray, needs_budget: bool) -> None:
    needed = [*Design._fields, "loss", "probe", *(["budget"] if needs_budget else [])]
    missing = [name for name in needed if name not in runs]
    if missing:
        raise PointFitError(f"runs lack the column{'s' * (len(missing) > 1)} {', '.join(missing)}")
    for name in needed:
        if name == "probe":
            continue
        values = runs[name].to_numpy(float)
        zero = name in ("n_once", "n_rec")
        bad = ~(np.isfinite(values) & (values >= 0 if zero else values > 0))
        if bad.any():
            raise PointFitError(f"column {name}, row {runs.index[bad.argmax()]}: found {values[bad.argmax()]}; "
                                f"expected a finite number {'of 0 or more' if zero else 'above 0'}")
    if (runs["n_once"] + runs["n_rec"] <= 0).any():
        raise PointFitError("a run has neither n_once nor n_rec: expected at least one of them above 0")
    free = int(np.sum(bounds[:, 0] < bounds[:, 1]))
    if len(runs) < max(free, 1):
        raise PointFitError(f"{len(runs)} runs cannot determine {free} parameters: add runs or fix parameters")
    recipes = sorted(set(runs.loc[runs["r"] > 1, "probe"]))
    if len(recipes) > 1:
        raise PointFitError(f"looped runs of several recipes ({', '.join(recipes)}), but a point fit has one phi: "
                            "pick one with anchored(runs, probe)")
    if law.looped and not recipes and np.ptp(bounds[list(law.priors).index("phi")]) > 0:
        raise PointFitError("every run has r = 1, where phi has no effect: use law='chinchilla' or fix phi")


def _near(value: float) -> float:
    return value * (1 + SAME)


def _named(law: Law, theta: np.ndarray) -> dict[str, float]:
    return {name: float(value) for name, value in to_natural(law, theta).items()}


def _quality(loss: np.ndarray, fitted: np.ndarray) -> dict[str, Any]:
    residuals = loss - np.exp(fitted)
    return {
        "r2": float(1 - np.sum(residuals**2) / np.sum((loss - loss.mean()) ** 2)),
        "rmse": float(np.sqrt(np.mean(residuals**2))), "max_residual": float(np.abs(residuals).max()),
        "max_log_residual": float(np.abs(np.log(loss) - fitted).max()), "residuals": residuals,
    }


def _distinct(theta: np.ndarray, value: np.ndarray) -> np.ndarray:
    """The best few optima with different objectives; `value` ascending."""
    chosen = [0]
    for k in range(1, len(value)):
        if len(chosen) < OPTIMA and value[k] > value[chosen[-1]] * (1 + 1e-4):
            chosen.append(k)
    return theta[chosen]


def _ties(law: Law, theta: np.ndarray, value: np.ndarray) -> list[dict[str, float]]:
    """Optima as good as the best and elsewhere; `value` ascending."""
    chosen = [theta[0]]
    for point in theta[value <= _near(value[0])]:
        if len(chosen) <= SHOWN and all(np.abs(point - other).max() > APART for other in chosen):
            chosen.append(point)
    return [_named(law, point) for point in chosen[1:]]


def _at_bounds(law: Law, bounds: np.ndarray, theta: np.ndarray) -> list[str]:
    low, high = bounds.T
    hit = (low < high) & ((theta <= low) | (theta >= high))
    return [name for name, flag in zip(law.priors, hit, strict=True) if flag]


def _refit(problem: Huber, kind: str, log_y: np.ndarray, weights: np.ndarray, starts: np.ndarray, optima: np.ndarray,
           rng: np.random.Generator, progress: Progress | None) -> Bootstrap:
    """Refit every resample from the starts that suit it best, a few others, and the data's own optima."""
    predicted = problem.predict(starts)
    count = min(BEST, len(starts))
    chosen = np.full((len(log_y), len(problem.bounds)), np.nan)
    for begin in range(0, len(log_y), CHUNK):
        part = slice(begin, begin + CHUNK)
        points = []
        for observed, weight in zip(log_y[part], weights[part], strict=True):
            ranked = np.argsort(huber_terms(predicted - observed, problem.delta) @ weight)
            chance = rng.integers(len(starts), size=RANDOM)
            points.append(np.concatenate([optima, starts[ranked[:count]], starts[chance]]))
        each = len(points[0])
        theta, value, converged = problem.polish(
            np.concatenate(points), np.repeat(log_y[part], each, 0), np.repeat(weights[part], each, 0))
        value = np.where(converged, value, np.inf).reshape(-1, each)
        best = theta.reshape(*value.shape, -1)[np.arange(len(value)), value.argmin(1)]
        chosen[part] = np.where(np.isfinite(value.min(1))[:, None], best, np.nan)
        if progress is not None:
            progress(min(begin + CHUNK, len(log_y)), len(log_y))
    failed = np.isnan(chosen).any(axis=1)
    edge = sum(bool(_at_bounds(problem.law, problem.bounds, theta)) for theta in chosen)
    return Bootstrap(kind, to_natural(problem.law, chosen), int(failed.sum()), edge)
