"""Row stores: what goes in comes out, in an order that depends on nothing but manifest and step."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training import sources, tokens
from training.packing import best_fit, concatenate
from training.prepare import main
from training.sources import Tokenizer, clean, corpus, finewebedu_store, parquet_store, synthetic_store, text_store
from training.tokens import DataError, RowStore, part, step_ids


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_reads_the_same_rows_however_it_is_shared(world: int, accumulate: int) -> None:
    ids = step_ids(7, 8, 1000)
    parts = world * accumulate
    shares = [part(ids, micro * world + rank, parts) for rank in range(world) for micro in range(accumulate)]
    assert sorted(np.concatenate(shares)) == list(range(56, 64))


def test_rows_start_over_and_unequal_shares_are_refused() -> None:
    assert step_ids(2, 4, 10).tolist() == [8, 9, 0, 1]
    with pytest.raises(DataError, match="8 rows a step cannot be shared by 3"):
        part(step_ids(0, 8, 100), 0, 3)


def test_rows_come_back_across_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "ROWS_PER_FILE", 10)
    rows = np.arange(25 * 5, dtype=np.uint16).reshape(25, 5)
    tokenizer = Tokenizer().describe()
    store = tokens.write_store(tmp_path, [("train", rows), ("val", rows[:3])], name="x", seq_len=4, tokenizer=tokenizer,
                               packing={}, source={}, seed=0, shuffle=False)
    assert len(store.splits["train"].files) == 3
    ids = np.array([24, 0, 9, 10, 11])
    np.testing.assert_array_equal(store.splits["train"].take(ids), rows[ids])
    store.verify()


def test_shuffling_is_seeded_and_loses_nothing(tmp_path: Path) -> None:
    rows = np.arange(200, dtype=np.uint16).reshape(40, 5)

    def make(name: str, seed: int) -> np.ndarray:
        store = tokens.write_store(tmp_path / name, [("train", rows), ("val", rows)], name="x", seq_len=4, seed=seed,
                                   tokenizer=Tokenizer().describe(), packing={}, source={}, shuffle=True)
        return store.splits["train"].take(np.arange(40))

    one, again, other = make("a", 0), make("b", 0), make("c", 1)
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)
    assert not np.array_equal(one, rows)
    np.testing.assert_array_equal(one[np.argsort(one[:, 0])], rows)


def test_damaged_stores_are_refused(tmp_path: Path, store: RowStore) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(store.folder, copy)
    first = copy / "train-00000.bin"
    data = bytearray(first.read_bytes())
    data[100] ^= 1
    first.write_bytes(data)
    with pytest.raises(DataError, match="changed since it was written"):
        RowStore(copy).verify()
    first.write_bytes(data[:-2])
    with pytest.raises(DataError, match=f"{len(data) - 2} bytes; the manifest says {len(data)}"):
        RowStore(copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(manifest | {"schema_version": "9"}))
    with pytest.raises(DataError, match="version '9'; this release reads"):
        RowStore(copy)
    (copy / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="not JSON"):
        RowStore(copy)


def test_a_store_is_not_overwritten_nor_left_without_validation(tmp_path: Path) -> None:
    synthetic_store(tmp_path / "a", rows=8, val_rows=2)
    with pytest.raises(DataError, match="holds a row store already"):
        synthetic_store(tmp_path / "a", rows=8, val_rows=2)
    with pytest.raises(DataError, match="no complete val row"):
        tokens.write_store(tmp_path / "b", [("train", np.zeros((2, 5), np.uint16))], name="x", seq_len=4,
                           tokenizer=Tokenizer().describe(), packing={}, source={}, seed=0, shuffle=False)
    assert not (tmp_path / "b" / "manifest.json").exists()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 30), max_size=60), st.integers(2, 20), st.integers(1, 10))
def test_best_fit_makes_full_rows_of_whole_or_cut_documents(lengths: list[int], width: int, buffer: int) -> None:
    documents = [np.arange(n) + 100 * i for i, n in enumerate(lengths)]
    rows = list(best_fit(iter(documents), width, buffer))
    used = set()
    for row in rows:
        assert row.shape == (1, width)
        starts = [*np.flatnonzero(row[0] % 100 == 0), width]
        assert starts[0] == 0  # every row starts with the start of a document
        for a, b in pairwise(starts):
            index = int(row[0][a]) // 100
            assert index not in used  # no document is used twice
            used.add(index)
            np.testing.assert_array_equal(row[0][a:b], documents[index][: b - a])
            assert b - a == lengths[index] or b == width  # only the last of a row is cut


def test_best_fit_takes_the_longest_that_fits_else_cuts_the_shortest() -> None:
    documents = [np.full(n, n) for n in (3, 9, 5, 4)]
    rows = [row[0].tolist() for row in best_fit(iter(documents), 8)]
    # 5 fits, then 3 fills the row; then 4, and 9 cut to the space left
    assert rows == [[5] * 5 + [3] * 3, [4] * 4 + [9] * 4]


def test_concatenation_drops_the_incomplete_row() -> None:
    assert concatenate([np.arange(5), np.arange(4)], 4).tolist() == [[0, 1, 2, 3], [4, 0, 1, 2]]
    assert concatenate([], 4).shape == (0, 4)


def test_text_files_as_bytes(tmp_path: Path) -> None:
    texts = {f"{i}.txt": f"document {i} " * 20 for i in range(80)}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    store = text_store(sorted(tmp_path.glob("*.txt")), tmp_path / "rows", name="mine", seq_len=16,
                       tokenizer=Tokenizer(), seed=0)
    split = {name: part.take(np.arange(part.rows)) for name, part in store.splits.items()}
    size = sum(map(len, texts.values())) + len(texts)
    assert sum(rows.size for rows in split.values()) > size - 2 * 17
    held = bytes(split["val"].astype(np.uint8).ravel())
    assert held.count(b"\0") == 2  # two of eighty documents
    assert (store.name, store.seq_len, store.vocab_size) == ("mine", 16, 256)


def test_one_file_gives_its_end_to_validation(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("abcdefghij" * 400)
    store = text_store([tmp_path / "one.txt"], tmp_path / "rows", name="x", seq_len=9, tokenizer=Tokenizer(), seed=0)
    assert (store.splits["train"].rows, store.splits["val"].rows) == (390, 10)


def test_cleaning_and_repeated_documents(tmp_path: Path) -> None:
    assert clean("a\x00é\r\nb   c======d\n\n\n\ne") == "a\nb  c===d\n\ne\n"
    texts = {"a.rst": "x y z " * 200, "b.txt": "x y z " * 200, "c.rst": "short", "d.html": "no " * 500}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert len(corpus(tmp_path)) == 1


def words_tokenizer(path: Path) -> Path:
    """A tokenizer.json of whole words."""
    library = pytest.importorskip("tokenizers")
    vocabulary = {"<unk>": 0, "<s>": 1} | {f"w{i}": i + 2 for i in range(50)}
    tokenizer = library.Tokenizer(library.models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = library.pre_tokenizers.Whitespace()
    tokenizer.save(str(path))
    return path


def shards(folder: Path) -> list[Path]:
    """Three parquet files of the form of FineWeb-Edu's shards."""
    rng = np.random.default_rng(0)
    paths = []
    for i in range(3):
        texts = [" ".join(f"w{j}" for j in rng.integers(0, 50, rng.integers(5, 40))) for _ in range(100)]
        paths.append(folder / f"shard_{i:05d}.parquet")
        pq.write_table(pa.table({"text": texts, "url": [""] * 100}), paths[-1])
    return paths


class Words(Tokenizer):
    """The same words, without the `tokenizers` package."""

    vocab_size, bos = 52, 1

    def encode(self, text: str) -> np.ndarray:
        return np.array([1, *(int(word[1:]) + 2 for word in text.split())], dtype=np.uint16)


def test_fineweb_shards_are_packed_by_best_fit(tmp_path: Path) -> None:
    store = finewebedu_store(tmp_path / "rows", Words(), files=shards(tmp_path), rows=30, val_rows=10, name="fw",
                             seq_len=64, seed=0)
    rows = store.splits["train"].take(np.arange(30))
    assert rows.shape == (30, 65)
    assert (rows[:, 0] == 1).all()
    assert store.splits["val"].rows == 10
    assert store.manifest["packing"] == {"algorithm": "best-fit", "buffer": 1000}


def test_a_tokenizer_file_agrees_with_the_words(tmp_path: Path) -> None:
    tokenizer = sources.JsonTokenizer(words_tokenizer(tmp_path / "tokenizer.json"))
    assert tokenizer.bos == 1
    assert tokenizer.vocab_size == 52
    text = "w3 w0 w49"
    np.testing.assert_array_equal(tokenizer.encode(text), Words().encode(text))


def test_missing_packages_and_files_get_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="pip install tokenizers"):
        sources.JsonTokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(DataError, match="pip install datasets"):
        next(sources.parquet_texts(["hf://datasets/x/y.parquet"]))
    pq.write_table(pa.table({"words": ["a"]}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="columns words; expected text"):
        next(sources.parquet_texts([tmp_path / "x.parquet"]))
    with pytest.raises(DataError, match="not readable as parquet"):
        next(sources.parquet_texts([tmp_path / "none.parquet"]))


def test_packed_parquet_rows_keep_their_order(tmp_path: Path) -> None:
    rows = np.arange(20 * 9, dtype=np.uint16).reshape(20, 9)
    for name, block in (("train-00000", rows[:10]), ("train-00001", rows[10:]), ("val-00000", rows[:4])):
        column = pa.array(block.tolist(), type=pa.list_(pa.uint16()))
        pq.write_table(pa.table({"tokens": column}), tmp_path / f"{name}.parquet")
    store = parquet_store(tmp_path, tmp_path / "rows", vocab_size=300, name="x")
    np.testing.assert_array_equal(store.splits["train"].take(np.arange(20)), rows)
    assert store.seq_len == 8
    with pytest.raises(DataError, match="ids up to 179; expected 9 tokens with ids below 100"):
        parquet_store(tmp_path, tmp_path / "small", vocab_size=100, name="x")


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["synthetic", "--rows", "32", "--seq-len", "8", "--out", str(tmp_path / "s")]) == 0
    assert "train 32 rows" in capsys.readouterr().out
    assert main(["synthetic", "--out", str(tmp_path / "s")]) == 1
    assert "holds a row store already" in capsys.readouterr().err
    assert main(["text", str(tmp_path / "none.txt"), "--out", str(tmp_path / "t")]) == 1
    assert "none.txt: cannot be read" in capsys.readouterr().err
    assert main(["debian", "--packages", str(tmp_path), "--out", str(tmp_path / "d")]) == 1
    assert "expected one .deb each" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["nonsense"])
    assert caught.value.code == 2
