"""Where torch.compile is applied, and how to go on without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.exc import TorchDynamoException
from torch._inductor.exc import InductorError

from training.grid import Operation, RunConfig
from training.looped_lm import LoopedLM
from training.optim import muonh_step

CompileError = (TorchDynamoException, InductorError)
CPU_FLOPS = 15e9  # a thread's rate on tiny models without compilation, measured
EAGER_SECONDS, BLOCK_SECONDS = 20.0, 150.0  # below the first compiling costs more than it saves; measured
OPTIONS: dict[str, Any] = {"fullgraph": True, "dynamic": False}  # no CUDA graphs: they corrupt accumulated gradients


def compile_mode(config: RunConfig, operation: Operation, device: torch.device) -> str:
    """`none`, `block` or `whole`: the operation's choice, or by the run's predicted length.

    Compiling one block costs seconds and serves every layer and iteration; the whole graph costs tens of seconds and
    runs faster.
    """
    if operation.compile != "auto":
        return operation.compile
    if device.type == "cuda":
        return "whole"
    seconds = config.budget / (CPU_FLOPS * operation.threads)
    return "none" if seconds < EAGER_SECONDS else "block" if seconds < BLOCK_SECONDS else "whole"


def compile_model(model: LoopedLM, mode: str) -> None:
    """Compile the model in place; its parameters keep their names. What was compiled before in this process is dropped:
    beyond eight variants of a function torch falls back to slow code without a word."""
    if mode != "none":
        torch.compiler.reset()
    if mode == "whole":
        model.compile(**OPTIONS)
    elif mode == "block":
        for block in model.blocks():
            block.compile(**OPTIONS)


def drop_compiled(model: LoopedLM) -> None:
    """Undo `compile_model`."""
    for module in (model, *model.blocks()):
        module._compiled_call_impl = None


def compiled_step(mode: str, cuda: bool) -> Callable[..., Any]:
    """`muonh_step`, compiled where the model is and the device is a GPU."""
    return torch.compile(muonh_step, **OPTIONS) if cuda and mode == "whole" else muonh_step
