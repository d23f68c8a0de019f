"""Laws against plain NumPy, at the edges too; priors and their texts against SciPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesloop.laws import FAMILIES, LAWS, Design, Law, LawError, Prior, get_law, resolve_priors
from tests import plain

DESIGN = Design(np.array([0.0, 7e6, 2.8e7, 9e7]), np.array([3.5e7, 1.4e7, 1.5e7, 1.2e8]), np.array([1.0, 2, 8, 4]),
                np.array([9.8e8, 1.2e9, 3.2e8, 2.4e10]))
EXAMPLES = ["Normal(0.5, 0.5)", "LogNormal(-1.4, 0.4)", "HalfNormal(2)", "Uniform(0.1, 3)", "Gamma(2, 0.1)",
            "Exponential(0.5)", "StudentT(4, 0.5, 0.2)", "TruncatedNormal(1, 0.7, 0.2, 2.5)"]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("phi", [-3.0, 0.0, 0.44, 1.0, 3.0])
def test_loss(law: str, phi: float) -> None:
    got = LAWS[law].loss({**plain.TRUTH, "phi": phi}, DESIGN)
    np.testing.assert_allclose(got, plain.mean(law, plain.TRUTH, phi, DESIGN), rtol=1e-12)


@pytest.mark.parametrize("law", LAWS)
def test_without_recurrence_only_the_sum_of_the_counts_matters(law: str) -> None:
    """At r = 1 either count may be 0, and phi has no say and no slope, even at ±3."""
    n, one = np.array([1e6, 1e8, 1e10]), np.ones(3)
    splits = [Design(n, 0 * n, one, 20 * n), Design(0 * n, n, one, 20 * n), Design(n / 2, n / 2, one, 20 * n)]
    for phi in (-3.0, 0.4, 3.0):
        losses = [LAWS[law].loss({**plain.TRUTH, "phi": phi}, split) for split in splits]
        np.testing.assert_allclose(losses, np.broadcast_to(losses[0], (3, 3)), rtol=1e-13)
        slope = jax.grad(lambda phi, split: LAWS[law].loss({**plain.TRUTH, "phi": phi}, split).sum())
        assert [float(slope(phi, split)) for split in splits] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("law", LAWS)
def test_limits(law: str) -> None:
    """A worthless recurrence leaves n_once + n_rec; phi = 1 counts the block r times; endless data leaves E + P."""
    def loss(phi: float, design: Design) -> jax.Array:
        return LAWS[law].loss({**plain.TRUTH, "phi": phi}, design)

    flat = Design(DESIGN.n_once + DESIGN.n_rec, 0 * DESIGN.n_rec, np.ones(4), DESIGN.tokens)
    unrolled = Design(DESIGN.n_once + DESIGN.r * DESIGN.n_rec, 0 * DESIGN.n_rec, np.ones(4), DESIGN.tokens)
    np.testing.assert_allclose(loss(0.0, DESIGN), loss(0.5, flat), rtol=1e-13)
    if LAWS[law].looped:
        np.testing.assert_allclose(loss(1.0, DESIGN), loss(0.5, unrolled), rtol=1e-13)
    endless = DESIGN._replace(tokens=np.full(4, 1e300))
    n_eff = np.exp(np.asarray(LAWS[law].log_n_eff(0.44, DESIGN)))
    np.testing.assert_allclose(loss(0.44, endless), plain.TRUTH["E"] + plain.TRUTH["A"] * n_eff ** -0.2, rtol=1e-9)


def test_kaplan_at_one_and_cross_at_zero_are_the_additive_law() -> None:
    additive = LAWS["recurrence"].loss(plain.TRUTH, DESIGN)
    for law, extra in (("kaplan_recurrence", {"kappa": 1.0}), ("cross_recurrence", {"x": 0.0})):
        np.testing.assert_allclose(LAWS[law].loss({**plain.TRUTH, **extra}, DESIGN), additive, rtol=1e-13)


@pytest.mark.parametrize("text", EXAMPLES)
def test_priors_against_scipy(text: str) -> None:
    prior, other = Prior.parse(text), plain.prior(text)
    at = other.ppf([0.01, 0.2, 0.5, 0.8, 0.99])
    np.testing.assert_allclose(prior.distribution().log_prob(at), other.logpdf(at), rtol=1e-9)
    assert Prior.parse(str(prior)).args == prior.args
    assert prior.positive == (other.support()[0] >= 0)


def test_every_family_is_compared_with_scipy() -> None:
    assert {text.partition("(")[0] for text in EXAMPLES} == set(FAMILIES)


@pytest.mark.parametrize("law", LAWS)
def test_stated_ranges_of_the_default_priors(law: str) -> None:
    """The reason of a prior that states its 95 % range states it right, to the digits given."""
    for name, prior in LAWS[law].priors.items():
        if "95 % in " not in prior.reason:
            continue
        text = prior.reason.split("95 % in ")[1].split(";")[0].split(",")[0].replace("\u2212", "-").replace(" ", "")
        low, high = (float(part) for part in text.split("\u2013"))
        np.testing.assert_allclose([low, high], plain.prior(str(prior)).ppf([0.025, 0.975]), rtol=0.1,
                                   err_msg=f"{law} {name}")


@pytest.mark.parametrize(("make", "words"), [
    (lambda: get_law("chinchila"), ["'chinchila'", "unknown", "recurrence", "chinchilla"]),
    (lambda: Prior("Cauchy", (0, 1)), ["'Cauchy'", "unknown", "LogNormal"]),
    (lambda: Prior("Normal", (0,)), ["2 arguments", "loc, scale", "got 1"]),
    (lambda: Prior("Normal", (0, -1)), ["Normal(0, -1)", "scale"]),
    (lambda: Prior("TruncatedNormal", (0, 1, 2, 1)), ["low must be below high"]),
    (lambda: Prior("Normal", (float("nan"), 1)), ["Normal(nan, 1)"]),
    (lambda: Prior.parse("Normal 0 1"), ["'Normal 0 1'", "Normal(0.5, 0.5)"]),
    (lambda: Prior.parse("Normal(a, 1)"), ["'Normal(a, 1)'", "numbers"]),
    (lambda: resolve_priors(LAWS["chinchilla"].priors, {"phi": "Normal(0, 1)"}), ["'phi'", "no such parameter", "E"]),
    (lambda: resolve_priors(LAWS["recurrence"].priors, {"A": "Normal(5, 1)"}), ["A ~ Normal(5, 1)", "positive"]),
    (lambda: resolve_priors(LAWS["recurrence"].priors, {"E": "Uniform(-1, 1)"}), ["E ~ Uniform(-1, 1)", "positive"]),
    (lambda: Law("two", "", lambda E, P, Q, x: E, ""), ["law two", "disagree"]),
    (lambda: Law("sum", "", lambda E, P, Q: jnp.sum(E), ""), ["law sum", "three numbers"]),
])
def test_messages(make, words: list[str]) -> None:
    with pytest.raises(LawError) as caught:
        make()
    assert [word for word in words if word not in str(caught.value)] == []


def test_changed_priors_keep_order_and_the_others() -> None:
    defaults = LAWS["recurrence"].priors
    changed = resolve_priors(defaults, {"phi": "Uniform(-1, 2)", "A": Prior("Gamma", (2, 0.01))})
    assert list(changed) == list(defaults) == ["E", "A", "B", "alpha", "beta", "phi"]
    assert str(changed["phi"]) == "Uniform(-1, 2)"
    assert str(changed["A"]) == "Gamma(2, 0.01)"
    assert changed["E"] is defaults["E"]
