"""Error models: what the residuals of the losses look like.

An error model turns the expected loss of the runs into a distribution of the observed loss. All work on log loss;
the standard error of a loss as a measurement, `loss_se`, is added in quadrature, never used instead.
To add one, add one `ErrorModel` to `ERRORS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist

from bayesloop.laws import LawError, Prior


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
    """

    name: str
    priors: Mapping[str, Prior]
    log_loss: Callable[..., Any]
    assumes: str
    misleads: str

    def loss(self, mean: Any, log_se: Any, parameters: Mapping[str, Any]) -> Any:
        """Distribution of the observed loss in nats per token.

        Parameters
        ----------
        mean : array, shape (run,)
            Expected loss, nats per token. Where a law leaves the positive numbers, nothing observed is likely.
        log_se : array, shape (run,)
            Standard error of log loss as a measurement, `loss_se` / `loss`; 0 where unknown.
        parameters : mapping
            This model's parameters, broadcastable against the runs.
        """
        own = {name: parameters[name] for name in self.priors}
        log_loss = self.log_loss(jnp.log(jnp.maximum(mean, _NO_LOSS)), log_se, **own)
        return dist.TransformedDistribution(log_loss, dist.transforms.ExpTransform())


_NO_LOSS = 1e-300  # stands for a law that predicts no positive loss

_SIGMA = Prior("LogNormal", (-5.3, 1.0), "relative scatter of a run around the law: 95 % in 0.0007–0.035; "
                                         "measured 0.004 (additive law) and 0.001 between seeds")
_NU = Prior("Gamma", (2.0, 0.1), "degrees of freedom: from heavy tails to nearly Normal, 95 % in 2.4–56")


def _normal(log_mean: Any, log_se: Any, sigma: Any) -> Any:
    return dist.Normal(log_mean, jnp.hypot(sigma, log_se))


def _student_t(log_mean: Any, log_se: Any, sigma: Any, nu: Any) -> Any:
    return dist.StudentT(nu, log_mean, jnp.hypot(sigma, log_se))


ERRORS: dict[str, ErrorModel] = {model.name: model for model in (
    ErrorModel("normal", {"sigma": _SIGMA}, _normal,
               "runs miss the law independently, by a Normal relative error of one size",
               "when runs of one (budget, r) cell miss together: intervals come out too narrow"),
    ErrorModel("student_t", {"sigma": _SIGMA, "nu": _NU}, _student_t,
               "runs miss the law independently, a few of them badly",
               "as `normal`, for runs that miss together; protects against single outliers alone"),
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
