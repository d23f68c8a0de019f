"""The commands: what they print, what they write, and the exit codes that mean something."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import xarray as xr
from typer.testing import CliRunner, Result

import bayesloop as bl
from bayesloop.cli import app
from bayesloop.console import show_posterior
from tests.conftest import GRID


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def posterior(probes_post: xr.DataTree, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "posterior.nc"
    bl.save(probes_post, path)
    return path


def test_help_teaches_the_way_through() -> None:
    result = run("--help")
    assert result.exit_code == 0
    places = [result.output.index(word) for word in ("bayesloop validate", "bayesloop priors", "bayesloop fit",
                                                     "bayesloop compare")]
    assert places == sorted(places)


def test_fit_writes_a_posterior_and_prints_json(tmp_path: Path) -> None:
    out = tmp_path / "post.nc"
    result = run("fit", GRID, "--where", "probe == 'baseline' and budget <= 2.15e18", "--out", out, "--json",
                 "--fix", "E=1.6", "--prior", "phi=Normal(0.4, 0.3)")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    post = bl.load(out)
    assert printed["converged"] is True
    assert printed["parameters"]["phi[baseline]"]["mean"] == pytest.approx(float(post["posterior"]["phi"].mean()))
    assert json.loads(post.attrs["priors"])["phi"] == "Normal(0.4, 0.3)"
    assert "E" not in post["posterior"]


def test_a_fit_that_did_not_converge_exits_with_3_and_is_written(tmp_path: Path) -> None:
    result = run("fit", GRID, "--where", "probe == 'baseline'", "--out", tmp_path / "p.nc", "--num-warmup", 100,
                 "--num-samples", 100, "--num-chains", 2)
    assert result.exit_code == 3
    assert "NOT CONVERGED" in result.output
    assert bl.load(tmp_path / "p.nc").attrs["converged"] == 0


def test_a_repetition_says_what_the_first_attempt_lacked(baseline_post: xr.DataTree, capsys) -> None:
    """A few divergences are no reason to refuse a fit, but one to repeat it."""
    post, first = baseline_post.copy(), json.loads(baseline_post.attrs["convergence"])[0]
    post.attrs |= {"retries": 1, "convergence": json.dumps([{**first, "problems": [], "divergences": 2}])}
    show_posterior(post, Path("p.nc"))
    assert "the first attempt was not accepted (2 of 4000 transitions diverged)" in capsys.readouterr().out


def test_compare_prints_the_differences(posterior: Path) -> None:
    result = run("compare", posterior, "--rope", 0.05, "--json")
    assert result.exit_code == 0, result.output
    rows = {row["probe"]: row for row in json.loads(result.stdout)["comparison"]}
    assert rows["truncated"]["delta_mean"] == pytest.approx(-0.124, abs=0.01)
    assert rows["baseline"]["delta_mean"] is None
    shown = run("compare", posterior).output
    assert "P(Δφ > 0)" in shown
    assert "no r = 1 run of this recipe" in shown


def test_compare_writes_its_figure(posterior: Path, tmp_path: Path) -> None:
    result = run("compare", posterior, "--figure", tmp_path / "phi")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "phi.svg").stat().st_size > 5000
    assert (tmp_path / "phi.png").read_bytes()[:4] == b"\x89PNG"


def test_point_prints_the_published_estimate() -> None:
    result = run("point", GRID, "--injection", "once", "--num-bootstrap", 0, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["parameters"]["phi"] == pytest.approx(0.458, abs=0.003)


def test_priors_are_shown_with_reasons() -> None:
    result = run("priors", "--law", "cross_recurrence", "--json")
    priors = json.loads(result.stdout)["priors"]
    assert set(priors) == {"E", "A", "B", "alpha", "beta", "phi", "x", "sigma"}
    assert all(prior["reason"] for prior in priors.values())
    shown = run("priors", "--phi", "probe_r_pooled", "--recipe", "both").output
    for word in ("kaplan_recurrence", "student_t", "probe_r", "looped_offset", "phi_mean", "tau", "rho"):
        assert word in shown


def test_validate_reports_and_writes_the_clean_table(tmp_path: Path) -> None:
    result = run("validate", GRID, "--out", tmp_path / "clean.csv")
    assert result.exit_code == 0, result.output
    assert "240 rows read, 240 kept, 0 excluded" in result.output
    assert bl.read_runs(tmp_path / "clean.csv").attrs["sha256"] == bl.read_runs(GRID).attrs["sha256"]


@pytest.mark.parametrize(("words", "code", "message"), [
    (["fit", "none.csv"], 1, "none.csv: cannot be read"),
    (["fit", GRID, "--where", "budgett < 1"], 1, "budget"),
    (["fit", GRID, "--fix", "phi"], 1, "expected NAME=VALUE"),
    (["fit", GRID, "--fix", "phi=one"], 1, "expected a number"),
    (["fit", GRID, "--law", "power"], 1, "law 'power' is unknown"),
    (["fit", GRID, "--where", "r == 1"], 1, "phi cannot be identified"),
    (["compare", "none.nc"], 1, "no such file"),
    (["fit", GRID, "--chains", "4"], 2, "No such option"),
    (["unknown"], 2, "No such command"),
])
def test_faults_get_one_message_and_their_exit_code(words: list, code: int, message: str) -> None:
    result = run(*words)
    assert result.exit_code == code
    assert message in result.output
    assert "Traceback" not in result.output


def test_an_interrupt_exits_with_4(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bayesloop.runs.read_runs", interrupted)
    assert run("fit", GRID).exit_code == 4
