"""Predicted seconds and memory: tables, corrections by what was measured, and the finish of a queue."""

from __future__ import annotations

import dataclasses
import math

import pytest

from training.cost import Costs, Device, finish_seconds, memory
from training.grid import micro_run, paper_run
from training.grids import GRIDS
from training.status import duration

H100 = Device("H100", True)


def test_hours_of_the_published_grid() -> None:
    costs = Costs(H100)
    training = sum(run.budget / costs.rate(run.architecture) for run in GRIDS["paper"]()) / 3600
    assert training == pytest.approx(446, rel=0.01)  # the sum of the table's shares by hand
    run = paper_run(34, 1, 2.15e19)
    assert costs.seconds(run, 8) - costs.start == pytest.approx((costs.seconds(run) - costs.start) / 8)
    longer = dataclasses.replace(run, eval_rows=2 * run.eval_rows)
    evaluation = costs.seconds(longer) - costs.seconds(run)
    assert 0.002 < evaluation / (costs.seconds(run) - costs.start) < 0.01


def test_rates_between_and_beyond_the_tables() -> None:
    rates = [H100.rate(width) for width in (64, 384, 448, 512, 4096)]
    assert rates[0] == rates[1] < rates[2] < rates[3] < rates[4]
    assert math.isnan(Device("RTX 9999", True).rate(512))
    assert math.isnan(Costs(Device("RTX 9999", True)).seconds(paper_run(8, 1, 1e18)))


def test_the_most_similar_finished_runs_correct_the_tables() -> None:
    cpu = Device("a processor", False)
    def attrs(width: int, r: int, factor: float, name: str = "a processor") -> dict:
        return {"device_name": name, "width": width, "r": r, "flops_per_second": factor * cpu.rate(width)}

    costs = Costs(cpu, [attrs(16, 4, 0.5), attrs(16, 1, 0.8), attrs(16, 1, 0.9), attrs(48, 1, 2.0),
                        attrs(16, 1, 9.0, "another")], overheads=[3.0, 1.0, 2.0])
    assert costs.start == 2.0
    for width, r, factor in ((16, 4, 0.5), (16, 1, 0.85), (16, 2, 0.8), (24, 1, 0.85), (64, 8, 2.0)):
        arch = micro_run(width, r, 1e12).architecture
        assert costs.rate(arch) == pytest.approx(factor * cpu.rate(width)), (width, r)


def test_a_gpu_without_a_table_is_predicted_from_what_it_did() -> None:
    costs = Costs(Device("RTX 9999", True), [{"device_name": "NVIDIA RTX 9999", "width": 512, "r": 1,
                                             "flops_per_second": 2e13, "n_devices": 2}])
    assert costs.rate(paper_run(8, 1, 1e18).architecture) == 1e13


def test_memory_grows_with_what_is_kept() -> None:
    full = paper_run(10, 4, 1e18)
    assert 15e9 < memory(full, cuda=True) < 60e9
    truncated = paper_run(10, 4, 1e18, bptt_k=2)
    lanes = paper_run(10, 4, 1e18, scheme="hyperconnect", lanes=2)
    assert memory(truncated, True) < memory(full, True) < memory(lanes, True)
    assert memory(full, True, device_rows=8) < memory(full, True)


def test_finish_of_a_queue() -> None:
    assert finish_seconds([], 2) == 0
    assert finish_seconds([5, 4, 3, 3], 2) == 8  # 5 + 3 beside 4 + 3
    assert finish_seconds([5, 4, 3, 3], 1) == 15
    assert math.isnan(finish_seconds([1, math.nan], 2))


def test_durations_in_words() -> None:
    assert [duration(seconds) for seconds in (45, 720, 12_240, 181_440, math.nan)] == [
        "45 s", "12 min", "3.4 h", "2.1 d", "unknown time"]
