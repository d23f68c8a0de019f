"""How φ varies over the runs, and what a recipe does to a run besides changing φ.

To add a structure of φ or a recipe term, add one entry to `STRUCTURES` or `RECIPES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
from numpyro import distributions as dist

from bayesloop.laws import Design, Law, LawError, Prior
from bayesloop.layout import training_compute


@dataclass(frozen=True)
class Structure:
    """How phi varies over the runs.

    Parameters
    ----------
    name : str
        Key in `STRUCTURES`.
    dims : tuple of str
        Dimensions of phi, out of `probe` and `r`.
    meaning : str
        What it says about recurrences.
    priors : mapping of str to Prior
        Its parameters beyond phi, with default priors.
    own_dims : mapping of str to tuple of str
        Dimensions of those parameters, where they have any.
    pooled : bool
        Whether phi ~ Normal(phi_mean, tau), with phi's prior on phi_mean.
    trend : bool
        Whether phi moves by phi_slope for every factor of ten in compute.
    """

    name: str
    dims: tuple[str, ...]
    meaning: str
    priors: Mapping[str, Prior] = field(default_factory=dict)
    own_dims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pooled: bool = False
    trend: bool = False

    def all_priors(self, law: Law) -> dict[str, Prior]:
        """Priors of the law and of this structure; pooled, phi's own prior becomes that of phi_mean."""
        priors = dict(law.priors)
        if not law.looped:
            return priors
        if self.pooled:
            priors["phi_mean"] = priors.pop("phi")
        return {**priors, **self.priors}

    def phi(self, per_run: Mapping[str, Any], design: Design, compute: float) -> Any:
        """phi of every run, from parameters that are laid out by run.

        Parameters
        ----------
        per_run : mapping of str to array
            `phi`, and with a trend `phi_slope`, each broadcastable against the runs.
        design : Design
        compute : float
            The compute at which phi is the parameter itself, FLOP as in `training_compute`.
        """
        if not self.trend:
            return per_run["phi"]
        return per_run["phi"] + per_run["phi_slope"] * jnp.log10(training_compute(design) / compute)

    @staticmethod
    def pool(phi_mean: Any, tau: Any, shape: tuple[int, ...]) -> Any:
        """Distribution of phi, shape (probe, r), around the mean of its probe."""
        return dist.Normal(jnp.asarray(phi_mean)[..., None], tau).expand(shape)


_TAU = Prior("HalfNormal", (0.3,), "spread of φ over r within a probe: none, up to 0.6 (95 %); measured 0.20")
_SLOPE = Prior("Normal", (0.0, 0.2), "change of φ per factor of ten in compute: 95 % in ±0.39; published 0.44 → 0.49 "
                                     "over one factor of ten")

STRUCTURES: dict[str, Structure] = {structure.name: structure for structure in (
    Structure("one", (), "one phi for every run"),
    Structure("probe", ("probe",), "one phi for each recipe"),
    Structure("probe_r", ("probe", "r"), "a phi for each recipe and recurrence count"),
    Structure("probe_r_pooled", ("probe", "r"), "a phi for each recipe and r, drawn towards the mean of its recipe: "
              "phi ~ Normal(phi_mean, tau)", {"tau": _TAU}, {"phi_mean": ("probe",)}, pooled=True),
    Structure("trend", ("probe",), "a phi for each recipe, at the runs' mean compute, with a common slope in the "
              "logarithm of compute", {"phi_slope": _SLOPE}, trend=True),
)}


@dataclass(frozen=True)
class Recipe:
    """What a recipe does to all its runs alike, whatever r, besides changing phi.

    Identified by the recipe's own r = 1 runs where it has them. Without, only the assumption that the effect is the
    same at every r separates it from phi, which a recurrence has to add to. `layout.recipe_applies` says which runs.

    Parameters
    ----------
    name : str
        Key in `RECIPES`.
    priors : mapping of str to Prior
        Its parameters, each with a value for every probe that `layout.recipe_applies` to.
    meaning : str
    looped : bool
        Whether the effect is one of looping with that recipe, the baseline's looped runs included: then nothing but
        its being the same at every r > 1 tells it apart from φ.
    """

    name: str
    priors: Mapping[str, Prior]
    meaning: str
    looped: bool = False


_RHO = Prior("Normal", (0.0, 0.2), "logarithm of the factor on the data term: 95 % in 0.68–1.48, worth up to about "
                                   "three times the tokens either way; measured −0.14")
_DELTA = Prior("Normal", (0.0, 0.05), "shift of the loss in nats: 95 % in ±0.1, twice the largest matched difference "
                                      "measured between recipes")

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (
    Recipe("none", {}, "a recipe changes phi and nothing else"),
    Recipe("data_factor", {"rho": _RHO}, "a recipe multiplies the data term Q by exp(rho): it learns faster or slower"),
    Recipe("offset", {"delta": _DELTA}, "a recipe moves the loss by delta nats"),
    Recipe("both", {"rho": _RHO, "delta": _DELTA}, "a recipe multiplies Q by exp(rho) and moves the loss by delta"),
    Recipe("looped_data_factor", {"rho": _RHO}, "looping multiplies Q by exp(rho), in each recipe its own", True),
    Recipe("looped_offset", {"delta": _DELTA}, "looping moves the loss by delta nats, in each recipe its own", True),
    Recipe("looped_both", {"rho": _RHO, "delta": _DELTA}, "looping multiplies Q by exp(rho) and moves the loss by "
           "delta, in each recipe their own", True),
)}


def get_structure(name: str) -> Structure:
    """The structure of φ of that name.

    Raises
    ------
    LawError
        If the name is not in `STRUCTURES`.
    """
    if name not in STRUCTURES:
        raise LawError(f"phi structure {name!r} is unknown; expected one of {', '.join(STRUCTURES)}")
    return STRUCTURES[name]


def get_recipe(name: str) -> Recipe:
    """The recipe term of that name.

    Raises
    ------
    LawError
        If the name is not in `RECIPES`.
    """
    if name not in RECIPES:
        raise LawError(f"recipe term {name!r} is unknown; expected one of {', '.join(RECIPES)}")
    return RECIPES[name]


def mean_loss(law: Law, structure: Structure, per_run: Mapping[str, Any], design: Design, compute: float) -> Any:
    """Expected loss of runs: the law, with phi of each run and with the recipes' effects.

    Parameters
    ----------
    law, structure : Law, Structure
    per_run : mapping of str to array
        Natural parameters, each broadcastable against the runs; `rho` and `delta` where recipes have effects, 0 for
        runs that have none.
    design : Design
        Arrays of shape (run,).
    compute : float
        See `Structure.phi`.

    Returns
    -------
    array
        Nats per token.
    """
    values = dict(per_run)
    if law.looped:
        values["phi"] = structure.phi(per_run, design, compute)
    if "rho" in values:
        values["B"] = values["B"] * jnp.exp(values["rho"])
    return law.loss(values, design) + values.get("delta", 0.0)
