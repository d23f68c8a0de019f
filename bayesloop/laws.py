"""Scaling laws: a mean function, its parameters with default priors, and its source.

A law says how the expected final loss, in nats per token, follows from the parameter counts, the recurrence
count and the training tokens. Every law here is built from the same two terms,

    P = A · N_eff^(−alpha)        N_eff = n_once + r^phi · n_rec
    Q = B · tokens^(−beta)

and differs in how they combine with the irreducible loss E. To add a law, add one `Law` to `LAWS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import distributions as dist

from bayesloop.schema import InputError

jax.config.update("jax_enable_x64", True)  # losses differ by 1e-3 nats; everything downstream is float64

# Families a prior may have, with the names of their arguments, as in NumPyro.
FAMILIES: dict[str, tuple[str, ...]] = {
    "Normal": ("loc", "scale"), "LogNormal": ("loc", "scale"), "HalfNormal": ("scale",),
    "Uniform": ("low", "high"), "Gamma": ("concentration", "rate"), "Exponential": ("rate",),
    "StudentT": ("df", "loc", "scale"), "TruncatedNormal": ("loc", "scale", "low", "high"),
}


class LawError(InputError):
    """A law, prior or fixed value that cannot be used; the message says what was expected."""


@dataclass(frozen=True)
class Prior:
    """A prior on one natural parameter: a NumPyro family with its arguments, and the reason for them.

    Parameters
    ----------
    family : str
        A key of `FAMILIES`.
    args : tuple of float
        Its arguments in NumPyro's order (LogNormal: mean and sd of the logarithm).
    reason : str
        Why this prior; shown by `bayesloop priors`.

    Raises
    ------
    LawError
        If the family is unknown, or an argument missing or outside the family's range.
    """

    family: str
    args: tuple[float, ...]
    reason: str = ""

    def __post_init__(self) -> None:
        names = FAMILIES.get(self.family)
        if names is None:
            raise LawError(f"prior family {self.family!r} is unknown; expected one of {', '.join(FAMILIES)}")
        if len(self.args) != len(names):
            raise LawError(f"{self.family} takes {len(names)} arguments ({', '.join(names)}); got {len(self.args)}")
        object.__setattr__(self, "args", tuple(float(value) for value in self.args))
        try:
            self.distribution(validate=True)
        except ValueError as error:
            raise LawError(f"{self}: {error}") from None

    @classmethod
    def parse(cls, text: str) -> Prior:
        """Prior from text such as ``"LogNormal(-1.2, 0.5)"``.

        Raises
        ------
        LawError
            If the text has another form.
        """
        match = re.fullmatch(r"\s*(\w+)\s*\(([^()]*)\)\s*", text)
        if match is None:
            raise LawError(f"prior {text!r} is not of the form Family(number, …), for example Normal(0.5, 0.5)")
        try:
            args = tuple(float(part) for part in match[2].split(","))
        except ValueError:
            raise LawError(f"prior {text!r}: the arguments must be numbers, for example Normal(0.5, 0.5)") from None
        return cls(match[1], args, "given")

    def distribution(self, validate: bool | None = None) -> Any:
        """The NumPyro distribution of the natural parameter."""
        if self.family == "TruncatedNormal":
            loc, scale, low, high = self.args
            if not low < high:
                raise ValueError("low must be below high")
            return dist.TruncatedNormal(loc, scale, low=low, high=high, validate_args=validate)
        return getattr(dist, self.family)(*self.args, validate_args=validate)

    @property
    def positive(self) -> bool:
        """Whether the prior puts all its mass on positive values."""
        if self.family in ("LogNormal", "HalfNormal", "Gamma", "Exponential"):
            return True
        low = {"Uniform": 0, "TruncatedNormal": 2}.get(self.family)
        return low is not None and self.args[low] >= 0

    @property
    def bounded(self) -> bool:
        """Whether the prior has an edge besides 0 or infinity, as Uniform and TruncatedNormal have."""
        return self.family in ("Uniform", "TruncatedNormal")

    def __str__(self) -> str:
        return f"{self.family}({', '.join(f'{value:g}' for value in self.args)})"


class Design(NamedTuple):
    """What a law needs to know of runs: float64 arrays of one shape (counts, 1, tokens)."""

    n_once: Any
    n_rec: Any
    r: Any
    tokens: Any


_COMMON = {
    "E": Prior("LogNormal", (0.4, 0.5), "irreducible loss in nats per token: 95 % in 0.56–4.0; published 1.56–1.93"),
    "A": Prior("LogNormal", (4.6, 1.5), "95 % in 5–1 900; published 23–58 per r, 406–482 for other model families"),
    "B": Prior("LogNormal", (6.9, 2.0), "95 % in 20–50 000; published 150–1 300, 410–2 085 for other families"),
    "alpha": Prior("LogNormal", (-1.4, 0.4), "95 % in 0.11–0.54; published 0.19–0.31, 0.34 for other families"),
    "beta": Prior("LogNormal", (-1.0, 0.4), "95 % in 0.17–0.81; published 0.27–0.49, 0.28–0.37 for other families"),
}
_PHI = Prior("Normal", (0.5, 0.5), "covers a recurrence worth less than nothing to more than a unique block: "
                                   "95 % in −0.48–1.48")


@dataclass(frozen=True, eq=False)  # hashed by identity: a law is a static argument of compiled functions
class Law:
    """A mean function with its priors, checked against each other when created.

    Parameters
    ----------
    name : str
        Key in `LAWS`.
    formula : str
        The law as people write it.
    combine : callable
        ``combine(E, P, Q, **extra)`` → expected loss in nats per token.
    source : str
        Paper and section, or "measured".
    looped : bool
        Whether phi enters; without it N_eff = n_once + n_rec.
    extra : mapping of str to Prior
        Parameters beyond E, A, B, alpha, beta and phi, passed to `combine` by name.
    """

    name: str
    formula: str
    combine: Callable[..., Any]
    source: str
    looped: bool = True
    extra: Mapping[str, Prior] = field(default_factory=dict)

    def __post_init__(self) -> None:
        runs = jax.ShapeDtypeStruct((3,), float)
        try:
            loss = jax.eval_shape(self.combine, runs, runs, runs, **dict.fromkeys(self.extra, runs))
        except TypeError as error:
            raise LawError(f"law {self.name}: combine and the extra parameters disagree: {error}") from None
        if getattr(loss, "shape", None) != (3,):
            raise LawError(f"law {self.name}: combine returned {loss!r} for three runs; expected three numbers")

    @property
    def priors(self) -> dict[str, Prior]:
        """Default priors of all parameters in their order: E, A, B, alpha, beta, phi, then the extra ones."""
        return {**_COMMON, **({"phi": _PHI} if self.looped else {}), **self.extra}

    @property
    def homogeneous(self) -> bool:
        """Whether the loss doubles when E and both terms double; tried at one point."""
        terms, extra = np.array([1.5, 0.7, 0.4]), dict.fromkeys(self.extra, 0.8)
        with jax.ensure_compile_time_eval():  # while a model is compiled too
            once, twice = self.combine(*terms, **extra), self.combine(*(2 * terms), **extra)
            return bool(np.isclose(2 * once, twice, rtol=1e-9))

    def loss(self, parameters: Mapping[str, Any], design: Design) -> Any:
        """Expected loss of runs.

        Parameters
        ----------
        parameters : mapping of str to array
            Natural parameters by name, each broadcastable against the runs.
        design : Design
            Arrays of shape (run,).

        Returns
        -------
        array
            Expected final loss, nats per token.
        """
        log_p = jnp.log(parameters["A"]) - parameters["alpha"] * self.log_n_eff(parameters.get("phi"), design)
        log_q = jnp.log(parameters["B"]) - parameters["beta"] * jnp.log(design.tokens)
        extra = {name: parameters[name] for name in self.extra}
        return self.combine(parameters["E"], jnp.exp(log_p), jnp.exp(log_q), **extra)

    def log_n_eff(self, phi: Any, design: Design) -> Any:
        """Logarithm of the effective parameter count n_once + r^phi · n_rec."""
        weight = jnp.exp(phi * jnp.log(design.r)) if self.looped else 1.0
        return jnp.log(design.n_once + weight * design.n_rec)


def _sum(E: Any, P: Any, Q: Any) -> Any:
    return E + P + Q


def _kaplan(E: Any, P: Any, Q: Any, kappa: Any) -> Any:
    return E + jnp.exp(kappa * jnp.logaddexp(jnp.log(P) / kappa, jnp.log(Q) / kappa))


def _cross(E: Any, P: Any, Q: Any, x: Any) -> Any:
    return E + P + Q + x * P * Q / E


LAWS: dict[str, Law] = {law.name: law for law in (
    Law("recurrence", "L = E + A (n_once + r^phi n_rec)^(−alpha) + B tokens^(−beta)", _sum,
        "arXiv 2604.21106, the joint law"),
    Law("chinchilla", "L = E + A (n_once + n_rec)^(−alpha) + B tokens^(−beta)", _sum,
        "arXiv 2203.15556, approach 3; arXiv 2604.21106, each r by itself", looped=False),
    Law("kaplan_recurrence", "L = E + (P^(1/kappa) + Q^(1/kappa))^kappa with P, Q the recurrence law's two terms",
        _kaplan, "the form of arXiv 2001.08361, eq. 1.5, with phi and E; measured to fit better",
        extra={"kappa": Prior("LogNormal", (-0.4, 0.5), "kappa = 1 is the additive law: 95 % in 0.25–1.8")}),
    Law("cross_recurrence", "L = E + P + Q + x P Q / E with P, Q the recurrence law's two terms", _cross,
        "measured: the Kaplan type's curvature in an easier form",
        extra={"x": Prior("Normal", (0.0, 1.0), "x = 0 is the additive law, x = 1 the product E (1 + P/E) (1 + Q/E); "
                                            "x < 0: the terms overlap")}),
)}


def get_law(law: str | Law) -> Law:
    """The law of that name, or the law itself.

    Raises
    ------
    LawError
        If the name is not in `LAWS`.
    """
    if isinstance(law, Law):
        return law
    if law not in LAWS:
        raise LawError(f"law {law!r} is unknown; expected one of {', '.join(LAWS)}")
    return LAWS[law]


def resolve_priors(defaults: Mapping[str, Prior], changes: Mapping[str, Any] | None) -> dict[str, Prior]:
    """Default priors with the user's changes, which may be `Prior`s or text.

    Raises
    ------
    LawError
        If a change names no parameter, or puts mass on values a positive parameter cannot have.
    """
    priors = dict(defaults)
    for name, change in (changes or {}).items():
        if name not in priors:
            raise LawError(f"prior for {name!r}: no such parameter; expected one of {', '.join(priors)}")
        prior = change if isinstance(change, Prior) else Prior.parse(str(change))
        if defaults[name].positive and not prior.positive:
            raise LawError(f"prior {name} ~ {prior} allows values ≤ 0, but {name} must be positive; "
                           "use LogNormal, Gamma, HalfNormal, or TruncatedNormal or Uniform from 0")
        priors[name] = prior
    return priors
