"""Centred coordinates for the level of a law: a joint distribution over E, A and B with the stated priors.

E, A and B are hard to sample as they stand: A and B follow their exponents over orders of magnitude, and the
three terms add up to a loss that the runs pin down to a fraction of a millinat, so that the posterior is a thin
curved sheet. In the coordinates

    log(E + P + Q),   log(P / E),   log(Q / E)       P = A · N_ref^(−alpha),  Q = B · D_ref^(−beta)

the sheet is flat. For given exponents the determinant of this map from (log E, log A, log B) is 1, so the density
is that of the priors on the logarithms, without a correction. A law that combines the terms otherwise, but doubles when
all three double, has its own loss in the place of the sum. Any function of the ratios there leaves the determinant 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import random
from jax.scipy.special import logsumexp
from numpyro import distributions as dist


class Level(dist.Distribution):
    """Distribution of the centred coordinates, given the priors of E, A and B.

    Parameters
    ----------
    priors : tuple of NumPyro distributions
        Priors of those of E, A, B that are free (positive, of one batch shape).
    shifts : tuple of array
        Logarithm of each parameter minus that of its term: 0 for E, alpha · log N_ref for A, beta · log D_ref for B.
    combine : callable, optional
        ``combine(E, P, Q)`` in the place of the sum, homogeneous of degree one; all three must be free.

    Notes
    -----
    With fewer than three free the coordinates are the logarithm of the free terms' sum and of their ratios.
    """

    support = dist.constraints.real_vector

    def __init__(self, priors: tuple[Any, ...], shifts: tuple[Any, ...],
                 combine: Callable[..., Any] | None = None) -> None:
        self.priors, self.shifts, self.combine = priors, shifts, combine
        super().__init__(priors[0].batch_shape, (len(priors),))

    def parameters(self, value: Any) -> list[Any]:
        """The natural parameters at a point of the centred coordinates, shape (…, number free)."""
        ratios = jnp.concatenate([jnp.zeros_like(value[..., :1]), value[..., 1:]], axis=-1)
        terms = value[..., :1] - self._log_total(ratios) + ratios
        return [jnp.exp(terms[..., i] + shift) for i, shift in enumerate(self.shifts)]

    def log_prob(self, value: Any) -> Any:
        """Log density: the priors' on the natural parameters, each times the parameter (the density of its log)."""
        total = 0.0
        for prior, parameter in zip(self.priors, self.parameters(value), strict=True):
            total = total + prior.log_prob(parameter) + jnp.log(parameter)
        return total

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
        """Draws from the priors, in the centred coordinates."""
        keys = random.split(key, len(self.priors))
        terms = jnp.stack([jnp.log(prior.sample(one, sample_shape)) - shift for prior, one, shift
                           in zip(self.priors, keys, self.shifts, strict=True)], axis=-1)
        return jnp.concatenate([self._log_total(terms), terms[..., 1:] - terms[..., :1]], axis=-1)

    def _log_total(self, terms: Any) -> Any:
        """Logarithm of what the terms combine to, shape (…, 1)."""
        if self.combine is None:
            return logsumexp(terms, axis=-1, keepdims=True)
        largest = terms.max(axis=-1, keepdims=True)
        scaled = jnp.exp(jnp.maximum(terms - largest, _SMALLEST))
        loss = self.combine(*jnp.moveaxis(scaled, -1, 0))[..., None]
        return largest + jnp.log(jnp.maximum(loss, _LEAST))


_LEAST = 0.01  # share of the largest term; a law may leave the positive numbers, where the model has no density
_SMALLEST = -600.0  # logarithm of a term beside the largest: below it its own logarithm would overflow
