"""The run file: everything known about a run as attributes, and its curves, in the shared schema."""

from __future__ import annotations

import math
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bayesloop import __version__
from bayesloop.schema import Run
from training.grid import RunConfig

MAX_POINTS = 20_000
PEAK_FLOPS = {  # dense bf16 FLOP/s by device name (vendor data sheets); the longest matching name holds
    "A100": 312e12, "H100 PCIe": 756e12, "H100": 989e12, "H200 NVL": 836e12, "H200": 989e12,
}


def peak_flops(device_name: str) -> float:
    """Dense bf16 peak of a device in FLOP/s; NaN for a device that is not in the table."""
    names = [name for name in PEAK_FLOPS if name.lower() in device_name.lower()]
    return PEAK_FLOPS[max(names, key=len)] if names else math.nan


def cpu_name() -> str:
    """Model name of the processor."""
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return "cpu"


def provenance() -> dict[str, Any]:
    """Code version, host and command line of this process, as run-file attributes."""
    root = Path(__file__).parent

    def git(*arguments: str) -> str:
        try:
            done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    return {"git_sha": git("rev-parse", "HEAD"), "git_dirty": int(bool(git("status", "--porcelain"))),
            "package_version": __version__, "python_version": platform.python_version(), "host": socket.gethostname(),
            "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]), "n_cpus": os.cpu_count() or 0}


def config_attributes(config: RunConfig, peak: dict[str, float]) -> dict[str, Any]:
    """Attributes that follow from the configuration and its transferred peak learning rates."""
    arch, plan = config.architecture, config.horizon
    attrs: dict[str, Any] = {
        "run_id": config.run_id, "probe": config.probe, "scheme": arch.scheme, "r": arch.r,
        "bptt_k": arch.backward_recurrences, "lanes": arch.lanes, "depth": arch.depth, "n_prelude": arch.n_prelude,
        "n_recur": arch.n_recur, "n_coda": arch.n_coda, "width": arch.width, "n_heads": arch.n_heads,
        "head_dim": arch.head_dim, "seq_len": arch.seq_len, "vocab_size": arch.vocab_size,
        "vocab_padded": arch.vocab_padded, "count_convention": "exact", "n_once": arch.n_once(), "n_rec": arch.n_rec(),
        "n_inject": arch.n_inject, "n_once_formula": arch.n_once("formula"), "n_rec_formula": arch.n_rec("formula"),
        "n_embed": arch.n_embed, "n_total": arch.n_total, "budget": float(config.budget),
        "flops_per_token": arch.flops_per_token, "n_steps": plan.n_steps, "batch_tokens": config.batch_tokens,
        "target_tokens": plan.target_tokens, "seed": config.seed, "data": config.data,
        "residual_dtype": config.residual_dtype, "config_json": config.to_json(), "config_sha256": config.sha256,
    }
    if config.size is not None:
        attrs["size"] = float(config.size)
    attrs |= {f"lr_{name}": rate for name, rate in peak.items()}
    return attrs


def build_run(config: RunConfig, records: Iterable[dict[str, Any]], facts: dict[str, Any], peak: dict[str, float],
              status: str) -> Run:
    """A run in the schema, complete or not.

    Parameters
    ----------
    config : RunConfig
    records : iterable of dict
        The journal.
    facts : dict
        Attributes measured while training (devices, versions, seconds, …).
    peak : dict
        Peak learning rates by optimiser group.
    status : str
        One of `bayesloop.schema.STATUSES`.

    Returns
    -------
    Run
        `tokens` and `flops` are what was trained so far; `loss` is NaN until the final evaluation.
    """
    records = list(records)
    steps = [record for record in records if "step" in record]
    evals = [record for record in records if "eval" in record]
    arch = config.architecture
    trained = len(steps) * config.batch_tokens
    final = [record for record in evals if record["kind"] == 1]
    tail = steps[-max(1, math.ceil(len(steps) / 100)):]
    attrs = config_attributes(config, peak) | facts | {
        "status": status, "tokens": trained, "flops": float(arch.flops_per_token) * trained,
        "loss": final[-1]["loss"] if final else math.nan, "eval_tokens": final[-1]["n_tokens"] if final else 0,
        "train_loss": float(np.mean([record["loss"] for record in tail])) if tail else math.nan,
        "train_seconds": steps[-1]["wall_s"] if steps else 0.0,
        "row_hash": f"{steps[-1]['row_hash']:08x}" if steps else "",
    }
    attrs |= utilisation(attrs, arch.attention_flops_per_token / arch.flops_per_token)
    return Run(attrs, train_curves(config, steps), eval_curves(config, evals))


def utilisation(attrs: dict[str, Any], attention_share: float) -> dict[str, float]:
    """`mfu` with the full attention square, as the compute axis counts it, and `mfu_causal` without half of it."""
    peak = peak_flops(str(attrs.get("device_name", ""))) * int(attrs.get("n_devices", 1))
    rate = attrs["flops"] / attrs["train_seconds"] if attrs["train_seconds"] > 0 else math.nan
    return {"flops_per_second": rate, "mfu": rate / peak, "mfu_causal": rate / peak * (1 - attention_share / 2)}


def train_curves(config: RunConfig, steps: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Training curves; beyond 20 000 steps every k-th is kept, with the mean loss of the steps it stands for."""
    if not steps:
        return {}
    stride = math.ceil(config.horizon.n_steps / MAX_POINTS)
    last = np.unique(np.append(np.arange(stride - 1, len(steps), stride), len(steps) - 1))
    first = np.append(0, last[:-1] + 1)
    loss = np.array([record["loss"] for record in steps])

    def column(name: str, dtype: str = "f8") -> np.ndarray:
        return np.array([steps[i][name] for i in last], dtype=dtype)

    step, wall = column("step", "i8"), column("wall_s")
    tokens = (step + 1) * config.batch_tokens
    with np.errstate(divide="ignore", invalid="ignore"):
        speed = np.diff(tokens, prepend=0) / np.diff(wall, prepend=0.0)
    return {"step": step, "tokens": tokens, "flops": tokens * float(config.architecture.flops_per_token),
            "loss": np.array([loss[a:b + 1].mean() for a, b in zip(first, last, strict=True)]),
            "lr_mult": column("lr_mult"), "lr_matrix": column("lr_matrix"), "grad_norm": column("grad_norm", "f4"),
            "wall_s": wall, "tokens_per_s": speed.astype("f4"), "row_hash": column("row_hash", "u4")}


def eval_curves(config: RunConfig, evals: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Validation curve: fast evaluations (`kind` 0) and the final one (`kind` 1), which alone may enter a fit."""
    if not evals:
        return {}
    types = {"loss": "f8", "loss_sum": "f8", "n_tokens": "i8", "kind": "u1", "wall_s": "f8"}
    curves = {name: np.array([record[name] for record in evals], dtype=dtype) for name, dtype in types.items()}
    curves["step"] = np.array([record["eval"] for record in evals], dtype="i8")
    return curves | {"tokens": (curves["step"] + 1) * config.batch_tokens, "is_final": curves["kind"].astype("u1")}
