"""What CONTRIBUTING.md says to add to bayesloop does what the registries ask of an entry, and fits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import bayesloop as bl
from bayesloop.errors import ERRORS
from bayesloop.laws import LAWS
from bayesloop.model import build_model
from bayesloop.planning import plan
from bayesloop.structures import RECIPES, STRUCTURES
from tests import plain, posteriors, test_laws, test_structures
from tests.snippets import PAGE, applied, snippets

OURS = ("bayesloop.laws", "bayesloop.errors", "bayesloop.structures", "tests.plain")


@pytest.fixture(autouse=True)
def added() -> Iterator[None]:
    with applied(*OURS):
        yield
    assert "geometric_recurrence" not in LAWS


def test_every_piece_has_a_file() -> None:
    root = Path(__file__).parents[1]
    assert PAGE.read_text().count("```python") == len(snippets()) == 9
    assert all((root / f"{name.replace('.', '/')}.py").is_file() for name, _ in snippets())


def test_commands_of_results_exist() -> None:
    named = {line.split("-m benchmarks.")[1].split("`")[0].split()[0] for line in PAGE.read_text().splitlines()
             if "`python -m benchmarks." in line}
    assert all((PAGE.parent / "benchmarks" / f"{name}.py").is_file() for name in named)


@pytest.mark.parametrize("phi", [-3.0, 0.44, 3.0])
def test_the_law_is_what_the_tests_of_laws_ask_for(phi: float) -> None:
    test_laws.test_loss("geometric_recurrence", phi)
    test_laws.test_without_recurrence_only_the_sum_of_the_counts_matters("geometric_recurrence")
    test_laws.test_limits("geometric_recurrence")
    test_laws.test_stated_ranges_of_the_default_priors("geometric_recurrence")


def test_the_error_model_against_scipy() -> None:
    mean, loss = np.array([2.5, 3.1]), np.array([2.51, 3.05])
    got = ERRORS["laplace"].loss(mean, np.array([0.0, 0.004]), {"sigma": 0.003}).log_prob(loss)
    scale = np.array([0.003, 0.005]) / np.sqrt(2)
    np.testing.assert_allclose(got, stats.laplace.logpdf(np.log(loss / mean), 0, scale) - np.log(loss), rtol=1e-10)


def test_structure_and_recipe_are_what_curves_take_them_for() -> None:
    runs = posteriors.grid(test_structures.PROBES)
    test_structures.test_expected_loss_is_the_models_mean(runs, "r", "small_offset")
    post = posteriors.prior_as_posterior(build_model(runs, phi="r", recipe="small_offset"), runs=runs)
    planned = plan(post).set_index(["quantity", "probe"])["sd"]
    assert planned["phi", "baseline"] > 0
    assert ("delta", "truncated") not in planned  # one φ for all recipes
    assert {"r", "small_offset"} <= {*STRUCTURES, *RECIPES}


def test_point_fit_takes_the_law() -> None:
    runs = posteriors.grid(counts=(2, 4, 8))
    runs["loss"] = plain.mean("geometric_recurrence", {**posteriors.TRUTH, "y": 0.0}, 0.45,
                              (runs["n_once"], runs["n_rec"], runs["r"], runs["tokens"]))
    fitted = bl.point_fit(runs, law="geometric_recurrence", fix={"y": 0.0}, num_starts=50, num_bootstrap=0)
    assert fitted.parameters["phi"] == pytest.approx(0.45, abs=1e-3)


@pytest.mark.slow
def test_all_of_it_in_one_fit() -> None:
    rng = np.random.default_rng(3)
    runs = posteriors.grid(("baseline", "hyperconnections"), counts=(2, 4, 8))
    runs["loss"] *= np.exp(0.003 * rng.laplace(size=len(runs)) / np.sqrt(2))
    post = bl.fit(runs, law="geometric_recurrence", errors="laplace", phi="r", recipe="small_offset",
                  num_warmup=300, num_samples=300, num_chains=2)
    assert post["posterior"]["phi"].dims == ("chain", "draw", "r")
    assert set(post["posterior"].data_vars) >= {"y", "sigma", "delta"}
    assert np.isfinite(post["log_likelihood"]["loss"]).all()
