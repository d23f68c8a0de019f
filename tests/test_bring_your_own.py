"""The commands of data/bring_your_own.md run, leave with the exit codes it states, and find the truth."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import bayesloop as bl
from bayesloop.cli import app
from bayesloop.posterior import attribute

DATA = Path(__file__).parents[1] / "data"
PAGE = (DATA / "bring_your_own.md").read_text()


def commands(page: str) -> list[tuple[list[str], int]]:
    """Words and stated exit code of every command in the page's shell blocks."""
    text = "".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL)).replace("\\\n", " ")
    found = []
    for line in text.splitlines():
        command, _, code = line.partition("# exit code")
        found.append((shlex.split(command)[1:], int(code or 0)))
        assert line.startswith("bayesloop ")
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[Result, list[str], int]]]:
    """Every command in turn, in a folder beside which only `data` stands."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "data").symlink_to(DATA)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return folder, [(CliRunner().invoke(app, words), words, code) for words, code in commands(PAGE)]


def test_the_export_is_what_its_script_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["example_wandb.py", str(tmp_path / "made.csv")])
    runpy.run_path(str(DATA / "example_wandb.py"), run_name="__main__")
    assert (tmp_path / "made.csv").read_text() == (DATA / "example_wandb.csv").read_text()


def test_the_template_is_sound() -> None:
    runs = bl.read_runs(DATA / "template.csv")
    assert list(runs["probe"]) == ["baseline", "baseline", "my-recipe"]
    assert not runs.attrs["warnings"]


@pytest.mark.slow
def test_every_command_does_what_the_page_says(results: tuple) -> None:
    _, done = results
    assert [(words[0], result.exit_code) for result, words, _ in done] == [(words[0], code) for _, words, code in done]
    assert not [words for result, words, _ in done if "Traceback" in result.output]
    assert "did you mean 'train/tokens_B'?" in done[0][0].output
    assert "20 rows read, 17 kept, 1 excluded" in done[1][0].output


@pytest.mark.slow
def test_the_interval_holds_the_truth_and_the_posterior_knows_its_doubts(results: tuple) -> None:
    folder, _ = results
    truth = runpy.run_path(str(DATA / "example_wandb.py"))["TRUTH"]
    post = bl.load(folder / "post.nc")
    phi = post["posterior"]["phi"]
    low, high = phi.quantile([0.025, 0.975])
    assert low < truth["phi"] < high
    stated = re.search(r"phi\[baseline\] +([\d.]+) +([\d.]+)", PAGE)
    assert stated is not None
    # four times the Monte Carlo error with about 1 000 effective draws: 0.043 / sqrt(1000) · 4
    assert float(phi.mean()) == pytest.approx(float(stated[1]), abs=0.006)
    assert float(phi.std()) == pytest.approx(float(stated[2]), rel=0.1)
    assert "alpha" in " ".join(attribute(post, "doubts"))
    assert json.loads(post.attrs["fix"]) == {}


def test_rows_do_not_look_like_copies_while_their_columns_are_unknown() -> None:
    report = bl.validate(DATA / "example_wandb.csv")
    assert not report.ok
    assert report.excluded == []


@pytest.mark.slow
def test_a_law_with_one_more_parameter_moves_little_and_says_that_its_prior_rules(results: tuple) -> None:
    folder, _ = results
    posts = [bl.load(folder / name) for name in ("post.nc", "cross.nc")]
    phi = [float(post["posterior"]["phi"].mean()) for post in posts]
    assert phi[1] == pytest.approx(phi[0], abs=0.01)
    assert any(doubt.startswith("prior-dominated") and " x (" in doubt for doubt in attribute(posts[1], "doubts"))
