"""The one NumPyro model: a law, an error model, a structure of phi and a recipe term over the runs of a table.

Priors are stated on natural parameters; sampling happens in the centred coordinates of `centring`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import pandas as pd

from bayesloop.centring import Level
from bayesloop.errors import ErrorModel, Place, get_errors, log_density
from bayesloop.laws import Law, LawError, Prior, get_law, resolve_priors
from bayesloop.layout import Layout
from bayesloop.structures import Recipe, Structure, get_recipe, get_structure, mean_loss


@dataclass(frozen=True)
class Model:
    """A model over a table of runs; calling it with `layout.data` makes it a NumPyro model.

    Attributes
    ----------
    law, errors, structure, recipe : Law, ErrorModel, Structure, Recipe
    layout : Layout
    share : str
        ``"law"``: E, A, B, alpha, beta and the error parameters are common to all probes;
        ``"none"``: every probe has its own.
    priors : dict of str to Prior
        Priors of the free parameters; phi is not among them where it is pooled.
    fix : dict of str to float
        Parameters held at a value.
    compute : float
        The compute at which a φ that moves with it is `phi`, FLOP: by default the runs' geometric mean.
    """

    law: Law
    errors: ErrorModel
    structure: Structure
    recipe: Recipe
    layout: Layout
    share: str
    priors: dict[str, Prior]
    fix: dict[str, float]
    compute: float

    @property
    def coords(self) -> dict[str, list]:
        """Coordinates of the dims that parameters and runs have."""
        return {"probe": self.layout.probes, "r": self.layout.recurrences, "recipe": self.layout.recipes,
                "run": self.layout.run}

    def dims(self, name: str) -> tuple[str, ...]:
        """Dimensions of a parameter."""
        if name == "phi":
            return self.structure.dims
        if name in self.structure.own_dims:
            return self.structure.own_dims[name]
        if name in self.recipe.priors:
            return ("recipe",)
        return ("probe",) if self.share == "none" else ()

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a parameter."""
        return tuple(len(self.coords[dim]) for dim in self.dims(name))

    @property
    def free(self) -> list[str]:
        """Names of the sampled parameters, each after those its prior depends on."""
        pooled = self.structure.pooled and self.law.looped
        return [*self.priors, *(["phi"] if pooled else [])]

    def distribution(self, name: str, values: Mapping[str, Any]) -> Any:
        """Prior of a free parameter, of the parameter's shape, given those before it in `free`."""
        return self._elementwise(name, values).to_event(len(self.shape(name)))

    def _elementwise(self, name: str, values: Mapping[str, Any]) -> Any:
        if name not in self.priors:
            return self.structure.pool(values["phi_mean"], values["tau"], self.shape(name))
        return self.priors[name].distribution().expand(self.shape(name))

    @property
    def fixed(self) -> dict[str, Any]:
        """The fixed parameters as arrays of their shapes."""
        return {name: jnp.full(self.shape(name), value) for name, value in self.fix.items()}

    def sample_prior(self, key: Any, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One draw of the free parameters from the prior, those in `given` held at their values."""
        values: dict[str, Any] = {}
        for name, one in zip(self.free, jax.random.split(key, len(self.free)), strict=True):
            values[name] = (given or {})[name] if name in (given or {}) else (
                self.distribution(name, {**self.fixed, **values}).sample(one))
        return values

    def log_prior(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Log prior density of each free parameter, elementwise."""
        everything = {**self.fixed, **values}
        return {name: self._elementwise(name, everything).log_prob(values[name]) for name in self.free}

    def __call__(self, data: Mapping[str, Any]) -> None:
        """The NumPyro model; an entry `weight` of the data, shape (run,), says how often each run counts."""
        values = self.fixed
        for name in self.free:
            if name not in ("E", "A", "B"):
                values[name] = numpyro.sample(name, self.distribution(name, values))
        values.update(self._draw_level(values))
        loss = self.predictive(values, data)[1]
        if "weight" in data:  # refits to some of the runs
            numpyro.factor("weighted", log_density(loss, data["loss"], data["weight"]))
        else:
            numpyro.sample("loss", loss, obs=data["loss"])

    def predictive(self, values: Mapping[str, Any], data: Mapping[str, Any]) -> tuple[Any, Any]:
        """Expected loss of the runs at one point of the parameter space, and the distribution of the observed loss.

        Parameters
        ----------
        values : mapping of str to array
            Natural parameters, each with the shape of its dims.
        data : mapping
            `Layout.data`.

        Returns
        -------
        mean : array, shape (run,)
            Nats per token; what the error model adds for runs that miss together is not in it.
        loss : NumPyro distribution
        """
        design = data["design"]
        per_run = {name: self._per_run(name, value) for name, value in values.items()}
        mean = mean_loss(self.law, self.structure, per_run, design, self.compute)
        phi = self.structure.phi(per_run, design, self.compute) if self.law.looped else None
        place = Place.of(self.layout, self.law.log_n_eff(phi, design))
        return mean, self.errors.loss(mean, data["log_se"], per_run, place)

    def _per_run(self, name: str, value: Any) -> Any:
        """A parameter laid out by run; a scalar stays one. A recipe effect is 0 where it does not apply."""
        dims = self.dims(name)
        if not dims:
            return value
        if dims == ("recipe",):
            value = jnp.append(value, 0.0)
        return value[tuple(self.layout.index[dim] for dim in dims)]

    def _draw(self, name: str) -> Any:
        if name in self.fix:
            return self.fixed[name]
        return numpyro.sample(name, self.distribution(name, {}))

    def _draw_level(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """E, A and B, sampled in the coordinates of `centring`; those with bounded priors by themselves.

        A bound would be a wall in the centred coordinates, where trajectories end as divergences.
        """
        log_n, log_d = (math.log(value) for value in self.layout.reference)
        shifts = {"E": jnp.zeros_like(drawn["alpha"]), "A": drawn["alpha"] * log_n, "B": drawn["beta"] * log_d}
        apart = [name for name in shifts if name in self.fix or self.priors[name].bounded]
        values = {name: self._draw(name) for name in apart}
        free = [name for name in shifts if name not in apart]
        if free:
            own = len(free) == 3 and self.law.homogeneous
            combine = partial(self.law.combine, **{name: drawn[name] for name in self.law.extra})
            level = Level(tuple(self.priors[name].distribution().expand(self.shape(name)) for name in free),
                          tuple(shifts[name] for name in free), combine if own else None)
            found = level.parameters(numpyro.sample("level", level.to_event(len(self.shape("E")))))
            values.update({name: numpyro.deterministic(name, value) for name, value in zip(free, found, strict=True)})
        return values


def build_model(runs: pd.DataFrame, law: str | Law = "recurrence", errors: str | ErrorModel = "normal",
                phi: str = "probe", share: str = "law", priors: Mapping[str, Any] | None = None,
                fix: Mapping[str, float] | None = None, recipe: str = "none") -> Model:
    """The model of a table of runs.

    Parameters
    ----------
    runs : DataFrame
        As from `read_runs`.
    law, errors, phi, recipe : str
        Names in `LAWS`, `ERRORS`, `STRUCTURES` and `RECIPES`.
    share : {"law", "none"}
        Whether probes share the law's parameters, or are fitted apart as in the paper, each with the baseline's
        r = 1 runs of its own budgets.
    priors : mapping, optional
        Changed priors by parameter: a `Prior`, or text such as ``"Normal(0.5, 0.2)"``.
    fix : mapping, optional
        Parameters held at a value, for example ``{"phi": 1.0}``.

    Returns
    -------
    Model

    Raises
    ------
    LawError
        If a name is unknown, a fixed value impossible, or the options do not go together or with the table.
    """
    law, errors, structure, term = get_law(law), get_errors(errors), get_structure(phi), get_recipe(recipe)
    if share == "none":
        _check_apart(errors, phi, recipe)
    parts = (structure.all_priors(law), term.priors, errors.priors)
    defaults = {name: prior for part in parts for name, prior in part.items()}
    if len(defaults) < sum(len(part) for part in parts):
        raise LawError(f"law {law.name}, errors {errors.name} and recipe {recipe} have a parameter of one name: "
                       f"{', '.join(name for part in parts for name in part)}; rename one")
    resolved = resolve_priors(defaults, priors)
    fix = _checked_fix(fix or {}, resolved)
    if not set(resolved) - set(fix):
        raise LawError("every parameter is fixed: nothing is left to infer")
    unused = set(priors or ()) & set(fix)
    if unused:
        raise LawError(f"both a prior and a fixed value for {', '.join(sorted(unused))}; give one of them")
    layout = Layout.of(runs, share, term.looped)
    if term.priors and not layout.recipes:
        raise LawError(f"recipe={recipe!r} is what recipes do besides changing phi, but all runs are the baseline's; "
                       "give runs of another probe, or recipe=\"none\"")
    if errors.by_budget and layout.budget is None:
        raise LawError(f"errors={errors.name!r} needs the budget of every run; give a column `budget`")
    return Model(law, errors, structure, term, layout, share,
                 {name: prior for name, prior in resolved.items() if name not in fix}, fix, layout.compute)


def _check_apart(errors: ErrorModel, phi: str, recipe: str) -> None:
    if phi == "one":
        raise LawError('share="none" fits every probe apart, so phi="one" has no meaning; use phi="probe"')
    if phi not in ("probe", "probe_r") or recipe != "none" or errors.factor is not None:
        raise LawError('share="none" fits every probe apart, so nothing can be common to the probes; use '
                       'phi="probe" or "probe_r", recipe="none" and errors "normal" or "student_t", or share="law"')


def _checked_fix(fix: Mapping[str, float], priors: Mapping[str, Prior]) -> dict[str, float]:
    for name, value in fix.items():
        if name not in priors:
            raise LawError(f"fix {name!r}: no such parameter; expected one of {', '.join(priors)}")
        if not math.isfinite(value) or (priors[name].positive and value <= 0):
            raise LawError(f"fix {name} = {value}: expected a finite {'positive ' * priors[name].positive}number")
    return {name: float(value) for name, value in fix.items()}
