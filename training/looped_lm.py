"""The looped language model: prelude, recurrent block, coda (arXiv 2604.21106, section 2 and appendix).

Shapes: B sequences, T tokens, d features, h heads of dimension q = d / h, V padded vocabulary.
Matrices are applied in the compute dtype by explicit casts; norms, soft cap and loss are float32, and so are all
parameters. At r = 1 the norm of the recurrence still stands between the block and the final norm.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bayesloop.architecture import Architecture, ArchitectureError
from training.grid import CHUNK_LOGITS
from training.recurrence import SCHEMES, iterate

NORM_EPS = 1e-6
SOFT_CAP = 15.0
ROPE_BASE = 10_000.0
HEAD_STD = 0.001


def rms_norm(x: Tensor, weight: Tensor | None, dtype: torch.dtype) -> Tensor:
    """x / √(mean x² + 1e-6) · weight over the last axis, computed in float32 and returned in `dtype`."""
    return F.rms_norm(x.float(), x.shape[-1:], weight, NORM_EPS).to(dtype)


def rope_tables(seq_len: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines `[T, q/2]` of t · 10000^(−2j/q), in float32."""
    frequency = ROPE_BASE ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angle = torch.outer(torch.arange(seq_len, dtype=torch.float32), frequency)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of `[B, h, T, q]`, half-split: pairs are (j, j + q/2)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos + b * sin, b * cos - a * sin], dim=-1)


class Block(nn.Module):
    """One pre-norm layer: causal attention with QK-norm, then a squared-ReLU MLP."""

    def __init__(self, width: int, head_dim: int, compute_dtype: torch.dtype) -> None:
        super().__init__()
        self.head_dim, self.compute_dtype = head_dim, compute_dtype
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Parameter(torch.empty(width, width)) for _ in range(4))
        self.w_up = nn.Parameter(torch.empty(4 * width, width))
        self.w_down = nn.Parameter(torch.empty(width, 4 * width))
        self.norm1 = nn.Parameter(torch.ones(width))
        self.norm2 = nn.Parameter(torch.ones(width))

    def matrices(self) -> list[nn.Parameter]:
        """The six matrices, in the order q, k, v, o, up, down."""
        return [self.w_q, self.w_k, self.w_v, self.w_o, self.w_up, self.w_down]

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """x Wᵀ in the compute dtype; x is in that dtype already."""
        return F.linear(x, weight.to(self.compute_dtype))

    def heads(self, x: Tensor, weight: Tensor) -> Tensor:
        """Projected heads, `[B, T, d] → [B, h, T, q]`."""
        return self.linear(x, weight).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """`[B, T, d] → [B, T, d]`, in the dtype of the residual stream x."""
        dtype = self.compute_dtype
        normed = rms_norm(x, self.norm1, dtype)
        q = rms_norm(rotate(self.heads(normed, self.w_q), cos, sin), None, dtype)
        k = rms_norm(rotate(self.heads(normed, self.w_k), cos, sin), None, dtype)
        attended = F.scaled_dot_product_attention(q, k, self.heads(normed, self.w_v), is_causal=True)
        x = x + self.linear(attended.transpose(1, 2).flatten(-2), self.w_o).to(x.dtype)
        hidden = F.relu(self.linear(rms_norm(x, self.norm2, dtype), self.w_up)).square()
        return x + self.linear(hidden, self.w_down).to(x.dtype)


class LoopedLM(nn.Module):
    """A looped language model with initial weights drawn from `seed`.

    Parameters
    ----------
    arch : Architecture
    seed : int
        Of the initial weights, drawn on the CPU in a fixed order: the same on every device.
    compute_dtype : torch.dtype
        bfloat16 on CUDA, float32 on CPU.
    residual_dtype : torch.dtype
        Residual stream inside the loop: float32, or bfloat16 to repeat the published code on CUDA.

    Raises
    ------
    ArchitectureError
        If the scheme has no module here.
    """

    def __init__(self, arch: Architecture, seed: int = 42, compute_dtype: torch.dtype = torch.float32,
                 residual_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        if arch.scheme not in SCHEMES:
            raise ArchitectureError(f"scheme {arch.scheme!r} has no module; expected one of {', '.join(SCHEMES)}")
        self.arch, self.compute_dtype = arch, compute_dtype

        def layers(count: int) -> nn.ModuleList:
            return nn.ModuleList(Block(arch.width, arch.head_dim, compute_dtype) for _ in range(count))

        self.embedding = nn.Parameter(torch.empty(arch.vocab_padded, arch.width))
        self.prelude, self.recurrent, self.coda = layers(arch.n_prelude), layers(arch.n_recur), layers(arch.n_coda)
        self.norm_emb = nn.Parameter(torch.ones(arch.width))
        self.norm_recur = nn.Parameter(torch.ones(arch.width))
        self.norm_final = nn.Parameter(torch.ones(arch.width))
        self.head = nn.Parameter(torch.empty(arch.vocab_padded, arch.width))
        self.scheme = SCHEMES[arch.scheme](arch, compute_dtype, residual_dtype)
        cos, sin = rope_tables(arch.seq_len, arch.head_dim)
        self.register_buffer("cos", cos.to(compute_dtype), persistent=False)
        self.register_buffer("sin", sin.to(compute_dtype), persistent=False)
        self.initialise(seed)

    def blocks(self) -> list[Block]:
        """All layers: prelude, recurrent block, coda."""
        return [*self.prelude, *self.recurrent, *self.coda]  # type: ignore[list-item]

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Draw the weights: embedding N(0, 1), head N(0, 0.001²), matrices uniform with deviation 1/√columns.

        No matrix starts at zero: the optimiser keeps every matrix on the sphere of its initial norm.
        """
        generator = torch.Generator().manual_seed(seed)
        self.embedding.normal_(0.0, 1.0, generator=generator)
        self.head.normal_(0.0, HEAD_STD, generator=generator)
        for block in self.blocks():
            for weight in block.matrices():
                bound = math.sqrt(3 / weight.shape[1])
                weight.uniform_(-bound, bound, generator=generator)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by optimiser group: matrix, head, embed, norm, lane (may be empty)."""
        groups = {
            "matrix": [weight for block in self.blocks() for weight in block.matrices()],
            "head": [self.head],
            "embed": [self.embedding],
            "norm": [scale for block in self.blocks() for scale in (block.norm1, block.norm2)],
            "lane": [],
        }
        groups["norm"] += [self.norm_emb, self.norm_recur, self.norm_final]
        groups[self.scheme.group] += list(self.scheme.parameters())
        return groups

    def run_layers(self, layers: nn.ModuleList, x: Tensor) -> Tensor:
        """Layers in sequence."""
        for block in layers:
            x = block(x, self.cos, self.sin)
        return x

    def iteration(self, u: Tensor) -> Tensor:
        """The shared layers and the norm that closes every iteration, in float32."""
        return rms_norm(self.run_layers(self.recurrent, u), self.norm_recur, torch.float32)

    def features(self, tokens: Tensor) -> Tensor:
        """Final normed features of `tokens: int64 [B, T]`, as `[B, T, d]` in the compute dtype."""
        x = rms_norm(F.embedding(tokens, self.embedding), self.norm_emb, torch.float32)
        e = self.run_layers(self.prelude, x)
        state = iterate(self.scheme, self.iteration, e, self.arch.r, self.arch.backward_recurrences)
        return rms_norm(self.run_layers(self.coda, state), self.norm_final, self.compute_dtype)

    def token_losses(self, features: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy in nats, float32 `[n]`, of `targets: int64 [n]` (0 where −1) from `features: [n, d]`."""
        logits = F.linear(features, self.head.to(self.compute_dtype))[:, : self.arch.vocab_size].float()
        logits = SOFT_CAP * torch.tanh(logits / SOFT_CAP)
        return F.cross_entropy(logits, targets, ignore_index=-1, reduction="none")

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Loss of every token, float32 `[B · T]` in nats; targets of −1 are ignored and give 0.

        A head whose logits would exceed `CHUNK_LOGITS` runs in chunks that are recomputed in backward.
        """
        features, flat = self.features(tokens).flatten(0, 1), targets.flatten()
        chunks = math.ceil(flat.numel() * self.arch.vocab_padded / CHUNK_LOGITS)
        if chunks == 1:
            return self.token_losses(features, flat)
        parts = zip(features.chunk(chunks), flat.chunk(chunks), strict=True)
        return torch.cat([checkpoint(self.token_losses, x, y, use_reentrant=False) for x, y in parts])
