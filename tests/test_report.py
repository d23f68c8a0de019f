"""The report: one page that stands alone, and files beside it that agree with the posterior."""

from __future__ import annotations

import base64
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from playwright.sync_api import sync_playwright
from typer.testing import CliRunner, Result

import bayesloop as bl
from bayesloop.answer import _robust
from bayesloop.cli import app
from bayesloop.findings import gather
from bayesloop.problems import RunsWarning
from bayesloop.schema import InputError, read_sweep
from tests.conftest import GRID

INSTALL = Path(__file__).with_name("chromium.sh")
ODD = 'loop <b>&"1"</b> é/x'  # a probe that HTML, file names and figures could trip over


class Page(HTMLParser):
    """What a page refers to, its ids, headings, and the text a reader sees."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_data(self, data: str) -> None:
        self.text += data


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def numbers_of(folder: Path) -> dict[str, Any]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads((folder / "numbers.json").read_text(), parse_constant=refuse)


def twenty() -> pd.DataFrame:
    """Twenty runs of one recipe at two budgets."""
    runs = bl.select(bl.read_runs(GRID), "probe == 'baseline' and budget <= 1e18 and r in [1, 2, 4]")
    return runs.groupby(["budget", "r"]).head(4).iloc[:20].reset_index(drop=True)


@pytest.fixture(scope="module")
def three(probes_post: xr.DataTree, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("three")
    bl.report(probes_post, folder)
    return folder


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From a table of twenty runs, one of which is excluded, by the command."""
    folder = tmp_path_factory.mktemp("one")
    table = twenty().astype({"loss": object})
    table.loc[3, "loss"] = "nan"
    table.to_csv(folder / "runs.csv", index=False)
    with warnings.catch_warnings():
        warnings.simplefilter("default", RunsWarning)  # that a run is excluded
        result = run("report", folder / "runs.csv", "--out", folder / "out", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == numbers_of(folder / "out")
    return folder / "out"


@pytest.fixture(scope="module")
def odd(runs: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recipes under the user's own names, without budgets and widths."""
    folder = tmp_path_factory.mktemp("odd")
    names = {"baseline": "plain", "truncated": ODD, "hyperconnections": ODD.replace("/", " ")}
    kept = bl.select(runs, "budget <= 1e18")[["probe", "r", "n_once", "n_rec", "tokens", "loss"]]
    kept.assign(probe=kept["probe"].map(names)).to_csv(folder / "runs.csv", index=False)
    result = run("report", folder / "runs.csv", "--out", folder / "out")
    assert result.exit_code == 0, result.output
    return folder / "out"


def test_the_page_loads_nothing(three: Path, one: Path, odd: Path) -> None:
    for folder in (three, one, odd):
        text = (folder / "report.html").read_text()
        page = Page(text)
        assert all(link.startswith("data:") for link in page.links), page.links
        assert not re.search(r"@import|url\(", re.sub(r'"data:[^"]*"', "", text))
        assert {"script", "style", "img", "table"} <= set(page.tags)
        assert len(set(page.ids)) == len(page.ids)


def test_every_figure_is_in_the_page_and_beside_it(three: Path) -> None:
    text = (three / "report.html").read_text()
    inlined = {base64.b64decode(code) for code in re.findall(r"data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)", text)}
    files = {path.read_bytes() for path in (three / "figures").glob("*.svg")}
    assert inlined == files
    names = {path.stem for path in (three / "figures").glob("*.png")}
    assert {"forest", "differences", "residuals", "iso_flop_baseline", "frontier_truncated",
            "optimum_hyperconnections"} <= names


def test_numbers_agree_with_the_posterior(three: Path, probes_post: xr.DataTree) -> None:
    numbers = numbers_of(three)
    phi = probes_post["posterior"]["phi"]
    for row in numbers["comparison"]:
        own = phi.sel(probe=row["probe"])
        assert row["mean"] == pytest.approx(float(own.mean()))
        assert (row["lower"], row["upper"]) == pytest.approx(tuple(np.quantile(own, [0.025, 0.975])))
        if row["probe"] != "baseline":
            assert row["delta_mean"] == pytest.approx(float((own - phi.sel(probe="baseline")).mean()))
    assert numbers["data"]["runs"] == len(numbers["runs"]) == 204
    assert numbers["settings"]["data_sha256"] == probes_post.attrs["data_sha256"]
    assert numbers["converged"] is True


def test_tables_are_csv_in_full_precision(three: Path, probes_post: xr.DataTree) -> None:
    numbers = numbers_of(three)
    tables = {path.stem: pd.read_csv(path) for path in (three / "tables").glob("*.csv")}
    assert {"runs", "parameters", "comparison", "matched", "robust", "optimum", "equivalent"} <= set(tables)
    for name, table in tables.items():
        for row, seen in zip(numbers[name], table.to_dict("records"), strict=True):
            for column, value in row.items():
                if isinstance(value, float):
                    assert seen[column] == value or math.isclose(seen[column], value, rel_tol=1e-12), (name, column)
    assert bl.compare(probes_post)["mean"].tolist() == pytest.approx(tables["comparison"]["mean"].tolist())


def test_no_single_difference_is_put_in_front_where_its_profile_contradicts_it(three: Path) -> None:
    """On the published runs the matched differences do not grow with r, as those of one Δφ would."""
    numbers = numbers_of(three)
    assert set(numbers["contradicted"]) == {"truncated", "hyperconnections"}
    assert numbers["unanchored"] == ["hyperconnections"]
    first, second = numbers["answer"]
    assert "φ = 0.46" in first
    assert "Δφ =" not in second
    assert "no single Δφ" in second
    assert "not that a recurrence is worth more" in second
    assert "0.27" not in second


def test_one_recipe_and_twenty_runs_are_enough_for_a_report(one: Path) -> None:
    numbers, page = numbers_of(one), Page((one / "report.html").read_text())
    assert numbers["data"]["runs"] == 19
    assert [row["reason"] for row in numbers["excluded"]] != []
    assert numbers["excluded"][0]["reason"] in page.text
    assert "one probe" in numbers["absent"]["matched"]
    assert "perform like a plain model" in numbers["answer"][1]
    assert any("prior-dominated" in note for note in numbers["notes"])
    assert bl.load(one / "posterior.nc").attrs["data_sha256"] == numbers["settings"]["data_sha256"]


def test_without_budgets_sections_say_why_they_are_missing(odd: Path) -> None:
    numbers, page = numbers_of(odd), Page((odd / "report.html").read_text())
    for name in ("optimum", "equivalent", "matched", "robust"):
        assert numbers["absent"][name] in page.text
    assert not list((odd / "figures").glob("iso_flop*"))
    assert numbers["reference"] == "plain"


def test_names_are_escaped(odd: Path) -> None:
    text = (odd / "report.html").read_text()
    page = Page(text)
    assert "<b>" not in text
    assert "b" not in page.tags
    assert ODD in page.text


def test_a_second_report_replaces_the_first(probes_post: xr.DataTree, odd: Path, tmp_path: Path) -> None:
    bl.report(probes_post, tmp_path)
    (tmp_path / "figures" / "mine.svg").write_text("not the report's")
    bl.report(bl.load(odd / "posterior.nc"), tmp_path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {*numbers_of(tmp_path)["files"], "figures/mine.svg"}


def test_the_command_of_a_posterior_makes_it_again(runs: pd.DataFrame, tmp_path: Path) -> None:
    table = bl.select(bl.select(runs, "probe == 'baseline'"), "budget <= 1e18")
    post = bl.fit(table, law="chinchilla", priors={"E": "LogNormal(0.5, 0.3)"}, fix={"alpha": 0.25}, seed=7)
    numbers = bl.report(post, tmp_path / "report")
    program, *words, _ = shlex.split(numbers["command"])
    result = run(*words, tmp_path / "again.nc")
    assert (program, result.exit_code) == ("bayesloop", 0), result.output
    xr.testing.assert_equal(bl.load(tmp_path / "again.nc")["posterior"].to_dataset(), post["posterior"].to_dataset())
    assert "law chinchilla has no φ" in numbers["answer"][0]


def test_the_command_declares_how_the_table_was_read(runs: pd.DataFrame, tmp_path: Path) -> None:
    """Another's names and units: the printed command reads the same runs."""
    low = bl.select(bl.select(runs, "probe == 'baseline'"), "budget <= 1e18")
    theirs = low.assign(**{"D (B)": low["tokens"] / 1e9, "flops": np.nan}).drop(columns=["tokens", "flops"])
    theirs.to_csv(tmp_path / "theirs.csv", index=False)
    table = bl.read_runs(tmp_path / "theirs.csv", {"D (B)": "tokens"}, {"tokens": "B"}, allow="twins",
                         count_convention="exact")
    post = bl.fit(table, law="chinchilla", num_warmup=300, num_samples=300)
    bl.save(post, tmp_path / "post.nc")
    numbers = bl.report(bl.load(tmp_path / "post.nc"), tmp_path / "report", force=True)
    _, *words, _ = shlex.split(numbers["command"])
    assert words[words.index("--columns") + 1] == "D (B)=tokens"
    assert words[words.index("--units") + 1] == "tokens=B"
    assert {"--allow", "--count-convention"} <= set(words)
    run(*words, tmp_path / "again.nc")
    assert bl.load(tmp_path / "again.nc").attrs["data_sha256"] == post.attrs["data_sha256"]


def test_an_unconverged_posterior_is_refused_or_stands_under_a_banner(unconverged_post: xr.DataTree,
                                                                     tmp_path: Path) -> None:
    bl.save(unconverged_post, tmp_path / "post.nc")
    refused = run("report", tmp_path / "post.nc", "--out", tmp_path / "out")
    assert refused.exit_code == 3
    assert "--force" in refused.output
    assert not (tmp_path / "out").exists()
    forced = run("report", tmp_path / "post.nc", "--out", tmp_path / "out", "--force")
    assert forced.exit_code == 0, forced.output
    assert "has not converged: no number on this page" in (tmp_path / "out" / "report.html").read_text()


def test_places_and_names_that_cannot_be_used_get_one_message(probes_post: xr.DataTree, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made a folder"):
        bl.report(probes_post, tmp_path / "file")
    with pytest.raises(InputError, match="reference 'base' is not among the probes"):
        bl.report(probes_post, tmp_path / "out", reference="base")
    missing = run("report", tmp_path / "none.nc", "--out", tmp_path / "out")
    assert missing.exit_code == 1
    assert "no such file" in missing.output


def test_assumptions_are_shown_if_they_are_of_the_same_runs(probes_post: xr.DataTree, odd: Path,
                                                            tmp_path: Path) -> None:
    found = bl.compare_assumptions([probes_post])
    numbers = bl.report(probes_post, tmp_path, assumptions=found)
    text = Page((tmp_path / "report.html").read_text()).text.replace("−", "-")
    assert all(sentence in text for sentence in found.verdict)
    assert numbers["assumptions_verdict"] == found.verdict
    assert "under 1 assumptions" in numbers["answer"][1]
    with pytest.raises(InputError, match="on other runs"):
        bl.report(bl.load(odd / "posterior.nc"), tmp_path, assumptions=found)


@pytest.mark.parametrize("width", [True, False], ids=["width", "no width"])
def test_sizes_of_models_that_were_not_run_are_withheld(baseline_post: xr.DataTree, width: bool) -> None:
    """Runs of another depth than the architecture that would be assumed: no optimum, no equivalent, and why."""
    post = baseline_post.copy()
    data = post["constant_data"].to_dataset()
    data["n_once"] = 2 * data["n_once"]
    post["constant_data"] = xr.DataTree(data if width else data.drop_vars(["width", "size"], errors="ignore"))
    found = gather(post)
    assert not {"optimum", "exponents", "equivalent"} & set(found.tables)
    assert "not those that were run" in found.absent["optimum"]


def test_the_robust_interval_is_told_where_it_is_the_wider_one(baseline_post: xr.DataTree) -> None:
    found = gather(baseline_post)
    assert {"optimum", "equivalent"} <= set(found.tables)
    name = "φ[baseline]"
    low, high = found.check.robust.loc[name, ["lower", "upper"]]
    middle, half = (low + high) / 2, (high - low) / 2
    assert "may miss together" in _robust(found, name, middle - 0.9 * half, middle + 0.9 * half)
    assert _robust(found, name, middle - 1.1 * half, middle + 1.1 * half) == ""


def test_loss_curves_of_a_sweep_are_drawn() -> None:
    from bayesloop.plots import curves_figure

    sweep = read_sweep(GRID.parent / "micro_grid.h5")[::7]
    figure = curves_figure(sweep)
    probes = {run.attrs["probe"] for run in sweep}
    assert [ax.get_title() for ax in figure.axes] == list(dict.fromkeys(run.attrs["probe"] for run in sweep))
    drawn = [line for ax in figure.axes for line in ax.lines]
    assert len(drawn) == 2 * len(sweep)  # training and evaluations
    last = {line.get_ydata()[-1] for line in drawn if line.get_linestyle() == "None"}
    assert last == {run.attrs["loss"] for run in sweep}
    assert len(probes) == len(figure.axes)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium; installed first in CI, where its absence is a failure."""
    in_ci = bool(os.environ.get("CI"))
    if in_ci and os.getuid() == 0:
        subprocess.run([INSTALL], check=False)
    path = shutil.which("chromium")
    if path is None:
        reason = f"NOT TESTED IN A BROWSER: no chromium; as root, run {INSTALL}"
        pytest.fail(reason) if in_ci else pytest.skip(reason)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["three", "one", "odd"])
def test_in_a_real_browser(browser: Any, name: str, width: int, request: pytest.FixtureRequest) -> None:
    """No error, no request, no missing image, nothing wider than the window; letters of figures stay legible."""
    folder = request.getfixturevalue(name)
    faults: list[str] = []
    requests: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.on("console", lambda message: faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("requestfailed", lambda request: faults.append(request.url))
    page.on("request", lambda request: requests.append(request.url.split(",")[0]))
    page.goto((folder / "report.html").as_uri())
    seen = page.evaluate("""() => ({
        wide: document.scrollingElement.scrollWidth, window: innerWidth,
        images: [...document.images].map((image) => [image.naturalWidth, image.clientWidth])})""")
    assert not faults
    assert [url for url in requests if not url.startswith("data:")] == [(folder / "report.html").as_uri()]
    assert seen["wide"] <= seen["window"] == width
    assert len(seen["images"]) == len(list((folder / "figures").glob("*.svg")))
    for natural, shown in seen["images"]:  # natural: 96 pixels an inch, where letters have 8 points, 10.7 pixels
        assert natural > 0
        assert 0.8 < shown / natural < 1.5
    page.close()


@pytest.mark.slow
def test_the_table_of_runs_is_sorted_by_a_click(browser: Any, three: Path) -> None:
    page = browser.new_page()
    page.goto((three / "report.html").as_uri())
    heading = page.locator("#runs th", has_text="residual")
    column = int(heading.evaluate("cell => cell.cellIndex"))
    cells = page.locator("#runs tbody tr")
    for direction in (1, -1):
        heading.click()
        shown = [float(row.split("\t")[column].replace("−", "-")) for row in cells.all_inner_texts()]
        assert len(shown) == 204
        assert shown == sorted(shown, reverse=direction < 0)
    page.close()
