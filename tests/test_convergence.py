"""The verdict on draws whose faults are known."""

from __future__ import annotations

import numpy as np
import pytest

from bayesloop.convergence import assess

DRAWS = (4, 1000)


def told(diverging: int = 0, steps: int = 7, shift: float = 0.0):
    values = np.random.default_rng(0).normal(size=DRAWS) + shift * np.arange(4)[:, None]
    flags = np.zeros(4000, bool)
    flags[:diverging] = True
    return assess({"phi": values}, {"diverging": flags.reshape(DRAWS), "n_steps": np.full(DRAWS, steps)}, 10)


def test_sound_draws() -> None:
    found = told()
    assert found.converged
    assert "no divergences" in found.verdict


@pytest.mark.parametrize(("diverging", "fine"), [(1, True), (4, True), (5, False), (400, False)])
def test_a_thousandth_of_divergences_is_borne_and_told(diverging: int, fine: bool) -> None:
    found = told(diverging)
    assert (found.converged, found.divergences) == (fine, diverging)
    assert f"{diverging} of 4000 transitions diverged" in found.verdict


@pytest.mark.parametrize(("fault", "words"), [({"shift": 0.2}, "R-hat of phi"), ({"steps": 1023}, "tree-depth limit")])
def test_faults_are_named(fault: dict, words: str) -> None:
    found = told(**fault)
    assert not found.converged
    assert words in found.verdict
    assert "Do not use" in found.verdict
