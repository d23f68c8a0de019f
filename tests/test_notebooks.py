"""The notebooks run as they stand, and what is kept of their last run reads well on a code host.

`python -m tests.test_notebooks` runs them and keeps what they show.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
PUBLIC = ("bayesloop", "bayesloop.plots", "bayesloop.laws", "bayesloop.architecture", "arviz_base", "arviz_plots",
          "arviz_stats", "numpy", "pandas")


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook after a run from top to bottom, without what went to standard error."""
    notebook = nbformat.read(path, as_version=4)
    metadata = copy.deepcopy(notebook.metadata)
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", record_timing=False,
                            resources={"metadata": {"path": str(FOLDER)}})
    client.execute()
    notebook.metadata = metadata
    for cell in code_cells(notebook):
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def kinds(cell: nbformat.NotebookNode) -> list[str]:
    """What a cell has put out: prints, tables, figures."""
    return ["figure" if "image/png" in output.get("data", {}) else output.output_type for output in cell.outputs]


def test_the_three_notebooks_are_there() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["01_runs", "02_fit", "03_compare"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_kept(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert path.stat().st_size < 500_000
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run it from top to bottom"
    assert all(cell.outputs for cell in cells[1:]), "every cell but the imports shows something"
    shown = str([cell.outputs for cell in cells])
    assert not re.search(r"/(?:home|root|tmp|work|usr)/|it/s|Traceback|Warning", shown)
    assert not [output for cell in cells for output in cell.outputs if output.get("name") == "stderr"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_only_public_names_are_used(path: Path) -> None:
    source = "\n".join(cell.source for cell in code_cells(nbformat.read(path, as_version=4)))
    used = re.findall(r"^(?:import|from) (\S+)", source, re.MULTILINE)
    assert used
    assert set(used) <= set(PUBLIC)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_shows_the_same_things(path: Path) -> None:
    kept, fresh = nbformat.read(path, as_version=4), executed(path)
    assert [kinds(cell) for cell in code_cells(fresh)] == [kinds(cell) for cell in code_cells(kept)]


if __name__ == "__main__":
    for notebook_path in NOTEBOOKS:
        nbformat.write(executed(notebook_path), notebook_path)
