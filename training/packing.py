"""From tokenised documents to rows of T + 1 tokens: best-fit packing for long streams, concatenation for small text."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator

import numpy as np

BUFFER = 1_000  # documents to choose from, as the published packing


def best_fit(documents: Iterable[np.ndarray], width: int, buffer: int = BUFFER) -> Iterator[np.ndarray]:
    """Pack documents into full rows, each starting with a document's first token.

    The longest document that fits entirely goes in; when none fits, the shortest is cut to the space left and its
    tail dropped. A document longer than a row is only ever used cut. The last, incomplete row is dropped.

    Parameters
    ----------
    documents : iterable of 1-D arrays
        Tokens, beginning-of-sequence token first.
    width : int
        Tokens of a row, T + 1.
    buffer : int
        Documents held to choose from.

    Yields
    ------
    array, [1, width] uint16
    """
    source = iter(documents)
    held: list[tuple[int, int, np.ndarray]] = []  # length, arrival, tokens: sorted, ties in order of arrival
    arrived = 0
    while True:
        while len(held) < buffer and (tokens := next(source, None)) is not None:
            if len(tokens):
                insort(held, (len(tokens), -arrived, tokens), key=lambda entry: entry[:2])
                arrived += 1
        row, space = [], width
        while space and held:
            fitting = bisect_right(held, space, key=lambda entry: entry[0])
            tokens = held.pop(max(fitting - 1, 0))[2][:space]
            row.append(tokens)
            space -= len(tokens)
        if space:
            return
        yield np.concatenate(row).astype(np.uint16)[None]


def concatenate(documents: Iterable[np.ndarray], width: int) -> np.ndarray:
    """All documents end to end, cut into rows; the incomplete last row is dropped. uint16 `[n, width]`."""
    parts = [np.asarray(tokens, dtype=np.uint16) for tokens in documents]
    stream = np.concatenate(parts) if parts else np.empty(0, np.uint16)
    return stream[: len(stream) // width * width].reshape(-1, width)
