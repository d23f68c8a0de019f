"""Grids: counts, identities, published totals; grid files and their errors."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from math import ceil
from pathlib import Path

import pytest

from training.grid import ConfigError, micro_run, paper_run
from training.gridfile import read_grid
from training.grids import GRIDS, distinct
from training.sweep import grid_runs, main

COUNTS = {"paper": 116, "truncated": 69, "hyperconnections": 63, "micro": 80, "micro-truncated": 36,
          "micro-hyperconnections": 48, "micro-ci": 6}


def test_every_grid_has_its_runs_and_unique_ids() -> None:
    assert {name: len(grid()) for name, grid in GRIDS.items()} == COUNTS
    for group in (("paper", "truncated", "hyperconnections"), ("micro", "micro-truncated", "micro-hyperconnections")):
        runs = [run for name in group for run in GRIDS[name]()]
        assert distinct(runs) == runs
        assert len({run.run_id for run in runs}) == len(runs)
    assert all(run.data == "mine" for grid in GRIDS.values() for run in grid("mine"))


@pytest.mark.parametrize(("name", "flops"), [
    ("paper", 7.258e20), ("truncated", 1.597e20), ("hyperconnections", 1.428e20)])
def test_compute_of_the_published_grids(name: str, flops: float) -> None:
    assert sum(run.budget for run in GRIDS[name]()) == pytest.approx(flops, rel=2e-4)  # four digits are printed


def test_recipes_of_the_probes() -> None:
    for prefix in ("", "micro-"):
        for run in GRIDS[f"{prefix}truncated"]():
            arch = run.architecture
            assert (run.probe, arch.backward_recurrences) == ("truncated", ceil(arch.r / 2))
        for run in GRIDS[f"{prefix}hyperconnections"]():
            assert run.probe == "hyperconnections"
            assert (run.architecture.scheme, run.architecture.lanes) == ("hyperconnect", 2)
    once = [run.architecture for run in GRIDS["micro-hyperconnections"]() if run.architecture.r == 1]
    assert len(once) == 12
    assert {(arch.n_prelude, arch.n_recur, arch.n_coda) for arch in once} == {(0, 10, 0)}
    assert {run.architecture.depth for name in GRIDS for run in GRIDS[name]()} == {10, 20}


def test_one_run_under_two_names_is_refused() -> None:
    assert len(distinct([paper_run(8, 2, 1e18), paper_run(8, 2, 1e18)])) == 1
    with pytest.raises(ConfigError, match=r"baseline-s7-.* and baseline-s8-.* are the same run"):
        distinct([paper_run(7, 2, 1e18), paper_run(8, 2, 1e18)])
    with pytest.raises(ConfigError, match="are the same run"):
        distinct([micro_run(16, 2, 1e11), dataclasses.replace(micro_run(16, 2, 1e11), probe="mine")])


def test_choice_of_runs() -> None:
    assert len(grid_runs(["micro", "micro-truncated"], None, 1.2e11)) == 28
    assert len(grid_runs(["micro", "micro"], None, None)) == 80
    with pytest.raises(ConfigError, match=r"--grid mikro: no such grid; expected one of paper, .*toml"):
        grid_runs(["mikro"], None, None)
    with pytest.raises(ConfigError, match="no run to train"):
        grid_runs(["micro"], None, 1.0)


def test_listing_loads_no_torch_and_trains_nothing(tmp_path: Path) -> None:
    code = ("import sys; from training.sweep import main; "
            "code = main(['--grid', 'paper', '--list', '--on', 'H100']); "
            "assert not {'torch', 'submitit', 'jax'} & set(sys.modules); raise SystemExit(code)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 118
    name, parameters, tokens, flops, hours, gigabytes = lines[1].split()
    assert name.startswith("baseline-s6-r1-4.64e17-")
    assert (parameters, tokens, flops) == ("35,404,800", "976,748,544", "4.64e+17")
    assert 0.3 < float(hours) < 1.5
    assert 10 < float(gigabytes) < 80
    assert lines[-1].startswith("116 runs, 7.258e+20 FLOP, ")


def test_listing_for_an_unknown_device(capsys: pytest.CaptureFixture) -> None:
    assert main(["--grid", "paper", "--list", "--on", "H1000"]) == 1
    assert "--on H1000: unknown device; expected cpu, A100" in capsys.readouterr().err


GOOD = """\
recipe = "micro"
data = "mine"

[rates]
matrix = 0.02

[[cell]]
budgets = [1.2e11, 3e11]
widths = [8, 16]
r = [1, 4]
seeds = [1, 2]

[[cell]]
budgets = [1e11]
widths = [16]
r = [4]
bptt = "half"
probe = "short"

[[cell]]
budgets = [100_000_000_000]
widths = [16]
r = [2]
scheme = "hyperconnect"
lanes = 2
"""


def grid_file(folder: Path, text: str) -> Path:
    path = folder / "grid.toml"
    path.write_text(text)
    return path


def test_a_grid_file(tmp_path: Path) -> None:
    runs = read_grid(grid_file(tmp_path, GOOD))
    assert len(runs) == 2 * 2 * 2 * 2 + 2
    assert {run.data for run in runs} == {"mine"}
    assert {run.rates.matrix for run in runs} == {0.02}
    assert {run.seed for run in runs} == {1, 2, 42}
    assert [(run.probe, run.architecture.bptt_k) for run in runs[-2:]] == [("short", 2), ("hyperconnections", 2)]
    text = GOOD.replace('data = "mine"\n', "").replace("[rates]\nmatrix = 0.02", "")
    plain = read_grid(grid_file(tmp_path, text), "debian")
    assert plain[0] == micro_run(8, 1, 1.2e11, seed=1)


def test_a_grid_file_of_the_paper_recipe(tmp_path: Path) -> None:
    text = 'recipe = "paper"\n[[cell]]\nbudgets = [1e18]\nsizes = [10]\nr = [4]\n'
    assert read_grid(grid_file(tmp_path, text)) == [paper_run(10, 4, 1e18)]


@pytest.mark.parametrize(("old", "new", "line", "message"), [
    ('recipe = "micro"', 'recipe = "macro"', 1, "recipe is 'macro'; expected paper or micro"),
    ('recipe = "micro"', "", 1, "recipe is None"),
    ("matrix = 0.02", "matrx = 0.02", 5, "unknown key 'matrx'; expected one of matrix"),
    ("matrix = 0.02", 'matrix = "fast"', 5, "matrix is 'fast'; expected number"),
    ("seeds = [1, 2]", "seed = 1", 11, "unknown key 'seed'; expected one of budgets"),
    ("seeds = [1, 2]", "seeds = []", 11, r"seeds is \[\]; expected a list of integers"),
    ("budgets = [1e11]", "budgets = 1e11", 14, "budgets is 100000000000.0; expected list"),
    ("widths = [16]\nr = [4]", "widths = [16.5]\nr = [4]", 15, r"widths is \[16.5\]; expected a list of integers"),
    ("widths = [16]\nr = [4]", "sizes = [16]\nwidths = [16]\nr = [4]", 15,
     "sizes in a cell of the micro recipe; expected widths"),
    ("widths = [16]\nr = [4]", "r = [4]", 13, "a cell of the micro recipe needs widths"),
    ('bptt = "half"', 'bptt = "third"', 17, "bptt is 'third'; expected full, half"),
    ('bptt = "half"', "bptt = 9", 13, "budget 1e[+]11, width 16, r 4: bptt_k = 9 exceeds r = 4"),
    ("r = [2]", "r = [3]", 20, "r 3: r = 3 does not divide the 8 looped layers"),
    ("lanes = 2", "lanes = true", 25, "lanes is True; expected integer"),
    ("r = [2]", "r = [2", 24, "not TOML: .*line 24"),
])
def test_errors_name_the_line(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    assert old in GOOD
    path = grid_file(tmp_path, GOOD.replace(old, new, 1))
    expected = message if "line" in message else rf"grid\.toml, line {line}: .*{message}"
    with pytest.raises(ConfigError, match=expected):
        read_grid(path)


def test_other_refusals_of_grid_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_grid(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match=r"line 1: no \[\[cell\]\]"):
        read_grid(grid_file(tmp_path, 'recipe = "micro"\n'))
    with pytest.raises(ConfigError, match="line 2: data is 'mine', but the row store is 'debian'"):
        read_grid(grid_file(tmp_path, GOOD), "debian")
