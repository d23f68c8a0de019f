"""Error models: what the residuals of the losses look like.

An error model turns the expected loss of the runs into a distribution of the observed loss. All work on log loss;
the standard error of a loss as a measurement, `loss_se`, is added in quadrature, never used instead.
Runs that miss together do so through Normal intercepts or basis weights, integrated out: they are a covariance of
low rank, so the sampler sees their size only. To add a model, add one `ErrorModel` to `ERRORS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from numpyro import distributions as dist

from bayesloop.laws import LawError, Prior
from bayesloop.layout import Layout


class Place(NamedTuple):
    """Where runs lie: what an error model may share among them.

    Attributes
    ----------
    budget, cell : int array, shape (run,), or None
        Number of the run's budget and of its (probe, budget, r) cell.
    log_n_eff, log_tokens : array, shape (run,)
        Logarithms of effective size and of tokens, from the middle of `box`.
    box : tuple of float
        Half the extent of the runs in both logarithms.
    """

    budget: Any
    cell: Any
    log_n_eff: Any
    log_tokens: Any
    box: tuple[float, float]

    @classmethod
    def of(cls, layout: Layout, log_n_eff: Any) -> Place:
        """Place of the runs of a layout, whose effective sizes lie between unique and executed parameters."""
        n_once, n_rec, r, tokens = layout.design
        ends = [(np.log(low).min(), np.log(high).max())
                for low, high in ((n_once + n_rec, n_once + r * n_rec), (tokens, tokens))]
        (mid_n, half_n), (mid_d, half_d) = (((low + high) / 2, max((high - low) / 2, 1.0)) for low, high in ends)
        return cls(layout.budget, layout.cell, log_n_eff - mid_n, np.log(tokens) - mid_d, (half_n, half_d))


@dataclass(frozen=True)
class ErrorModel:
    """A distribution of log loss around the law, with its parameters and what it assumes.

    Parameters
    ----------
    name : str
        Key in `ERRORS`.
    priors : mapping of str to Prior
        Its parameters with default priors.
    log_loss : callable
        ``log_loss(log_mean, log_se, **parameters)`` → NumPyro distribution over log loss, shape (run,).
    assumes, misleads : str
        What it assumes, and when it misleads.
    factor : callable, optional
        ``factor(place, parameters)`` → array, shape (run, k): log losses have the covariance factor · factorᵀ besides
        their own scatter. `log_loss` must then be Normal.
    by_budget : bool
        Whether runs need a budget.
    warning : str
        Shown whenever it is chosen.
    """

    name: str
    priors: Mapping[str, Prior]
    log_loss: Callable[..., Any]
    assumes: str
    misleads: str
    factor: Callable[[Any, Mapping[str, Any]], Any] | None = None
    by_budget: bool = False
    warning: str = ""

    def loss(self, mean: Any, log_se: Any, parameters: Mapping[str, Any], place: Place | None = None) -> Any:
        """Distribution of the observed loss in nats per token.

        Parameters
        ----------
        mean : array, shape (run,)
            Expected loss, nats per token. Where a law leaves the positive numbers, nothing observed is likely.
        log_se : array, shape (run,)
            Standard error of log loss as a measurement, `loss_se` / `loss`; 0 where unknown.
        parameters : mapping
            This model's parameters, broadcastable against the runs.
        place : Place, optional
            Needed by models whose runs miss together.

        Returns
        -------
        NumPyro distribution
            Of the loss of each run, or with a `factor` of all runs jointly.
        """
        own = {name: parameters[name] for name in self.priors}
        log_mean = jnp.log(jnp.maximum(mean, _NO_LOSS))
        if self.factor is None:
            log_loss = self.log_loss(log_mean, log_se, **own)
        else:
            alone = self.log_loss(log_mean, log_se, own["sigma"])
            log_loss = dist.LowRankMultivariateNormal(alone.loc, self.factor(place, own), alone.scale**2)
        return dist.TransformedDistribution(log_loss, dist.transforms.ExpTransform())


# stands for a law that predicts no positive loss; much smaller, and its slope overflows where sigma is small
_NO_LOSS = 1e-30

_SIGMA = Prior("LogNormal", (-5.3, 1.0), "relative scatter of a run around the law: 95 % in 0.0007–0.035; "
                                         "measured 0.004 (additive law) and 0.001 between seeds")
_NU = Prior("Gamma", (2.0, 0.1), "degrees of freedom: from heavy tails to nearly Normal, 95 % in 2.4–56")


def _normal(log_mean: Any, log_se: Any, sigma: Any) -> Any:
    return dist.Normal(log_mean, jnp.hypot(sigma, log_se))


def _student_t(log_mean: Any, log_se: Any, sigma: Any, nu: Any) -> Any:
    return dist.StudentT(nu, log_mean, jnp.hypot(sigma, log_se))


_COMMON_SIZE = "relative; none, up to 0.02 (95 %); measured misfit of the additive law 0.004"
_SIGMA_BUDGET = Prior("HalfNormal", (0.01,), f"size of what the runs of a budget miss by together: {_COMMON_SIZE}")
_SIGMA_CELL = Prior("HalfNormal", (0.01,), f"size of what the runs of a cell miss by together: {_COMMON_SIZE}")
# away from 0, where the law's parameters are known far better than elsewhere: HalfNormal gave divergences (measured)
_SIGMA_SMOOTH = Prior("LogNormal", (-4.8, 0.5), "size of the law's smooth misfit: relative; 95 % in 0.003–0.022; "
                                                "measured 0.010 for the additive law")
_LENGTH = Prior("LogNormal", (0.7, 0.3), "distance over which the misfit changes, in factors of e of size or tokens: "
                                         "95 % in 1.1–3.6; the published grid spans 4.6 and 3.2")
_SPACING = 1.2  # largest distance of the points that carry the smooth misfit; the shortest likely length is 1.1


def _budget(place: Place, parameters: Mapping[str, Any]) -> Any:
    return parameters["sigma_budget"] * _one_hot(place.budget)


def _cell(place: Place, parameters: Mapping[str, Any]) -> Any:
    return parameters["sigma_cell"] * _one_hot(place.cell)


def _one_hot(group: np.ndarray) -> np.ndarray:
    return np.eye(group.max() + 1)[group]


def _smooth(place: Place, parameters: Mapping[str, Any]) -> Any:
    """Gaussian process with a squared-exponential kernel, carried by its values on a grid (subset of regressors)."""
    lines = [np.linspace(-half, half, int(np.ceil(2 * half / _SPACING)) + 1) for half in place.box]
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*lines)], axis=-1)
    runs = jnp.stack([place.log_n_eff, place.log_tokens], axis=-1)

    def kernel(one: Any, other: Any) -> Any:
        return jnp.exp(-jnp.sum((one[:, None] - other) ** 2, axis=-1) / (2 * parameters["length"] ** 2))

    root = jnp.linalg.cholesky(kernel(grid, grid) + 1e-8 * jnp.eye(len(grid)))
    return parameters["sigma_smooth"] * solve_triangular(root, kernel(grid, runs), lower=True).T


ERRORS: dict[str, ErrorModel] = {model.name: model for model in (
    ErrorModel("normal", {"sigma": _SIGMA}, _normal,
               "runs miss the law independently, by a Normal relative error of one size",
               "when runs of one (budget, r) cell miss together: intervals come out too narrow"),
    ErrorModel("student_t", {"sigma": _SIGMA, "nu": _NU}, _student_t,
               "runs miss the law independently, a few of them badly",
               "as `normal`, for runs that miss together; protects against single outliers alone"),
    ErrorModel("budget", {"sigma": _SIGMA, "sigma_budget": _SIGMA_BUDGET}, _normal,
               "the runs of a budget miss by one common amount, whatever r and probe, and independently besides",
               "when the runs of one r or probe miss together, which it takes for independent", _budget, True),
    ErrorModel("smooth", {"sigma": _SIGMA, "sigma_smooth": _SIGMA_SMOOTH, "length": _LENGTH}, _normal,
               "the law misses by a smooth function of effective size and tokens, common to all r and probes",
               "when the misfit differs between r or probes, or jumps", _smooth),
    ErrorModel("cell", {"sigma": _SIGMA, "sigma_cell": _SIGMA_CELL}, _normal,
               "the runs of each (probe, budget, r) cell miss by an amount of their own",
               "on φ: the intercepts swallow the contrast between r = 1 and looped runs, the anchor that identifies "
               "φ; measured: φ of the baseline 0.44 → 0.58, and Δφ of hyperconnections changes sign", _cell, True,
               "errors 'cell': an intercept for each cell swallows the contrast between r = 1 and looped runs that "
               "identifies φ, so do not read what a recurrence is worth from this posterior"),
)}


def get_errors(errors: str | ErrorModel) -> ErrorModel:
    """The error model of that name, or the model itself.

    Raises
    ------
    LawError
        If the name is not in `ERRORS`.
    """
    if isinstance(errors, ErrorModel):
        return errors
    if errors not in ERRORS:
        raise LawError(f"error model {errors!r} is unknown; expected one of {', '.join(ERRORS)}")
    return ERRORS[errors]


def log_density(loss: Any, observed: Any, weight: Any) -> Any:
    """Log density of runs, each counted so many times; 0 leaves a run out exactly.

    Parameters
    ----------
    loss : NumPyro distribution
        From `ErrorModel.loss`.
    observed, weight : array, shape (run,)
        Losses in nats per token, and how often each counts. Where runs miss together, repeats of a run share what it
        misses by together with others, and differ in their own scatter.

    Returns
    -------
    scalar
    """
    if not loss.event_shape:
        return jnp.sum(weight * loss.log_prob(observed))
    joint = loss.base_dist
    root, pull, squares = _condition(joint, jnp.log(observed), weight)
    each = jnp.log(2 * jnp.pi * joint.cov_diag) / 2 + jnp.log(observed)
    return -(squares - jnp.sum(pull**2)) / 2 - jnp.sum(jnp.log(jnp.diagonal(root))) - jnp.sum(weight * each)


def given(loss: Any, observed: Any, weight: Any) -> Any:
    """Distribution of the loss of each run by itself, given the runs that count; arguments as in `log_density`."""
    if not loss.event_shape:
        return loss
    joint = loss.base_dist
    root, pull, _ = _condition(joint, jnp.log(observed), weight)
    half = solve_triangular(root, joint.cov_factor.T, lower=True)
    log_loss = dist.Normal(joint.loc + pull @ half, jnp.sqrt(joint.cov_diag + jnp.sum(half**2, axis=0)))
    return dist.TransformedDistribution(log_loss, dist.transforms.ExpTransform())


def _condition(joint: Any, log_loss: Any, weight: Any) -> tuple[Any, Any, Any]:
    """Of the intercepts or weights behind a covariance of low rank: Cholesky root of their precision given the runs,
    their mean in its coordinates, and the sum of squares of the runs' own scatter."""
    inverse, residual = weight / joint.cov_diag, log_loss - joint.loc
    scaled = joint.cov_factor.T * inverse
    root = jnp.linalg.cholesky(jnp.eye(len(scaled)) + scaled @ joint.cov_factor)
    return root, solve_triangular(root, scaled @ residual, lower=True), jnp.sum(inverse * residual**2)


def pointwise(loss: Any, observed: Any) -> Any:
    """Log density of each run's loss, as predictive checks and leave-one-out weights need it.

    Parameters
    ----------
    loss : NumPyro distribution
        From `ErrorModel.loss`.
    observed : array, shape (run,)

    Returns
    -------
    array, shape (run,)
        Where runs miss independently, the log density of each. Where they miss together, that of each given all the
        others: the leave-one-out form (Bürkner, Gabry and Vehtari 2021, arXiv 1810.10559), which does not add up to
        the joint density.
    """
    if not loss.event_shape:
        return loss.log_prob(observed)
    joint = loss.base_dist
    inverse = 1 / joint.cov_diag
    scaled = joint.cov_factor * inverse[:, None]
    inner = jnp.linalg.inv(jnp.eye(scaled.shape[1]) + joint.cov_factor.T @ scaled)
    left = scaled @ inner
    residual = jnp.log(observed) - joint.loc
    precision = inverse - jnp.sum(left * scaled, axis=1)
    weighted = residual * inverse - left @ (scaled.T @ residual)
    return dist.Normal(0.0, precision**-0.5).log_prob(weighted / precision) - jnp.log(observed)
