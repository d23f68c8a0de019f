"""The pieces of code in CONTRIBUTING.md, each with the file that it is added to."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"


def snippets() -> list[tuple[str, str]]:
    """Module and code of every piece, in their order."""
    blocks = re.findall(r"```python\n# (\S+)\.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [(name.replace("/", "."), code) for name, code in blocks]


@contextmanager
def applied(*names: str) -> Iterator[None]:
    """The pieces for some modules in their places, and out of them again."""
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            apply_to(name, patch)
        yield


def apply_to(name: str, patch: pytest.MonkeyPatch) -> ModuleType:
    """Run the pieces for a module at its end, as if they stood there; registries and names go back with the patch."""
    module = importlib.import_module(name)
    for code in [code for owner, code in snippets() if owner == name]:
        registries = re.findall(r"^(\w+)\[\"(\w[\w-]*)\"\] =", code, re.MULTILINE)
        names = re.findall(r"^(?:def|class) (\w+)", code, re.MULTILINE)
        for new in names:
            patch.setattr(module, new, None, raising=False)
        for registry, key in registries:
            patch.setitem(getattr(module, registry), key, None)
        exec(compile(code, f"CONTRIBUTING.md: {name}", "exec"), vars(module))
    return module
