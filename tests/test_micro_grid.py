"""data/micro_grid.h5: every run is one of the design, counted by `architecture`, on the same text, and finished."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import bayesloop as bl
from bayesloop.schema import Run, read_sweep
from training.grid import RunConfig
from training.grids import GRIDS
from training.optim import run_rates

FILE = Path(__file__).parents[1] / "data" / "micro_grid.h5"
MANIFEST = "f45c8b6d20550690d0c085dc727fe5324ce7615373047000c7fe5c31c01db318"
UNIGRAM_ENTROPY = 3.55  # nats per byte of the validation rows, measured
SEED = 42


@pytest.fixture(scope="module")
def trained() -> list[Run]:
    return read_sweep(FILE)


def config_of(run: Run) -> RunConfig:
    return RunConfig.from_json(run.attrs["config_json"])


def test_every_run_is_one_of_the_design(trained: list[Run]) -> None:
    planned = {config.sha256 for name in ("micro", "micro-truncated", "micro-hyperconnections")
               for config in GRIDS[name]()}
    for run in trained:
        config = dataclasses.replace(config_of(run), seed=SEED)  # some cells are repeated with other seeds
        assert config.sha256 in planned, run.attrs["run_id"]
        assert config_of(run).run_id == run.attrs["run_id"]
        assert config_of(run).sha256 == run.attrs["config_sha256"]


def test_the_readme_says_what_is_complete(trained: list[Run]) -> None:
    found = Counter((run.attrs["probe"], f"{run.attrs['budget']:.3g}".replace("+", "")) for run in trained
                    if run.attrs["seed"] == SEED)
    section = (FILE.parent / "README.md").read_text().split("## `micro_grid.h5`")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (baseline|truncated|hyperconnections) \| (\d.*?) \|$", section, re.M)
    header = re.search(r"^\| runs finished \| (.*?) \|$", section, re.M)
    assert header
    assert len(rows) == 3
    said = {(probe, budget): int(cell.split(" of ")[0]) for probe, cells in rows
            for budget, cell in zip(header[1].split(" | "), cells.split(" | "), strict=True) if cell != "–"}
    assert {key: count for key, count in said.items() if count} == dict(found)


def test_counts_flops_and_tokens_are_those_of_the_architecture(trained: list[Run]) -> None:
    for run in trained:
        attrs, config = run.attrs, config_of(run)
        arch, plan = config.architecture, config.horizon
        assert (attrs["status"], attrs["count_convention"]) == ("done", "exact")
        assert (attrs["n_once"], attrs["n_rec"], attrs["n_inject"]) == (arch.n_once(), arch.n_rec(), arch.n_inject)
        assert (attrs["n_steps"], attrs["tokens"]) == (plan.n_steps, plan.tokens)
        assert attrs["flops"] == arch.flops_per_token * plan.tokens == pytest.approx(attrs["budget"], rel=0.01)
        assert (attrs["probe"], attrs["r"], attrs["width"]) == (config.probe, arch.r, arch.width)
        assert attrs["lr_matrix"] == pytest.approx(run_rates(config)["matrix"], rel=1e-12)


def test_all_runs_read_the_same_rows_and_are_evaluated_on_the_same(trained: list[Run]) -> None:
    longest = max(trained, key=lambda run: run.attrs["n_steps"])
    hashes = longest.train["row_hash"]
    for run in trained:
        assert run.attrs["data_manifest_sha256"] == MANIFEST
        assert (run.train["row_hash"] == hashes[:len(run.train["row_hash"])]).all(), run.attrs["run_id"]
        assert len(run.train["step"]) == run.attrs["n_steps"]
        assert run.attrs["eval_tokens"] == 2_048 * 64
        assert run.attrs["batch_tokens"] * run.attrs["n_steps"] <= 33_000_000  # no text is read twice


def test_losses_are_those_of_models_that_have_learned(trained: list[Run]) -> None:
    for run in trained:
        final = run.eval["is_final"] == 1
        assert final.sum() == 1
        assert run.eval["loss"][final][0] == run.attrs["loss"]
        assert 1 < run.attrs["loss"] < UNIGRAM_ENTROPY
        assert run.attrs["loss"] == pytest.approx(run.attrs["train_loss"], abs=0.35)
        assert np.isfinite(run.train["loss"]).all()


def test_the_table_is_read_without_an_exclusion(trained: list[Run]) -> None:
    report = bl.validate(FILE)
    assert (report.ok, report.n_kept, report.excluded) == (True, len(trained), [])


def test_the_readme_gives_the_matched_differences_of_the_file(trained: list[Run]) -> None:
    """Loss minus the baseline's, mean over budgets and widths, from the file alone."""
    loss = {(run.attrs["probe"], run.attrs["r"], run.attrs["budget"], run.attrs["width"]): run.attrs["loss"]
            for run in trained if run.attrs["seed"] == SEED}
    text = (FILE.parent / "README.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")]
            for line in re.findall(r"^\| [1248] \|.*\|$", text, re.M)]
    assert [row[0] for row in rows] == ["1", "2", "4", "8"]
    for r, hyper, _, _, truncated, _ in rows:
        for probe, number in (("hyperconnections", hyper), ("truncated", truncated)):
            found = [value - loss["baseline", *key[1:]] for key, value in loss.items() if key[:2] == (probe, int(r))]
            assert len(found) == (12 if number else 0)
            if number:
                assert float(number.replace("−", "-")) == pytest.approx(np.mean(found), abs=0.0011)


def test_the_readme_gives_the_scatter_between_seeds(trained: list[Run]) -> None:
    cells: dict[tuple, list[float]] = {}
    for run in trained:
        key = tuple(run.attrs[name] for name in ("probe", "budget", "width", "r"))
        cells.setdefault(key, []).append(np.log(run.attrs["loss"]))
    repeated = [values for values in cells.values() if len(values) > 1]
    said = re.search(r"sd of log loss (0\.\d+) over four cells", (FILE.parent / "README.md").read_text())
    assert said
    assert len(repeated) == 4
    assert float(said[1]) == pytest.approx(np.sqrt(np.mean([np.var(v, ddof=1) for v in repeated])), abs=0.0001)
