"""What CONTRIBUTING.md says to add to training: a scheme, a grid, an engine."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from bayesloop.architecture import Architecture
from tests.snippets import applied
from training import engines, grids
from training.grids import GRIDS, distinct
from training.looped_lm import LoopedLM
from training.sweep import grid_runs

from . import test_looped_lm

OURS = ("training.recurrence", "bayesloop.architecture", "training.grids", "training.engines")


@pytest.fixture(autouse=True)
def added() -> Iterator[None]:
    with applied(*OURS):
        yield
    assert "micro-additive" not in GRIDS


@pytest.mark.parametrize(("r", "k"), [(1, 1), (4, 4), (4, 2)])
def test_flops_of_the_scheme_are_those_that_torch_counts(r: int, k: int) -> None:
    test_looped_lm.test_flops_against_the_counter_of_torch(r, "averaged", k)


def test_the_scheme_is_the_plain_model_at_r_1_and_its_formula_beyond() -> None:
    once = [test_looped_lm.golden_model(1, scheme) for scheme in ("averaged", "passthrough")]
    batch = test_looped_lm.golden_batch()
    assert torch.equal(once[0](*batch), once[1](*batch))
    model = test_looped_lm.golden_model(2, "averaged")
    assert not list(model.scheme.parameters())
    e = torch.randn(2, 16, 64)
    assert torch.equal(model.scheme.inject(1, e, 3 * e), 2 * e)


def test_truncation_leaves_the_forward_value() -> None:
    losses = []
    for k in (4, 1):
        arch = Architecture(16, 1, 1, 1, 4, scheme="averaged", bptt_k=k, head_dim=8, seq_len=16, vocab_size=50)
        loss = LoopedLM(arch)(*test_looped_lm.golden_batch()).mean()
        loss.backward()
        losses.append(loss)
    assert torch.equal(*losses)


def test_the_grid() -> None:
    runs = grid_runs(["micro-additive"], "mine", None)
    assert len(runs) == len(distinct(runs)) == 36
    assert {run.architecture.scheme for run in runs} == {"additive"}
    assert {run.probe for run in runs} == {"additive"}
    assert grids.micro_additive()[0].data == "debian"  # type: ignore[attr-defined]


@pytest.mark.parametrize(("hour", "starts"), [(6, True), (7, False), (19, False), (20, True)])
def test_the_engine(monkeypatch: pytest.MonkeyPatch, hour: int, starts: bool) -> None:
    monkeypatch.setattr(time, "localtime", lambda: time.struct_time((2026, 1, 1, hour, 0, 0, 3, 1, 0)))
    engine = engines.NightEngine([""])  # type: ignore[attr-defined]
    assert engine.room(1) is starts
    assert not engine.room(2)
    assert engine.poll() == []
