"""What carries φ: importance weights and first-order influences against exact refits; the bagged spread."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from typer.testing import CliRunner

import bayesloop as bl
from bayesloop import influence as module
from bayesloop.cli import app
from bayesloop.influence import sensitivity
from bayesloop.plot_checks import plot_moves, plot_pit
from bayesloop.posterior import PosteriorError
from bayesloop.style import new_figure


@pytest.fixture(scope="module")
def post(runs: pd.DataFrame) -> xr.DataTree:
    return bl.fit(bl.select(runs, "probe == 'baseline' and budget <= 2.15e18 and r <= 4"))


@pytest.fixture(scope="module")
def exact(post: xr.DataTree):
    """Every run refitted too, as if no importance weight could be trusted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_K", -10.0)
        return sensitivity(post, refits=True, num_resamples=30)


def changes(found, kind: str) -> pd.Series:
    return found.moves[found.moves["kind"] == kind].set_index("without")["in_sd"]


def test_importance_weights_agree_with_refits(post: xr.DataTree, exact) -> None:
    ours, theirs = changes(sensitivity(post), "run"), changes(exact, "run")
    assert len(ours) == post["observed_data"].sizes["run"]
    known = ours.notna()  # a run whose weights cannot be trusted (Pareto k) has no number without refits
    assert (~known).sum() <= 2
    ours, theirs = ours[known], theirs[known]
    gap = ours - theirs
    # a mean of some 250 effective draws is known to 0.06 sd
    assert gap.std() < 0.12
    assert gap.abs().max() < 0.3
    assert np.corrcoef(ours, theirs)[0, 1] > 0.8


def test_first_order_agrees_with_refits(post: xr.DataTree, exact) -> None:
    """Signs and order of the cells; sizes only roughly, since a cell in nine is no small change."""
    ours, theirs = changes(sensitivity(post), "cell").sort_index(), changes(exact, "cell").sort_index()
    assert list(ours.index) == list(theirs.index)
    assert len(ours) == 9
    assert np.corrcoef(ours, theirs)[0, 1] > 0.8


def test_counting_the_injection_otherwise_is_the_fit_of_such_a_table(post: xr.DataTree, exact) -> None:
    from tests.conftest import GRID
    where = "probe == 'baseline' and budget <= 2.15e18 and r <= 4"
    once = bl.fit(bl.select(bl.read_runs(GRID, injection="once"), where))
    phi = post["posterior"]["phi"]
    expected = float((once["posterior"]["phi"].mean() - phi.mean()) / phi.std())
    assert changes(exact, "counts")["injection once"] == pytest.approx(expected, abs=0.35)


def test_bagged_spread_holds_posterior_and_resampling(post: xr.DataTree, exact) -> None:
    row = exact.bagged.loc["φ[baseline]"]
    assert row["sd"] > max(row["between_sd"], float(post["posterior"]["phi"].std()) * 0.8)
    assert row["lower"] < row["mean"] < row["upper"]
    assert exact.bagged.attrs["resamples"] == 30


def test_figures_and_json_of_a_check(post: xr.DataTree, tmp_path: Path) -> None:
    bl.save(post, tmp_path / "p.nc")
    result = CliRunner().invoke(app, ["check", str(tmp_path / "p.nc"), "--figures", str(tmp_path / "f")])
    assert result.exit_code == 0, result.output
    assert {path.stem for path in (tmp_path / "f").iterdir()} == {"residuals", "pit", "pareto_k", "moves"}
    assert "What moves φ most" in result.output
    assert "carries most: leaving it out moves" in result.output
    refused = CliRunner().invoke(app, ["check", str(tmp_path / "p.nc"), "--figures", str(tmp_path / "p.nc" / "f")])
    assert refused.exit_code == 1
    assert "cannot be made a folder" in refused.output


def test_the_band_holds_uniform_values_and_not_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def escapes(values: np.ndarray) -> bool:
        monkeypatch.setattr("bayesloop.plot_checks.pit", lambda _: values)
        _, ax = new_figure()
        plot_pit(ax, xr.DataTree())
        curve, half = ax.lines[-1].get_ydata(), ax.patches[0].get_y()
        return bool(np.max(np.abs(curve)) > abs(half))

    rng = np.random.default_rng(0)
    assert not escapes(rng.uniform(size=100))
    assert escapes(rng.beta(4, 4, size=100))


def test_nothing_known_is_said() -> None:
    _, ax = new_figure()
    with pytest.raises(PosteriorError, match="nothing is known"):
        plot_moves(ax, pd.DataFrame())
