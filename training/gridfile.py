"""A user's own grid as a TOML file: budgets × sizes × r × recipe × seeds, with errors that name the line.

    recipe = "micro"                      # defaults of every run: paper or micro
    data = "debian"                       # optional: by default the row store given to the sweep

    [rates]                               # optional: any of the recipe's learning rates
    matrix = 0.014

    [[cell]]                              # expands to a product; as many cells as needed
    budgets = [1.2e11, 3.2e11]
    widths = [16, 24]                     # or sizes = [6, 8], width 64 s
    r = [1, 2, 4]
    bptt = "half"                         # optional: full (default), half, or a number of recurrences
    scheme = "linear"                     # optional
    lanes = 0                             # optional: residual lanes of hyperconnect
    seeds = [42]                          # optional
    probe = ""                            # optional: a name for the recipe
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import tomllib
from math import ceil
from pathlib import Path
from typing import Any

from bayesloop.architecture import ArchitectureError
from training.grid import RECIPES, ConfigError, Rates, RunConfig

TOP: dict[str, Any] = {"recipe": str, "data": str, "rates": dict, "cell": list}
RATES: dict[str, Any] = {field.name: (int, float) for field in dataclasses.fields(Rates)}
CELL: dict[str, Any] = {"budgets": list, "sizes": list, "widths": list, "r": list, "bptt": (str, int), "scheme": str,
                        "lanes": int, "seeds": list, "probe": str}
NUMBERS: dict[str, Any] = {"budgets": (int, float), "sizes": (int, float), "widths": int, "r": int, "seeds": int}


def read_grid(path: Path, data: str | None = None) -> list[RunConfig]:
    """Runs of a grid file, in its order.

    Parameters
    ----------
    path : Path
    data : str, optional
        Name of the row store; a `data` in the file must agree with it.

    Raises
    ------
    ConfigError
        If the file is missing, is not TOML, or an entry is unknown, of the wrong type or gives an impossible run.
    """
    try:
        text = path.read_text()
        values = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    except tomllib.TOMLDecodeError as error:  # names line and column
        raise ConfigError(f"{path}: not TOML: {error}") from None
    return _Reader(path, text, values, data).runs()


class _Reader:
    def __init__(self, path: Path, text: str, values: dict[str, Any], data: str | None) -> None:
        self.path, self.lines, self.values, self.data = path, text.splitlines(), values, data

    def error(self, message: str, table: str = "", index: int = 0, key: str = "") -> ConfigError:
        """An error at the line of a key, or of its table's header."""
        return ConfigError(f"{self.path}, line {self.line(table, index, key)}: {message}")

    def line(self, table: str, index: int, key: str) -> int:
        """Number of the line that sets `key` in the `index`-th table of a name, as far as plain text tells."""
        headers = [n for n, line in enumerate(self.lines, 1) if re.match(rf"\s*\[+\s*{table}\s*\]", line)]
        start = headers[index] if table and index < len(headers) else 1
        for number in range(start, len(self.lines) + 1):
            line = self.lines[number - 1]
            if key and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line):
                return number
            if number > start and re.match(r"\s*\[", line):
                break
        return start

    def runs(self) -> list[RunConfig]:
        self.check(self.values, TOP)
        recipe = self.values.get("recipe")
        if recipe not in RECIPES:
            raise self.error(f"recipe is {recipe!r}; expected {' or '.join(RECIPES)}", key="recipe")
        named = self.values.get("data")
        if named and self.data and named != self.data:
            raise self.error(f"data is {named!r}, but the row store is {self.data!r}", key="data")
        if not self.values.get("cell"):
            raise self.error("no [[cell]]; expected at least one, with budgets, sizes or widths, and r")
        self.check(self.values.get("rates", {}), RATES, "rates")
        return [run for index, cell in enumerate(self.values["cell"]) for run in self.cell(index, cell)]

    def check(self, values: dict[str, Any], expected: dict[str, Any], table: str = "", index: int = 0) -> None:
        """Refuse unknown keys and wrong types."""
        for key, value in values.items():
            if key not in expected:
                raise self.error(f"unknown key {key!r}; expected one of {', '.join(expected)}", table, index, key)
            if not isinstance(value, expected[key]) or isinstance(value, bool):
                raise self.error(f"{key} is {value!r}; expected {_kind(expected[key])}", table, index, key)
            numbers = NUMBERS.get(key)
            if numbers and not (value and all(isinstance(v, numbers) and not isinstance(v, bool) for v in value)):
                raise self.error(f"{key} is {value!r}; expected a list of {_kind(numbers)}s", table, index, key)

    def cell(self, index: int, cell: dict[str, Any]) -> list[RunConfig]:
        """Runs of one cell."""
        self.check(cell, CELL, "cell", index)
        axis = "sizes" if self.values["recipe"] == "paper" else "widths"
        for key in ("budgets", axis, "r"):
            if key not in cell:
                raise self.error(f"a cell of the {self.values['recipe']} recipe needs {key}", "cell", index)
        other = "widths" if axis == "sizes" else "sizes"
        if other in cell:
            raise self.error(f"{other} in a cell of the {self.values['recipe']} recipe; expected {axis}", "cell", index,
                             other)
        product = itertools.product(cell["budgets"], cell[axis], cell["r"], cell.get("seeds", [42]))
        return [self.run(index, cell, float(budget), size, r, seed) for budget, size, r, seed in product]

    def run(self, index: int, cell: dict[str, Any], budget: float, size: Any, r: int, seed: int) -> RunConfig:
        """One run of a cell."""
        bptt = cell.get("bptt", "full")
        if isinstance(bptt, str) and bptt not in ("full", "half"):
            raise self.error(f"bptt is {bptt!r}; expected full, half or a number of recurrences", "cell", index, "bptt")
        bptt_k = {"full": None, "half": ceil(r / 2)}[bptt] if isinstance(bptt, str) else bptt
        data = self.values.get("data") or self.data
        try:
            config = RECIPES[self.values["recipe"]](
                size, r, budget, scheme=cell.get("scheme", "linear"), bptt_k=bptt_k, lanes=cell.get("lanes", 0),
                seed=seed, **({"data": data} if data else {}))
            rates = dataclasses.replace(config.rates, **self.values.get("rates", {}))
            return dataclasses.replace(config, rates=rates, probe=cell.get("probe") or config.probe)
        except (ArchitectureError, ConfigError) as error:
            where = f"budget {budget:g}, {'size' if self.values['recipe'] == 'paper' else 'width'} {size}, r {r}"
            raise self.error(f"{where}: {error}", "cell", index) from None


def _kind(types: Any) -> str:
    names = {str: "text", int: "integer", float: "number", list: "list", dict: "table"}
    if types == (int, float):
        return "number"
    return " or ".join(names[t] for t in types) if isinstance(types, tuple) else names[types]
