"""The training loop of one run, top to bottom: build, resume, step, watch, evaluate, finish."""

from __future__ import annotations

import gc
import logging
import time
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesloop.schema import write_run
from training import checkpoints
from training.compiling import CompileError, compile_mode, compile_model, compiled_step, drop_compiled
from training.device import device_facts, largest_divisor, planned_rows
from training.grid import Operation, RunConfig
from training.looped_lm import LoopedLM
from training.optim import Optimiser, multiplier, run_rates
from training.parallel import Team
from training.run_directory import RunDirectory, RunError, record_step
from training.runfile import build_run, provenance
from training.tokens import RowStore, part, step_ids
from training.watch import Divergence, eval_steps

LOG_EVERY = 10  # steps between two looks at the losses, unless a step takes longer than about a second
SLOW_STEP_FLOPS = 5e14  # on a GPU; per device
log = logging.getLogger("training")


class Training:
    """State and methods of one run in one process of its team.

    Parameters
    ----------
    config : RunConfig
    operation : Operation
    directory : RunDirectory
    store : RowStore
    team : Team
    """

    def __init__(self, config: RunConfig, operation: Operation, directory: RunDirectory, store: RowStore,
                 team: Team) -> None:
        self.config, self.operation, self.directory, self.store, self.team = config, operation, directory, store, team
        self.n_steps, self.peak = config.horizon.n_steps, run_rates(config)
        cuda = team.device.type == "cuda"
        compute = torch.bfloat16 if cuda else torch.float32
        residual = torch.float32 if config.residual_dtype == "float32" else compute
        self.model = LoopedLM(config.architecture, config.seed, compute, residual).to(team.device)
        self.mode = compile_mode(config, operation, team.device)
        compile_model(self.model, self.mode)
        self.parameters = list(self.model.parameters())
        self.optimiser = Optimiser(self.model.groups(), self.peak, self.n_steps, compute,
                                   compiled_step(self.mode, cuda))
        self.step, self.row_hash, self.seconds, self.eval_seconds = 0, 0, 0.0, 0.0
        self.monitor = Divergence(config.architecture.vocab_size)
        self.records: list[dict[str, Any]] = []
        self.pending: list[Tensor] = []
        self.hashes: list[int] = []
        self.device_rows, self.clock = 0, 0.0
        flops = config.batch_tokens * config.architecture.flops_per_token / team.world
        self.every = 1 if cuda and flops > SLOW_STEP_FLOPS else LOG_EVERY
        self.facts = device_facts(team, compute) | provenance()
        self.facts |= {"started_utc": utc(), "resumes": 0, "data_manifest_sha256": store.sha256}

    def identity(self) -> dict[str, str]:
        """What a checkpoint must share with this run."""
        return {"configuration": self.config.sha256, "data": self.store.sha256}

    def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one; the journal is cut to match it."""
        state = checkpoints.newest(self.directory.checkpoints, self.identity())
        if state is not None:
            self.model.load_state_dict(state["model"])
            self.optimiser.load_state_dict(state["optimiser"])
            self.step, self.row_hash = state["step"], state["row_hash"]
            self.seconds, self.eval_seconds = state["seconds"], state["eval_seconds"]
            self.facts |= {"started_utc": state["started_utc"], "resumes": state["resumes"] + 1}
            log.info("resuming at step %d of %d", self.step, self.n_steps)
        if self.team.leads:
            self.records = self.directory.journal.restart(self.step)
        else:
            self.records = [r for r in self.directory.journal.read() if record_step(r) < self.step]
        steps = [record for record in self.records if "step" in record]
        if len(steps) != self.step:
            raise RunError(f"{self.directory.journal.path}: {len(steps)} steps, but the checkpoint is at step "
                           f"{self.step}; remove this run's folder to train it again")
        for record in steps:
            self.monitor.check(record["step"], record["loss"], record["grad_norm"])

    def save(self) -> None:
        """Journal, checkpoint and run file on disk, in this order."""
        if not self.team.leads:
            return
        self.directory.journal.sync()
        state = self.identity() | {
            "model": self.model.state_dict(), "optimiser": self.optimiser.state_dict(), "step": self.step,
            "row_hash": self.row_hash, "seconds": self.seconds, "eval_seconds": self.eval_seconds,
            "started_utc": self.facts["started_utc"], "resumes": self.facts["resumes"]}
        checkpoints.save(self.directory.checkpoints, self.step, state)
        self.write_curve("running")

    def write_curve(self, status: str) -> None:
        """Replace curve.h5 and state.json."""
        self.facts["finished_utc"] = utc()
        self.facts["eval_seconds"] = self.eval_seconds
        if self.team.device.type == "cuda":
            self.facts["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
        write_run(self.directory.curve, build_run(self.config, self.records, self.facts, self.peak, status))
        self.write_state(status)

    def write_state(self, state: str, **fields: Any) -> None:
        """Replace state.json: where the run stands, and its micro-batch."""
        self.directory.write_state(state, step=self.step, n_steps=self.n_steps, device_rows=self.device_rows, **fields)

    def batch(self, ids: np.ndarray, split: str = "train") -> tuple[Tensor, Tensor]:
        """Inputs and targets int64 `[B, T]` of rows, on this process's device."""
        rows = torch.from_numpy(self.store.splits[split].take(ids).astype(np.int32))
        if self.team.device.type == "cuda":
            rows = rows.pin_memory().to(self.team.device, non_blocking=True)
        rows = rows.long()
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def gradients(self, ids: np.ndarray) -> Tensor:
        """Gradients of the mean loss over rows `ids`, averaged over the team, and that loss (a scalar on the device).

        The rows are shared by the team and by as many micro-batches as `device_rows` asks for.
        """
        parts = len(ids) // self.device_rows
        accumulate = parts // self.team.world
        total = torch.zeros((), device=self.team.device)
        for micro in range(accumulate):
            inputs, targets = self.batch(part(ids, micro * self.team.world + self.team.rank, parts))
            loss = self.model(inputs, targets).mean() / accumulate
            loss.backward()
            total += loss.detach()
        grads = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        self.team.average([*grads, total])
        return total

    def train_step(self, stopping: bool) -> None:
        """One optimiser step; nothing in it waits for the device."""
        ids = step_ids(self.step, self.config.rows_per_step, self.store.splits["train"].rows)
        loss = self.gradients(ids)
        grads = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        stop = torch.full((), float(stopping), device=self.team.device)  # unlike torch.tensor, does not wait
        self.team.sum(stop)
        self.optimiser.step(self.step)
        self.row_hash = zlib.crc32(ids.astype("<i8").tobytes(), self.row_hash)
        self.pending.append(torch.stack([loss, norm, stop]))
        self.hashes.append(self.row_hash)
        self.step += 1

    def flush(self) -> tuple[str, bool]:
        """Read the pending losses: journal them; say why the run has diverged, if so, and whether to stop."""
        if not self.pending:
            return "", False
        values = torch.stack(self.pending).double().cpu().numpy()
        now = time.perf_counter()
        elapsed, self.clock = now - self.clock, now
        first, reason, fresh = self.step - len(values), "", []
        for i, (loss, norm, _) in enumerate(values):
            step, now = first + i, multiplier(first + i, self.n_steps)
            fresh.append({"step": step, "loss": float(loss), "grad_norm": float(norm), "lr_mult": now,
                          "lr_matrix": self.peak["matrix"] * now, "row_hash": self.hashes[i],
                          "wall_s": self.seconds + elapsed * (i + 1) / len(values)})
            reason = self.monitor.check(step, float(loss), float(norm))
            if reason:
                break
        self.seconds += elapsed
        self.pending, self.hashes = [], []
        self.record(fresh)
        return reason, bool(values[:, 2].any())

    def record(self, fresh: list[dict[str, Any]]) -> None:
        """Keep records, and append them to the journal."""
        self.records += fresh
        if self.team.leads:
            self.directory.journal.append(fresh)

    def settle(self) -> None:
        """Find out that a step works: halve the micro-batch while memory runs out, leave out what will not compile."""
        share = self.config.rows_per_step // self.team.world
        if share * self.team.world != self.config.rows_per_step:
            raise RunError(f"{self.config.rows_per_step} rows a step cannot be shared by {self.team.world} processes")
        self.device_rows = largest_divisor(share, self.operation.device_rows or planned_rows(self.config, self.team))
        retried = False
        while True:
            failure = self.try_step()
            self.model.zero_grad(set_to_none=True)
            if self.team.any(failure == "memory"):
                if self.device_rows == 1:
                    raise RunError("out of memory with a single row on a device; use a device with more memory")
                self.device_rows = largest_divisor(share, self.device_rows // 2)
                log.warning("out of memory; going on with %d rows in a micro-batch", self.device_rows)
                if self.team.device.type == "cuda":
                    torch.cuda.empty_cache()
            elif self.team.any(failure == "compile"):
                if retried:
                    log.warning("going on without torch.compile")
                    drop_compiled(self.model)
                    self.mode = "none"
                retried = True  # once more: processes that start together can disturb each other's code cache
            else:
                break
        self.facts |= {"device_rows": self.device_rows, "compile_mode": self.mode}
        if self.team.leads:
            self.write_state("running")

    def try_step(self) -> str:
        """One forward and backward pass of one micro-batch: what failed (`memory`, `compile`), or an empty string."""
        try:
            inputs, targets = self.batch(np.arange(self.device_rows))
            self.model(inputs, targets).mean().backward()
        except torch.OutOfMemoryError:
            return "memory"
        except CompileError as error:
            log.warning("torch.compile failed: %s", str(error).strip().splitlines()[0])
            return "compile"
        return ""

    @torch.no_grad()
    def evaluate(self, rows: int, kind: int) -> None:
        """Mean validation loss over the first `rows` rows, summed in float64; `kind` 0 fast, 1 final."""
        begun = time.perf_counter()
        mine = np.arange(self.team.rank, rows, self.team.world)
        size = min(planned_rows(self.config, self.team), -(-self.config.fast_rows // self.team.world))
        total = torch.zeros(2, dtype=torch.float64, device=self.team.device)
        for start in range(0, len(mine), size):
            ids = mine[start:start + size]
            # a last, short batch is filled up with ignored rows: one shape, one compiled graph
            inputs, targets = self.batch(np.resize(ids, size), "val")
            targets[len(ids):] = -1
            losses = self.model(inputs, targets)
            total += torch.stack([losses.double().sum(), (targets >= 0).sum().double()])
        self.team.sum(total)
        loss_sum, count = total.tolist()
        self.eval_seconds += time.perf_counter() - begun
        self.record([{"eval": self.step - 1, "loss": loss_sum / count, "loss_sum": loss_sum, "n_tokens": int(count),
                      "kind": kind, "wall_s": self.seconds}])
        self.clock = time.perf_counter()

    def run(self, stopping: Callable[[], bool], report: Callable[[int, float], None]) -> str:
        """Train to the end, to divergence, or until asked to stop.

        Parameters
        ----------
        stopping : callable
            Whether this process has been asked to stop.
        report : callable
            Called with the steps taken and the last loss, every few steps.

        Returns
        -------
        str
            `done`, `diverged` or `interrupted`.
        """
        self.resume()
        self.settle()
        evals, saved = eval_steps(self.config), time.monotonic()
        gc.freeze()
        self.clock = time.perf_counter()
        while self.step < self.n_steps:
            self.train_step(stopping())
            due = self.step in evals
            if not (self.step % self.every == 0 or self.step == self.n_steps or due):
                continue
            reason, stop = self.flush()
            if reason:
                return self.end("diverged", reason)
            report(self.step, self.records[-1]["loss"])
            if due:
                self.evaluate(self.config.fast_rows, kind=0)
            late = time.monotonic() - saved > 60 * self.operation.checkpoint_minutes
            if stop or self.step == self.n_steps or self.team.any(late):
                self.save()
                saved, self.clock = time.monotonic(), time.perf_counter()
            if stop and self.step < self.n_steps:
                return self.end("interrupted", f"asked to stop at step {self.step} of {self.n_steps}")
        self.evaluate(self.config.eval_rows, kind=1)
        return self.end("done", f"loss {self.records[-1]['loss']:.4f} after {self.n_steps} steps")

    def end(self, state: str, message: str) -> str:
        """Write the last files of a run that ends in `state`."""
        log.info("%s: %s", state, message)
        if self.team.leads:
            self.directory.journal.sync()
            self.write_curve("running" if state == "interrupted" else state)
            self.write_state(state, message=message)
            if state == "done" and not self.operation.keep_checkpoints:
                for path in checkpoints.found(self.directory.checkpoints):
                    path.unlink()
        return state


def utc() -> str:
    """Now, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
