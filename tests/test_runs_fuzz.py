"""What comes out of damaged tables is a valid table or a RunsError, nothing else: 1,000 examples."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayesloop.hygiene import ALLOWABLE
from bayesloop.problems import RunsError, RunsWarning
from bayesloop.runs import fingerprint, read_runs, validate
from bayesloop.schema import COLUMNS
from tests.tables import changed, paper_rows

CELLS = st.one_of(
    st.sampled_from(["", "0", "-1", "nan", "inf", "-inf", "1e999", "12M", "1.3E+14", "11%", "True", "1,5", '"', "\0",
                     "x\ny", "running", "failed", "exact", "formula", "linear", "hyperconnect", "baseline", "2", "1",
                     "4", "1e18", "9" * 30, "1e-300", "1e308", "2.9", "3"]),
    st.floats().map(repr), st.integers().map(str), st.text(max_size=6))
OBJECTS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6), st.just(pd.NaT), st.just(pd.NA),
    st.binary(max_size=3), st.just([1]), st.complex_numbers(), st.sampled_from([1, 2, 1e18, 2.9, "linear"]))
HEADERS = st.sampled_from([*COLUMNS, "n_prelude", "n_recur", "n_coda", "n_params", "vocab_size", "other"])
OPTIONS = st.fixed_dictionaries({
    "injection": st.sampled_from(["rec", "once", "none"]),
    "count_convention": st.sampled_from([None, "exact", "formula"]),
    "units": st.sampled_from([None, None, {"tokens": "suffix"}, {"loss": "perplexity", "loss_se": "perplexity"},
                              {"r": "K"}, {"loss": "bit/byte", "loss_se": 2.0}, {"tokens": 1e300, "n_rec": "T"}]),
    "tokens_per_byte": st.sampled_from([None, 0.25]),
    "allow": st.sampled_from([(), ALLOWABLE])})
QUICK = settings(deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))


def holds(source: Any, options: dict[str, Any]) -> None:
    """A valid table with nothing but our own warning, or a RunsError."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", RunsWarning)
        try:
            runs = read_runs(source, **options)
        except RunsError:
            return
    assert len(runs) > 0
    assert (runs.r >= 1).all()
    assert np.isfinite(runs[["n_once", "n_rec", "tokens", "loss"]]).all(axis=None)
    assert ((runs.n_once + runs.n_rec > 0) & (runs.tokens > 0) & (runs.loss > 0)).all()
    assert runs.run_id.is_unique
    assert (runs.probe != "").all()
    json.dumps(runs.attrs)
    again = validate(runs, injection=options["injection"], allow=ALLOWABLE).runs
    assert again is not None
    assert fingerprint(again) == fingerprint(runs)


@settings(QUICK, max_examples=400)
@given(cells=st.dictionaries(st.tuples(st.integers(0, 11), HEADERS), CELLS, max_size=8), options=OPTIONS)
def test_tables_with_odd_cells(tmp_path_factory: pytest.TempPathFactory, cells: Any, options: dict[str, Any]) -> None:
    holds(changed(tmp_path_factory.getbasetemp() / "cells.csv", cells, n=12), options)


@settings(QUICK, max_examples=300)
@given(edits=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 40), st.text(max_size=8)), min_size=1, max_size=6),
       options=OPTIONS)
def test_tables_with_damaged_text(tmp_path_factory: pytest.TempPathFactory, edits: Any, options: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "text.csv"
    text = changed(path, {}, n=12).read_text()
    for start, length, insert in edits:
        text = text[:start] + insert + text[start + length :]
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    holds(path, options)


@settings(QUICK, max_examples=100)
@given(names=st.lists(HEADERS, max_size=12), data=st.data(), options=OPTIONS)
def test_frames_of_anything(names: list[str], data: st.DataObject, options: dict[str, Any]) -> None:
    rows = data.draw(st.lists(st.lists(OBJECTS, min_size=len(names), max_size=len(names)), max_size=4))
    frame = pd.DataFrame({i: pd.Series([row[i] for row in rows], dtype=object) for i in range(len(names))})
    frame.columns = pd.Index(names, dtype=object)
    holds(frame, options)


@settings(QUICK, max_examples=200)
@given(cells=st.dictionaries(st.tuples(st.integers(0, 5), HEADERS), OBJECTS, max_size=6), options=OPTIONS)
def test_frames_with_odd_cells(cells: dict[tuple[int, str], Any], options: dict[str, Any]) -> None:
    rows: list[dict[str, Any]] = [dict(row) for row in paper_rows(6)]
    for (i, name), cell in cells.items():
        rows[i][name] = cell
    holds(pd.DataFrame(rows, dtype=object), options)
