"""The level coordinates: a bijection whose density is that of the priors, for every subset of E, A, B."""

from __future__ import annotations

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bayesloop.centring import Level
from bayesloop.laws import LAWS, Law, Prior
from tests import plain

SHIFTS = {"E": 0.0, "A": 0.2 * np.log(1e8), "B": 0.36 * np.log(2e9)}
PRIORS = {"default": {"E": "LogNormal(0.4, 0.5)", "A": "LogNormal(4.6, 1.5)", "B": "LogNormal(6.9, 2)"},
          "others": {"E": "HalfNormal(2)", "A": "Gamma(2, 0.02)", "B": "Exponential(0.001)"}}
SUBSETS = [names for size in (1, 2, 3) for names in itertools.combinations("EAB", size)]


def level(names: tuple[str, ...], family: str) -> Level:
    return Level(tuple(Prior.parse(PRIORS[family][name]).distribution() for name in names),
                 tuple(jnp.asarray(SHIFTS[name]) for name in names))


@pytest.mark.parametrize("family", PRIORS)
@pytest.mark.parametrize("names", SUBSETS, ids="".join)
def test_density_is_the_priors_times_the_determinant(names: tuple[str, ...], family: str) -> None:
    """By central differences, good to 1e-9 of each entry, and against SciPy's densities."""
    own = level(names, family)
    rng = np.random.default_rng(1)
    for _ in range(5):
        at = rng.normal(0, 1, len(names))
        step = 1e-5 * np.eye(len(names))
        columns = [(np.log(np.stack(own.parameters(at + h))) - np.log(np.stack(own.parameters(at - h)))) / 2e-5
                   for h in step]
        natural = [float(value) for value in own.parameters(at)]
        log_det = np.linalg.slogdet(np.stack(columns, axis=1))[1] + np.log(natural).sum()
        expected = log_det + sum(plain.prior(PRIORS[family][name]).logpdf(value)
                                 for name, value in zip(names, natural, strict=True))
        assert float(own.log_prob(at)) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(("law", "extra"), [("kaplan_recurrence", {"kappa": 0.6}), ("cross_recurrence", {"x": -0.7})])
def test_a_law_of_its_own_in_the_place_of_the_sum(law: str, extra: dict[str, float]) -> None:
    """The first coordinate is the logarithm of the law's loss, and the density stays that of the priors."""
    combine = partial(LAWS[law].combine, **extra)
    priors = tuple(Prior.parse(text).distribution() for text in PRIORS["default"].values())
    own = Level(priors, tuple(SHIFTS.values()), combine)
    at = np.array([0.9, -0.7, -1.3])
    terms = [value / np.exp(shift) for value, shift in zip(own.parameters(at), SHIFTS.values(), strict=True)]
    coordinates = np.log([combine(*terms), terms[1] / terms[0], terms[2] / terms[0]])
    np.testing.assert_allclose(coordinates, at, rtol=1e-12)
    matrix = jax.jacfwd(lambda at: jnp.log(jnp.stack(own.parameters(at))))(at)
    assert abs(np.linalg.det(matrix)) == pytest.approx(1, abs=1e-9)
    drawn = own.parameters(own.sample(jax.random.key(3), (4000,)))
    for text, values in zip(PRIORS["default"].values(), drawn, strict=True):
        assert stats.kstest(values, plain.prior(text).cdf).pvalue > 1e-3


def test_which_laws_are_homogeneous() -> None:
    assert all(law.homogeneous for law in LAWS.values())
    assert not Law("other", "L = E + P + Q + 0.1 P Q", lambda E, P, Q: E + P + Q + 0.1 * P * Q, "test").homogeneous


@pytest.mark.parametrize("names", SUBSETS, ids="".join)
def test_draws_follow_the_priors(names: tuple[str, ...]) -> None:
    """And so the map there and back loses nothing."""
    own = level(names, "others")
    drawn = own.parameters(own.sample(jax.random.key(2), (4000,)))
    for name, values in zip(names, drawn, strict=True):
        assert stats.kstest(values, plain.prior(PRIORS["others"][name]).cdf).pvalue > 1e-3


def test_meaning_of_the_coordinates() -> None:
    terms = {"E": 1.5, "P": 0.7, "Q": 0.4}
    at = np.log([sum(terms.values()), terms["P"] / terms["E"], terms["Q"] / terms["E"]])
    natural = level(("E", "A", "B"), "default").parameters(at)
    np.testing.assert_allclose(natural, [1.5, 0.7 * 1e8 ** 0.2, 0.4 * 2e9 ** 0.36], rtol=1e-12)


def test_one_level_for_each_probe() -> None:
    """With a batch of probes each has its own density; shifts may differ between them."""
    shifts = jnp.array([1.0, 2.0])
    prior = Prior.parse("LogNormal(0, 1)").distribution()
    batch = Level((prior.expand((2,)),) * 2, (shifts, 2 * shifts))
    at = np.array([[0.1, -0.3], [0.5, 0.2]])
    each = [Level((prior,) * 2, (shift, 2 * shift)).log_prob(one) for shift, one in zip(shifts, at, strict=True)]
    np.testing.assert_allclose(batch.log_prob(at), each, rtol=1e-12)
