"""How the shared block is iterated: linear, additive, passthrough, hyperconnect; and where the gradient stops.

A scheme says how the prelude's output `e` enters each iteration, and what becomes of the block's output.
A new scheme is a subclass of `Scheme`, entered in `SCHEMES` here and, with the size of its injection, in
`bayesloop.architecture.SCHEMES`. Shapes: B sequences, T tokens, d features, r iterations, K lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesloop.architecture import Architecture


class Scheme(nn.Module):
    """The iteration rule, here without injection: the state alone is passed through (`passthrough`).

    Parameters
    ----------
    arch : Architecture
    compute_dtype : torch.dtype
        Type in which matrices are applied.
    residual_dtype : torch.dtype
        Type of what `inject` returns: float32, or bfloat16 as in the published code on CUDA.

    Attributes
    ----------
    group : str
        Optimiser group of the scheme's own parameters: `matrix` or `lane`.
    """

    group: ClassVar[str] = "matrix"

    def __init__(self, arch: Architecture, compute_dtype: torch.dtype, residual_dtype: torch.dtype) -> None:
        super().__init__()
        self.compute_dtype, self.residual_dtype = compute_dtype, residual_dtype

    def start(self, e: Tensor) -> Any:
        """State before the first iteration."""
        return e

    def inject(self, i: int, e: Tensor, state: Any) -> Tensor:
        """Input `[B, T, d]` of iteration i."""
        return state

    def update(self, i: int, state: Any, output: Tensor) -> Any:
        """State after iteration i, given the block's normed output."""
        return output

    def finish(self, state: Any) -> Tensor:
        """What the coda receives, `[B, T, d]`."""
        return state


class Linear(Scheme):
    """u = W [e ; s], one matrix multiplication at every iteration; W starts as [I | 0]. At r = 1 it does not exist."""

    def __init__(self, arch: Architecture, compute_dtype: torch.dtype, residual_dtype: torch.dtype) -> None:
        super().__init__(arch, compute_dtype, residual_dtype)
        self.weight = nn.Parameter(torch.eye(arch.width, 2 * arch.width)) if arch.r > 1 else None

    def inject(self, i: int, e: Tensor, state: Any) -> Tensor:
        if self.weight is None:
            return state
        pair = torch.cat([e, state], dim=-1).to(self.compute_dtype)
        return F.linear(pair, self.weight.to(self.compute_dtype)).to(self.residual_dtype)


class Additive(Scheme):
    """u = s + e, from s = 0."""

    def start(self, e: Tensor) -> Any:
        return torch.zeros_like(e)

    def inject(self, i: int, e: Tensor, state: Any) -> Tensor:
        return state + e


class Hyperconnect(Scheme):
    """K lanes: u = Σ_j α[i,j] L_j, then L_a ← Σ_b M[i,a,b] L_b + β[i,a] · output; the coda receives Σ_a L_a.

    At the start lane i mod K feeds iteration i, M is the identity and every lane accumulates every output.
    """

    group: ClassVar[str] = "lane"

    def __init__(self, arch: Architecture, compute_dtype: torch.dtype, residual_dtype: torch.dtype) -> None:
        super().__init__(arch, compute_dtype, residual_dtype)
        r, lanes = arch.r, arch.lanes
        self.alpha = nn.Parameter(F.one_hot(torch.arange(r) % lanes, lanes).float())
        self.mix = nn.Parameter(torch.eye(lanes).repeat(r, 1, 1))
        self.beta = nn.Parameter(torch.ones(r, lanes))

    def start(self, e: Tensor) -> Any:
        return [e] * self.alpha.shape[1]

    def inject(self, i: int, e: Tensor, state: Any) -> Tensor:
        return weighted(self.alpha[i], state).to(self.residual_dtype)

    def update(self, i: int, state: Any, output: Tensor) -> Any:
        return [weighted(row, state) + beta * output
                for row, beta in zip(self.mix[i].unbind(), self.beta[i].unbind(), strict=True)]

    def finish(self, state: Any) -> Tensor:
        return torch.stack(state).sum(0)


def weighted(weights: Tensor, lanes: list[Tensor]) -> Tensor:
    """Σ_j weights[j] · lanes[j]."""
    total = weights[0] * lanes[0]
    for weight, lane in zip(weights[1:].unbind(), lanes[1:], strict=True):
        total = total + weight * lane
    return total


SCHEMES: dict[str, type[Scheme]] = {
    "linear": Linear, "additive": Additive, "passthrough": Scheme, "hyperconnect": Hyperconnect,
}


def iterate(scheme: Scheme, block: Callable[[Tensor], Tensor], e: Tensor, r: int, bptt_k: int) -> Tensor:
    """Run the block r times; gradient flows through exactly the last `bptt_k` iterations.

    The states that leave iterations 0 … r − bptt_k − 1 carry no gradient, and these iterations keep no graph. The
    prelude still receives gradient through `e` in the later injections. The forward value is the same for every
    `bptt_k`.

    Parameters
    ----------
    scheme : Scheme
    block : callable
        The shared layers and their closing norm, `[B, T, d] → [B, T, d]`.
    e : Tensor, [B, T, d]
        The prelude's output.
    r, bptt_k : int
        Iterations, and how many of them carry gradient.
    """
    state = scheme.start(e)
    gradient = torch.is_grad_enabled()
    for i in range(r):
        with torch.set_grad_enabled(gradient and i >= r - bptt_k):
            state = scheme.update(i, state, block(scheme.inject(i, e, state)))
    return scheme.finish(state)
