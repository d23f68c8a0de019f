"""The model's log density against a plain one, finite gradients, layout of the runs, messages."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer.util import constrain_fn, potential_energy
from scipy import stats

from bayesloop.errors import ERRORS
from bayesloop.laws import LAWS, LawError
from bayesloop.layout import Layout, recipe_applies
from bayesloop.model import Model, build_model
from bayesloop.selection import anchored
from bayesloop.structures import RECIPES, STRUCTURES
from tests import plain

COMBINATIONS = [(law, errors) for law, errors in itertools.product(LAWS, ERRORS) if errors != "smooth"]
OTHER_PRIORS = {"E": "HalfNormal(2)", "A": "Gamma(2, 0.02)", "B": "Exponential(0.001)", "alpha": "Uniform(0.05, 0.9)",
                "beta": "TruncatedNormal(0.4, 0.2, 0, 1)", "sigma": "HalfNormal(0.02)"}
BOUNDED = {"E": "Uniform(0.5, 2.5)", "A": "TruncatedNormal(50, 50, 0, 500)", "B": "Uniform(10, 5000)"}


@pytest.fixture(scope="module")
def few() -> pd.DataFrame:
    """Some runs of each probe and r at two budgets, with a visible measurement error."""
    runs = plain.baseline("budget in [4.64e17, 1e18]")
    return runs.iloc[::3].reset_index(drop=True).assign(loss_se=0.01)


def unconstrained(model: Model, radius: float, seed: int = 3) -> dict[str, np.ndarray]:
    """A point of the sampler's coordinates within `radius` of their origin."""
    trace = handlers.trace(handlers.seed(model, jax.random.key(0))).get_trace(model.layout.data)
    shapes = {name: biject_to(site["fn"].support).inv(site["value"]).shape for name, site in trace.items()
              if site["type"] == "sample" and not site["is_observed"]}
    rng = np.random.default_rng(seed)
    at = {name: rng.uniform(-radius, radius, shape) for name, shape in shapes.items()}
    return {**at, "delta": 0.1 * at["delta"]} if "delta" in at else at  # in nats: no loss may become negative


def natural(model: Model, at: dict) -> dict:
    drawn = constrain_fn(model, (model.layout.data,), {}, at, return_deterministic=True)
    return {name: drawn[name] for name in model.free}


def log_det(model: Model, at: dict) -> float:
    """Log determinant of the map from the sampler's coordinates to the natural parameters, by autodiff."""
    flat, unravel = jax.flatten_util.ravel_pytree(at)
    matrix = jax.jacfwd(lambda flat: jax.flatten_util.ravel_pytree(natural(model, unravel(flat)))[0])(flat)
    assert matrix.shape[0] == matrix.shape[1]
    return float(np.linalg.slogdet(np.asarray(matrix))[1])


def plain_density(model: Model, values: dict, runs: pd.DataFrame) -> float:
    """Log prior and log likelihood at natural parameters; runs in the order of the layout."""
    everything = {**model.fix, **{name: np.asarray(value) for name, value in values.items()}}
    prior = 0.0
    for name, value in values.items():
        pooled = (everything["phi_mean"][:, None], everything["tau"]) if name not in model.priors else ()
        density = stats.norm(*pooled) if pooled else plain.prior(str(model.priors[name]))
        prior += density.logpdf(np.asarray(value)).sum()
    if model.share == "none":  # a parameter of each run's own probe
        place = [model.layout.probes.index(label.split(" @ ")[1]) for label in model.layout.run]
        everything = {name: value if name == "phi" or np.ndim(value) == 0 else value[place]
                      for name, value in everything.items()}
        probes = [label.split(" @ ")[1] for label in model.layout.run]
    else:
        probes = list(runs["probe"])
    design = [model.layout.design.n_once, model.layout.design.n_rec, model.layout.design.r, model.layout.design.tokens]
    phi = everything.pop("phi", 0.0)
    per_run, effects = np.zeros(len(probes)), {"rho": np.zeros(len(probes)), "delta": np.zeros(len(probes))}
    compute = np.log10(6 * (design[0] + design[2] * design[1]) * design[3])
    for i, (probe, r) in enumerate(zip(probes, model.layout.design.r, strict=True)):
        where = {"probe": model.layout.probes, "r": model.layout.recurrences}
        key = {"probe": probe, "r": int(r)}
        if r > 1:
            index = tuple(where[dim].index(key[dim]) for dim in model.dims("phi"))
            per_run[i] = np.broadcast_to(phi, model.shape("phi"))[index]
            per_run[i] += everything.get("phi_slope", 0.0) * (compute[i] - compute.mean())
        if r > 1 if model.recipe.looped else probe != "baseline":  # these tables have no r = 1 run of another probe
            for name in effects.keys() & everything.keys():
                effects[name][i] = everything[name][model.layout.recipes.index(probe)]
    everything["B"] = everything["B"] * np.exp(effects["rho"])
    expected = plain.mean(model.law.name, everything, per_run, design) + effects["delta"]
    loss = model.layout.loss
    return prior + plain.log_likelihood(model.errors.name, loss, expected, 0.01 / loss, everything, runs).sum()


def assert_density(model: Model, runs: pd.DataFrame) -> None:
    for seed in range(2):
        at = unconstrained(model, 0.7, seed)
        got = -float(potential_energy(model, (model.layout.data,), {}, at))
        expected = plain_density(model, natural(model, at), runs) + log_det(model, at)
        assert got == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("law", "errors"), COMBINATIONS)
def test_density(few: pd.DataFrame, law: str, errors: str) -> None:
    assert_density(build_model(few, law, errors), few)


@pytest.mark.parametrize("phi", STRUCTURES)
def test_density_of_each_structure(few: pd.DataFrame, phi: str) -> None:
    assert_density(build_model(few, phi=phi), few)


@pytest.mark.parametrize("recipe", RECIPES)
def test_density_of_each_recipe_term(few: pd.DataFrame, recipe: str) -> None:
    assert_density(build_model(few, phi="probe_r", recipe=recipe), few)


@pytest.mark.parametrize(("phi", "fix"), [("probe", {}), ("probe_r", {"E": 1.5}), ("probe", {"phi": 0.5, "A": 30.0})])
def test_density_of_separate_fits(few: pd.DataFrame, phi: str, fix: dict) -> None:
    assert_density(build_model(few, phi=phi, share="none", fix=fix), few)


@pytest.mark.parametrize("priors", [OTHER_PRIORS, {"A": BOUNDED["A"]}], ids=["others", "bounded A"])
@pytest.mark.parametrize("fixed", ["", "E", "A", "B", "EA", "EB", "AB", "EAB"])
def test_density_for_each_subset_of_free_levels(few: pd.DataFrame, fixed: str, priors: dict) -> None:
    free = {name: prior for name, prior in priors.items() if name not in fixed}
    assert_density(build_model(few, priors=free, fix={name: plain.TRUTH[name] for name in fixed}), few)


@pytest.mark.parametrize("priors", [OTHER_PRIORS, BOUNDED], ids=["others", "bounded"])
def test_bounded_priors_have_no_walls(few: pd.DataFrame, priors: dict) -> None:
    """A wall inside the sampler's coordinates would end trajectories as divergences."""
    model = build_model(few, priors=priors)
    for seed in range(5):
        at = unconstrained(model, 6.0, seed)
        assert np.isfinite(float(potential_energy(model, (model.layout.data,), {}, at)))


@pytest.mark.parametrize(("law", "errors"), [*((law, "normal") for law in LAWS), ("cross_recurrence", "student_t")])
def test_gradients_are_finite_in_the_bulk_of_the_prior(law: str, errors: str) -> None:
    """1,000 draws from the prior, seen in the sampler's coordinates, on the published baseline."""
    model = build_model(plain.baseline(), law, errors)
    data = jax.tree.map(jnp.asarray, model.layout.data)

    def draw(key: jax.Array) -> dict:
        trace = handlers.trace(handlers.seed(model, key)).get_trace(model.layout.data)
        return {name: biject_to(site["fn"].support).inv(site["value"]) for name, site in trace.items()
                if site["type"] == "sample" and not site["is_observed"]}

    points = jax.vmap(draw)(jax.random.split(jax.random.key(0), 1000))
    gradient = jax.jit(jax.vmap(jax.value_and_grad(lambda at: potential_energy(model, (data,), {}, at))))(points)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_layout(few: pd.DataFrame) -> None:
    layout = Layout.of(few)
    assert layout.run == list(few["run_id"])
    assert layout.recurrences == [2, 4, 8]
    assert set(layout.probes) == {"baseline", "truncated", "hyperconnections"}
    looped = (few["r"] > 1).to_numpy()
    assert [layout.probes[i] for i in layout.probe_index[looped]] == list(few["probe"][looped])
    assert [layout.recurrences[i] for i in layout.r_index[looped]] == list(few["r"][looped])
    np.testing.assert_allclose(layout.log_se, 0.01 / few["loss"])
    np.testing.assert_allclose(np.log(layout.reference[1]), np.log(few["tokens"]).mean())


def test_unknown_measurement_errors_count_as_none(few: pd.DataFrame) -> None:
    assert (Layout.of(few.drop(columns="loss_se")).log_se == 0).all()
    some = few.assign(loss_se=[0.01, *[np.nan] * (len(few) - 1)])
    assert (Layout.of(some).log_se > 0).sum() == 1


def test_separate_fits_have_their_own_copy_of_the_anchor() -> None:
    runs = plain.baseline("budget <= 4.64e18")
    layout = Layout.of(runs, "none")
    anchor = ((runs["probe"] == "baseline") & (runs["r"] == 1)).sum()
    assert len(layout.run) == len(set(layout.run)) == len(runs) + 2 * anchor
    for place, probe in enumerate(layout.probes):
        assert (layout.probe_index == place).sum() == len(anchored(runs, probe))


def test_data_are_arguments(few: pd.DataFrame) -> None:
    """Other losses, designs and errors put in where the model is called change the density as a new model would."""
    model = build_model(few)
    at = unconstrained(model, 0.5)
    other = build_model(few.assign(loss=few["loss"] * 1.01, tokens=few["tokens"] * 1.1, loss_se=0.02))
    reference = {**model.__dict__, "layout": other.layout.__class__(**{**other.layout.__dict__,
                                                                      "reference": model.layout.reference})}
    assert float(potential_energy(model, (other.layout.data,), {}, at)) == pytest.approx(
        float(potential_energy(Model(**reference), (other.layout.data,), {}, at)), rel=1e-12)
    assert float(potential_energy(model, (other.layout.data,), {}, at)) != pytest.approx(
        float(potential_energy(model, (model.layout.data,), {}, at)))


@pytest.mark.parametrize(("arguments", "words"), [
    ({"law": "power"}, ["'power'", "recurrence"]),
    ({"errors": "cauchy"}, ["'cauchy'", "student_t"]),
    ({"phi": "each"}, ["'each'", "probe_r"]),
    ({"share": "all"}, ["'all'", "law, none"]),
    ({"share": "none", "phi": "one"}, ["no meaning", 'phi="probe"']),
    ({"share": "none", "phi": "trend"}, ["nothing can be common", 'share="law"']),
    ({"share": "none", "recipe": "offset"}, ["nothing can be common", 'recipe="none"']),
    ({"share": "none", "errors": "budget"}, ["nothing can be common", "student_t"]),
    ({"recipe": "factor"}, ["'factor'", "data_factor"]),
    ({"phi": "probe_r_pooled", "priors": {"phi": "Normal(0, 1)"}}, ["'phi'", "phi_mean"]),
    ({"fix": {"gamma": 1.0}}, ["'gamma'", "no such parameter", "sigma"]),
    ({"fix": {"A": -1.0}}, ["A = -1.0", "positive"]),
    ({"fix": {"phi": float("nan")}}, ["phi = nan", "finite number"]),
    ({"law": "chinchilla", "fix": {"phi": 1.0}}, ["'phi'", "no such parameter"]),
    ({"priors": {"nu": "Gamma(2, 0.1)"}}, ["'nu'", "no such parameter"]),
])
def test_messages(few: pd.DataFrame, arguments: dict, words: list[str]) -> None:
    with pytest.raises(LawError) as caught:
        build_model(few, **arguments)
    assert [word for word in words if word not in str(caught.value)] == []


def test_recipe_terms_and_budget_errors_need_their_runs(few: pd.DataFrame) -> None:
    with pytest.raises(LawError, match="all runs are the baseline's"):
        build_model(few[few["probe"] == "baseline"], recipe="offset")
    with pytest.raises(LawError, match="needs the budget of every run"):
        build_model(few.drop(columns="budget"), errors="budget")


def test_parameters_of_one_name_are_refused(few: pd.DataFrame) -> None:
    from bayesloop.laws import Law, Prior

    law = Law("mine", "L", lambda E, P, Q, rho: E + P + rho * Q, "", extra={"rho": Prior("Normal", (1, 1))})
    with pytest.raises(LawError, match="a parameter of one name"):
        build_model(few, law, recipe="data_factor")


def test_a_recipe_effect_holds_at_any_r_but_for_truncation(few: pd.DataFrame) -> None:
    """A recipe's own r = 1 runs have its effect: they tell it apart from what a recurrence is worth."""
    own = few[few["r"] == 1].assign(probe="hyperconnections")
    layout = Layout.of(pd.concat([few, own.assign(run_id=own["run_id"] + " own")], ignore_index=True))
    expected = [layout.recipes.index(probe) if probe != "baseline" else len(layout.recipes)
                for probe in layout.columns["probe"]]
    np.testing.assert_array_equal(layout.recipe_index, expected)
    assert list(recipe_applies(["truncated", "truncated", "mine"], np.array([1, 2, 1]))) == [False, True, True]


@pytest.mark.parametrize("phi", ["probe_r_pooled", "trend"])
def test_prior_draws_follow_the_structure(few: pd.DataFrame, phi: str) -> None:
    model = build_model(few, phi=phi, recipe="both")
    draws = jax.vmap(model.sample_prior)(jax.random.split(jax.random.key(0), 4000))
    assert set(draws) == set(model.free)
    if phi == "probe_r_pooled":  # standardised, phi is a Normal draw whatever its mean and spread
        z = (draws["phi"] - draws["phi_mean"][..., None]) / draws["tau"][:, None, None]
        assert stats.kstest(np.asarray(z[:, 0, 1]), stats.norm.cdf).pvalue > 1e-3
    log_prior = model.log_prior({name: value[0] for name, value in draws.items()})
    assert {name: np.shape(value) for name, value in log_prior.items()} == {
        name: model.shape(name) for name in model.free}
