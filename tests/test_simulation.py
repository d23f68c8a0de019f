"""Simulated data sets: parameters follow the prior, losses the law, impossible draws are drawn again."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy import stats

from bayesloop.laws import LawError
from bayesloop.model import Model, build_model
from bayesloop.simulation import simulate
from tests import plain


@pytest.fixture(scope="module")
def model() -> Model:
    return build_model(plain.baseline("budget == 1e18"), phi="probe_r", fix={"beta": 0.36})


def test_parameters_follow_the_prior(model: Model) -> None:
    simulated = simulate(model, jax.random.key(0), 500)
    assert simulated.redrawn == 0
    assert set(simulated.parameters) == set(model.priors)
    assert simulated.parameters["phi"].shape == (500, 3, 3)
    for name, values in simulated.parameters.items():
        first = values.reshape(500, -1)[:, 0]
        assert stats.kstest(first, plain.prior(str(model.priors[name])).cdf).pvalue > 1e-3, name


def test_losses_follow_the_law_and_its_scatter(model: Model) -> None:
    """Residuals of log loss, against the mean of plain NumPy, in units of the scatter, are standard Normal."""
    simulated = simulate(model, jax.random.key(1), 40)
    layout, z = model.layout, []
    for i, loss in enumerate(simulated.loss):
        values = {**model.fix, **{name: array[i] for name, array in simulated.parameters.items()}}
        mean = plain.mean("recurrence", values, values["phi"][layout.probe_index, layout.r_index], layout.design)
        z.append((np.log(loss) - np.log(mean)) / np.hypot(values["sigma"], layout.log_se))
    z = np.array(z)
    assert z.shape == (40, len(layout.run))
    assert stats.kstest(z.ravel(), "norm").pvalue > 1e-3
    assert np.abs(np.corrcoef(z)[np.triu_indices(40, 1)]).max() < 0.7  # no two data sets share their noise


def test_given_parameters(model: Model) -> None:
    given = {"E": 1.5, "sigma": np.full(3, 1e-6), "phi": np.full((3, 3), 0.4)}
    simulated = simulate(model, jax.random.key(2), 3, given)
    assert (simulated.parameters["E"] == 1.5).all()
    assert (simulated.parameters["phi"] == 0.4).all()
    assert len(set(simulated.parameters["A"])) == 3
    again = simulate(model, jax.random.key(2), 3, given)
    np.testing.assert_array_equal(simulated.loss, again.loss)


def test_impossible_draws_are_drawn_again() -> None:
    """With x mostly far below 0 the cross law often predicts negative losses; what is left never does."""
    model = build_model(plain.baseline("probe == 'baseline'"), "cross_recurrence", priors={"x": "Normal(-1, 2)"})
    simulated = simulate(model, jax.random.key(3), 200)
    assert simulated.redrawn > 20
    assert (simulated.loss > 0).all()
    assert np.isfinite(simulated.loss).all()
    for i in range(200):
        values = {name: array[i] for name, array in simulated.parameters.items()}
        assert (plain.mean("cross_recurrence", values, values["phi"][0], model.layout.design) > 0).all()


@pytest.mark.parametrize(("parameters", "words"), [
    ({"beta": 0.3}, ["'beta'", "cannot be given", "alpha"]),
    ({"gamma": 0.3}, ["'gamma'", "cannot be given"]),
    ({"phi": np.zeros(2)}, ["phi has shape (2,)", "(3, 3)", "(5, 3, 3)"]),
    ({"E": -5.0, "A": 1e-9, "B": 1e-9}, ["5 of 5", "recurrence", "no positive finite"]),
])
def test_messages(model: Model, parameters: dict, words: list[str]) -> None:
    with pytest.raises(LawError) as caught:
        simulate(model, jax.random.key(4), 5, parameters)
    assert [word for word in words if word not in str(caught.value)] == []
