"""Who trains a run: a lock file with a heartbeat, made with exclusive creation only, so that it works over NFS."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from types import TracebackType

STALE_SECONDS = 600.0  # a heartbeat this old belongs to a process that is gone
BEAT_SECONDS = 30.0


class LockedError(RuntimeError):
    """Another process trains this run; the message names it."""


class Lock:
    """Ownership of a run folder, as a context manager.

    A lock is stale, and is taken over, when its heartbeat (the file's time) is older than `STALE_SECONDS`, or when
    it was made on this machine by a process that no longer exists.

    Parameters
    ----------
    path : Path
        The lock file.

    Raises
    ------
    LockedError
        On entry, when a live process holds the lock.
    OSError
        When the folder cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.token = uuid.uuid4().hex
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Lock:
        if not self._create():
            self._take_over()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        if self.held():
            self.path.unlink(missing_ok=True)

    def held(self) -> bool:
        """Whether the lock is still ours: a process that slept too long may have lost it."""
        return _read(self.path).get("token") == self.token

    def _create(self) -> bool:
        try:
            handle = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(handle, "w") as file:
            json.dump({"host": socket.gethostname(), "pid": os.getpid(), "born": _born(os.getpid()),
                       "token": self.token}, file)
        return True

    def _take_over(self) -> None:
        """Replace a stale lock, under a second lock that only one of several candidates gets."""
        guard = Lock(self.path.with_name(self.path.name + ".takeover"))
        if not guard._create():
            if stale(guard.path):
                guard.path.unlink(missing_ok=True)
            raise LockedError(f"{self.path}: another process is taking over this run; try again")
        try:
            if not stale(self.path):
                owner = _read(self.path)
                raise LockedError(f"{self.path}: process {owner.get('pid')} on {owner.get('host')} trains this run; "
                                  "wait for it, or stop it first")
            self.path.unlink(missing_ok=True)
            if not self._create():
                raise LockedError(f"{self.path}: another process has just started this run")
        finally:
            guard.path.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            if self.held():
                os.utime(self.path)


def stale(path: Path) -> bool:
    """Whether a lock's owner is gone."""
    try:
        age = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return True
    owner = _read(path)
    if owner.get("host") == socket.gethostname() and "pid" in owner:
        return _born(owner["pid"]) != owner.get("born")
    return age > STALE_SECONDS


def _read(path: Path) -> dict:
    try:
        return json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        return {}


def _born(pid: int) -> str:
    """Start time of a process of this machine (empty if there is none): a reused number is another process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        pass
    try:  # no /proc on this system: existence alone
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        return "alive"
    return "" if Path("/proc/self").exists() else "alive"
