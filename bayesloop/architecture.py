"""Parameter counts, FLOPs, steps and tokens of a looped language model.

The one definition that `bayesloop` and `training` share. Everything here is exact integer arithmetic.

A model is a prelude of `n_prelude` layers run once, a recurrent block of `n_recur` layers run `r` times,
and a coda of `n_coda` layers run once. A layer has 12 d² matrix parameters and 2 d norm scales.
The conventions of the compute axis (head counted, embedding look-up not, attention as the full T × T square)
are part of its definition and follow the published measurement (arXiv 2604.21106, appendix and code).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor

# each scheme with its injection's matrix parameters in units of d², applied at every iteration of r > 1
SCHEMES = {"linear": 2, "additive": 0, "passthrough": 0, "hyperconnect": 0}
COUNT_CONVENTIONS = ("exact", "formula")


class ArchitectureError(ValueError):
    """A combination of architecture fields that cannot exist or cannot train."""


def width_from_size(size: float, head_dim: int = 128, width_unit: int = 64) -> int:
    """Width d of size s: `width_unit` · s, rounded up to a multiple of the head dimension.

    Parameters
    ----------
    size : float
        The size s (the paper's grid uses even integers 6 … 34).
    head_dim, width_unit : int
        Head dimension and width per unit of size (128 and 64 in the paper).

    Returns
    -------
    int
        Width in features.
    """
    return ceil(width_unit * size / head_dim) * head_dim


def padded_vocab(vocab_size: int) -> int:
    """Vocabulary rounded up to a multiple of 64: the only vocabulary size that enters counts and FLOPs."""
    return ceil(vocab_size / 64) * 64


@dataclass(frozen=True)
class Architecture:
    """A looped language model's shape, checked when created.

    Parameters
    ----------
    width : int
        Features d of the residual stream.
    n_prelude, n_recur, n_coda : int
        Layers of the prelude, the shared block and the coda.
    r : int
        Recurrence count.
    scheme : {"linear", "additive", "passthrough", "hyperconnect"}
        How the block is iterated. At r = 1 the linear scheme has no injection (there is nothing to inject into).
    bptt_k : int, optional
        Recurrences that carry gradient; default r (full backpropagation).
    lanes : int
        Residual lanes K of the hyperconnect scheme, else 0.
    head_dim, seq_len : int
        Head dimension and sequence length in tokens.
    vocab_size : int
        Real vocabulary size, padded to a multiple of 64 for tables and FLOPs.

    Raises
    ------
    ArchitectureError
        If the fields contradict each other; the message says what was expected.
    """

    width: int
    n_prelude: int
    n_recur: int
    n_coda: int
    r: int
    scheme: str = "linear"
    bptt_k: int | None = None
    lanes: int = 0
    head_dim: int = 128
    seq_len: int = 2048
    vocab_size: int = 32_002

    def __post_init__(self) -> None:
        if self.bptt_k is None:
            object.__setattr__(self, "bptt_k", self.r)
        for name, least in (("width", 1), ("n_prelude", 0), ("n_recur", 1), ("n_coda", 0), ("r", 1),
                            ("bptt_k", 1), ("head_dim", 2), ("seq_len", 1), ("vocab_size", 2)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ArchitectureError(f"{name} is {value!r}; expected an integer ≥ {least}")
        if self.scheme not in SCHEMES:
            raise ArchitectureError(f"scheme is {self.scheme!r}; expected one of {', '.join(SCHEMES)}")
        if self.width % self.head_dim:
            raise ArchitectureError(f"width {self.width} is not a multiple of the head dimension {self.head_dim}")
        self._check_recurrence()

    def _check_recurrence(self) -> None:
        k, r = self.backward_recurrences, self.r
        if k > r:
            raise ArchitectureError(f"bptt_k = {k} exceeds r = {r}; expected 1 ≤ bptt_k ≤ r")
        if self.scheme == "hyperconnect":
            if self.lanes < 2:
                raise ArchitectureError(f"the hyperconnect scheme has lanes = {self.lanes}; expected lanes ≥ 2")
            if k != r:
                raise ArchitectureError(
                    f"the hyperconnect scheme cannot be truncated (bptt_k = {k}, r = {r}): the lane parameters of "
                    "the early iterations would get no gradient; set bptt_k = r")
        elif self.lanes:
            raise ArchitectureError(f"lanes = {self.lanes} with scheme {self.scheme!r}; only hyperconnect has lanes")
        if self.scheme == "passthrough" and k < r:
            raise ArchitectureError(
                f"the passthrough scheme cannot be truncated (bptt_k = {k}, r = {r}): prelude and embedding would "
                "get no gradient; set bptt_k = r or use the linear or additive scheme")

    @property
    def backward_recurrences(self) -> int:
        """Recurrences that carry gradient, k."""
        return self.r if self.bptt_k is None else self.bptt_k

    @property
    def vocab_padded(self) -> int:
        """Rows of the embedding and of the head."""
        return padded_vocab(self.vocab_size)

    @property
    def depth(self) -> int:
        """Effective depth in layers: prelude + r · block + coda."""
        return self.n_prelude + self.r * self.n_recur + self.n_coda

    @property
    def n_heads(self) -> int:
        """Attention heads."""
        return self.width // self.head_dim

    def layer(self, convention: str = "exact") -> int:
        """Parameters of one layer: 12 d² (+ 2 d norm scales in the exact convention)."""
        if convention not in COUNT_CONVENTIONS:
            raise ArchitectureError(
                f"count convention is {convention!r}; expected one of {', '.join(COUNT_CONVENTIONS)}")
        return 12 * self.width**2 + (2 * self.width if convention == "exact" else 0)

    @property
    def n_inject(self) -> int:
        """Matrix parameters of the injection: 2 d² for the linear scheme, 0 for the other three and at r = 1."""
        return SCHEMES[self.scheme] * self.width**2 if self.r > 1 else 0

    @property
    def lane_scalars(self) -> int:
        """Scalars of the hyperconnection lanes, r (K² + 2 K); 0 for the other schemes."""
        return self.r * (self.lanes**2 + 2 * self.lanes) if self.scheme == "hyperconnect" else 0

    def n_once(self, convention: str = "exact") -> int:
        """Non-embedding parameters run once per token: prelude and coda."""
        return (self.n_prelude + self.n_coda) * self.layer(convention)

    def n_rec(self, convention: str = "exact") -> int:
        """Non-embedding parameters of the shared block, linear injection and lane scalars included."""
        extra = self.lane_scalars if convention == "exact" else 0
        return self.n_recur * self.layer(convention) + self.n_inject + extra

    @property
    def n_embed(self) -> int:
        """Parameters of the embedding table and of the untied head together."""
        return 2 * self.vocab_padded * self.width

    @property
    def n_total(self) -> int:
        """All parameters, with both tables and the three model-level norms."""
        return self.n_embed + self.n_once() + self.n_rec() + 3 * self.width

    @property
    def n_by_use(self) -> int:
        """Parameters weighted by use (reference horizon of the learning rate): once + 3 d + r · (block + injection)."""
        return self.n_once() + 3 * self.width + self.r * (self.n_recur * self.layer() + self.n_inject)

    @property
    def flops_per_token(self) -> int:
        """Training FLOPs per token (published conventions; truncated iterations run forward only)."""
        d, k = self.width, self.backward_recurrences
        forward_only = self.r - k
        per_iteration = self.n_inject
        if self.scheme == "hyperconnect":
            per_iteration = (self.lanes**2 + 2 * self.lanes) * d
        once = 6 * (self.n_once() + self.vocab_padded * d) + 12 * (self.n_prelude + self.n_coda) * d * self.seq_len
        block = (6 * k + 2 * forward_only) * (self.n_recur * self.layer() + per_iteration)
        attention = (12 * k + 4 * forward_only) * self.n_recur * d * self.seq_len
        return once + block + attention

    @property
    def attention_flops_per_token(self) -> int:
        """The attention term inside `flops_per_token`; half of it would be left in a causal count."""
        k = self.backward_recurrences
        layers = 12 * (self.n_prelude + self.n_coda + k * self.n_recur) + 4 * (self.r - k) * self.n_recur
        return layers * self.width * self.seq_len


def iso_depth(width: int, r: int, *, depth: int = 20, ends: int = 2, scheme: str = "linear",
              bptt_k: int | None = None, lanes: int = 0, head_dim: int = 128, seq_len: int = 2048,
              vocab_size: int = 32_002) -> Architecture:
    """Architecture of an iso-depth grid: the same effective depth at every r.

    At r = 1 all `depth` layers form the block, run once, with neither prelude nor coda; at r > 1 prelude and coda
    have `ends` layers each and the block the rest divided by r.

    Parameters
    ----------
    width, r : int
        Features and recurrence count.
    depth, ends : int
        Effective depth, and layers of the prelude and of the coda at r > 1 (20 and 2 in the paper).
    scheme, bptt_k, lanes, head_dim, seq_len, vocab_size
        As in `Architecture`.

    Returns
    -------
    Architecture

    Raises
    ------
    ArchitectureError
        If the looped part of the depth is not divisible by r.
    """
    common = {"bptt_k": bptt_k, "lanes": lanes, "head_dim": head_dim, "seq_len": seq_len, "vocab_size": vocab_size}
    if r == 1:
        return Architecture(width, 0, depth, 0, 1, scheme=scheme, **common)  # type: ignore[arg-type]
    looped = depth - 2 * ends
    if r < 1 or looped <= 0 or looped % r:
        raise ArchitectureError(
            f"r = {r} does not divide the {looped} looped layers (depth {depth}, {ends} at each end); "
            "choose an r that divides them")
    return Architecture(width, ends, looped // r, ends, r, scheme=scheme, **common)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Horizon:
    """Length of a run: optimiser steps, tokens trained, and the tokens that set the learning rate."""

    n_steps: int
    tokens: int
    target_tokens: int


def horizon(budget: float, flops_per_token: int, batch_tokens: int) -> Horizon:
    """Steps and tokens that spend a compute budget.

    Parameters
    ----------
    budget : float
        Planned training compute in FLOP.
    flops_per_token : int
        `Architecture.flops_per_token`.
    batch_tokens : int
        Tokens of one optimiser step (262 144 in the paper).

    Returns
    -------
    Horizon
        `n_steps` = budget / (F · batch) rounded half to even; `tokens` = n_steps · batch;
        `target_tokens` = ⌊budget / F⌋, used for the learning rate only.

    Raises
    ------
    ArchitectureError
        If the budget does not pay for a single step.
    """
    n_steps = round(budget / (flops_per_token * batch_tokens))
    if n_steps < 1:
        raise ArchitectureError(
            f"a budget of {budget:.3g} FLOP is less than half a step of {flops_per_token * batch_tokens:.3g} FLOP")
    return Horizon(n_steps, n_steps * batch_tokens, floor(budget / flops_per_token))
