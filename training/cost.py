"""What a run will cost: seconds from tables of throughput, corrected by finished runs, and memory. No torch."""

from __future__ import annotations

import dataclasses
import heapq
import math
import shutil
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bayesloop.architecture import Architecture
from training.grid import CHUNK_LOGITS, RunConfig, micro_batch_rows
from training.runfile import cpu_name, peak_flops

# share of the bf16 peak by width: public records of similar code on H100, interpolated
GPU_SHARE = {384: 0.25, 512: 0.32, 640: 0.38, 768: 0.42, 896: 0.44, 1024: 0.45, 1152: 0.46, 1280: 0.47, 1536: 0.49,
             1792: 0.50, 2176: 0.51}
# FLOP/s of one CPU thread by width, batches of 8 × 64 bytes, two processes side by side, measured
CPU_RATE = {8: 4e9, 16: 8.8e9, 24: 10.9e9, 32: 14e9, 48: 17e9, 64: 23.7e9, 80: 23.9e9}
START_SECONDS = {True: 60.0, False: 5.0}  # loading and compiling on a GPU; loading, with a warm code cache, on a CPU
LIVE_COPIES = 4  # float32 copies of a chunk of logits at the peak of the loss


@dataclass(frozen=True)
class Device:
    """Where a run executes: its name, and whether it is a CUDA device rather than a CPU thread."""

    name: str
    cuda: bool

    def rate(self, width: int) -> float:
        """Training FLOP/s expected from tables; NaN for a GPU that is not in them."""
        if self.cuda:
            return peak_flops(self.name) * _interpolate(GPU_SHARE, width)
        return _interpolate(CPU_RATE, width)


def local_device(device: str) -> Device:
    """The device that `device` (auto, cpu, cuda) means on this machine."""
    if device != "cpu" and shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        listed = subprocess.run(query, capture_output=True, text=True)
        if listed.returncode == 0 and listed.stdout.strip():
            return Device(listed.stdout.strip().splitlines()[0], True)
    return Device(cpu_name(), False)


class Costs:
    """Predicts seconds on one kind of device.

    Parameters
    ----------
    device : Device
    measured : iterable of mapping
        Attributes of finished runs; those of the same device correct the tables.
    overheads : sequence of float
        Seconds that finished runs spent neither training nor evaluating.
    """

    def __init__(self, device: Device, measured: Iterable[Mapping[str, Any]] = (),
                 overheads: Sequence[float] = ()) -> None:
        self.device = device
        self.start = statistics.median(overheads) if overheads else START_SECONDS[device.cuda]
        self.ratios: list[tuple[int, int, float]] = []  # width, r, FLOP/s per device
        for attrs in measured:
            self.add(attrs)

    def add(self, attrs: Mapping[str, Any]) -> None:
        """Learn from one more finished run."""
        rate = attrs.get("flops_per_second", math.nan) / attrs.get("n_devices", 1)
        name = str(attrs.get("device_name", ""))
        same = self.device.name.lower() in name.lower() if self.device.cuda else name == self.device.name
        if same and rate > 0:
            self.ratios.append((attrs["width"], attrs["r"], rate))

    def rate(self, arch: Architecture) -> float:
        """Training FLOP/s of one device: the tables times what the most similar finished runs measured against them."""
        table = self.device.rate(arch.width)
        if not self.ratios:
            return table

        def distance(width: int, r: int) -> tuple[float, bool]:
            return abs(math.log(width / arch.width)), r != arch.r

        nearest = min(distance(width, r) for width, r, _ in self.ratios)
        similar = [(width, rate) for width, r, rate in self.ratios if distance(width, r) == nearest]
        if math.isnan(table):
            return statistics.median(rate for _, rate in similar)
        return table * statistics.median(rate / self.device.rate(width) for width, rate in similar)

    def seconds(self, config: RunConfig, devices: int = 1) -> float:
        """Wall seconds of a whole run on `devices` devices: start, training and final evaluation."""
        arch = config.architecture
        full = dataclasses.replace(arch, bptt_k=arch.r).flops_per_token
        evaluation = config.eval_rows * arch.seq_len * full / 3
        training = config.horizon.tokens * arch.flops_per_token
        return self.start + (training + evaluation) / (self.rate(arch) * devices)


def memory(config: RunConfig, cuda: bool, device_rows: int | None = None) -> float:
    """Bytes of device memory at the peak of a step, estimated.

    Weights, gradients and optimiser state; per layer that keeps a graph 34 d bytes a token in bfloat16 (inputs of
    norms, attention and MLP) or 68 d in float32, and a residual stream in float32; lanes; a chunk of logits.
    """
    arch = config.architecture
    tokens = min(device_rows or micro_batch_rows(config, cuda), config.rows_per_step) * arch.seq_len
    layers = arch.n_prelude + arch.n_coda + arch.backward_recurrences * arch.n_recur
    stored = tokens * arch.width * (layers * ((34 if cuda else 68) + 8) + 4 * arch.lanes * arch.r)
    logits = 4 * LIVE_COPIES * min(CHUNK_LOGITS, tokens * arch.vocab_padded)
    return 16.0 * arch.n_total + stored + logits


def finish_seconds(remaining: Iterable[float], slots: int) -> float:
    """Seconds until all of `remaining` (seconds each, in starting order) are done on `slots` slots; NaN if unknown."""
    busy = [0.0] * max(1, slots)
    for seconds in remaining:
        if math.isnan(seconds):
            return math.nan
        heapq.heappush(busy, heapq.heappop(busy) + seconds)
    return max(busy)


def _interpolate(table: Mapping[int, float], width: int) -> float:
    """Value at a width, linear in its logarithm, constant beyond the ends."""
    return float(np.interp(math.log(width), [math.log(known) for known in table], list(table.values())))
