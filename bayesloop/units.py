"""From cells to numbers, strictly: units are declared, never guessed, and a cell that is no number is an error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import inf, isfinite, log, nan
from typing import Any

import numpy as np

from bayesloop.problems import RunsError, near

DECIMAL = {"K": 3, "M": 6, "B": 9, "T": 12}
LOSS_UNITS = ("nat/token", "bit/token", "bit/byte", "perplexity")
MISSING = frozenset({"", "na", "n/a", "none", "null", "<na>", "nat"})

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SUFFIXED = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)) ?([kKMBT])")
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_SPECIAL = {"nan": nan, "inf": inf, "infinity": inf}


@dataclass(frozen=True)
class Unit:
    """How the cells of a column become the schema's unit: × `scale`, after an optional suffix, or a logarithm."""

    scale: float = 1.0
    suffix: bool = False
    is_perplexity: bool = False


def declared_units(units: Mapping[str, Any] | None, known: Mapping[str, type],
                   tokens_per_byte: float | None) -> dict[str, Unit]:
    """The declared unit of each column.

    Parameters
    ----------
    units : mapping of column to unit
        A scale factor (a number, or text such as "1e6"), K, M, B or T (the cells count thousands, millions, …),
        "suffix" (the cells carry K, M, B or T themselves), or for `loss` and `loss_se` one of `LOSS_UNITS`.
    known : mapping of column to type
        Names that may be declared.
    tokens_per_byte : float, optional
        Tokens per byte of the validation text; needed for bit/byte.

    Raises
    ------
    RunsError
        If a column or unit is unknown, or bit/byte stands without `tokens_per_byte`.
    """
    result = {}
    for name, unit in (units or {}).items():
        if name not in known or known[name] is str:
            numeric = [other for other, dtype in known.items() if dtype is not str]
            raise RunsError(f"units: no numeric column {name!r}{near(str(name), numeric)}; units are declared under "
                            f"this package's names: {', '.join(numeric)}")
        result[name] = _unit(name, unit, tokens_per_byte)
    if "loss" in result and result["loss"] != Unit():
        result.setdefault("loss_se", Unit(nan))  # refused where such a column exists
    return result


def _unit(name: str, unit: Any, tokens_per_byte: float | None) -> Unit:
    is_loss = name in ("loss", "loss_se")
    if is_loss and isinstance(unit, str) and unit in LOSS_UNITS:
        if unit == "bit/byte":
            if tokens_per_byte is None or not 0 < tokens_per_byte < inf:
                raise RunsError(
                    f"units: {name} in bit/byte needs tokens_per_byte, found {tokens_per_byte!r}; give the validation "
                    "text's tokens divided by its bytes (about 0.25 for a 32k vocabulary on English)")
            return Unit(log(2) / tokens_per_byte)
        return Unit(log(2) if unit == "bit/token" else 1.0, is_perplexity=unit == "perplexity")
    if not is_loss and isinstance(unit, str) and unit in DECIMAL:
        return Unit(10.0 ** DECIMAL[unit])
    if not is_loss and unit == "suffix":
        return Unit(suffix=True)
    scale = nan
    is_number = isinstance(unit, int | float) and not isinstance(unit, bool)
    if is_number or (isinstance(unit, str) and _NUMBER.fullmatch(unit)):
        scale = float(unit)
    if not (isfinite(scale) and scale > 0):
        names = ", ".join(LOSS_UNITS) if is_loss else "K, M, B, T or suffix"
        raise RunsError(f"units: {name} has unit {unit!r}; expected a positive scale factor or one of {names}")
    return Unit(scale)


def parse_number(cell: Any, suffix: bool = False) -> int | float | None:
    """The number in one cell; None for an empty one, NaN and ±inf as they are.

    Parameters
    ----------
    cell : any
        Text, or a number as a data frame holds it.
    suffix : bool
        Whether K, M, B or T after the digits is declared.

    Raises
    ------
    ValueError
        If the cell is no number; the message says why.
    """
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(cell, str):
        return _parse_text(cell.strip(), suffix)
    if isinstance(cell, bool | np.bool_):
        raise ValueError("a truth value")
    if isinstance(cell, int | np.integer):
        return int(cell) if abs(int(cell)) < 2**63 else _as_float(int(cell))
    if isinstance(cell, float | np.floating | Decimal):
        return float(cell)
    raise ValueError(f"of type {type(cell).__name__}")


def _parse_text(text: str, suffix: bool) -> int | float | None:
    if text.lower() in MISSING:
        return None
    if _WHOLE.fullmatch(text) and abs(int(text)) < 2**63:
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    if (special := _SPECIAL.get(text.lower().lstrip("+-"))) is not None:
        return -special if text.startswith("-") else special
    if match := _SUFFIXED.fullmatch(text):
        if not suffix:
            raise ValueError("written with a suffix that is not declared")
        return float(f"{match[1]}e{DECIMAL[match[2].upper()]}")
    if text.endswith("%"):
        raise ValueError("a percentage")
    if "," in text or "_" in text:
        raise ValueError("written with separators")
    raise ValueError("no number")


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return inf


def to_schema_unit(values: np.ndarray, unit: Unit) -> np.ndarray:
    """Numbers in the declared unit → the schema's unit; 0, negative and non-finite perplexities stay as they are."""
    if not unit.is_perplexity:
        return values * unit.scale
    return np.where(values > 0, np.log(np.where(values > 0, values, 1.0)), values)
