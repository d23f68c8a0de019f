"""Files and folders that a user asked for: what cannot be written gets one message."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bayesloop.schema import InputError, replacing


@contextmanager
def writing(path: str | os.PathLike[str], error: type[InputError] = InputError) -> Iterator[Path]:
    """`replacing` for what a user asked for: a place that cannot be written gets one message.

    Raises
    ------
    InputError
        Of the class `error`, where the file system refuses; `path` is then untouched.
    """
    try:
        with replacing(path) as temporary:
            yield temporary
    except OSError as fault:
        reason = fault.strerror or str(fault)
        raise error(f"{os.fspath(path)}: cannot be written ({reason}); choose a writable place") from None


def make_folder(path: str | os.PathLike[str]) -> Path:
    """A folder that a user asked for, created where missing.

    Raises
    ------
    InputError
        If it cannot be created.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made a folder ({error.strerror}); choose another place") from None
    return folder
