"""NUTS against known distributions and a brute-force grid; seeds, groups of chains, batches of data sets."""

from __future__ import annotations

import jax
import numpy as np
import numpyro
import pandas as pd
import pytest
from arviz_stats.base import array_stats
from numpyro import distributions as dist

from bayesloop import sampling
from bayesloop.model import Model, build_model
from bayesloop.sampling import STRETCH, Faint, Settings, counted, run_nuts, run_pilot
from tests import plain

SHORT = Settings(num_warmup=300, num_samples=500)
COVARIANCE = np.array([[1e-4, 0.9 * 1e-2], [0.9 * 1e-2, 1.0]])  # correlation 0.9, scales 0.01 and 1


def pair(data: dict) -> None:
    """Two correlated Normals around a mean that is data, and one positive parameter."""
    numpyro.sample("pair", dist.MultivariateNormal(data["mean"], data["covariance"]))
    numpyro.deterministic("twice", 2 * numpyro.sample("rate", dist.Gamma(3.0, 2.0)))


def standard_error(draws: np.ndarray) -> np.ndarray:
    """Monte Carlo standard error of the mean over chains and draws, by last axis."""
    ess = np.array([array_stats.ess(column, chain_axis=0, draw_axis=1, method="mean")
                    for column in np.moveaxis(draws, -1, 0)])
    return draws.std((0, 1)) / np.sqrt(ess)


@pytest.fixture(scope="module")
def chains() -> dict[str, np.ndarray]:
    """Four chains; the third has another mean."""
    data = {"mean": np.array([[0.0, 5.0]] * 2 + [[1.0, -5.0]] + [[0.0, 5.0]]), "covariance": COVARIANCE}
    steps: list[int] = []  # 800 iterations of four chains
    draws = run_nuts(pair, data, jax.random.split(jax.random.key(0), 4), SHORT, batched=("mean",),
                     progress=steps.append)
    assert steps == [STRETCH] * 64
    return {**draws.values, **draws.stats}


def test_known_distribution(chains: dict[str, np.ndarray]) -> None:
    """Means and variances within 4 Monte Carlo standard errors; each data set has its own mean."""
    centred = chains["pair"] - np.array([[0.0, 5.0]] * 2 + [[1.0, -5.0]] + [[0.0, 5.0]])[:, None]
    everything = np.concatenate([centred, chains["rate"][..., None] - 1.5], axis=-1)
    assert (np.abs(everything.mean((0, 1))) < 4 * standard_error(everything)).all()
    squares = everything**2 - [*np.diag(COVARIANCE), 0.75]
    assert (np.abs(squares.mean((0, 1))) < 4 * standard_error(squares)).all()
    np.testing.assert_allclose(np.corrcoef(centred.reshape(-1, 2).T)[0, 1], 0.9, atol=0.03)
    np.testing.assert_array_equal(chains["twice"], 2 * chains["rate"])


def test_chains_that_start_from_a_pilot() -> None:
    """A short warm-up from where a chain of another data set ended gives each data set its own distribution."""
    means = np.array([[0.0, 5.0]] * 2 + [[0.02, 3.0]] * 2)
    pilot = run_pilot(pair, {"mean": means[0], "covariance": COVARIANCE}, jax.random.key(3), SHORT)
    draws = run_nuts(pair, {"mean": means, "covariance": COVARIANCE}, jax.random.split(jax.random.key(4), 4),
                     Settings(100, 500), batched=("mean",), pilot=pilot)
    centred = draws.values["pair"] - means[:, None]
    assert (np.abs(centred.mean((0, 1))) < 4 * standard_error(centred)).all()
    assert (np.abs((centred**2).mean((0, 1)) - np.diag(COVARIANCE)) < 4 * standard_error(centred**2)).all()
    assert not draws.stats["diverging"].any()


def test_chains_that_search_under_a_fainter_likelihood() -> None:
    """A wider Normal first, then the one asked for, of which alone the draws are; progress counts both."""
    covariance, mean, share = COVARIANCE / 1e4, np.array([0.3, -0.5]), 1e-3
    steps: list[int] = []
    draws = run_nuts(pair, {"mean": mean, "covariance": covariance}, jax.random.split(jax.random.key(5), 4), SHORT,
                     progress=steps.append, faint=Faint({"covariance": covariance / share}, share))
    centred = draws.values["pair"] - mean
    assert (np.abs(centred.mean((0, 1))) < 4 * standard_error(centred)).all()
    assert (np.abs((centred**2).mean((0, 1)) - np.diag(covariance)) < 4 * standard_error(centred**2)).all()
    done: list[tuple[int, int]] = []
    count = counted(lambda *both: done.append(both), 4, SHORT, Faint({}, share))
    for step in steps:
        count(step)
    assert done[-1] == (4 * (150 + 300 + 500),) * 2


def test_shapes_and_statistics(chains: dict[str, np.ndarray]) -> None:
    assert chains["pair"].shape == (4, 500, 2)
    assert {chains[name].shape for name in ("diverging", "n_steps", "acceptance_rate", "lp", "energy", "step_size")} \
        == {(4, 500)}
    assert not chains["diverging"].any()
    assert abs(chains["acceptance_rate"].mean() - 0.95) < 0.05
    normal = dist.MultivariateNormal(np.zeros(2), COVARIANCE).log_prob(chains["pair"][0] - [0.0, 5.0])
    rate = dist.Gamma(3.0, 2.0).log_prob(chains["rate"][0]) + np.log(chains["rate"][0])
    np.testing.assert_allclose(chains["lp"][0], normal + rate, rtol=1e-9)


def test_seeds_and_cores() -> None:
    """A chain's draws are those of its key, whatever the number of cores and whichever chains run beside it."""
    data = {"mean": np.array([0.0, 5.0]), "covariance": COVARIANCE}
    keys = jax.random.split(jax.random.key(1), 4)
    settings = Settings(num_warmup=50, num_samples=50)

    def draw(keys: jax.Array, cores: int) -> np.ndarray:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sampling, "_cores", lambda: cores)
            return run_nuts(pair, data, keys, settings).values["pair"]

    first = draw(keys, 2)
    np.testing.assert_array_equal(draw(keys, 4), first)
    np.testing.assert_array_equal(draw(keys[2:], 1), first[2:])
    assert len(np.unique(first[:, -1, 0])) == 4


def test_an_interrupt_ends_all_chains() -> None:
    """Well before their 100,000 iterations."""
    data = {"mean": np.array([0.0, 5.0]), "covariance": COVARIANCE}
    calls: list[int] = []

    def interrupt(iterations: int) -> None:
        calls.append(iterations)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_nuts(pair, data, jax.random.split(jax.random.key(4), 4), Settings(50, 100_000), progress=interrupt)
    assert len(calls) < 100


def slice_model() -> tuple[Model, pd.DataFrame]:
    """Only A and phi free: the others at values near the published baseline's."""
    runs = plain.baseline()
    others = {name: plain.TRUTH[name] for name in ("E", "B", "alpha", "beta", "sigma")}
    return build_model(runs, fix=others), runs


def test_posterior_against_a_grid() -> None:
    """Moments of A and phi against the plain density summed over a grid, within 4 Monte Carlo standard errors."""
    model, runs = slice_model()
    draws = run_nuts(model, model.layout.data, jax.random.split(jax.random.key(3), 4), SHORT).values
    sampled = np.stack([np.log(draws["A"]), draws["phi"][..., 0]], axis=-1)
    centre, width = sampled.mean((0, 1)), 6 * sampled.std((0, 1))
    log_a, phi = (np.linspace(m - w, m + w, 61) for m, w in zip(centre, width, strict=True))
    density = np.zeros((61, 61))
    for i, j in np.ndindex(density.shape):
        values = {**model.fix, "A": np.exp(log_a[i])}
        mean = plain.mean("recurrence", values, phi[j], model.layout.design)
        log_se = runs["loss_se"] / runs["loss"]
        density[i, j] = (plain.log_likelihood("normal", runs["loss"], mean, log_se, values).sum()
                         + plain.prior(str(model.priors["phi"])).logpdf(phi[j]))
    log_prior = plain.prior(str(model.priors["A"])).logpdf(np.exp(log_a)) + log_a
    weight = np.exp(density + log_prior[:, None] - density.max())
    weight /= weight.sum()
    points = np.stack(np.meshgrid(log_a, phi, indexing="ij"), axis=-1)
    mean = (weight[..., None] * points).sum((0, 1))
    assert (np.abs(sampled.mean((0, 1)) - mean) < 4 * standard_error(sampled)).all()
    off = (points - mean)
    covariance = np.einsum("ij,ijk,ijl->kl", weight, off, off)
    products = np.einsum("cdk,cdl->cdkl", sampled - mean, sampled - mean).reshape(*sampled.shape[:2], 4)
    assert (np.abs(products.mean((0, 1)) - covariance.ravel()) < 4 * standard_error(products)).all()
