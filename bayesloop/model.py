"""The one NumPyro model: a law, an error model and a structure of phi over the runs of a table.

Priors are stated on natural parameters; sampling happens in the centred coordinates of `centring`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import pandas as pd

from bayesloop.centring import Level
from bayesloop.errors import ErrorModel, get_errors
from bayesloop.laws import Design, Law, LawError, Prior, get_law, resolve_priors
from bayesloop.schema import COLUMNS
from bayesloop.selection import anchored

SHARE = ("law", "none")


@dataclass(frozen=True)
class Layout:
    """The runs of a fit as arrays, with the index of each run's probe and recurrence count.

    Attributes
    ----------
    design : Design
        Arrays of shape (run,): counts, recurrences, tokens.
    loss : array, shape (run,)
        Observed loss, nats per token.
    log_se : array, shape (run,)
        Standard error of log loss as a measurement; 0 where unknown.
    run : list of str
        Labels of the runs, unique.
    columns : dict of str to array
        The table's other columns, for the record.
    probes : list of str
        Probes that have a phi.
    recurrences : list of int
        The r > 1 of the runs.
    probe_index, r_index : int array, shape (run,)
        Positions in `probes` and `recurrences`; 0 where r = 1, since r^phi is 1 there whatever phi is.
    reference : tuple of float
        Size N_ref and tokens D_ref of the centred coordinates: geometric means over the runs.
    """

    design: Design
    loss: np.ndarray
    log_se: np.ndarray
    run: list[str]
    columns: dict[str, np.ndarray]
    probes: list[str]
    recurrences: list[int]
    probe_index: np.ndarray
    r_index: np.ndarray
    reference: tuple[float, ...]

    @classmethod
    def of(cls, runs: pd.DataFrame, share: str = "law") -> Layout:
        """Layout of a table of runs.

        With ``share="none"`` every probe gets its own copy of the baseline's r = 1 runs at the budgets it has.

        Raises
        ------
        LawError
            If `share` is unknown.
        """
        if share not in SHARE:
            raise LawError(f"share is {share!r}; expected one of {', '.join(SHARE)}")
        probes = list(dict.fromkeys(runs.loc[runs["r"] > 1, "probe"])) or list(dict.fromkeys(runs["probe"]))
        runs = runs.assign(run_id=_labels(runs))
        if share == "none":
            apart = {probe: anchored(runs, probe) for probe in probes}
            runs = pd.concat([own.assign(probe=probe, run_id=own["run_id"] + f" @ {probe}")
                              for probe, own in apart.items()], ignore_index=True)
        recurrences = sorted({int(r) for r in runs["r"] if r > 1}) or [1]
        design = Design(*(runs[name].to_numpy(float) for name in ("n_once", "n_rec", "r", "tokens")))
        loss = runs["loss"].to_numpy(float)
        log_se = runs["loss_se"].to_numpy(float) / loss if "loss_se" in runs else np.zeros(len(runs))
        columns = {name: runs[name].to_numpy(str if COLUMNS[name].dtype is str else COLUMNS[name].dtype)
                   for name in COLUMNS if name in runs and name not in ("run_id", "loss", "status")}
        reference = tuple(float(np.exp(np.log(scale).mean()))
                          for scale in (design.n_once + design.n_rec, design.tokens))
        return cls(design, loss, np.nan_to_num(log_se), list(runs["run_id"]), columns, probes, recurrences,
                   np.array([probes.index(probe) if probe in probes else 0 for probe in runs["probe"]]),
                   np.array([recurrences.index(int(r)) if r > 1 else 0 for r in runs["r"]]), reference)

    @property
    def data(self) -> dict[str, Any]:
        """What the model is called with; other losses may be put in while the model stays."""
        return {"design": self.design, "loss": self.loss, "log_se": self.log_se}


def _labels(runs: pd.DataFrame) -> list[str]:
    """The runs' ids, or their places in the table where ids are missing or repeated."""
    ids = [str(label) for label in runs["run_id"]] if "run_id" in runs else []
    return ids if len(set(ids)) == len(runs) else [str(place) for place in range(len(runs))]


@dataclass(frozen=True)
class Structure:
    """How phi varies over the runs.

    Parameters
    ----------
    name : str
        Key in `STRUCTURES`.
    dims : tuple of str
        Dimensions of phi, out of `probe` and `r`.
    per_run : callable
        ``per_run(phi, layout)`` → phi of every run, shape (run,).
    meaning : str
        What it says about recurrences.
    """

    name: str
    dims: tuple[str, ...]
    per_run: Callable[[Any, Layout], Any]
    meaning: str


STRUCTURES: dict[str, Structure] = {structure.name: structure for structure in (
    Structure("one", (), lambda phi, layout: phi, "one phi for every run"),
    Structure("probe", ("probe",), lambda phi, layout: phi[layout.probe_index], "one phi for each recipe"),
    Structure("probe_r", ("probe", "r"), lambda phi, layout: phi[layout.probe_index, layout.r_index],
              "a phi for each recipe and recurrence count"),
)}


@dataclass(frozen=True)
class Model:
    """A model over a table of runs; calling it with `layout.data` makes it a NumPyro model.

    Attributes
    ----------
    law, errors, structure : Law, ErrorModel, Structure
    layout : Layout
    share : str
        ``"law"``: E, A, B, alpha, beta and the error parameters are common to all probes;
        ``"none"``: every probe has its own.
    priors : dict of str to Prior
        Priors of the free parameters.
    fix : dict of str to float
        Parameters held at a value.
    """

    law: Law
    errors: ErrorModel
    structure: Structure
    layout: Layout
    share: str
    priors: dict[str, Prior]
    fix: dict[str, float]

    @property
    def coords(self) -> dict[str, list]:
        """Coordinates of the dims that parameters and runs have."""
        return {"probe": self.layout.probes, "r": self.layout.recurrences, "run": self.layout.run}

    def dims(self, name: str) -> tuple[str, ...]:
        """Dimensions of a parameter."""
        if name == "phi":
            return self.structure.dims
        return ("probe",) if self.share == "none" else ()

    @property
    def parameters(self) -> dict[str, tuple[str, ...]]:
        """All parameters of law and error model with their dims, fixed ones included."""
        names = [*self.law.priors, *self.errors.priors]
        return {name: self.dims(name) for name in names}

    def __call__(self, data: Mapping[str, Any]) -> None:
        """The NumPyro model."""
        values = {name: self._draw(name) for name in self.parameters if name not in ("E", "A", "B")}
        values.update(self._draw_level(values["alpha"], values["beta"]))
        numpyro.sample("loss", self.predictive(values, data)[1], obs=data["loss"])

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
            Nats per token.
        loss : NumPyro distribution
        """
        apart = self.layout.probe_index if self.share == "none" else ...
        per_run = {name: value[apart] for name, value in values.items() if name != "phi"}
        if self.law.looped:
            per_run["phi"] = self.structure.per_run(values["phi"], self.layout)
        mean = self.law.loss(per_run, data["design"])
        return mean, self.errors.loss(mean, data["log_se"], per_run)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a parameter."""
        return tuple(len(self.coords[dim]) for dim in self.dims(name))

    def _draw(self, name: str) -> Any:
        shape = self.shape(name)
        if name in self.fix:
            return jnp.full(shape, self.fix[name])
        return numpyro.sample(name, self.priors[name].distribution().expand(shape).to_event(len(shape)))

    def _draw_level(self, alpha: Any, beta: Any) -> dict[str, Any]:
        """E, A and B, sampled in the coordinates of `centring`."""
        log_n, log_d = (math.log(value) for value in self.layout.reference)
        shifts = {"E": jnp.zeros_like(alpha), "A": alpha * log_n, "B": beta * log_d}
        values = {name: jnp.full(self.shape(name), self.fix[name]) for name in shifts if name in self.fix}
        free = [name for name in shifts if name not in self.fix]
        if free:
            level = Level(tuple(self.priors[name].distribution().expand(self.shape(name)) for name in free),
                          tuple(shifts[name] for name in free))
            drawn = level.parameters(numpyro.sample("level", level.to_event(len(self.shape("E")))))
            values.update({name: numpyro.deterministic(name, value) for name, value in zip(free, drawn, strict=True)})
        return values


def build_model(runs: pd.DataFrame, law: str | Law = "recurrence", errors: str | ErrorModel = "normal",
                phi: str = "probe", share: str = "law", priors: Mapping[str, Any] | None = None,
                fix: Mapping[str, float] | None = None) -> Model:
    """The model of a table of runs.

    Parameters
    ----------
    runs : DataFrame
        As from `read_runs`.
    law, errors, phi : str
        Names in `LAWS`, `ERRORS` and `STRUCTURES`.
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
        If a name is unknown, a fixed value impossible, or phi cannot be identified from the table.
    """
    law, errors = get_law(law), get_errors(errors)
    if phi not in STRUCTURES:
        raise LawError(f"phi structure {phi!r} is unknown; expected one of {', '.join(STRUCTURES)}")
    if share == "none" and phi == "one":
        raise LawError('share="none" fits every probe apart, so phi="one" has no meaning; use phi="probe"')
    resolved = resolve_priors({**law.priors, **errors.priors}, priors)
    fix = _checked_fix(fix or {}, resolved)
    layout = Layout.of(runs, share)
    return Model(law, errors, STRUCTURES[phi], layout, share,
                 {name: prior for name, prior in resolved.items() if name not in fix}, fix)


def _checked_fix(fix: Mapping[str, float], priors: Mapping[str, Prior]) -> dict[str, float]:
    for name, value in fix.items():
        if name not in priors:
            raise LawError(f"fix {name!r}: no such parameter; expected one of {', '.join(priors)}")
        if not math.isfinite(value) or (priors[name].positive and value <= 0):
            raise LawError(f"fix {name} = {value}: expected a finite {'positive ' * priors[name].positive}number")
    return {name: float(value) for name, value in fix.items()}
