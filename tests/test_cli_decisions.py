"""The commands predict, optimum, equivalent and plan: what they print, what they write, their faults."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

import bayesloop as bl
from bayesloop.cli_options import several
from bayesloop.schema import InputError
from bayesloop.wording import short
from tests.posteriors import grid, posterior
from tests.test_cli import run
from tests.test_planning import PRIORS


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("decisions")
    runs = grid(looped=("baseline", "hyperconnections"))
    shared = {"priors": PRIORS, "data_injection": "rec"}
    found = {"good": posterior(runs, verdict="converged", **shared),
             "bad": posterior(runs, converged=0, verdict="R-hat 1.3", **shared)}
    for name, post in found.items():
        bl.save(post, folder / f"{name}.nc")
    return {name: folder / f"{name}.nc" for name in found}


def test_predict_prints_writes_and_warns(files: dict[str, Path], tmp_path: Path) -> None:
    words = ["predict", files["good"], "--r", "1,4", "--width", "512", "--budget", "6e17,1e20"]
    shown = run(*words, "--out", tmp_path / "p.csv")
    assert shown.exit_code == 0, shown.output
    assert "95 % of loss" in shown.output
    assert "extrapolates" in shown.output
    printed = json.loads(run(*words, "--json").stdout)
    written = pd.read_csv(tmp_path / "p.csv", keep_default_na=False)
    assert len(printed["prediction"]) == len(written) == 4
    assert written["mean"].tolist() == [row["mean"] for row in printed["prediction"]]
    assert printed["laws"]["recurrence"] == written["mean"].tolist()


def test_optimum_prints_and_draws(files: dict[str, Path], tmp_path: Path) -> None:
    words = ["optimum", files["good"], "--r", "2", "--budget", "6e17,1e19"]
    shown = run(*words, "--figure", tmp_path / "optimum", "--out", tmp_path / "o.csv")
    assert shown.exit_code == 0, shown.output
    for text in ("gap to r = 1", "KV bytes", "exact FLOPs", "extrapolates"):
        assert text in shown.output
    assert (tmp_path / "optimum.svg").stat().st_size > 5000
    printed = json.loads(run(*words, "--json").stdout)
    assert [row["budget"] for row in printed["optimum"]] == [6e17, 1e19]
    assert {row["definition"] for row in printed["exponents"]} == set(printed["definitions"])
    assert len(pd.read_csv(tmp_path / "o.csv")) == 2


def test_equivalent_prints_its_reservation(files: dict[str, Path]) -> None:
    words = ["equivalent", files["good"], "--r", "2", "--plain-size", "410M", "--probe", "hyperconnections"]
    shown = run(*words)
    assert shown.exit_code == 0, shown.output
    assert "410M" in shown.output
    assert "no r = 1 run of this recipe" in shown.output
    assert json.loads(run(*words, "--json").stdout)["equivalent"][0]["n_plain"] == pytest.approx(410e6, rel=1e-4)


def test_plan_prints_what_a_design_would_tell(files: dict[str, Path], tmp_path: Path) -> None:
    words = ["plan", files["good"], "--budget", "3e17", "--width", "256,512", "--r", "1,4", "--probe", "mine"]
    shown = run(*words, "--delta", "0.2", "--out", tmp_path / "plan.csv")
    assert shown.exit_code == 0, shown.output
    for text in ("Δφ mine", "P(detect 0.2)", "GPU hours", "miss the law independently"):
        assert text in shown.output
    printed = json.loads(run(*words, "--json").stdout)
    assert printed["n_runs"] == 4
    assert {row["probe"] for row in printed["plan"]} == {"baseline", "hyperconnections", "mine"}
    assert len(pd.read_csv(tmp_path / "plan.csv")) == len(printed["plan"])


def test_plan_finds_what_is_enough_and_what_is_best(files: dict[str, Path], tmp_path: Path) -> None:
    enough = ["plan", files["good"], "--precision", "0.2"]
    shown = run(*enough, "--figure", tmp_path / "precision")
    assert shown.exit_code == 0, shown.output
    assert "runs give φ of baseline to ± 0.2" in shown.output
    assert (tmp_path / "precision.png").stat().st_size > 5000
    printed = json.loads(run(*enough, "--json").stdout)
    assert printed["steps"][-1]["n_runs"] == 50
    best = ["plan", files["good"], "--rank", "--budget", "3e17", "--width", "256,512", "--probe", "hyperconnections",
            "--target", "delta", "--recipe"]
    assert "Runs worth most for Δφ of hyperconnections" in run(*best).output
    ranked = json.loads(run(*best, "--json").stdout)["rank"]
    assert len(ranked) == 8
    assert ranked[0]["per_flop"] == max(row["per_flop"] for row in ranked) > 0


def test_plan_says_whose_phi_nothing_is_known_of(tmp_path: Path) -> None:
    """By probe and r: of an r that one recipe alone was run at, the other's φ is the prior's."""
    runs = grid(looped=("baseline", "hyperconnections"))
    largest = runs["r"].max()
    runs = runs[(runs["probe"] == "baseline") | (runs["r"] < largest)].reset_index(drop=True)
    bl.save(posterior(runs, ("probe", "r"), priors=PRIORS, phi="probe_r", data_injection="rec"), tmp_path / "p.nc")
    words = ["plan", tmp_path / "p.nc", "--budget", "3e17", "--size", "2", "--probe", "hyperconnections", "--r"]
    told = f"no run of hyperconnections at r = {largest} yet"
    assert told in run(*words, f"2,{largest}").stderr
    assert told not in run(*words, "2").stderr


def test_plan_reads_a_design(files: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "design.toml"
    path.write_text('[[runs]]\nprobe = "mine"\nbudgets = [3e17]\nwidths = [256, 512]\nr = [2, 4]\n')
    assert json.loads(run("plan", files["good"], "--design", path, "--json").stdout)["n_runs"] == 4


@pytest.mark.parametrize(("words", "message"), [
    (["plan", "bad"], "did not converge"), (["plan", "good", "--rank"], "--rank needs candidates"),
    (["plan", "good", "--width", "512"], "need --budget"), (["plan", "good", "--figure", "x"], "needs --precision"),
    (["plan", "good", "--target", "alpha"], "expected phi or delta"),
    (["plan", "good", "--precision", "0.0001"], "are expected to give"),
    (["plan", "good", "--target", "delta", "--precision", "0.1"], "Δφ of baseline against itself"),
    (["plan", "good", "--unit", "cell"], "--unit says what --precision leaves out"),
    (["plan", "good", "--budget", "1e18"], "neither is given"),
    (["plan", "good", "--budget", "1e18", "--width", "512", "--size", "8"], "both are given"),
    (["predict", "good", "--width", "512", "--budget", "1e18", "--tokens", "1B"], "--tokens and --budget are both"),
    (["compare", "good", "--where", "r > 1"], "for a table of runs"),
    (["compare", "good", "--models", "recurrence"], "--models belongs to --held-out"),
    (["compare", "good", "--assumptions", "--held-out"], "two questions"),
    (["compare", "good", "--reference", "mine"], "(reference=, --reference)"),
    (["plan", "good", "--budget", "1e9", "--width", "512"], "less than half a step"),
    (["plan", "good", "--design", "none.toml"], "none.toml: cannot be read"),
    (["predict", "bad", "--width", "512", "--budget", "1e18"], "did not converge"),
    (["optimum", "bad"], "--force"),
    (["predict", "good", "--width", "500", "--budget", "1e18"], "not a multiple of the head dimension"),
    (["predict", "good", "--r", "3", "--width", "512", "--budget", "1e18"], "does not divide"),
    (["predict", "good", "--width", "512", "--budget", "1e9"], "less than half a step"),
    (["predict", "good", "--width", "512"], "needs tokens or budget"),
    (["predict", "good", "--width", "51x", "--budget", "1e18"], "--width '51x': '51x' is not a number"),
    (["optimum", "good", "--probe", "hyperconnection"], "did you mean 'hyperconnections'"),
    (["optimum", "good", "--r", "1.5"], "whole numbers"),
    (["optimum", "good", "--model", "depht=24"], "did you mean 'depth'"),
    (["optimum", "good", "--model", "depth=7"], "r = 2 does not divide the 3 looped layers"),
    (["optimum", "good", "--weights", "1,2"], "for 1 posteriors"),
    (["equivalent", "good", "--width", "512", "--plain-size", "1B"], "either as width or as plain_size"),
    (["equivalent", "good", "--out", "/nowhere/x.csv"], "cannot be written"),
])
def test_faults_get_one_message(files: dict[str, Path], words: list[str], message: str) -> None:
    result = run(*(files.get(word, word) for word in words))
    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output


def test_force_accepts_what_did_not_converge(files: dict[str, Path]) -> None:
    assert run("equivalent", files["bad"], "--force").exit_code == 0


def test_numbers_with_suffixes() -> None:
    assert several("1,2.15e18, 410M,20B", "x") == [1, 2.15e18, 410e6, 20e9]
    for text in ("", "1,,2", "1e", "4X", "1.2.3"):
        with pytest.raises(InputError, match="is not a number"):
            several(text, "x")
    assert [short(value) for value in (583.4e6, 999.9e6, 1.017e9, 12.0, float("nan"))] == \
        ["583M", "1B", "1.02B", "12", ""]
