"""What curves of a posterior say is what the model says, for every structure of φ and every recipe term."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from bayesloop.curves import design_of, expected_loss
from bayesloop.laws import Design
from bayesloop.model import Model, build_model
from bayesloop.posterior import PosteriorError
from bayesloop.structures import RECIPES, STRUCTURES
from tests.posteriors import grid, prior_as_posterior

PROBES = ("baseline", "truncated", "hyperconnections")


def model_mean(model: Model, post: xr.DataTree) -> np.ndarray:
    values = {name: np.asarray(draws)[0] for name, draws in post["posterior"].data_vars.items()}
    return np.asarray(jax.vmap(lambda one: model.predictive({**one, **model.fixed}, model.layout.data)[0])(values))


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    return grid(PROBES)


@pytest.mark.parametrize(("phi", "recipe"), [*itertools.product(STRUCTURES, ["both"]), *itertools.product(["probe_r"],
                                                                                                       RECIPES)])
def test_expected_loss_is_the_models_mean(runs: pd.DataFrame, phi: str, recipe: str) -> None:
    model = build_model(runs, phi=phi, recipe=recipe)
    post = prior_as_posterior(model)
    np.testing.assert_allclose(expected_loss(post, design_of(runs), list(runs["probe"])), model_mean(model, post),
                               rtol=1e-12)


def test_fixed_recipe_effects_hold_where_they_apply(runs: pd.DataFrame) -> None:
    model = build_model(runs, recipe="both", fix={"delta": 0.05, "rho": -0.1})
    post = prior_as_posterior(model)
    np.testing.assert_allclose(expected_loss(post, design_of(runs), list(runs["probe"])), model_mean(model, post),
                               rtol=1e-12)


def test_a_recipe_keeps_its_effect_at_r_1_and_truncation_has_none_there(runs: pd.DataFrame) -> None:
    model = build_model(runs, recipe="offset")
    post = prior_as_posterior(model)
    at_one = Design(*(np.array([value]) for value in (0.0, 1e8, 1.0, 1e9)))
    base = expected_loss(post, at_one, "baseline")
    delta = post["posterior"]["delta"].isel(chain=0)
    np.testing.assert_allclose(expected_loss(post, at_one, "truncated"), base)
    np.testing.assert_allclose((expected_loss(post, at_one, "hyperconnections") - base)[:, 0],
                               delta.sel(recipe="hyperconnections"), rtol=1e-9)


def test_a_recipe_that_was_never_run_is_named(runs: pd.DataFrame) -> None:
    model = build_model(runs[runs["probe"] != "truncated"], phi="one", recipe="offset")
    with pytest.raises(PosteriorError, match="no delta for recipe = truncated; it has hyperconnections"):
        expected_loss(prior_as_posterior(model), design_of(runs), "truncated")


def test_a_trend_is_zero_at_the_mean_compute_of_the_runs(runs: pd.DataFrame) -> None:
    model = build_model(runs, phi="trend")
    post = prior_as_posterior(model)
    flat = prior_as_posterior(build_model(runs, phi="probe"))
    flat["posterior"]["phi"] = post["posterior"]["phi"]
    n_rec = 1e8
    tokens = model.layout.compute / (6 * 4 * n_rec)
    design = Design(*(np.array([value]) for value in (0.0, n_rec, 4.0, tokens)))
    np.testing.assert_allclose(expected_loss(post, design, "baseline"), expected_loss(flat, design, "baseline"))
