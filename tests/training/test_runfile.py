"""Curves and derived attributes of the run file."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from training.grid import micro_run
from training.runfile import build_run, peak_flops, train_curves

PEAK = {"matrix": 0.014, "head": 0.004, "embed": 0.3, "norm": 0.005, "lane": 0.01}


def records(count: int) -> list[dict]:
    return [{"step": i, "loss": float(i), "grad_norm": 1.0, "lr_mult": 1.0, "lr_matrix": 0.014, "row_hash": i,
             "wall_s": 0.5 * (i + 1)} for i in range(count)]


def test_long_curves_are_thinned_with_means() -> None:
    base = micro_run(8, 1, 1e10)
    config = dataclasses.replace(base, budget=45_000.0 * 512 * base.architecture.flops_per_token)
    assert config.horizon.n_steps == 45_000
    curves = train_curves(config, records(45_000))
    assert len(curves["step"]) == 15_000
    np.testing.assert_array_equal(curves["step"][:3], [2, 5, 8])
    np.testing.assert_array_equal(curves["loss"][:3], [1, 4, 7])
    np.testing.assert_allclose(curves["tokens_per_s"], 1024)
    partial = train_curves(config, records(7))
    assert partial["step"].tolist() == [2, 5, 6]
    assert partial["loss"].tolist() == [1, 4, 6]


@pytest.mark.parametrize(("name", "peak"), [
    ("NVIDIA H200", 989e12), ("NVIDIA H200 NVL", 836e12), ("NVIDIA H100 80GB HBM3", 989e12),
    ("NVIDIA H100 PCIe", 756e12), ("NVIDIA A100-SXM4-80GB", 312e12), ("AMD EPYC", math.nan)])
def test_peaks_by_device_name(name: str, peak: float) -> None:
    assert peak_flops(name) == pytest.approx(peak, nan_ok=True)


def test_utilisation_counts_devices_and_half_the_attention() -> None:
    config = micro_run(32, 4, 6e11)
    run = build_run(config, records(10), {"device_name": "NVIDIA H200", "n_devices": 2}, PEAK, "running")
    rate = 10 * 512 * config.architecture.flops_per_token / 5.0
    share = config.architecture.attention_flops_per_token / config.architecture.flops_per_token
    assert run.attrs["mfu"] == pytest.approx(rate / (2 * 989e12))
    assert run.attrs["mfu_causal"] == pytest.approx(run.attrs["mfu"] * (1 - share / 2))
    assert math.isnan(run.attrs["loss"])
    assert run.attrs["tokens"] == 5120


def test_a_run_without_a_step_can_be_written() -> None:
    run = build_run(micro_run(32, 4, 6e11), [], {}, PEAK, "running")
    assert run.train == run.eval == {}
    assert run.attrs["tokens"] == 0
