"""What runs would tell about the parameters, before they are trained: Fisher information at posterior draws.

At each draw the log losses of runs are linear in the parameters near it, with Normal errors of the posterior's own
scatter; information adds up over independent runs, and the priors' is added as that of Normal priors of their spread.
The parameters are those of the law (E, A, B, α, β and any extra positive one by logarithm), a φ for each probe (and
each r, where the posterior's φ has r), and, where wanted, a recipe effect ρ for a probe: a factor exp(ρ) on the data
term of all its runs, looped or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import xarray as xr

from bayesloop.curves import design_of
from bayesloop.laws import Design, Law, Prior, get_law
from bayesloop.posterior import PosteriorError, attribute

N_DRAWS = 64  # the expected width moves by less than 1 % with more (measured)
RECIPE = Prior("Normal", (0.0, 0.2), "a recipe multiplies the data term by 0.67–1.5: measured 0.87 for the "
                                     "hyperconnections of arXiv 2604.21106")


PLANNED_PHI, PLANNED_ERRORS = ("one", "probe", "probe_r"), ("normal", "student_t")


@dataclass(frozen=True)
class Information:
    """Sensitivities of runs at posterior draws.

    Attributes
    ----------
    names : list of str
        Parameters, such as ``alpha``, ``phi[mine]``, ``rho[mine]``.
    prior : array, shape (parameter,)
        Precision of the priors.
    rows : array, shape (draw, run, parameter)
        Change of log loss with each parameter, over the scatter of a run.
    probes : list of str
        Probes of the runs that have a φ.
    """

    names: list[str]
    prior: np.ndarray
    rows: np.ndarray
    probes: list[str]

    def target(self, probe: str, reference: str | None = None) -> np.ndarray:
        """Weights of the parameters in φ of a probe (the mean over r, where it has several) or in its difference.

        Raises
        ------
        PosteriorError
            If no run of that probe is looped.
        """
        weights = np.zeros(len(self.names))
        for name, sign in ((probe, 1.0), (reference, -1.0)):
            if name is None:
                continue
            own = [i for i, label in enumerate(self.names) if label == f"phi[{name}]"
                   or label.startswith(f"phi[{name}, ")]
            if not own:
                raise PosteriorError(f"no looped run of probe {name!r} is planned or known, so nothing tells its φ; "
                                     f"expected one of {', '.join(self.probes)}")
            weights[own] += sign / len(own)
        return weights

    def covariance(self, used: np.ndarray) -> np.ndarray:
        """Expected posterior covariance from some of the runs (mask or indices), shape (draw, parameter, parameter)."""
        rows = self.rows[:, used]
        return np.linalg.inv(np.einsum("dri,drj->dij", rows, rows) + np.diag(self.prior))

    def variance(self, target: np.ndarray, used: np.ndarray) -> np.ndarray:
        """Expected posterior variance of a target at each draw, shape (draw,)."""
        return np.einsum("i,dij,j->d", target, self.covariance(used), target)


def _check_modelled(post: xr.DataTree) -> None:
    """Refuse what would otherwise be left out of the plan in silence."""
    recipe, phi, errors = (str(post.attrs.get(*pair)) for pair in (("recipe", "none"), ("phi", "probe"),
                                                                   ("errors", "normal")))
    if recipe != "none":
        raise PosteriorError(f"planning does not know the posterior's recipe term {recipe!r}; fit without one and name "
                             "the recipes that may have an effect (recipes=, or --recipe)")
    if phi not in PLANNED_PHI:
        raise PosteriorError(f"planning does not know φ structure {phi!r}; fit with one of {', '.join(PLANNED_PHI)}")
    if errors not in PLANNED_ERRORS:
        raise PosteriorError(f"planning takes runs that miss independently, but the posterior's errors are "
                             f"{errors!r}; fit with one of {', '.join(PLANNED_ERRORS)} and allow for the rest by "
                             "scatter= (--scatter)")


def information(post: xr.DataTree, runs: pd.DataFrame, recipes: Sequence[str] = (), like: str | None = None,
                shift: float = 0.0, scatter: float | None = None, n_draws: int = N_DRAWS) -> Information:
    """Sensitivities of runs, trained or planned, at draws of a posterior.

    Parameters
    ----------
    post : DataTree
        With a law that has φ and runs that share it (``share="law"``).
    runs : DataFrame
        probe, r, n_once, n_rec, tokens; loss_se where known.
    recipes : sequence of str
        Probes with a recipe effect ρ.
    like : str, optional
        Probe that a new one's φ is expected near; default the first.
    shift : float
        By how much a new probe's φ is taken to differ from it.
    scatter : float, optional
        Relative scatter of a run in place of the posterior's sigma: larger where runs of a cell miss together.
    n_draws : int

    Returns
    -------
    Information

    Raises
    ------
    PosteriorError
        If the posterior's law has no φ, its probes were fitted apart, or it has a recipe term, a structure of φ or an
        error model that planning does not know.
    """
    law = get_law(post.attrs["law"])
    if not law.looped or post.attrs.get("share") == "none":
        raise PosteriorError("planning needs a posterior of a law with φ whose probes share the law (share='law')")
    _check_modelled(post)
    draws = post["posterior"].to_dataset().stack(sample=("chain", "draw"))
    total = draws.sizes["sample"]
    draws = draws.isel(sample=np.linspace(0, total - 1, min(n_draws, total)).astype(int))
    by_r = "phi" in draws and "r" in draws["phi"].dims
    keys = [(probe, int(r) if by_r and r > 1 else 0) for probe, r in zip(runs["probe"], runs["r"], strict=True)]
    looped = list(dict.fromkeys(key for key, r in zip(keys, runs["r"], strict=True) if r > 1))
    values = _law_values(post, law, draws)
    phi = [_phi_of(post, draws, *key, like, shift) for key in looped]
    theta = np.column_stack([*values.values(), *phi, *(np.zeros((len(recipes), draws.sizes["sample"])))])
    place = {key: i for i, key in enumerate(looped)}
    index = (jnp.array([place.get(key, 0) for key in keys]),
             jnp.array([recipes.index(key[0]) + 1 if key[0] in recipes else 0 for key in keys]))
    slopes = _slopes(law, tuple(values), len(looped), jnp.asarray(theta), Design(*map(jnp.asarray, design_of(runs))),
                     *index)
    names = [*values, *(f"phi[{probe}, {r}]" if r else f"phi[{probe}]" for probe, r in looped),
             *(f"rho[{probe}]" for probe in recipes)]
    free = [i for i, name in enumerate(names) if name.split("[")[0] not in attribute(post, "fix")]
    rows = np.asarray(slopes)[:, :, free] / _scatter(draws, runs, scatter)[:, :, None]
    prior = _prior_precision(post, law)
    return Information([names[i] for i in free], np.array([prior[names[i].split("[")[0]] for i in free]), rows,
                       list(dict.fromkeys(probe for probe, _ in looped)))


def _positive(law: Law) -> list[str]:
    return [name for name, prior in law.priors.items() if prior.positive]


def _law_values(post: xr.DataTree, law: Law, draws: xr.Dataset) -> dict[str, np.ndarray]:
    """The law's parameters but φ, positive ones by logarithm, each of shape (draw,)."""
    fixed, positive = attribute(post, "fix"), _positive(law)
    values = {name: draws[name].to_numpy() if name in draws else np.full(draws.sizes["sample"], fixed[name])
              for name in law.priors if name != "phi"}
    return {name: np.log(value) if name in positive else value for name, value in values.items()}


def _phi_of(post: xr.DataTree, draws: xr.Dataset, probe: str, r: int, like: str | None, shift: float) -> np.ndarray:
    if "phi" not in draws:
        return np.full(draws.sizes["sample"], attribute(post, "fix")["phi"])
    phi = draws["phi"]
    if "probe" in phi.dims:
        known = list(phi["probe"].to_numpy())
        new = probe not in known
        phi = phi.sel(probe=(like if like in known else known[0]) if new else probe) + (shift if new else 0.0)
    if "r" in phi.dims:
        phi = phi.sel(r=r) if r in phi["r"] else phi.mean("r")
    return phi.to_numpy()


def _scatter(draws: xr.Dataset, runs: pd.DataFrame, given: float | None) -> np.ndarray:
    """Standard deviation of log loss, shape (draw, run); heavy tails tell a little less than their sigma."""
    n_draws = draws.sizes["sample"]
    if given is None and "sigma" not in draws:
        raise PosteriorError("the posterior's error model has no sigma; give the relative scatter of a run (--scatter)")
    sigma = np.full(n_draws, given) if given is not None else draws["sigma"].to_numpy()
    if given is None and "nu" in draws:
        nu = draws["nu"].to_numpy()
        sigma = sigma * np.sqrt((nu + 3) / (nu + 1))
    se = np.zeros(len(runs))
    if "loss_se" in runs and "loss" in runs:
        se = np.nan_to_num((runs["loss_se"] / runs["loss"]).to_numpy(float))
    return np.hypot(sigma[:, None], se)


def _prior_precision(post: xr.DataTree, law: Law) -> dict[str, float]:
    """One over the variance of each prior, on the scale the parameter is used in."""
    given = {name: Prior.parse(text) for name, text in attribute(post, "priors").items()}
    positive, found = _positive(law), {"rho": 1 / RECIPE.args[1] ** 2}
    for name, default in law.priors.items():
        sample = np.asarray(given.get(name, default).distribution().sample(jax.random.key(0), (2000,)))
        found[name] = float(1 / np.var(np.log(sample) if name in positive else sample))
    return found


@partial(jax.jit, static_argnums=(0, 1, 2))
def _slopes(law: Law, names: tuple[str, ...], n_phi: int, theta: Any, design: Design, phi_index: Any,
            rho_index: Any) -> Any:
    """Derivative of log loss by every parameter, shape (draw, run, parameter)."""
    positive = _positive(law)

    def log_loss(point: Any) -> Any:
        values: Mapping[str, Any] = {name: jnp.exp(point[i]) if name in positive else point[i]
                                     for i, name in enumerate(names)}
        phi = jnp.append(point[len(names):len(names) + n_phi], 0.0)[phi_index]
        rho = jnp.concatenate([jnp.zeros(1), point[len(names) + n_phi:]])[rho_index]
        return jnp.log(law.loss({**values, "B": values["B"] * jnp.exp(rho), "phi": phi}, design))

    return jax.vmap(jax.jacfwd(log_loss))(theta)
