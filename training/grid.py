"""What to train: `RunConfig`, everything that changes a run's result; and `Operation`, everything that does not.

A grid is a function that returns run configurations; this file imports neither torch nor data.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bayesloop.architecture import Architecture, Horizon, horizon, iso_depth, width_from_size

PAPER_REF_TOKENS = {True: 983_315_200, False: 1_016_083_200}  # r = 1, r > 1: 10 × parameters by use at size 10
RESIDUAL_DTYPES = ("float32", "reference")
COMPILE_MODES = ("auto", "none", "block", "whole")
CHUNK_LOGITS = 2**28  # logits kept at once, in elements: 1 GiB in float32; larger heads are recomputed in backward


class ConfigError(ValueError):
    """A run that cannot be trained as configured; the message says what was expected."""


@dataclass(frozen=True)
class Rates:
    """Peak learning rates at the reference width, batch and horizon, from which they are transferred.

    Defaults are the paper's (arXiv 2604.21106, section 3 and code): reference size 10, batch 262 144 tokens.

    Parameters
    ----------
    matrix, embed, head, norm, lane : float
        MuonH for matrices, AdamW for the rest.
    ref_width, ref_batch : int
        Width in features, batch in tokens.
    ref_tokens : float
        Training tokens at which `matrix` holds.
    """

    matrix: float = 0.014
    embed: float = 0.3
    head: float = 0.004
    norm: float = 0.005
    lane: float = 0.01
    ref_width: int = 640
    ref_batch: int = 262_144
    ref_tokens: float = PAPER_REF_TOKENS[True]

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
                raise ConfigError(f"rates.{name} is {value!r}; expected a positive number")


@dataclass(frozen=True)
class RunConfig:
    """One run, up to where and how fast it executes. Checked when created.

    Parameters
    ----------
    architecture : Architecture
    budget : float
        Planned training compute in FLOP; it sets the number of steps.
    data : str
        Name of the row store (its manifest's `name`).
    batch_tokens : int
        Tokens of one optimiser step, a multiple of the sequence length.
    eval_rows, fast_rows : int
        Validation rows of the final and of an intermediate evaluation.
    rates : Rates
    seed : int
        Of the initial weights (42 in the paper).
    allow_repeat : bool
        Start over when the rows are used up, instead of refusing.
    residual_dtype : {"float32", "reference"}
        Residual stream inside the loop; "reference" repeats the published code, where it is bfloat16 on CUDA in the
        linear and hyperconnect schemes only.
    probe, size : optional
        Labels, outside the identity of the run: the recipe's name (by default read off the architecture), and the
        size s where width = 64 s rounded up to a multiple of the head dimension.

    Raises
    ------
    ConfigError, ArchitectureError
        If a field is out of range or two contradict each other.
    """

    architecture: Architecture
    budget: float
    data: str
    batch_tokens: int = 262_144
    eval_rows: int = 34_560
    fast_rows: int = 4_992
    rates: Rates = field(default_factory=Rates)
    seed: int = 42
    allow_repeat: bool = False
    residual_dtype: str = "float32"
    probe: str = ""
    size: float | None = None

    def __post_init__(self) -> None:
        arch = self.architecture
        if not (isinstance(self.budget, int | float) and math.isfinite(self.budget) and self.budget > 0):
            raise ConfigError(f"budget is {self.budget!r}; expected a positive number of FLOP")
        for name in ("batch_tokens", "eval_rows", "fast_rows"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} is {value!r}; expected an integer ≥ 1")
        if self.batch_tokens % arch.seq_len:
            raise ConfigError(f"batch_tokens = {self.batch_tokens} is not a multiple of seq_len = {arch.seq_len}")
        if self.residual_dtype not in RESIDUAL_DTYPES:
            raise ConfigError(f"residual_dtype is {self.residual_dtype!r}; expected {' or '.join(RESIDUAL_DTYPES)}")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed is {self.seed!r}; expected a non-negative integer")
        if self.size is not None and width_from_size(self.size, arch.head_dim) != arch.width:
            expected = width_from_size(self.size, arch.head_dim)
            raise ConfigError(f"size {self.size} means width {expected}, but the architecture has {arch.width}")
        if not self.data:
            raise ConfigError("data is empty; expected the name of a row store")
        if not self.probe:
            object.__setattr__(self, "probe", recipe(arch))
        _ = self.horizon  # refuses a budget below one step

    @property
    def horizon(self) -> Horizon:
        """Steps, tokens, and the tokens that set the learning rate."""
        return horizon(self.budget, self.architecture.flops_per_token, self.batch_tokens)

    @property
    def rows_per_step(self) -> int:
        """Sequences of one optimiser step."""
        return self.batch_tokens // self.architecture.seq_len

    def scientific(self) -> dict[str, Any]:
        """Everything that changes the result, as JSON-ready values."""
        values = dataclasses.asdict(self)
        for label in ("probe", "size"):
            del values[label]
        values["budget"] = float(self.budget)
        return values

    @property
    def sha256(self) -> str:
        """SHA-256 of the canonical JSON of `scientific()`."""
        text = json.dumps(self.scientific(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def run_id(self) -> str:
        """Readable slug and the first ten digits of `sha256`."""
        arch = self.architecture
        size = f"d{arch.width}" if self.size is None else f"s{self.size:g}"
        return f"{self.probe}-{size}-r{arch.r}-{self.budget:.3g}-{self.sha256[:10]}".replace("+", "")

    def to_json(self) -> str:
        """The configuration as it is stored beside a run."""
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> RunConfig:
        """Inverse of `to_json`.

        Raises
        ------
        ConfigError
            If the text is not a configuration of this release.
        """
        try:
            values = json.loads(text)
            values["architecture"] = Architecture(**values["architecture"])
            values["rates"] = Rates(**values.get("rates", {}))
            return cls(**values)
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ConfigError(f"not a run configuration: {error}") from None


def recipe(arch: Architecture) -> str:
    """Name of the probe an architecture belongs to, where the user gives none."""
    if arch.lanes:
        return "hyperconnections"
    if arch.backward_recurrences < arch.r:
        return "truncated"
    return "baseline" if arch.r == 1 or arch.scheme == "linear" else arch.scheme


def micro_batch_rows(config: RunConfig, cuda: bool) -> int:
    """Rows of a micro-batch as planned: 32, 16, 8 rows of 2048 tokens by width on a GPU, as published."""
    width = config.architecture.width
    tokens = 16_384 if not cuda or width >= 1_920 else 32_768 if width >= 1_152 else 65_536
    return max(1, tokens // config.architecture.seq_len)


@dataclass(frozen=True)
class Operation:
    """Where and how a run executes: nothing here changes its result beyond rounding.

    Parameters
    ----------
    data : Path
        Folder of the row store.
    out : Path
        Folder that receives one folder per run.
    device : str
        auto, cpu, cuda.
    device_rows : int, optional
        Sequences of one micro-batch on one device; by default chosen by width, and halved when memory runs out.
    compile : {"auto", "none", "block", "whole"}
        What torch.compile is applied to.
    threads : int
        CPU threads of the process. One is the safe choice beside other processes.
    checkpoint_minutes : float
        Minutes between checkpoints.
    deterministic : bool
        Deterministic kernels on CUDA, for debugging.
    keep_checkpoints : bool
        Keep the last checkpoint of a finished run.
    """

    data: Path
    out: Path
    device: str = "auto"
    device_rows: int | None = None
    compile: str = "auto"
    threads: int = 1
    checkpoint_minutes: float = 10.0
    deterministic: bool = False
    keep_checkpoints: bool = False

    def __post_init__(self) -> None:
        if self.compile not in COMPILE_MODES:
            raise ConfigError(f"compile is {self.compile!r}; expected one of {', '.join(COMPILE_MODES)}")
        if self.device_rows is not None and self.device_rows < 1:
            raise ConfigError(f"device_rows is {self.device_rows}; expected an integer ≥ 1")
        if self.threads < 1 or self.checkpoint_minutes < 0:
            raise ConfigError("threads must be ≥ 1 and checkpoint_minutes ≥ 0")


def paper_run(size: float, r: int, budget: float, *, scheme: str = "linear", bptt_k: int | None = None, lanes: int = 0,
              seed: int = 42, data: str = "fineweb-edu") -> RunConfig:
    """A run of the published grid: depth 20, 2048 tokens, vocabulary 32 064, batches of 262 144 tokens."""
    arch = iso_depth(width_from_size(size), r, scheme=scheme, bptt_k=bptt_k, lanes=lanes)
    rates = Rates(ref_tokens=PAPER_REF_TOKENS[r == 1])
    return RunConfig(arch, budget, data, rates=rates, seed=seed, size=size)


def micro_run(width: int, r: int, budget: float, *, scheme: str = "linear", bptt_k: int | None = None, lanes: int = 0,
              seed: int = 42, data: str = "debian") -> RunConfig:
    """A run two CPU cores can train: depth 10, 64 bytes, batches of 512 bytes. Rates and batch are measured."""
    arch = iso_depth(width, r, depth=10, ends=1, scheme=scheme, bptt_k=bptt_k, lanes=lanes, head_dim=8, seq_len=64,
                     vocab_size=256)
    rates = Rates(ref_width=32, ref_batch=512, ref_tokens=1e6)
    return RunConfig(arch, budget, data, batch_tokens=512, eval_rows=2_048, fast_rows=64, rates=rates, seed=seed)


RECIPES = {"paper": paper_run, "micro": micro_run}
