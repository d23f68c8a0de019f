"""Numbers as text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

SUFFIX = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def short(value: float) -> str:
    """A count to three digits, as people say it: 583M, 1.02B."""
    if value != value:
        return ""
    if value == float("inf"):
        return "∞"
    unit, suffix = next(((unit, name) for name, unit in reversed(SUFFIX.items()) if abs(value) >= 0.9995 * unit),
                        (1.0, ""))
    return f"{value / unit:.3g}{suffix}"


def many(count: int, noun: str) -> str:
    """A count with its noun: 1 run, 2 runs."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def minus(text: str) -> str:
    """The hyphens that stand for a minus sign as minus signs: those before a number, not within a name."""
    return re.sub(r"(?<![\w.)\]-])-(?=[\d.])", "−", text)


def percent(prob: float) -> str:
    """A probability in percent."""
    return f"{100 * prob:g} %"


def intervals(lower: pd.Series, upper: pd.Series, form: str = "{:.4g}") -> list[str]:
    """Intervals as text; empty where they are not defined."""
    return [f"[{form.format(low)}, {form.format(high)}]" if low == low else ""
            for low, high in zip(lower, upper, strict=True)]


def spread(table: pd.DataFrame, name: str, form: str = "") -> list[str]:
    """Middle and interval of a column as text; the middle alone where they are equal."""
    show = form.format if form else short
    return [show(middle) + (f" [{show(low)}, {show(high)}]" if show(low) != show(high) else "") for middle, low, high
            in zip(table[name], table[f"{name}_lower"], table[f"{name}_upper"], strict=True)]


def plus_minus(table: pd.DataFrame, mean: str, sd: str, form: str = "{:.3f}", scale: float = 1.0) -> list[str]:
    """Mean and standard deviation as text; empty where they are not defined."""
    sign = form.replace("+", "")
    return [f"{form.format(scale * a)} ± {sign.format(scale * b)}" if a == a and b == b else form.format(scale * a)
            if a == a else "" for a, b in zip(table[mean], table[sd], strict=True)]
