"""Where token rows come from: FineWeb-Edu, packed parquet rows, text files, Debian's documentation, a Markov chain."""

from __future__ import annotations

import gzip
import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from training.packing import BUFFER, best_fit, concatenate
from training.tokens import DataError, RowStore, write_store

VAL_SHARE = 40  # one document in 40 is validation
DEBIAN = {"linux-doc-6.1": "GPL-2.0", "python3.11-doc": "PSF-2.0"}
FINEWEB = "karpathy/fineweb-edu-100b-shuffle"  # 1 823 shards, the last two are validation
FINEWEB_SHARDS = 1_823
MARKOV_PROBABILITIES = (0.5, 0.25, 0.15, 0.1)


class Tokenizer:
    """Bytes as tokens; byte 0 starts every document."""

    name, sha256, vocab_size, bos = "bytes", "", 256, 0

    def encode(self, text: str) -> np.ndarray:
        """Token ids of one document, the beginning-of-sequence token first."""
        return np.frombuffer(b"\0" + text.encode().replace(b"\0", b""), dtype=np.uint8)

    def describe(self) -> dict[str, Any]:
        """The manifest's entry."""
        return {"name": self.name, "sha256": self.sha256, "vocab_size": self.vocab_size, "bos": self.bos}


class JsonTokenizer(Tokenizer):
    """A tokenizer.json, read by the `tokenizers` package.

    Raises
    ------
    DataError
        If the package or the file is missing, or the vocabulary has no beginning-of-sequence token.
    """

    def __init__(self, path: Path) -> None:
        try:
            from tokenizers import Tokenizer as Rust
        except ImportError:
            raise DataError("a tokenizer.json needs the package tokenizers: pip install tokenizers") from None
        if not path.is_file():
            raise DataError(f"{path}: no such file; expected a tokenizer.json")
        self.rust = Rust.from_file(str(path))
        self.name, self.sha256 = path.name, hashlib.sha256(path.read_bytes()).hexdigest()
        self.vocab_size = self.rust.get_vocab_size()
        found = [i for i in map(self.rust.token_to_id, ("<s>", "<|bos|>", "<|endoftext|>")) if i is not None]
        if not found:
            raise DataError(f"{path}: no token <s>, <|bos|> or <|endoftext|> to start a document with")
        self.bos = found[0]

    def encode(self, text: str) -> np.ndarray:
        ids = self.rust.encode(text, add_special_tokens=False).ids
        return np.array([self.bos, *ids], dtype=np.uint32)


def split_rows(texts: list[str], tokenizer: Tokenizer, width: int, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Documents shuffled, one in 40 to validation, concatenated, cut, and the rows shuffled.

    With fewer than 40 documents the last fortieth of the text is validation instead.
    """
    order = np.random.default_rng(seed).permutation(len(texts))
    tokens = [tokenizer.encode(texts[i]) for i in order]
    if len(tokens) >= VAL_SHARE:
        val = concatenate(tokens[::VAL_SHARE], width)
        train = concatenate((t for i, t in enumerate(tokens) if i % VAL_SHARE), width)
    else:
        rows = concatenate(tokens, width)
        cut = len(rows) - max(1, len(rows) // VAL_SHARE)
        train, val = rows[:cut], rows[cut:]
    for index, (split, block) in enumerate((("train", train), ("val", val))):
        yield split, np.random.default_rng([seed, index]).permutation(block)


def text_store(paths: list[Path], out: Path, *, name: str, seq_len: int, tokenizer: Tokenizer, seed: int) -> RowStore:
    """Row store of text files, one document each."""
    texts = [_read_text(path) for path in paths]
    source = {"kind": "text", "files": [str(path.name) for path in paths]}
    return _text_store(texts, out, source, name=name, seq_len=seq_len, tokenizer=tokenizer, seed=seed)


def _text_store(texts: list[str], out: Path, source: dict[str, Any], *, name: str, seq_len: int, tokenizer: Tokenizer,
                seed: int) -> RowStore:
    return write_store(out, split_rows(texts, tokenizer, seq_len + 1, seed), name=name, seq_len=seq_len,
                       tokenizer=tokenizer.describe(), packing={"algorithm": "concatenate"}, source=source, seed=seed,
                       shuffle=False)


def _read_text(path: Path) -> str:
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    return raw.decode("utf-8", errors="replace")


def clean(text: str) -> str:
    """Printable ASCII, tab and newline; long runs of blanks, newlines and rule characters shortened."""
    text = re.sub(r"[^\t\n\x20-\x7e]", "", text)
    text = re.sub(r"([-=~^*#_+.\"`'])\1{3,}", r"\1\1\1", text)
    text = re.sub(r"[ \t]{3,}", "  ", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def corpus(folder: Path) -> list[str]:
    """Cleaned documents below a folder, in path order, without short ones and without repeated beginnings."""
    seen: set[bytes] = set()
    texts = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and re.search(r"\.(rst|txt)(\.gz)?$", path.name):
            text = clean(_read_text(path))
            head = hashlib.sha256(text[:2000].encode()).digest()
            if len(text) >= 500 and head not in seen:
                seen.add(head)
                texts.append(text)
    return texts


def debian_store(out: Path, packages: Path | None, *, name: str, seq_len: int, seed: int) -> RowStore:
    """Row store of the documentation of Linux and Python, as packaged by Debian 12 (bytes).

    Parameters
    ----------
    packages : Path, optional
        Folder that holds the two .deb files; by default they are fetched with apt-get into a temporary folder.

    Raises
    ------
    DataError
        If a package cannot be fetched or unpacked.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if packages is None:
            packages = folder
            for package, licence in DEBIAN.items():
                print(f"fetching {package} (Debian 12 main, licence {licence}) with apt-get", file=sys.stderr)
            _command(["apt-get", "download", *DEBIAN], folder)
        files = [path for package in DEBIAN for path in sorted(packages.glob(f"{package}_*.deb"))]
        if len(files) != len(DEBIAN):
            raise DataError(f"{packages}: expected one .deb each of {', '.join(DEBIAN)}; found {len(files)} files")
        for file in files:
            _command(["dpkg", "-x", str(file.resolve()), str(folder / "files")], folder)
        texts = corpus(folder / "files")
        source = {"kind": "debian", "packages": [file.name for file in files], "licences": DEBIAN}
        return _text_store(texts, out, source, name=name, seq_len=seq_len, tokenizer=Tokenizer(), seed=seed)


def _command(arguments: list[str], folder: Path) -> None:
    try:
        subprocess.run(arguments, cwd=folder, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise DataError(f"{arguments[0]} is not installed; this source needs a Debian system") from None
    except subprocess.CalledProcessError as error:
        raise DataError(f"{' '.join(arguments[:2])} failed: {error.stderr.strip().splitlines()[-1:]}") from None


def synthetic_rows(train: int, val: int, width: int, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Rows of a seeded Markov chain over bytes 1 … 63, each row starting with byte 0.

    Every byte has four successors with probabilities 0.5, 0.25, 0.15, 0.1: conditional entropy 1.21 nats.
    """
    rng = np.random.default_rng(seed)
    successors = np.array([rng.permutation(63)[:4] + 1 for _ in range(64)], dtype=np.uint16)
    for split, count in (("train", train), ("val", val)):
        rows = np.zeros((count, width), dtype=np.uint16)
        for column in range(1, width):
            choice = rng.choice(4, size=count, p=MARKOV_PROBABILITIES)
            rows[:, column] = successors[rows[:, column - 1], choice]
        yield split, rows


def synthetic_store(out: Path, *, rows: int = 4_096, val_rows: int = 256, name: str = "synthetic", seq_len: int = 64,
                    seed: int = 0) -> RowStore:
    """Row store of `synthetic_rows`, for tests."""
    return write_store(out, synthetic_rows(rows, val_rows, seq_len + 1, seed), name=name, seq_len=seq_len,
                       tokenizer=Tokenizer().describe(), packing={"algorithm": "none"},
                       source={"kind": "synthetic", "rows": rows}, seed=seed, shuffle=False)


def finewebedu_store(out: Path, tokenizer: Tokenizer, *, files: list[Path] | None, rows: int, val_rows: int, name: str,
                     seq_len: int, seed: int) -> RowStore:
    """Row store of FineWeb-Edu, packed by best fit as in the published measurement.

    Parameters
    ----------
    files : list of Path, optional
        Local parquet shards with a column `text`, the last one validation; by default shards are streamed from the hub.
    rows, val_rows : int
        Rows to pack for each split.
    """
    train, val = (files[:-1], files[-1:]) if files else _hub_shards()

    def packed() -> Iterator[tuple[str, np.ndarray]]:
        for split, shards, limit in (("train", train, rows), ("val", val, val_rows)):
            documents = (tokenizer.encode(text) for text in parquet_texts(shards))
            for _, row in zip(range(limit), best_fit(documents, seq_len + 1), strict=False):
                yield split, row

    source = {"kind": "finewebedu", "repository": "" if files else FINEWEB, "train": [str(f) for f in train],
              "val": [str(f) for f in val]}
    return write_store(out, packed(), name=name, seq_len=seq_len, tokenizer=tokenizer.describe(),
                       packing={"algorithm": "best-fit", "buffer": BUFFER}, source=source, seed=seed, shuffle=True)


def _hub_shards() -> tuple[list[str], list[str]]:
    names = [f"hf://datasets/{FINEWEB}/shard_{i:05d}.parquet" for i in range(FINEWEB_SHARDS)]
    return names[:-2], names[-2:]


def parquet_texts(shards: Iterable[Path | str]) -> Iterator[str]:
    """Column `text` of parquet shards in order; addresses on the hub are streamed by the `datasets` package.

    Raises
    ------
    DataError
        If a file is missing or has no column `text`, or the package is not installed.
    """
    for shard in shards:
        if str(shard).startswith("hf://"):
            yield from _hub_texts(str(shard))
            continue
        for batch in _parquet(Path(shard), "text").iter_batches(256, columns=["text"]):
            yield from batch.column(0).to_pylist()


def _hub_texts(address: str) -> Iterator[str]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise DataError("streaming FineWeb-Edu needs the package datasets: pip install datasets") from None
    for example in load_dataset("parquet", data_files=address, split="train", streaming=True):
        yield example["text"]


def _parquet(path: Path, column: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{path}: not readable as parquet ({str(error).splitlines()[0]})") from None
    if column not in file.schema_arrow.names:
        raise DataError(f"{path}: columns {', '.join(file.schema_arrow.names)}; expected {column}")
    return file


def parquet_store(folder: Path, out: Path, *, vocab_size: int, name: str) -> RowStore:
    """Row store of rows packed by the published code: column `tokens` of train-*.parquet, val*-*.parquet, in order."""
    shards = {split: sorted(folder.glob(f"{split}*-*.parquet")) for split in ("train", "val")}
    for split, found in shards.items():
        if not found:
            raise DataError(f"{folder}: no {split}-*.parquet; expected the packed rows of the published code")
    first = next(_parquet(shards["train"][0], "tokens").iter_batches(1, columns=["tokens"])).column(0)
    width = len(first[0].as_py())

    def rows() -> Iterator[tuple[str, np.ndarray]]:
        for split, found in shards.items():
            for path in found:
                for batch in _parquet(path, "tokens").iter_batches(1_000, columns=["tokens"]):
                    yield split, batch.column(0).flatten().to_numpy().reshape(-1, width)

    tokenizer = {"name": "as packed", "sha256": "", "vocab_size": vocab_size, "bos": 1}
    return write_store(out, rows(), name=name, seq_len=width - 1, tokenizer=tokenizer,
                       packing={"algorithm": "as packed"},
                       source={"kind": "parquet", "files": [p.name for found in shards.values() for p in found]},
                       seed=0, shuffle=False)
