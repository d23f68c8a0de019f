"""Cells and declared units: exact where they are numbers, refused where they are not."""

from __future__ import annotations

from math import isnan, log
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bayesloop.problems import RunsError
from bayesloop.units import Unit, declared_units, parse_number, to_schema_unit

KNOWN = {"run_id": str, "tokens": float, "loss": float, "loss_se": float, "r": int}


@pytest.mark.parametrize(("cell", "number"), [
    ("12", 12), (" 12.5 ", 12.5), ("1.3E+14", 1.3e14), ("-2e-3", -0.002), (".5", 0.5), ("5.", 5.0), (7, 7),
    (np.int64(2**62), 2**62), ("9007199254740993", 2**53 + 1), (10**400, float("inf")), ("-inf", -float("inf")),
    ("", None), ("NA", None), ("null", None), (None, None), (pd.NA, None), (pd.NaT, None)])
def test_numbers_and_empty_cells(cell: Any, number: Any) -> None:
    assert parse_number(cell) == number


def test_nan_stays_nan() -> None:
    assert isnan(parse_number("NaN"))  # type: ignore[arg-type]
    assert isnan(parse_number(float("nan")))  # type: ignore[arg-type]


@pytest.mark.parametrize(("cell", "why"), [
    ("12M", "suffix that is not declared"), ("32.0K", "suffix that is not declared"), ("11%", "percentage"),
    ("1,000", "separators"), ("1_000", "separators"), ("1.2.3", "no number"), ("0x10", "no number"),
    ("١٢", "no number"), (True, "truth value"), ([1], "type list"), (1j, "type complex"), (b"1", "type bytes")])
def test_what_is_no_number_says_why(cell: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_number(cell)


@pytest.mark.parametrize(("cell", "number"), [
    ("12M", 12e6), ("32.0K", 32_000.0), ("1.1 B", 1.1e9), ("2T", 2e12), ("3k", 3000.0), ("17", 17), ("1e3", 1000.0)])
def test_declared_suffixes(cell: str, number: float) -> None:
    assert parse_number(cell, suffix=True) == number


@pytest.mark.parametrize("cell", ["12m", "1e3M", "M", "12MB", "11%"])
def test_other_suffixes_are_refused(cell: str) -> None:
    with pytest.raises(ValueError, match=r"number|percentage|separators"):
        parse_number(cell, suffix=True)


def test_units_scale_exactly() -> None:
    units = declared_units({"tokens": "1e6", "loss": "bit/token"}, KNOWN, None)
    assert units["tokens"] == Unit(1e6)
    assert declared_units({"tokens": "M"}, KNOWN, None) == declared_units({"tokens": 1_000_000}, KNOWN, None)
    assert to_schema_unit(np.array([4.0]), units["loss"]) == pytest.approx(4 * log(2), rel=1e-15)
    perplexity = declared_units({"loss": "perplexity"}, KNOWN, None)["loss"]
    np.testing.assert_allclose(to_schema_unit(np.array([20.0, 0.0, -1.0]), perplexity), [log(20), 0, -1], rtol=1e-15)


def test_bits_per_byte_need_tokens_per_byte() -> None:
    """1 bit a byte at 4 bytes a token are 4 bits a token."""
    unit = declared_units({"loss": "bit/byte"}, KNOWN, 0.25)["loss"]
    assert unit.scale == pytest.approx(4 * log(2), rel=1e-15)
    for wrong in (None, 0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(RunsError, match="needs tokens_per_byte"):
            declared_units({"loss": "bit/byte"}, KNOWN, wrong)


@pytest.mark.parametrize(("units", "message"), [
    ({"token": "M"}, "did you mean 'tokens'"), ({"run_id": "M"}, "no numeric column"), ({"tokens": "G"}, "K, M, B, T"),
    ({"tokens": 0}, "positive scale factor"), ({"tokens": True}, "positive scale factor"),
    ({"tokens": float("inf")}, "positive"), ({"tokens": [1]}, "positive"), ({"loss": "M"}, "nat/token, bit/token"),
    ({"tokens": "bit/token"}, "K, M, B, T"), ({"tokens": "1e999"}, "positive scale factor")])
def test_wrong_units_are_refused(units: dict[str, Any], message: str) -> None:
    with pytest.raises(RunsError, match=message):
        declared_units(units, KNOWN, None)
