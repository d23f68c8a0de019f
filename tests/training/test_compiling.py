"""torch.compile: the same numbers, and a way on where it cannot work."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from bayesloop.schema import read_run
from training.compiling import compile_mode
from training.grid import Operation, micro_run
from training.train import train as run

from .conftest import TinyRun

# torch's own tracing looks at gradients of tensors that have none
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["block", "whole"])
@pytest.mark.parametrize("fields", [{"r": 1}, {"r": 2}, {"r": 2, "bptt_k": 1},
                                    {"r": 2, "scheme": "hyperconnect", "lanes": 2}])
def test_a_compiled_run_equals_an_eager_one(tiny: TinyRun, operation: Operation, tmp_path: Path, mode: str,
                                            fields: dict) -> None:
    """With four micro-batches a step, where CUDA graphs, which are not used, would corrupt gradients."""
    config = tiny(24, **fields)
    eager, compiled = (dataclasses.replace(operation, out=tmp_path / name, compile=name, device_rows=2)
                       for name in ("none", mode))
    run(config, eager)
    counters.clear()
    run(config, compiled)
    a, b = (read_run(op.out / config.run_id / "curve.h5") for op in (eager, compiled))
    assert b.attrs["compile_mode"] == mode
    np.testing.assert_allclose(a.train["grad_norm"][0], b.train["grad_norm"][0], rtol=1e-5)
    np.testing.assert_allclose(a.train["loss"], b.train["loss"], rtol=5e-4)
    # training, and evaluation without gradients: nothing is compiled anew while the run goes on
    assert 0 < counters["stats"]["unique_graphs"] <= 3


def test_without_a_compiler_the_run_goes_on_eagerly(tiny: TinyRun, operation: Operation, tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch,
                                                    caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", (None, str(tmp_path / "no-such-compiler")))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    config = tiny(12)
    assert run(config, dataclasses.replace(operation, compile="block")) == "done"
    assert caplog.text.count("torch.compile failed") == 2
    assert "going on without torch.compile" in caplog.text
    assert "compiler" in caplog.text
    assert read_run(operation.out / config.run_id / "curve.h5").attrs["compile_mode"] == "none"


def test_compilation_is_chosen_by_length(tmp_path: Path) -> None:
    auto, cpu = Operation(tmp_path, tmp_path), torch.device("cpu")
    chosen = [compile_mode(micro_run(32, 4, budget), auto, cpu) for budget in (2e10, 1e12, 6e12)]
    assert chosen == ["none", "block", "whole"]
    assert compile_mode(micro_run(32, 4, 2e10), auto, torch.device("cuda")) == "whole"
    assert compile_mode(micro_run(32, 4, 2e10), dataclasses.replace(auto, compile="block"), cpu) == "block"
