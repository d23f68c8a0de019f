"""What has happened to a run: the ledger beside its files, and the state that follows from both.

Every attempt appends one line to `<run>/ledger.jsonl`. Only creation, renaming and appending are used, so the folder
may lie on a disk that many machines share.
"""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass
from typing import Any

from training.lock import stale
from training.run_directory import RunDirectory

RETRIES = 2  # of a failed run within one sweep; interrupted and out-of-memory attempts are not counted
FINAL = ("done", "diverged")


@dataclass(frozen=True)
class Outcome:
    """How an attempt at a run ended: `done`, `diverged`, `failed`, `oom`, `interrupted` or `busy`, and why.

    `final` says that the engine has made all further attempts itself, or that none is wanted.
    """

    state: str
    message: str = ""
    final: bool = False

    def again(self, failures: int) -> bool:
        """Whether the run deserves another attempt, after so many that failed, this one included."""
        if self.final:
            return False
        return self.state in ("oom", "interrupted", "busy") or (self.state == "failed" and failures <= RETRIES)


def record(directory: RunDirectory, **fields: Any) -> None:
    """Append one line to the run's ledger; host and time are added."""
    line = json.dumps({"host": socket.gethostname(), "time": time.time(), **fields}, ensure_ascii=False)
    with open(directory.path / "ledger.jsonl", "a") as file:
        file.write(f"\n{line}\n")  # the empty line ends what a crash may have left unfinished


def records(directory: RunDirectory) -> list[dict[str, Any]]:
    """Lines of the run's ledger, oldest first; what a crash left unfinished is skipped."""
    try:
        lines = (directory.path / "ledger.jsonl").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def busy(directory: RunDirectory) -> bool:
    """Whether a live process trains this run."""
    return directory.lock.exists() and not stale(directory.lock)


def owner(directory: RunDirectory) -> int | None:
    """Process of this machine that trains the run, if there is one."""
    try:
        lock = json.loads(directory.lock.read_text())
    except (OSError, ValueError):
        return None
    mine = lock.get("host") == socket.gethostname() and busy(directory)
    return int(lock["pid"]) if mine else None


def device_rows(directory: RunDirectory) -> int | None:
    """Micro-batch after the last out of memory: half of what it ran out with; None where that never happened."""
    lines = [line for line in records(directory) if line.get("outcome") == "oom" and line.get("device_rows")]
    return max(1, lines[-1]["device_rows"] // 2) if lines else None


def conclude(directory: RunDirectory, returncode: int, before: dict[str, Any]) -> Outcome:
    """What an attempt came to, from the files it left.

    Parameters
    ----------
    directory : RunDirectory
    returncode : int
        Of its process, or of torchrun, which has codes of its own.
    before : dict
        The run's state.json as the attempt found it: what it has not replaced says nothing about it.
    """
    if finished := directory.finished():
        return Outcome(finished, str(directory.read_state().get("message", "")))
    state = directory.read_state()
    said = "" if state == before else state.get("state")
    if said == "interrupted" or returncode in (4, -2, -15):  # or asked to stop before it could answer
        return Outcome("interrupted", "asked to stop")
    if returncode < 0:
        return Outcome("failed", f"killed by signal {-returncode}" + (" (out of memory?)" if returncode == -9 else ""))
    if busy(directory):
        return Outcome("busy", "another process trains this run")
    if said == "failed":
        return Outcome("oom" if state.get("reason") == "memory" else "failed", str(state.get("message", "")))
    return Outcome("failed", f"exit code {returncode}: {_last_line(directory)}")


def _last_line(directory: RunDirectory) -> str:
    try:
        lines = (directory.path / "output.txt").read_text(errors="replace").strip().splitlines()
    except FileNotFoundError:
        lines = []
    return lines[-1] if lines else "no message"
