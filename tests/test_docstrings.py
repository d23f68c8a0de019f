"""The API reference is made of docstrings: every public function describes every one of its parameters."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import bayesloop as bl
from bayesloop import errors, laws, plots, structures

EVERY = {f"bayesloop.{name}": getattr(bl, name) for name in bl.__all__}
EVERY |= {f"bayesloop.plots.{name}": getattr(plots, name) for name in plots.__all__}
EVERY |= {f"{module.__name__}.{name}": getattr(module, name) for module, names in (
    (laws, ("Law", "Prior", "get_law", "resolve_priors")), (errors, ("ErrorModel", "get_errors", "pointwise")),
    (structures, ("Structure", "Recipe", "get_structure", "get_recipe", "mean_loss"))) for name in names}
PUBLIC = {name: thing for name, thing in EVERY.items() if callable(thing)}


def sections(thing: Any) -> dict[str, list[str]]:
    """Lines of each section of a docstring in numpydoc's form."""
    found: dict[str, list[str]] = {"": []}
    lines = inspect.getdoc(thing).splitlines()  # type: ignore[union-attr]
    current = ""
    for line, rule in zip(lines, [*lines[1:], ""], strict=True):
        if rule and set(rule) == {"-"}:
            current = line
            found[current] = []
        elif set(line) != {"-"}:
            found[current].append(line)
    return found


def described(lines: list[str]) -> list[str]:
    """Names of a section: what stands at its margin, before the colon."""
    heads = [line.partition(" : ")[0] for line in lines if line and not line.startswith(" ")]
    return [name.lstrip("*") for head in heads for name in re.split(r",\s*", head)]


@pytest.mark.parametrize("name", PUBLIC)
def test_parameters_are_described(name: str) -> None:
    thing = PUBLIC[name]
    taken = list(inspect.signature(thing).parameters)
    found = sections(thing)
    if "Parameters" in found:
        assert set(described(found["Parameters"])) == set(taken)
        assert found[""][0].strip()
    else:
        assert len(taken) <= 3, f"{name} describes none of its parameters {taken}"


@pytest.mark.parametrize("name", bl.__all__)
def test_a_public_name_stays_what_it_is(name: str) -> None:
    """A module of the same name would take its place once it is imported."""
    home = bl._HOME.get(name)
    assert home != name
    assert getattr(bl, name) is getattr(bl, name)
