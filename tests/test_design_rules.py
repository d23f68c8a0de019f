"""The shape of the project: what may import what, checked in fresh processes; sizes of files and functions."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BAYESLOOP = sorted((ROOT / "bayesloop").rglob("*.py"))
TRAINING = sorted((ROOT / "training").rglob("*.py"))
HEAVY = ("jax", "numpyro", "torch", "arviz_base", "pandas", "xarray", "matplotlib")


def loaded_by(code: str) -> set[str]:
    """Top-level modules loaded after running code in a fresh process."""
    program = f"import sys\n{code}\nprint('MODULES', *sorted({{name.split('.')[0] for name in sys.modules}}))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(result.stdout.split("MODULES", 1)[1].split())


def imports_of(path: Path) -> set[str]:
    """Every module a file imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_importing_bayesloop_is_light() -> None:
    assert not loaded_by("import bayesloop").intersection(HEAVY)


@pytest.mark.parametrize("words", [["--help"], ["fit", "--help"], ["compare", "--help"]])
def test_help_loads_neither_jax_nor_torch(words: list[str]) -> None:
    code = f"from bayesloop.cli import app\ntry:\n    app({words!r})\nexcept SystemExit:\n    pass"
    assert not loaded_by(code).intersection(HEAVY)


def test_fit_and_comparison_do_not_load_torch() -> None:
    modules = loaded_by("import bayesloop.inference, bayesloop.comparison, bayesloop.pointfit, bayesloop.plots")
    assert not modules & {"torch", "training"}


@pytest.mark.parametrize("path", BAYESLOOP, ids=lambda path: path.stem)
def test_bayesloop_knows_nothing_of_training(path: Path) -> None:
    assert not {name.split(".")[0] for name in imports_of(path)} & {"torch", "training"}


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: path.stem)
def test_training_knows_only_the_contract(path: Path) -> None:
    names = imports_of(path)
    assert not {name.split(".")[0] for name in names} & {"jax", "numpyro", "arviz", "arviz_base", "arviz_stats"}
    ours = {".".join(name.split(".")[:2]) for name in names if name.split(".")[0] == "bayesloop"}
    assert ours <= {"bayesloop", "bayesloop.schema", "bayesloop.architecture", "bayesloop.__version__"}


@pytest.mark.parametrize("path", BAYESLOOP + TRAINING, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_files_stay_small(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= 320, f"{path.name} has {lines} lines; split it by subject"


def test_modules_import_without_a_cycle() -> None:
    """Each module of bayesloop imports in a fresh process by itself: no import order is needed."""
    names = [f"bayesloop.{path.stem}" for path in BAYESLOOP if path.stem != "__main__"]
    steps = [f"[sys.modules.pop(m) for m in list(sys.modules) if m.startswith('bayesloop')]; import {name}"
             for name in names]
    loaded_by("\n".join(["import sys", *steps]))


def test_numpyro_may_have_been_put_off() -> None:
    """ArviZ 1.x registers a NumPyro that loads at its first use; its submodules must not be imported before it."""
    loaded_by("""from importlib.util import LazyLoader, find_spec, module_from_spec
spec = find_spec("numpyro")
spec.loader = LazyLoader(spec.loader)
sys.modules["numpyro"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["numpyro"])
import bayesloop.inference, numpyro
numpyro.distributions.distribution.Unit""")
