"""What runs would tell about the parameters, before they are trained: Fisher information at posterior draws.

At each draw the log losses of runs are linear in the parameters near it, with Normal errors of the posterior's own
scatter; information adds up over runs that miss independently, and the priors' is added as that of Normal priors of
their spread. What an error model lets runs miss by together counts as further parameters, each with a standard Normal
prior, so that a run more or less is a row more or less whatever the error model. The parameters are those of the
posterior's own model (see `planned`); the error model's stay at the draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import xarray as xr

from bayesloop.laws import Design
from bayesloop.model import Model
from bayesloop.planned import planned_model, values_of
from bayesloop.posterior import PosteriorError
from bayesloop.sampling import quick_compile

N_DRAWS = 64  # the expected width moves by less than 1 % with more (measured)
LEAST_TAU = 1e-3  # a spread of φ over r of less is none


@dataclass(frozen=True)
class Information:
    """Sensitivities of runs at posterior draws.

    Attributes
    ----------
    names : list of str
        Parameters, such as ``alpha``, ``phi[mine]``, ``phi[mine, 4]``, ``rho[mine]``; ``together[0]`` and so on for
        what runs miss by together.
    prior : array, shape (draw, parameter, parameter)
        Precision of the priors.
    rows : array, shape (draw, run, parameter)
        Change of log loss with each parameter, over the scatter of a run.
    looped : dict of (str, int) to str
        Probe and r of the runs with r > 1, and the parameter that is their φ.
    by_r : bool
        Whether φ differs by r.
    """

    names: list[str]
    prior: np.ndarray
    rows: np.ndarray
    looped: dict[tuple[str, int], str]
    by_r: bool

    @property
    def probes(self) -> list[str]:
        """Probes of the runs that have a φ."""
        return list(dict.fromkeys(probe for probe, _ in self.looped))

    def shared(self, probe: str, reference: str) -> set[int]:
        """The looped r of both."""
        mine, theirs = ({r for one, r in self.looped if one == name} for name in (probe, reference))
        return mine & theirs

    def target(self, probe: str, reference: str | None = None) -> np.ndarray:
        """Weights of the parameters in φ of a probe (the mean over the r of its runs) or, over the r of both, in its
        difference.

        Raises
        ------
        PosteriorError
            If no run of that probe is looped, they have no r in common, or φ is held at a value.
        """
        common = self.shared(probe, reference or probe)
        weights = np.zeros(len(self.names))
        for name, sign in ((probe, 1.0), (reference, -1.0)):
            if name is None:
                continue
            if name not in self.probes:
                raise PosteriorError(f"no looped run of probe {name!r} is planned or known, so nothing tells its φ; "
                                     f"expected one of {', '.join(self.probes)}")
            own = {r: label for (one, r), label in self.looped.items() if one == name}
            if self.by_r:
                own = {r: label for r, label in own.items() if r in common}
            if not own:
                raise PosteriorError(f"{probe} and {reference} have no looped r in common, and φ differs by r: plan "
                                     "runs of one r of both")
            if not set(own.values()) <= set(self.names):
                raise PosteriorError(f"φ of {name} is held at a value, so no runs would tell more of it")
            for label in own.values():
                weights[self.names.index(label)] += sign / len(own)
        return weights

    def covariance(self, used: np.ndarray) -> np.ndarray:
        """Expected posterior covariance from some of the runs (mask or indices), shape (draw, parameter, parameter)."""
        rows = self.rows[:, used]
        return np.linalg.inv(rows.transpose(0, 2, 1) @ rows + self.prior)

    def variance(self, target: np.ndarray, used: np.ndarray) -> np.ndarray:
        """Expected posterior variance of a target at each draw, shape (draw,)."""
        return np.einsum("i,dij,j->d", target, self.covariance(used), target)


def information(post: xr.DataTree, runs: pd.DataFrame, recipes: Sequence[str] = (), like: str | None = None,
                shift: float = 0.0, scatter: float | None = None, n_draws: int = N_DRAWS) -> Information:
    """Sensitivities of runs, trained or planned, at draws of a posterior.

    Parameters
    ----------
    post : DataTree
        With a law that has φ and runs that share it (``share="law"``).
    runs : DataFrame
        probe, r, n_once, n_rec, tokens; loss_se where known; budget where the error model needs it.
    recipes : sequence of str
        Probes that may have a recipe effect although the posterior's model has none.
    like : str, optional
        Probe that a new one's φ is expected near; default the first.
    shift : float
        By how much a new probe's φ is taken to differ from it.
    scatter : float, optional
        Relative scatter of a run by itself in place of the posterior's sigma.
    n_draws : int

    Returns
    -------
    Information

    Raises
    ------
    PosteriorError
        If the posterior's law has no φ, its probes were fitted apart, or its error model has no sigma.
    """
    model = planned_model(post, runs, recipes)
    draws = post["posterior"].to_dataset().stack(sample=("chain", "draw"))
    total = draws.sizes["sample"]
    draws = draws.isel(sample=np.linspace(0, total - 1, min(n_draws, total)).astype(int))
    values = values_of(post, model, draws, like, shift)
    wanted = [name for name in model.free if name not in model.errors.priors and name != "tau"]
    slopes, shared = _slopes(model, values, wanted)
    labels = {name: _labels(model, name) for name in wanted}
    names = [label for name in wanted for label in labels[name]]
    kept = [i for i, name in enumerate(names)
            if not (recipes and name.startswith("rho[") and name[4:-1] not in recipes)]
    together = [f"together[{i}]" for i in range(shared.shape[-1])]
    rows = np.concatenate([slopes[..., kept], shared], axis=-1) / _scatter(values, runs, scatter)[:, :, None]
    prior = np.zeros((len(rows), rows.shape[-1], rows.shape[-1]))
    prior[:, :len(kept), :len(kept)] = _precision(model, values, wanted, labels)[:, kept][:, :, kept]
    prior[:, range(len(kept), rows.shape[-1]), range(len(kept), rows.shape[-1])] = 1.0
    return Information([*(names[i] for i in kept), *together], prior, rows, _looped(model, runs),
                       "r" in model.dims("phi"))


def _looped(model: Model, runs: pd.DataFrame) -> dict[tuple[str, int], str]:
    """The name of φ by probe and r of the looped runs."""
    found = {}
    for probe, r in zip(runs["probe"], runs["r"], strict=True):
        if r > 1:
            place = {"probe": str(probe), "r": str(int(r))}
            inside = ", ".join(place[dim] for dim in model.dims("phi"))
            found[str(probe), int(r)] = f"phi[{inside}]" if inside else "phi"
    return found


def _labels(model: Model, name: str) -> list[str]:
    """Names of a parameter's elements, in the order of its raveled values."""
    index = pd.MultiIndex.from_product([[name], *(model.coords[dim] for dim in model.dims(name))])
    return [name if len(label) == 1 else f"{name}[{', '.join(map(str, label[1:]))}]" for label in index]


def _positive(model: Model, name: str) -> bool:
    """Whether a parameter is used by its logarithm; φ never is, since it is asked for itself."""
    return name in model.priors and model.priors[name].positive and not name.startswith("phi")


def _slopes(model: Model, values: Mapping[str, np.ndarray], wanted: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Derivative of log loss by every parameter, positive ones by logarithm, shape (draw, run, parameter), and what
    runs miss by together in log loss by unit of its latent Normals, shape (draw, run, latent)."""
    data = {"design": Design(*map(jnp.asarray, model.layout.design)), "log_se": jnp.asarray(model.layout.log_se)}
    n_runs = len(model.layout.run)

    def log_mean(some: Mapping[str, Any], rest: Mapping[str, Any]) -> Any:
        return jnp.log(model.predictive({**rest, **some}, data)[0])

    def one(point: Mapping[str, Any]) -> Any:
        some = {name: point[name] for name in wanted}
        slopes = jax.jacfwd(log_mean)(some, point)
        columns = [(slopes[name] * (some[name] if _positive(model, name) else 1.0)).reshape(n_runs, -1)
                   for name in wanted]
        loss = model.predictive(point, data)[1]
        shared = loss.base_dist.cov_factor if loss.event_shape else jnp.zeros((n_runs, 0))
        return jnp.concatenate(columns, axis=1), shared

    # not vmap: see `sampling.one_by_one`
    points = {name: jnp.asarray(value) for name, value in values.items()}
    found = quick_compile(jax.jit(lambda points: jax.lax.map(one, points)).lower(points))(points)
    return np.asarray(found[0]), np.asarray(found[1])


def _scatter(values: Mapping[str, np.ndarray], runs: pd.DataFrame, given: float | None) -> np.ndarray:
    """Standard deviation of log loss, shape (draw, run); heavy tails tell a little less than their sigma."""
    n_draws = len(next(iter(values.values())))
    if given is None and "sigma" not in values:
        raise PosteriorError("the posterior's error model has no sigma; give the relative scatter of a run (--scatter)")
    sigma = np.full(n_draws, given) if given is not None else values["sigma"]
    if given is None and "nu" in values:
        nu = values["nu"]
        sigma = sigma * np.sqrt((nu + 3) / (nu + 1))
    se = np.zeros(len(runs))
    if "loss_se" in runs and "loss" in runs:
        se = np.nan_to_num((runs["loss_se"] / runs["loss"]).to_numpy(float))
    return np.hypot(sigma[:, None], se)


def _precision(model: Model, values: Mapping[str, np.ndarray], wanted: Sequence[str],
               labels: Mapping[str, list[str]]) -> np.ndarray:
    """Precision of the priors on the scale each parameter is used in, shape (draw, parameter, parameter)."""
    names = [label for name in wanted for label in labels[name]]
    n_draws = len(next(iter(values.values())))
    found = np.zeros((n_draws, len(names), len(names)))
    for name in wanted:
        if name not in model.priors:
            continue  # φ drawn towards the mean of its probe
        sample = np.asarray(model.priors[name].distribution().sample(jax.random.key(0), (2000,)))
        for label in labels[name]:
            at = names.index(label)
            found[:, at, at] += 1 / np.var(np.log(sample) if _positive(model, name) else sample)
    if model.structure.pooled:
        tie = 1 / np.maximum(values["tau"], LEAST_TAU) ** 2
        for label in labels["phi"]:
            at, of_probe = names.index(label), f"phi_mean[{label[4:-1].rsplit(', ', 1)[0]}]"
            found[:, at, at] += tie
            if of_probe not in names:  # it is fixed
                continue
            mean = names.index(of_probe)
            found[:, mean, mean] += tie
            found[:, at, mean] -= tie
            found[:, mean, at] -= tie
    return found
