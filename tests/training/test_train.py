"""A run from configuration to run file: what it holds, and that it learns."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesloop import architecture
from bayesloop.architecture import Architecture
from bayesloop.schema import COLUMNS, read_run
from training import loop, train
from training.grid import ConfigError, Operation
from training.recurrence import SCHEMES, Scheme
from training.tokens import DataError, RowStore
from training.train import main
from training.train import train as run

from .conftest import TinyRun


def curve(operation: Operation, config):
    return read_run(operation.out / config.run_id / "curve.h5")


def test_run_file_holds_the_run(tiny: TinyRun, operation: Operation) -> None:
    config = tiny()
    assert run(config, operation) == "done"
    result = curve(operation, config)
    arch, attrs = config.architecture, result.attrs
    assert attrs["status"] == "done"
    assert attrs["tokens"] == 24 * 128 == result.train["tokens"][-1]
    assert attrs["flops"] == arch.flops_per_token * attrs["tokens"]
    assert (attrs["n_once"], attrs["n_rec"], attrs["n_inject"]) == (arch.n_once(), arch.n_rec(), arch.n_inject)
    missing = [name for name in COLUMNS if name not in attrs and name not in ("size", "loss_se")]
    assert not missing
    np.testing.assert_array_equal(result.train["step"], np.arange(24))
    np.testing.assert_allclose(result.train["lr_mult"], [(24 - t) / 24 * 0.9 + 0.1 for t in range(24)], rtol=1e-12)
    assert result.eval["is_final"].tolist()[-1] == 1
    assert result.eval["is_final"].sum() == 1
    assert result.eval["loss"][-1] == attrs["loss"] == result.eval["loss_sum"][-1] / (50 * 16)
    assert attrs["cudnn_sdp"] == 0
    state = json.loads((operation.out / config.run_id / "state.json").read_text())
    assert state["state"] == "done"
    assert not list((operation.out / config.run_id / "ckpt").iterdir())


def test_loss_starts_at_chance_and_falls_below_the_unigram_entropy(tiny: TinyRun, operation: Operation,
                                                                   store: RowStore) -> None:
    config = tiny(200)
    run(config, operation)
    loss = curve(operation, config).train["loss"]
    assert loss[0] == pytest.approx(np.log(256), abs=0.01)
    counts = np.bincount(np.concatenate([file[:, 1:] for file in store.splits["train"].files]).ravel())
    p = counts[counts > 0] / counts.sum()
    assert loss[-10:].mean() < -(p * np.log(p)).sum() - 0.1


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("r", [1, 2])
def test_every_scheme_trains_and_counts_right(tiny: TinyRun, operation: Operation, scheme: str, r: int) -> None:
    config = tiny(12, r=r, scheme=scheme, lanes=2 if scheme == "hyperconnect" else 0)
    assert run(config, operation) == "done"
    loss = curve(operation, config).train["loss"]
    assert loss[-1] < loss[0]
    model = loop.LoopedLM(config.architecture)
    assert sum(p.numel() for p in model.parameters()) == config.architecture.n_total


class Mixed(Scheme):
    """A scheme of somebody else's: u = s + W e."""

    def __init__(self, arch: Architecture, compute_dtype: torch.dtype, residual_dtype: torch.dtype) -> None:
        super().__init__(arch, compute_dtype, residual_dtype)
        self.weight = torch.nn.Parameter(torch.eye(arch.width))

    def inject(self, i: int, e: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return state + e @ self.weight.T


def test_a_new_scheme_is_two_entries(tiny: TinyRun, operation: Operation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "mixed", Mixed)
    monkeypatch.setitem(architecture.SCHEMES, "mixed", 1)
    config = tiny(12, r=2, scheme="mixed", bptt_k=1)
    assert run(config, operation) == "done"
    result = curve(operation, config)
    assert result.attrs["n_inject"] == 16**2
    assert result.attrs["probe"] == "truncated"
    model = loop.LoopedLM(config.architecture)
    assert sum(p.numel() for p in model.parameters()) == config.architecture.n_total


def test_two_architectures_read_the_same_rows(tiny: TinyRun, operation: Operation) -> None:
    hashes = []
    for config in (tiny(12, r=1), tiny(16, r=2)):
        run(config, operation)
        hashes.append(curve(operation, config).train["row_hash"][:12])
    np.testing.assert_array_equal(*hashes)
    assert len(set(hashes[0])) == 12


def test_a_finished_run_is_left_alone(tiny: TinyRun, operation: Operation) -> None:
    config = tiny(12)
    run(config, operation)
    path = operation.out / config.run_id / "curve.h5"
    before = path.read_bytes()
    assert run(config, operation) == "done"
    assert path.read_bytes() == before


@pytest.mark.parametrize("device_rows", [1, 2, 4])
def test_micro_batches_do_not_change_the_result(tiny: TinyRun, operation: Operation, device_rows: int,
                                                tmp_path: Path) -> None:
    config = tiny(12)
    run(config, operation)
    whole = curve(operation, config)
    split = dataclasses.replace(operation, out=tmp_path / "split", device_rows=device_rows)
    run(config, split)
    # rounding differs, and the optimisers divide by the size of the gradient: hence not the last digits
    np.testing.assert_allclose(curve(split, config).train["loss"], whole.train["loss"], rtol=1e-4)
    np.testing.assert_allclose(curve(split, config).train["grad_norm"][0], whole.train["grad_norm"][0], rtol=1e-5)


def test_not_a_number_ends_the_run_as_diverged(tiny: TinyRun, operation: Operation,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny()
    original = loop.Training.gradients

    def poisoned(self: loop.Training, ids: np.ndarray) -> torch.Tensor:
        loss = original(self, ids)
        return loss * float("nan") if self.step == 13 else loss

    monkeypatch.setattr(loop.Training, "gradients", poisoned)
    assert run(config, operation) == "diverged"
    result = curve(operation, config)
    assert result.attrs["status"] == "diverged"
    assert np.isnan(result.attrs["loss"])
    assert result.train["step"][-1] == 13
    assert np.isfinite(result.train["loss"][:-1]).all()
    assert run(config, operation) == "diverged"


def test_running_out_of_memory_halves_the_micro_batch(tiny: TinyRun, operation: Operation,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(12)
    original = loop.LoopedLM.forward

    def limited(self: loop.LoopedLM, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() and len(tokens) > 2:
            raise torch.OutOfMemoryError("out of memory")
        return original(self, tokens, targets)

    monkeypatch.setattr(loop.LoopedLM, "forward", limited)
    assert run(config, operation) == "done"
    assert curve(operation, config).attrs["device_rows"] == 2


def test_a_step_never_waits_for_the_device(tiny: TinyRun, operation: Operation,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever reads a value on the host would wait for a GPU: none of it happens inside a step."""
    original = loop.Training.train_step

    def refuse(*_: object) -> None:
        raise AssertionError("a value was read inside a step")

    def guarded(self: loop.Training, stopping: bool) -> None:
        with monkeypatch.context() as patch:
            for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__"):
                patch.setattr(torch.Tensor, name, refuse)
            original(self, stopping)

    monkeypatch.setattr(loop.Training, "train_step", guarded)
    assert run(tiny(12), operation) == "done"


def test_rows_that_do_not_fit_are_refused(tiny: TinyRun, operation: Operation) -> None:
    for config, expected in ((tiny(data="other"), "expects 'other'"), (tiny(600), "needs 4800"),
                             (tiny(eval_rows=65), "64 validation rows; the run needs 65")):
        with pytest.raises(DataError, match=expected):
            run(config, operation)
    repeated = tiny(520, allow_repeat=True)
    train.check_data(repeated, RowStore(operation.data))
    with pytest.raises(ConfigError, match="torch finds none"):
        run(tiny(), dataclasses.replace(operation, device="cuda"))


def test_command_line(tiny: TinyRun, operation: Operation, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny(12)
    file = tmp_path / "config.json"
    file.write_text(config.to_json())
    arguments = ["--data", str(operation.data), "--out", str(operation.out), "--config", str(file)]
    assert main(arguments) == 0
    assert capsys.readouterr().out.strip() == str(operation.out / config.run_id / "curve.h5")
    assert main(["--data", str(tmp_path), "--out", str(operation.out), "--config", str(file)]) == 1
    assert "no such file; prepare rows" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["--data", "x", "--out", "y"])
    assert caught.value.code == 2


@pytest.mark.parametrize("module", ["training.train", "training.tokens"])
def test_help_loads_neither_torch_nor_jax(module: str) -> None:
    code = (f"import sys, runpy; sys.argv = ['x', '--help']\ntry: runpy.run_module('{module}', run_name='__main__')\n"
            "except SystemExit: pass\nprint([m for m in ('torch', 'jax', 'numpyro', 'arviz') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_training_loads_nothing_of_the_inference() -> None:
    names = sorted(f"training.{path.stem}" for path in Path(train.__file__).parent.glob("[!_]*.py"))
    code = (f"import sys\nfor name in {names}: __import__(name)\n"
            "allowed = ('bayesloop.schema', 'bayesloop.architecture')\n"
            "print([m for m in sys.modules if m.split('.')[0] in ('jax', 'numpyro', 'arviz')"
            " or (m.startswith('bayesloop.') and m not in allowed)])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_illegal_combinations_name_the_reason() -> None:
    with pytest.raises(ValueError, match="prelude and embedding would get no gradient"):
        Architecture(16, 1, 1, 1, 4, scheme="passthrough", bptt_k=2, head_dim=8)
