"""Several processes give what one gives, from the first step or from another team's checkpoint."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest

from bayesloop.schema import read_run
from training.grid import Operation, RunConfig
from training.run_directory import RunError
from training.train import train as run

from .conftest import TinyRun
from .test_durability import command, kill_at


def run_as_team(config: RunConfig, operation: Operation, world: int, *more: str) -> None:
    """Start `world` processes with the environment that torchrun gives them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = os.environ | {"OMP_NUM_THREADS": "1", "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
                           "MASTER_PORT": str(port)}
    processes = [subprocess.Popen(command(config, operation, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
                 for rank in range(world)]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * world, errors


def assert_close(config: RunConfig, one: Operation, other: Operation) -> None:
    a, b = (read_run(op.out / config.run_id / "curve.h5") for op in (one, other))
    # the same numbers in another order of addition; the optimisers amplify rounding over the steps
    np.testing.assert_allclose(a.train["grad_norm"][0], b.train["grad_norm"][0], rtol=1e-5)
    np.testing.assert_allclose(a.train["loss"], b.train["loss"], rtol=2e-4)
    np.testing.assert_array_equal(a.train["row_hash"], b.train["row_hash"])
    assert a.attrs["loss"] == pytest.approx(b.attrs["loss"], rel=2e-4)
    assert a.eval["n_tokens"].tolist() == b.eval["n_tokens"].tolist()


def test_two_processes_with_two_micro_batches_each(tiny: TinyRun, operation: Operation, tmp_path: Path) -> None:
    config = tiny(24, r=2)
    alone = dataclasses.replace(operation, out=tmp_path / "alone")
    assert run(config, alone) == "done"
    run_as_team(config, operation, 2, "--device-rows", "2")
    assert_close(config, alone, operation)
    result = read_run(operation.out / config.run_id / "curve.h5")
    assert result.attrs["n_devices"] == 2
    assert result.attrs["device_rows"] == 2


@pytest.mark.slow
def test_a_team_goes_on_where_one_process_was_killed(tiny: TinyRun, operation: Operation, tmp_path: Path) -> None:
    config = tiny(60, r=2)
    alone = dataclasses.replace(operation, out=tmp_path / "alone")
    assert run(config, alone) == "done"
    kill_at(config, operation, 20)
    run_as_team(config, operation, 2)
    assert_close(config, alone, operation)
    assert read_run(operation.out / config.run_id / "curve.h5").attrs["resumes"] == 1


def test_rows_that_cannot_be_shared_are_refused(tiny: TinyRun, operation: Operation,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    from training.loop import Training
    from training.parallel import Team

    def three(self: Training) -> None:
        self.team = Team(0, 3, self.team.device)
        original(self)

    original = Training.settle
    monkeypatch.setattr(Training, "settle", three)
    with pytest.raises(RunError, match="8 rows a step cannot be shared by 3 processes"):
        run(tiny(12), operation)
