"""`python -m training.tokens SOURCE … --out DIR`: make a row store."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from training.sources import (
    JsonTokenizer,
    Tokenizer,
    debian_store,
    finewebedu_store,
    parquet_store,
    synthetic_store,
    text_store,
)
from training.tokens import DataError, RowStore


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m training.tokens", description="Make a row store of token rows.")
    commands = parser.add_subparsers(dest="source", required=True, metavar="SOURCE")

    def command(name: str, seq_len: int | None, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.add_argument("--out", type=Path, required=True, help="folder to create")
        sub.add_argument("--name", default="", help="name that run configurations use (default: the source's)")
        if seq_len is not None:
            sub.add_argument("--seq-len", type=int, default=seq_len, help="tokens T of a row (default %(default)s)")
            sub.add_argument("--seed", type=int, default=0, help="of the shuffles (default %(default)s)")
        return sub

    sub = command("finewebedu", 2048, "FineWeb-Edu packed by best fit; streams from the hub without --files")
    sub.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json (32k Llama-2 in the paper)")
    sub.add_argument("--files", type=Path, nargs="+",
                     help="local parquet shards with a column text; the last is validation")
    sub.add_argument("--rows", type=int, required=True, help="training rows to pack")
    sub.add_argument("--val-rows", type=int, default=34_608, help="validation rows to pack (default %(default)s)")
    sub = command("parquet", None, "rows packed by the published code (column tokens)")
    sub.add_argument("folder", type=Path)
    sub.add_argument("--vocab-size", type=int, default=32_002, help="of the tokenizer (default %(default)s)")
    sub = command("text", 64, "text files, one document each, as bytes or through a tokenizer.json")
    sub.add_argument("files", type=Path, nargs="+")
    sub.add_argument("--tokenizer", type=Path, help="tokenizer.json (default: bytes)")
    sub = command("debian", 64, "documentation of Linux 6.1 (GPL-2.0) and Python 3.11 (PSF-2.0) from Debian 12, as "
                                "bytes; fetches 50 MB with apt-get")
    sub.add_argument("--packages", type=Path, help="folder with the two .deb files, instead of fetching them")
    sub = command("synthetic", 64, "a seeded Markov chain of bytes, for tests")
    sub.add_argument("--rows", type=int, default=4_096)
    return parser


def _make(options: argparse.Namespace) -> RowStore:
    common: dict[str, Any] = {"name": options.name or options.source}
    if options.source == "parquet":
        return parquet_store(options.folder, options.out, vocab_size=options.vocab_size, **common)
    common |= {"seq_len": options.seq_len, "seed": options.seed}
    if options.source == "finewebedu":
        return finewebedu_store(options.out, JsonTokenizer(options.tokenizer), files=options.files, rows=options.rows,
                                val_rows=options.val_rows, **common)
    if options.source == "text":
        tokenizer = JsonTokenizer(options.tokenizer) if options.tokenizer else Tokenizer()
        return text_store(options.files, options.out, tokenizer=tokenizer, **common)
    if options.source == "debian":
        return debian_store(options.out, options.packages, **common)
    return synthetic_store(options.out, rows=options.rows, **common)


def main(argv: list[str] | None = None) -> int:
    """Entry point of `python -m training.tokens`; returns the exit code (0 done, 1 bad input, 2 wrong usage)."""
    options = _parser().parse_args(argv)
    try:
        store = _make(options)
    except (DataError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    rows = ", ".join(f"{split} {part.rows} rows ({part.rows * store.seq_len / 1e6:.2f} M tokens)"
                     for split, part in store.splits.items())
    print(f"{store.folder}: {store.name}, {rows}, vocabulary {store.vocab_size}, manifest {store.sha256[:10]}")
    return 0
