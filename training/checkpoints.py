"""Checkpoints of a run: complete or absent, the last two kept, readable on any number of devices."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from bayesloop.schema import replacing
from training.run_directory import RunError

KEEP = 2
log = logging.getLogger("training")


def save(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write `step_<step>.pt` (steps taken so far) and remove all but the newest two.

    Raises
    ------
    OSError
        As the file system raises it; older checkpoints are then untouched.
    """
    path = folder / f"step_{step:08d}.pt"
    with replacing(path) as temporary, open(temporary, "wb") as file:
        torch.save(state, file)
    for old in found(folder)[:-KEEP]:
        old.unlink(missing_ok=True)
    return path


def found(folder: Path) -> list[Path]:
    """Checkpoints of a folder, oldest first."""
    return sorted(folder.glob("step_*.pt"))


def newest(folder: Path, identity: dict[str, str]) -> dict[str, Any] | None:
    """The newest checkpoint that can be read, on the CPU; None where there is none.

    Parameters
    ----------
    folder : Path
    identity : dict
        Entries that must match the checkpoint's (hashes of configuration and data).

    Raises
    ------
    RunError
        If a checkpoint is of another configuration or other data.
    """
    for path in reversed(found(folder)):
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            log.warning("%s: not readable (%s); trying the one before", path, str(error).splitlines()[0])
            continue
        for name, expected in identity.items():
            if state.get(name) != expected:
                raise RunError(f"{path}: made with another {name} ({str(state.get(name))[:10]}…, expected "
                               f"{expected[:10]}…); restore it, or move this run's folder away")
        return state
    return None
