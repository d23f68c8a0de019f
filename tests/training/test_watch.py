"""When a run is evaluated, when it is given up, and when not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from training.grid import micro_run
from training.watch import Divergence, eval_steps


def first_stop(losses: list[float], norms: list[float] | None = None, vocab: int = 256) -> tuple[int, str] | None:
    monitor = Divergence(vocab)
    for step, loss in enumerate(losses):
        if reason := monitor.check(step, loss, norms[step] if norms else 1.0):
            return step, reason
    return None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_the_first_value_that_is_not_finite_stops(bad: float) -> None:
    assert first_stop([5.0, 4.0, bad, 4.0])[0] == 2
    assert first_stop([5.0, 4.0, 4.0], [1.0, bad, 1.0])[0] == 1


def test_far_above_chance_stops_after_step_50() -> None:
    high = math.log(256) + 1.01
    step, reason = first_stop([high] * 60)
    assert step == 51
    assert "above ln V + 1 = 6.545" in reason


def test_lasting_rise_stops_and_a_spike_does_not() -> None:
    fall = list(np.linspace(5, 2, 150))
    best = float(np.mean(fall[-50:]))
    step, reason = first_stop(fall + [2.6 * best / 2] * 250)
    assert step == 150 + 199
    assert "for 200 steps" in reason
    assert first_stop(fall + [2.6 * best / 2] * 150 + [best] + [2.6 * best / 2] * 150) is None


def test_noise_around_a_falling_mean_does_not_stop() -> None:
    rng = np.random.default_rng(0)
    assert first_stop(list(2 + 3 * np.exp(-np.arange(2000) / 300) + rng.normal(0, 0.3, 2000))) is None


def test_fast_evaluations_halve_the_way_and_stay_within_one_per_cent() -> None:
    config = micro_run(32, 4, 6e11)
    steps = sorted(eval_steps(config))
    assert steps == [1080 >> j for j in range(len(steps), 0, -1)]
    cost = len(steps) * 64 * 64 * config.architecture.flops_per_token / 3
    assert 0 < cost <= 0.01 * 6e11
