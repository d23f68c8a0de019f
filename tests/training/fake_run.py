"""Stands in for `python -m training.train` in tests of the sweep: same options, files and exit codes, no torch.

The environment variable FAKE_RUNS maps run ids to what each attempt does: done, diverged, fail, oom, kill, slow.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from bayesloop.schema import write_run
from training import ledger
from training.grid import RunConfig
from training.lock import Lock, LockedError
from training.run_directory import RunDirectory
from training.runfile import build_run
from training.train import EXIT, signals


def attempt(directory: RunDirectory, what: str, rows: int, stopping: list[int]) -> str:
    """Do what an attempt at a run would leave behind."""
    config, n_steps = directory.config, directory.config.horizon.n_steps
    directory.write_state("running", step=0, n_steps=n_steps, device_rows=rows)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what in ("fail", "oom"):
        directory.write_state("failed", message=f"a made-up {what}", reason="memory" if what == "oom" else "error",
                              device_rows=rows)
        return "failed"
    kept = directory.journal.restart(n_steps)
    done = sum("step" in record for record in kept)
    for step in range(done, n_steps):
        directory.journal.append([{"step": step, "loss": 5.0 - step / n_steps, "grad_norm": 1.0, "lr_mult": 1.0,
                                   "lr_matrix": 0.01, "row_hash": step, "wall_s": 0.001 * (step + 1)}])
        if what == "slow":
            time.sleep(0.05)
        if stopping:
            directory.write_state("interrupted", step=step + 1, n_steps=n_steps)
            return "interrupted"
    state = "diverged" if what == "diverged" else "done"
    if state == "done":
        directory.journal.append([{"eval": n_steps - 1, "loss": 4.0, "loss_sum": 4.0, "n_tokens": 1, "kind": 1,
                                   "wall_s": 1.0}])
    facts = {"device_name": "fake", "n_devices": 1, "eval_seconds": 0.0}
    write_run(directory.curve, build_run(config, directory.journal.read(), facts, {}, state))
    directory.write_state(state, step=n_steps, n_steps=n_steps, message=f"a made-up {state}", device_rows=rows)
    return state


def main(argv: list[str]) -> int:
    """One attempt at the run of `--config`."""
    options = dict(zip(argv[::2], argv[1::2], strict=True))
    config = RunConfig.from_json(Path(options["--config"]).read_text())
    directory = RunDirectory(Path(options["--out"]), config)
    script = json.loads(os.environ.get("FAKE_RUNS", "{}")).get(config.run_id, ["done"])
    before = sum("outcome" in line for line in ledger.records(directory))
    try:
        with signals() as stopping, Lock(directory.lock):
            state = attempt(directory, script[min(before, len(script) - 1)], int(options.get("--device-rows", 8)),
                            stopping)
    except LockedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return EXIT[state]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
