"""The row store: token rows on disk, and the rule that says which step reads which rows.

A store is a folder with a manifest and raw little-endian uint16 files of shape [rows, T + 1]; a row's inputs are its
first T tokens, its targets the last T. Step t of a run reads rows t·R … (t + 1)·R − 1, whatever the number of
devices and micro-batches: the order is a function of manifest and step, so a reader has no state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bayesloop.schema import replacing

STORE_VERSION = "1.0"
ROWS_PER_FILE = 15_000  # as the published packing
SPLITS = ("train", "val")


class DataError(ValueError):
    """Token rows that are missing, damaged or of the wrong kind; the message says where and what was expected."""


@dataclass(frozen=True)
class Split:
    """Rows of one split: memory-mapped files of `[rows, T + 1]` uint16, and where each file starts."""

    files: tuple[np.ndarray, ...]
    starts: np.ndarray

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.starts[-1])

    def take(self, ids: np.ndarray) -> np.ndarray:
        """Rows `ids` in the order given, uint16 `[n, T + 1]`."""
        where = np.searchsorted(self.starts, ids, side="right") - 1
        out = np.empty((len(ids), self.files[0].shape[1]), dtype=np.uint16)
        for file in np.unique(where):
            mine = where == file
            out[mine] = self.files[file][ids[mine] - self.starts[file]]
        return out


class RowStore:
    """Token rows of one corpus.

    Parameters
    ----------
    folder : path
        As written by `write_store`.

    Raises
    ------
    DataError
        If the manifest or a file is missing, of another version, or cut short.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        path = self.folder / "manifest.json"
        try:
            text = path.read_bytes()
            self.manifest: dict[str, Any] = json.loads(text)
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(f"{path}: no such file; prepare rows with python -m training.tokens") from None
        except json.JSONDecodeError as error:
            raise DataError(f"{path}: not JSON ({error}); prepare the rows again") from None
        version = self.manifest.get("schema_version")
        if version != STORE_VERSION:
            raise DataError(f"{path}: version {version!r}; this release reads {STORE_VERSION}")
        self.sha256 = hashlib.sha256(text).hexdigest()
        self.name: str = self.manifest["name"]
        self.seq_len: int = self.manifest["seq_len"]
        self.vocab_size: int = self.manifest["tokenizer"]["vocab_size"]
        self.splits = {split: self._open(self.manifest["splits"][split]["files"]) for split in SPLITS}

    def _open(self, entries: Sequence[dict[str, Any]]) -> Split:
        files = []
        for entry in entries:
            path, shape = self.folder / entry["name"], (entry["rows"], self.seq_len + 1)
            expected = shape[0] * shape[1] * 2
            found = path.stat().st_size if path.exists() else 0
            if found != expected:
                raise DataError(f"{path}: {found} bytes; the manifest says {expected}; prepare the rows again")
            files.append(np.memmap(path, dtype="<u2", mode="r", shape=shape))
        return Split(tuple(files), np.cumsum([0, *(entry["rows"] for entry in entries)]))

    def verify(self) -> None:
        """Compare every file with its hash in the manifest.

        Raises
        ------
        DataError
            If a file has changed since it was written.
        """
        for split in SPLITS:
            for entry in self.manifest["splits"][split]["files"]:
                path = self.folder / entry["name"]
                if _sha256(path) != entry["sha256"]:
                    raise DataError(f"{path}: changed since it was written; prepare the rows again")


def step_ids(step: int, rows_per_step: int, rows: int) -> np.ndarray:
    """Training rows of a step, int64 `[rows_per_step]`; past the last row they start over."""
    return np.arange(step * rows_per_step, (step + 1) * rows_per_step, dtype=np.int64) % rows


def part(ids: np.ndarray, index: int, parts: int) -> np.ndarray:
    """The strided share `index` of `parts` equal shares of a step's rows (one for each device and micro-step).

    Raises
    ------
    DataError
        If the rows cannot be shared equally.
    """
    if len(ids) % parts:
        raise DataError(f"{len(ids)} rows a step cannot be shared by {parts} micro-batches; expected a divisor")
    return ids[index::parts]


class RowWriter:
    """Writes the rows of one split into numbered files, shuffling every file's rows when a generator is given."""

    def __init__(self, folder: Path, split: str, width: int, vocab_size: int, rng: np.random.Generator | None) -> None:
        self.folder, self.split, self.width, self.vocab_size, self.rng = folder, split, width, vocab_size, rng
        self.pending: list[np.ndarray] = []
        self.entries: list[dict[str, Any]] = []

    def add(self, rows: np.ndarray) -> None:
        """Take rows `[n, T + 1]`; a full file is written at once."""
        self.pending.extend(rows)
        while len(self.pending) >= ROWS_PER_FILE:
            self._write(self.pending[:ROWS_PER_FILE])
            del self.pending[:ROWS_PER_FILE]

    def close(self) -> dict[str, Any]:
        """Write what is left; return the split's part of the manifest."""
        if self.pending:
            self._write(self.pending)
            self.pending = []
        return {"rows": sum(entry["rows"] for entry in self.entries), "files": self.entries}

    def _write(self, rows: list[np.ndarray]) -> None:
        block = np.asarray(rows)
        if block.shape[1] != self.width or int(block.max()) >= self.vocab_size:
            raise DataError(f"rows of {block.shape[1]} tokens with ids up to {block.max()}; "
                            f"expected {self.width} tokens with ids below {self.vocab_size}")
        if self.rng is not None:
            self.rng.shuffle(block)
        path = self.folder / f"{self.split}-{len(self.entries):05d}.bin"
        with replacing(path) as temporary:
            block.astype("<u2").tofile(temporary)
        self.entries.append({"name": path.name, "rows": len(block), "sha256": _sha256(path)})


def write_store(folder: str | Path, rows: Iterable[tuple[str, np.ndarray]], *, name: str, seq_len: int,
                tokenizer: dict[str, Any], packing: dict[str, Any], source: dict[str, Any], seed: int,
                shuffle: bool) -> RowStore:
    """Write a row store; the manifest comes last, so an unfinished folder is not a store.

    Parameters
    ----------
    folder : path
        Must not hold a store yet.
    rows : iterable of (split, array)
        Split `train` or `val`, and rows `[n, seq_len + 1]`.
    name : str
        What run configurations call this data.
    tokenizer : dict
        `name`, `sha256`, `vocab_size` (at most 65 536), `bos`.
    packing, source : dict
        How documents became rows, and where they came from.
    seed : int
        Of the shuffles.
    shuffle : bool
        Shuffle the rows of every file of 15 000 (False where the rows are in their final order).

    Raises
    ------
    DataError
        If the folder holds a store already, a split stays empty, or a token is out of range.
    """
    folder = Path(folder)
    if (folder / "manifest.json").exists():
        raise DataError(f"{folder}: holds a row store already; choose another folder or remove it")
    if not 2 <= tokenizer["vocab_size"] <= 65_536:
        raise DataError(f"a vocabulary of {tokenizer['vocab_size']}; expected 2 … 65536, rows are stored as uint16")
    folder.mkdir(parents=True, exist_ok=True)
    writers = {split: RowWriter(folder, split, seq_len + 1, tokenizer["vocab_size"],
                                np.random.default_rng([seed, index]) if shuffle else None)
               for index, split in enumerate(SPLITS)}
    for split, block in rows:
        writers[split].add(block)
    splits = {split: writer.close() for split, writer in writers.items()}
    for split in SPLITS:
        if not splits[split]["rows"]:
            raise DataError(f"the source gave no complete {split} row of {seq_len + 1} tokens; give more text")
    manifest = {"schema_version": STORE_VERSION, "name": name, "seq_len": seq_len, "tokenizer": tokenizer,
                "packing": packing, "source": source, "seed": seed, "splits": splits}
    with replacing(folder / "manifest.json") as temporary:
        temporary.write_text(json.dumps(manifest, indent=1, ensure_ascii=False))
    return RowStore(folder)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    from training.prepare import main

    raise SystemExit(main())
