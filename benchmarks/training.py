"""Speed of a training step: tokens/s, FLOP/s and memory by width and recurrence, eager and compiled.

    python -m benchmarks.training                 CPU: widths 64 … 512, T = 256, 8 rows, one thread
    python -m benchmarks.training --device cuda   GPU: sizes 6, 10, 20 of the paper's grid in bfloat16, five minutes

On a CPU the yardstick is torch's own float32 matrix product on the same core, measured beside every row; on a GPU it
is the vendor's dense bfloat16 peak (MFU). FLOPs are those of the compute axis (attention as the full square); `causal`
leaves half of the attention out. All variants of a width run in turn, round after round, and the best round counts, so
that a drifting machine treats them alike.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable

import numpy as np
import torch

from bayesloop.architecture import Architecture, iso_depth, width_from_size
from training.compiling import compile_model, compiled_step
from training.grid import PAPER_REF_TOKENS, Rates
from training.looped_lm import LoopedLM
from training.optim import Optimiser, peak_rates
from training.runfile import peak_flops

ROUNDS = 5


def matmul_rate(size: int = 1024, seconds: float = 0.5) -> float:
    """FLOP/s of a square float32 matrix product."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def make_step(arch: Architecture, rows: int, device: torch.device, mode: str) -> Callable[[], None]:
    """One full optimiser step on random tokens."""
    cuda = device.type == "cuda"
    dtype = torch.bfloat16 if cuda else torch.float32
    model = LoopedLM(arch, compute_dtype=dtype).to(device)
    compile_model(model, mode)
    peak = peak_rates(Rates(), arch.width, 262_144, PAPER_REF_TOKENS[True])
    optimiser = Optimiser(model.groups(), peak, 10**6, dtype, compiled_step(mode, cuda))
    tokens = torch.randint(0, arch.vocab_size, (rows, arch.seq_len + 1), device=device)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step() -> None:
        model(inputs, targets).mean().backward()
        optimiser.step(0)
        if cuda:
            torch.cuda.synchronize()

    return step


def seconds_of(step: Callable[[], None], repeats: int) -> float:
    """Mean seconds of a step."""
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - start) / repeats


def measure(arches: list[Architecture], rows: int, device: torch.device, modes: list[str], repeats: int) -> list[dict]:
    """Best seconds per step of every architecture and mode, taken in turn."""
    cases = [(arch, mode, make_step(arch, rows, device, mode)) for mode in modes for arch in arches]
    for _, _, step in cases:
        step()
        step()
    best, share = [float("inf")] * len(cases), [0.0] * len(cases)
    for _ in range(ROUNDS):
        for i, (arch, _, step) in enumerate(cases):
            yardstick = matmul_rate() if device.type == "cpu" else float("nan")
            seconds = seconds_of(step, repeats)
            best[i] = min(best[i], seconds)
            share[i] = max(share[i], rows * arch.seq_len * arch.flops_per_token / seconds / yardstick)
    return [report(arch, mode, rows, device, seconds, ratio)
            for (arch, mode, _), seconds, ratio in zip(cases, best, share, strict=True)]


def report(arch: Architecture, mode: str, rows: int, device: torch.device, seconds: float, share: float) -> dict:
    """One line of the table."""
    tokens = rows * arch.seq_len / seconds
    rate = tokens * arch.flops_per_token
    causal = 1 - arch.attention_flops_per_token / arch.flops_per_token / 2
    row = {"width": arch.width, "r": arch.r, "scheme": arch.scheme, "bptt_k": arch.backward_recurrences, "mode": mode,
           "tokens_per_s": round(tokens), "GFLOP_per_s": round(rate / 1e9, 2)}
    if device.type == "cuda":
        peak = peak_flops(torch.cuda.get_device_name(device))
        row |= {"mfu": round(rate / peak, 3), "mfu_causal": round(rate * causal / peak, 3),
                "peak_GB": round(torch.cuda.max_memory_allocated() / 1e9, 1)}
        torch.cuda.reset_peak_memory_stats()
    else:
        row |= {"of_matmul": round(share, 3), "of_matmul_causal": round(share * causal, 3),
                "peak_GB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2)}
    print(json.dumps(row), flush=True)
    return row


def compare_recurrence(rows: list[dict]) -> None:
    """FLOP/s of looped models relative to r = 1, by width and mode."""
    for base in (row for row in rows if row["r"] == 1):
        same = [row for row in rows if (row["width"], row["mode"]) == (base["width"], base["mode"]) and row["r"] > 1]
        ratio = {f"r={row['r']}": round(row["GFLOP_per_s"] / base["GFLOP_per_s"], 3) for row in same}
        print(json.dumps({"width": base["width"], "mode": base["mode"], "FLOP/s relative to r=1": ratio}), flush=True)


def main() -> None:
    """Parse the options, measure, print one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256, 512], help="CPU only")
    parser.add_argument("--r", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--modes", nargs="+", default=["none", "whole"], help="none, block, whole")
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.set_num_threads(1)
    torch.backends.cuda.enable_cudnn_sdp(False)
    np.random.seed(0)
    table = []
    if device.type == "cuda":
        for size, rows in ((6, 32), (10, 32), (20, 16)):
            torch._dynamo.reset()
            arches = [iso_depth(width_from_size(size), r) for r in options.r]
            table += measure(arches, rows, device, ["whole"], options.repeats)
    else:
        for width in options.widths:
            torch._dynamo.reset()
            shape = {"depth": 10, "ends": 1, "head_dim": 64, "seq_len": 256, "vocab_size": 256}
            arches = [iso_depth(width, r, **shape) for r in options.r]
            table += measure(arches, 8, device, options.modes, options.repeats)
    compare_recurrence(table)


if __name__ == "__main__":
    main()
