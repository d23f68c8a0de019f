"""One run's folder: config.json, state.json, journal.jsonl, ckpt/, curve.h5, log.txt and the lock.

The journal is appended to while the run trains; everything else is written beside its place and renamed. A torn last
line of the journal is what a kill leaves, and is dropped.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from bayesloop.schema import SchemaError, read_run, replacing
from training.grid import RunConfig

STATES = ("running", "done", "diverged", "failed", "interrupted")


class RunError(RuntimeError):
    """A run that cannot go on; the message says where it stands and what to do."""


class RunDirectory:
    """The folder `out/<run_id>` of a configuration.

    Parameters
    ----------
    out : Path
        Folder of all runs.
    config : RunConfig
    """

    def __init__(self, out: Path, config: RunConfig) -> None:
        self.config = config
        self.path = out / config.run_id
        self.journal = Journal(self.path / "journal.jsonl")
        self.curve = self.path / "curve.h5"
        self.checkpoints = self.path / "ckpt"
        self.lock = self.path / "lock"
        self.log = self.path / "log.txt"

    def create(self) -> None:
        """Make the folder and write config.json; an existing one must hold the same configuration.

        Raises
        ------
        RunError
            If the folder belongs to another configuration or cannot be written.
        """
        config_file = self.path / "config.json"
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            if config_file.exists():
                found = RunConfig.from_json(config_file.read_text()).sha256
                if found != self.config.sha256:
                    raise RunError(f"{config_file}: another configuration ({found[:10]}, expected "
                                   f"{self.config.sha256[:10]}); move the folder away")
            else:
                with replacing(config_file) as temporary:
                    temporary.write_text(self.config.to_json())
        except OSError as error:
            raise RunError(f"{self.path}: cannot be written ({error.strerror}); choose another --out") from None

    def finished(self) -> str:
        """`done` or `diverged` when a complete run file says so, else an empty string."""
        if not self.curve.exists():
            return ""
        try:
            attrs = read_run(self.curve).attrs
        except SchemaError:
            return ""
        complete = attrs["status"] == "done" and attrs["tokens"] == self.config.horizon.tokens
        return attrs["status"] if complete or attrs["status"] == "diverged" else ""

    def write_state(self, state: str, **fields: Any) -> None:
        """Replace state.json: `state` is one of `STATES`; fields are JSON scalars (step, message, …)."""
        record = {"state": state, "host": socket.gethostname(), "pid": os.getpid(), **fields}
        with replacing(self.path / "state.json") as temporary:
            temporary.write_text(json.dumps(record))

    def read_state(self) -> dict[str, Any]:
        """Content of state.json, empty before the first write."""
        try:
            return json.loads((self.path / "state.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}


class Journal:
    """Records of a run, one JSON object a line: `{"step": …}` for training, `{"eval": step, …}` for evaluations."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: TextIO | None = None

    def read(self) -> list[dict[str, Any]]:
        """All whole records; a torn last line is dropped.

        Raises
        ------
        RunError
            If a line before the last is damaged.
        """
        if not self.path.exists():
            return []
        lines = self.path.read_text(errors="replace").splitlines()
        records = []
        for number, line in enumerate(lines, 1):
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                if number < len(lines):
                    raise RunError(f"{self.path}, line {number}: damaged; expected one JSON object; "
                                   "remove this run's folder to train it again") from None
        return records

    def restart(self, step: int) -> list[dict[str, Any]]:
        """Drop every record of `step` or later, open for appending, and return what is kept."""
        kept = [record for record in self.read() if record_step(record) < step]
        with replacing(self.path) as temporary:
            temporary.write_text("".join(json.dumps(record) + "\n" for record in kept))
        self.file = open(self.path, "a", buffering=1)  # noqa: SIM115
        return kept

    def append(self, records: list[dict[str, Any]]) -> None:
        """Write records at the end."""
        assert self.file is not None
        for record in records:
            self.file.write(json.dumps(record) + "\n")

    def sync(self) -> None:
        """Have everything on disk."""
        assert self.file is not None
        self.file.flush()
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """Close the file; a failing disk has been reported by then."""
        if self.file is not None:
            with suppress(OSError):
                self.file.close()
            self.file = None


def record_step(record: dict[str, Any]) -> int:
    """The optimiser step a record belongs to."""
    return int(record["step"] if "step" in record else record["eval"])
