"""MuonH for matrices, AdamW for the rest, and the transfer of their learning rates (HyperP).

MuonH keeps every matrix on the sphere of its initial Frobenius norm, so its learning rate is the relative size of a
step. Rates move with the horizon as tokens^−0.32 and with the batch as batch^0.558 (arXiv 2603.28743); the
orthogonalisation is five Polar-Express steps (arXiv 2505.16932).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from training.grid import Rates, RunConfig

MOMENTUM = 0.95
ADAM = {"betas": (0.8, 0.95), "eps": 1e-10, "weight_decay": 0.0}
HORIZON_EXPONENT = -0.32
BATCH_EXPONENT = 0.558
WIDTH_EXPONENT = -0.5
FINAL_MULTIPLIER = 0.1
# five steps with safety 2e-2 and cushion 2; singular values end near 1, not at 1, by design
POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)


def multiplier(step: int, n_steps: int) -> float:
    """Schedule of all rates: linear from 1 at step 0 to 0.1 + 0.9/n at step n − 1, without warm-up."""
    remaining = (n_steps - step) / n_steps
    return remaining + FINAL_MULTIPLIER * (1 - remaining)


def peak_rates(rates: Rates, width: int, batch_tokens: int, target_tokens: float) -> dict[str, float]:
    """Peak learning rates by group, transferred from the reference to a run's width, batch and horizon.

    Parameters
    ----------
    rates : Rates
    width : int
        Features.
    batch_tokens : int
        Tokens of one step.
    target_tokens : float
        ⌊budget / FLOPs per token⌋.

    Returns
    -------
    dict
        `matrix` moves with horizon and batch; `head` and `embed` with width and batch; `norm` and `lane` with
        width alone.
    """
    batch = (batch_tokens / rates.ref_batch) ** BATCH_EXPONENT
    narrow = (width / rates.ref_width) ** WIDTH_EXPONENT
    return {
        "matrix": rates.matrix * (target_tokens / rates.ref_tokens) ** HORIZON_EXPONENT * batch,
        "head": rates.head * narrow * batch,
        "embed": rates.embed * narrow * batch,
        "norm": rates.norm * narrow,
        "lane": rates.lane * narrow,
    }


def run_rates(config: RunConfig) -> dict[str, float]:
    """`peak_rates` of a run."""
    return peak_rates(config.rates, config.architecture.width, config.batch_tokens, config.horizon.target_tokens)


def orthogonalise(x: Tensor) -> Tensor:
    """Five Polar-Express steps on `[n, a, b]` of Frobenius norm ≤ 1: singular values are moved towards 1."""
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    for a, b, g in POLAR_EXPRESS:
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=g), x, beta=a)
    return x.mT if tall else x


def muonh_step(weight: Tensor, grad: Tensor, momentum: Tensor, radius: Tensor, rate: Tensor,
               dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """One MuonH step of a stack of matrices.

    Parameters
    ----------
    weight, grad, momentum : Tensor, [n, a, b] float32
    radius : Tensor, [n, 1, 1] float32
        Frobenius norms of the initial matrices.
    rate : Tensor, scalar float32
        Relative length of the step.
    dtype : torch.dtype
        Of the orthogonalisation: bfloat16 on CUDA, float32 on CPU. The step and the return to the sphere are float32.

    Returns
    -------
    tuple of Tensor
        New weight and new momentum.
    """
    momentum = torch.lerp(momentum, grad, 1 - MOMENTUM)
    mixed = torch.lerp(grad, momentum, MOMENTUM)
    small = mixed / (1.02 * torch.linalg.matrix_norm(mixed, keepdim=True) + 1e-6)
    direction = orthogonalise(small.to(dtype)).float()
    direction = direction * (radius / torch.linalg.matrix_norm(direction, keepdim=True).clamp_min(1e-10))
    weight = weight - rate * direction
    return weight * (radius / torch.linalg.matrix_norm(weight, keepdim=True).clamp_min(1e-10)), momentum


class MuonH(torch.optim.Optimizer):
    """MuonH, one batched update for every shape.

    Parameters
    ----------
    params : iterable of nn.Parameter
        Matrices.
    lr : float
        Relative length of a step.
    dtype : torch.dtype
        Of the orthogonalisation.
    step_function : callable
        `muonh_step`, or a compiled version of it.
    """

    def __init__(self, params: Iterable[nn.Parameter], lr: float, dtype: torch.dtype = torch.float32,
                 step_function: Callable[..., tuple[Tensor, Tensor]] = muonh_step) -> None:
        super().__init__(params, {"lr": lr})
        self.dtype, self.step_function = dtype, step_function

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every matrix; the norms of the first step's matrices are measured once and kept."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    by_shape[weight.shape].append(weight)
            for weights in by_shape.values():
                self._update(weights, torch.full((), group["lr"], device=weights[0].device))

    def _update(self, weights: list[nn.Parameter], rate: Tensor) -> None:
        first = self.state[weights[0]]
        stacked = torch.stack([weight.detach() for weight in weights])
        if not first:  # the stack's state is kept with its first matrix
            first["momentum"] = torch.zeros_like(stacked)
            first["radius"] = torch.linalg.matrix_norm(stacked, keepdim=True)
        grad = torch.stack([weight.grad for weight in weights if weight.grad is not None])
        new, first["momentum"] = self.step_function(stacked, grad, first["momentum"], first["radius"], rate, self.dtype)
        torch._foreach_copy_([weight.detach() for weight in weights], list(new.unbind()))


class Optimiser:
    """Both optimisers of a run, with rates that are a pure function of the step.

    Parameters
    ----------
    groups : dict
        `LoopedLM.groups()`.
    peak : dict
        `peak_rates(...)`: one rate for every group.
    n_steps : int
        Length of the run.
    dtype, step_function
        As in `MuonH`.
    """

    def __init__(self, groups: dict[str, list[nn.Parameter]], peak: dict[str, float], n_steps: int,
                 dtype: torch.dtype = torch.float32,
                 step_function: Callable[..., tuple[Tensor, Tensor]] = muonh_step) -> None:
        self.peak, self.n_steps = peak, n_steps
        self.muonh = MuonH(groups["matrix"], peak["matrix"], dtype, step_function)
        self.names = [name for name, params in groups.items() if params and name != "matrix"]
        self.adamw = torch.optim.AdamW([{"params": groups[name], "lr": peak[name]} for name in self.names],
                                       fused=True, **ADAM)  # type: ignore[arg-type]

    def step(self, step: int) -> None:
        """Apply step number `step` (from 0) and clear the gradients."""
        now = multiplier(step, self.n_steps)
        self.muonh.param_groups[0]["lr"] = self.peak["matrix"] * now
        for name, group in zip(self.names, self.adamw.param_groups, strict=True):
            group["lr"] = self.peak[name] * now
        for optimiser in (self.muonh, self.adamw):
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """State of both optimisers."""
        return {"muonh": self.muonh.state_dict(), "adamw": self.adamw.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self.muonh.load_state_dict(state["muonh"])
        self.adamw.load_state_dict(state["adamw"])
