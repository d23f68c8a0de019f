"""A tiny row store and a tiny run: seconds, not minutes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayesloop.architecture import iso_depth
from training.grid import Operation, Rates, RunConfig
from training.sources import synthetic_store
from training.tokens import RowStore

TinyRun = Callable[..., RunConfig]


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> RowStore:
    """4096 + 64 rows of 17 Markov bytes."""
    return synthetic_store(tmp_path_factory.mktemp("rows") / "synthetic", rows=4_096, val_rows=64, seq_len=16)


@pytest.fixture(scope="session")
def tiny(store: RowStore) -> TinyRun:
    """A function that makes a run of `n_steps` steps of 8 rows, width 16, depth 4."""

    def make(n_steps: int = 24, r: int = 2, **fields: Any) -> RunConfig:
        names = {"scheme", "bptt_k", "lanes"} & set(fields)
        arch = iso_depth(16, r, depth=4, ends=1, head_dim=8, seq_len=16, vocab_size=256,
                         **{name: fields.pop(name) for name in names})
        config = RunConfig(arch, 128 * n_steps * arch.flops_per_token, store.name, batch_tokens=128, eval_rows=50,
                           fast_rows=1, rates=Rates(ref_width=32, ref_batch=512, ref_tokens=1e6))
        return dataclasses.replace(config, **fields)

    return make


@pytest.fixture
def operation(store: RowStore, tmp_path: Path) -> Operation:
    """Rows of the tiny store, runs in a temporary folder, no compilation, a checkpoint at every look."""
    return Operation(data=store.folder, out=tmp_path / "runs", compile="none", checkpoint_minutes=0)
