"""One run from start to finished run file: `train(config, operation)` and `python -m training.train`.

A run that was interrupted or killed goes on from its newest checkpoint when the same command is given again.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bayesloop.architecture import ArchitectureError
from training.grid import COMPILE_MODES, RECIPES, ConfigError, Operation, RunConfig
from training.lock import Lock, LockedError
from training.run_directory import RunDirectory, RunError
from training.tokens import DataError, RowStore

EXIT = {"done": 0, "diverged": 3, "failed": 3, "interrupted": 4}
log = logging.getLogger("training")


def check_data(config: RunConfig, store: RowStore) -> None:
    """Refuse a row store that does not fit the run.

    Raises
    ------
    DataError
        If name, row length, vocabulary or number of rows differ from what the run needs.
    """
    arch, rows = config.architecture, store.splits["train"].rows
    for name, found, expected in (("name", store.name, config.data), ("seq_len", store.seq_len, arch.seq_len)):
        if found != expected:
            raise DataError(f"{store.folder}: {name} {found!r}; the run expects {expected!r}")
    if store.vocab_size > arch.vocab_size:
        raise DataError(f"{store.folder}: vocabulary {store.vocab_size}; the model has {arch.vocab_size}")
    needed = config.horizon.n_steps * config.rows_per_step
    if needed > rows and not config.allow_repeat:
        raise DataError(f"{store.folder}: {rows} training rows; the run needs {needed}; prepare more, or allow repeats")
    if config.eval_rows > store.splits["val"].rows:
        raise DataError(f"{store.folder}: {store.splits['val'].rows} validation rows; the run needs {config.eval_rows}")


def train(config: RunConfig, operation: Operation) -> str:
    """Train one run, or go on with it, and write `operation.out / run_id / curve.h5`.

    Parameters
    ----------
    config : RunConfig
    operation : Operation

    Returns
    -------
    str
        `done`, `diverged` or `interrupted`. A run that is complete already is left alone.

    Raises
    ------
    DataError, ConfigError
        If the row store does not fit the run.
    LockedError
        If another process trains this run.
    RunError
        If the run fails; its last checkpoint stays, and the same call goes on from there.
    """
    store = RowStore(operation.data)
    check_data(config, store)
    directory = RunDirectory(operation.out, config)
    if state := directory.finished():
        log.info("%s: %s already", config.run_id, state)
        return state
    directory.create()
    from training.device import join_team  # torch, only now

    with ExitStack() as stack:
        team = join_team(operation)
        stack.callback(team.leave)
        lock = stack.enter_context(Lock(directory.lock)) if team.leads else None
        if team.leads:
            stack.enter_context(log_file(directory.log))
        stack.callback(directory.journal.close)
        stopping = stack.enter_context(signals())
        report = stack.enter_context(progress(config, team.leads))
        try:
            from training.loop import Training

            if team.leads:
                directory.write_state("running", n_steps=config.horizon.n_steps)
            return Training(config, operation, directory, store, team).run(
                lambda: bool(stopping), lambda step, loss: report(step, loss, lock))
        except (RunError, ArchitectureError, DataError) as error:
            fail(directory, str(error))
            raise
        except Exception as error:
            log.debug("%s", traceback.format_exc())
            message = describe(error, directory)
            fail(directory, message, "memory" if type(error).__name__ == "OutOfMemoryError" else "error")
            raise RunError(message) from error


def describe(error: Exception, directory: RunDirectory) -> str:
    """One message for a failure, with what to do."""
    first = (str(error).strip() or "no message").splitlines()[0]
    if isinstance(error, OSError):
        place = error.filename or directory.path
        return (f"{place}: cannot be written or read ({error.strerror or first}); the last checkpoint is intact: make "
                "room or restore the file, then give the same command again")
    return f"{type(error).__name__}: {first}; the traceback is in {directory.log}"


def fail(directory: RunDirectory, message: str, reason: str = "error") -> None:
    """Note a failure in state.json, where the disk allows it; reason `memory` asks for a smaller micro-batch."""
    try:
        directory.write_state("failed", message=message, reason=reason,
                              device_rows=directory.read_state().get("device_rows"))
    except OSError:
        log.warning("state.json could not be written either")


@contextmanager
def log_file(path: Path) -> Iterator[None]:
    """Append the run's messages to a file."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.setLevel(logging.DEBUG)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()


@contextmanager
def signals() -> Iterator[list[int]]:
    """Collect SIGTERM, SIGUSR2 and SIGINT: a non-empty list asks the run to stop; a second SIGINT stops at once."""
    received: list[int] = []

    def note(number: int, frame: Any) -> None:
        if number == signal.SIGINT and signal.SIGINT in received:
            raise KeyboardInterrupt
        received.append(number)

    numbers = (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)
    try:
        previous = {number: signal.signal(number, note) for number in numbers}
    except ValueError:  # not the main thread: whoever runs us handles signals
        previous = {}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def progress(config: RunConfig, leads: bool) -> Iterator[Any]:
    """A progress bar on a terminal, nothing elsewhere; either way the lock is checked as the run reports."""
    with ExitStack() as stack:
        bar = task = None
        if leads and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress, TextColumn

            bar = stack.enter_context(Progress(*Progress.get_default_columns(), TextColumn("{task.fields[loss]}"),
                                               console=Console(stderr=True)))
            task = bar.add_task(config.run_id, total=config.horizon.n_steps, loss="")

        def report(step: int, loss: float, lock: Lock | None) -> None:
            if lock is not None and not lock.held():
                raise RunError(f"{lock.path}: another process has taken this run over; leaving it alone")
            if bar is not None and task is not None:
                bar.update(task, completed=step, loss=f"loss {loss:.3f}")

        yield report


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m training.train",
        description="Train one looped language model and write its run file. The same command goes on with a run "
                    "that was interrupted.",
        epilog="exit codes: 0 done, 1 bad input, 2 wrong usage, 3 diverged or failed, 4 interrupted")
    parser.add_argument("--data", type=Path, required=True, help="row store, made by python -m training.tokens")
    parser.add_argument("--out", type=Path, required=True, help="folder that receives one folder per run")
    what = parser.add_argument_group("what to train: a configuration file, or a recipe with")
    what.add_argument("--config", type=Path, help="config.json of a run")
    what.add_argument("--recipe", choices=sorted(RECIPES), default="micro", help="(default %(default)s)")
    what.add_argument("--size", type=float, help="size s of the paper recipe (width 64 s)")
    what.add_argument("--width", type=int, help="width of the micro recipe")
    what.add_argument("--r", type=int, help="recurrences")
    what.add_argument("--budget", type=float, help="compute in FLOP")
    what.add_argument("--scheme", default=None, help="linear, additive, passthrough, hyperconnect (default linear)")
    what.add_argument("--bptt-k", type=int, default=None, help="recurrences with gradient (default all)")
    what.add_argument("--lanes", type=int, default=None, help="residual lanes of hyperconnect")
    what.add_argument("--seed", type=int, default=None, help="of the initial weights (default 42)")
    how = parser.add_argument_group("how to execute it (no effect on the result)")
    how.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    how.add_argument("--device-rows", type=int, help="sequences of one micro-batch (default by width and memory)")
    how.add_argument("--compile", choices=COMPILE_MODES, default="auto")
    how.add_argument("--threads", type=int, default=1, help="CPU threads (default %(default)s)")
    how.add_argument("--checkpoint-minutes", type=float, default=10.0, help="(default %(default)s)")
    how.add_argument("--deterministic", action="store_true", help="deterministic CUDA kernels, for debugging")
    how.add_argument("--keep-checkpoints", action="store_true", help="keep the checkpoints of a finished run")
    return parser


def configure(options: argparse.Namespace, parser: argparse.ArgumentParser) -> RunConfig:
    """The run the options describe; wrong combinations end in a usage message."""
    if options.config is not None:
        try:
            return RunConfig.from_json(options.config.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{options.config}: cannot be read ({error})") from None
    axis = "size" if options.recipe == "paper" else "width"
    for name in (axis, "r", "budget"):
        if getattr(options, name) is None:
            parser.error(f"--recipe {options.recipe} needs --{name}, or give --config")
    chosen = {name: value for name in ("scheme", "bptt_k", "lanes", "seed")
              if (value := getattr(options, name)) is not None}
    return RECIPES[options.recipe](getattr(options, axis), options.r, options.budget,
                                   data=RowStore(options.data).name, **chosen)


def main(argv: list[str] | None = None) -> int:
    """Entry point of `python -m training.train`; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    screen = logging.StreamHandler()
    screen.setLevel(logging.INFO)
    log.setLevel(logging.DEBUG)
    log.addHandler(screen)
    try:
        config = configure(options, parser)
        names = [field.name for field in dataclasses.fields(Operation)]
        operation = Operation(**{name: getattr(options, name) for name in names})
        state = train(config, operation)
        print(operation.out / config.run_id / "curve.h5")
        return EXIT[state]
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    except (ConfigError, ArchitectureError, DataError, LockedError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 4
    finally:
        log.removeHandler(screen)


if __name__ == "__main__":
    raise SystemExit(main())
