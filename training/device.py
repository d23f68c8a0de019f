"""The device a run executes on: set-up, micro-batch, and what is recorded of it."""

from __future__ import annotations

import os
from typing import Any

import torch

from training.grid import ConfigError, Operation, RunConfig, micro_batch_rows
from training.parallel import Team
from training.runfile import cpu_name


def join_team(operation: Operation) -> Team:
    """Set torch up for this process and join the team of torchrun, if there is one.

    Raises
    ------
    ConfigError
        If the device asked for does not exist.
    """
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    if operation.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is cuda, but torch finds none; use --device cpu or a CUDA build of torch")
    torch.set_num_threads(operation.threads)
    torch.backends.cuda.enable_cudnn_sdp(False)  # its bf16 backward gives NaN for some shapes
    if operation.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
    return Team.join(operation.device)


def planned_rows(config: RunConfig, team: Team) -> int:
    """Rows of a micro-batch before any memory is measured."""
    return micro_batch_rows(config, team.device.type == "cuda")


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit`."""
    return next(i for i in range(max(1, min(number, limit)), 0, -1) if number % i == 0)


def device_facts(team: Team, compute_dtype: torch.dtype) -> dict[str, Any]:
    """Device, versions and numerical settings as run-file attributes."""
    cuda = team.device.type == "cuda"
    return {"device_name": torch.cuda.get_device_name(team.device) if cuda else cpu_name(), "n_devices": team.world,
            "torch_version": str(torch.__version__), "cuda_version": str(torch.version.cuda or ""),
            "threads": torch.get_num_threads(), "compute_dtype": str(compute_dtype).removeprefix("torch."),
            "attention_backend": "sdpa", "cudnn_sdp": int(torch.backends.cuda.cudnn_sdp_enabled()),
            "peak_memory_bytes": 0}
