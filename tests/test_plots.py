"""Figures: what is on them, that it is right, and that they look alike."""

from __future__ import annotations

import itertools
import sys

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from bayesloop.curves import iso_flop, residuals
from bayesloop.plots import (
    figures,
    new_figure,
    plot_differences,
    plot_forest,
    plot_frontier,
    plot_iso_flop,
    plot_residuals,
    probe_style,
    r_style,
    recurrences,
    save_figure,
)
from bayesloop.posterior import PosteriorError
from bayesloop.schema import InputError
from tests.posteriors import grid, posterior

THREE = ("baseline", "truncated", "hyperconnections")


@pytest.fixture(scope="module")
def three():
    return posterior(grid(looped=THREE))


@pytest.fixture(scope="module")
def by_r():
    return posterior(grid(looped=THREE), ("probe", "r"))


def legends(figure):
    return [*figure.legends, *(ax.get_legend() for ax in figure.axes if ax.get_legend())]


def labels(figure):
    return [text.get_text() for text in legends(figure)[0].get_texts()]


def markers(ax, marker):
    return [line for line in ax.lines if line.get_marker() == marker]


def test_forest_has_a_row_for_every_phi(three, by_r):
    _, ax = new_figure()
    assert plot_forest(ax, three) is ax
    assert [text.get_text().split("\n")[0] for text in ax.get_yticklabels()] == list(THREE)
    assert ax.get_xlabel() == "recurrence exponent φ"
    _, ax = new_figure()
    plot_forest(ax, by_r)
    rows = [text.get_text().split("  ")[0] for text in ax.get_yticklabels()]
    assert rows == [name for probe in THREE for name in (probe, "r = 2", "r = 4")]


def test_forest_shows_the_quantiles_of_the_draws(three):
    _, ax = new_figure()
    plot_forest(ax, three)
    draws = three["posterior"]["phi"].sel(probe="truncated").to_numpy().ravel()
    outer, inner, median = ax.lines[3:6]  # the second row
    np.testing.assert_allclose(outer.get_xdata(), np.quantile(draws, (0.025, 0.975)))
    np.testing.assert_allclose(inner.get_xdata(), np.quantile(draws, (0.25, 0.75)))
    np.testing.assert_allclose(median.get_xdata(), np.median(draws))
    low, middle, high = np.quantile(draws, (0.025, 0.5, 0.975))
    assert ax.get_yticklabels()[1].get_text() == f"truncated\n{middle:.2f} [{low:.2f}, {high:.2f}]"


def test_one_phi_for_all_probes_is_one_row():
    _, ax = new_figure()
    plot_forest(ax, posterior(grid(), ()))
    assert [text.get_text().split("\n")[0] for text in ax.get_yticklabels()] == ["all probes"]


def test_no_forest_of_a_fixed_phi():
    _, ax = new_figure()
    with pytest.raises(PosteriorError, match="no free φ"):
        plot_forest(ax, posterior(grid(), fix={"phi": 1.0}))


def test_differences_are_taken_draw_by_draw(three):
    figure, ax = new_figure()
    plot_differences(ax, three, rope=(-0.05, 0.05))
    phi = three["posterior"]["phi"]
    difference = (phi.sel(probe="truncated") - phi.sel(probe="baseline")).to_numpy()
    np.testing.assert_allclose(ax.lines[2].get_xdata(), np.median(difference))
    assert ax.get_xlabel() == "Δφ against baseline"
    assert "ROPE −0.05 to 0.05" in labels(figure)
    band, = ax.patches
    assert (band.get_x(), band.get_width()) == pytest.approx((-0.05, 0.1))
    assert any(list(line.get_xdata()) == [0, 0] for line in ax.lines)


def test_differences_by_r_are_taken_at_equal_r(by_r):
    _, ax = new_figure()
    plot_differences(ax, by_r, reference="truncated")
    phi = by_r["posterior"]["phi"].sel(r=4)
    difference = (phi.sel(probe="baseline") - phi.sel(probe="truncated")).to_numpy()
    np.testing.assert_allclose(ax.lines[5].get_xdata(), np.median(difference))


def test_differences_of_separate_fits_say_so():
    _, ax = new_figure()
    plot_differences(ax, posterior(grid(looped=THREE), share="none"))
    assert ax.get_xlabel() == "Δφ against baseline, separate fits"


@pytest.mark.parametrize(("looped", "dims", "reference"), [
    (("baseline",), ("probe",), "baseline"), (THREE, ("probe",), "mine"), (THREE, (), "baseline")])
def test_no_difference_without_two_probes(looped, dims, reference):
    _, ax = new_figure()
    with pytest.raises(PosteriorError, match=f"no difference of φ against '{reference}'"):
        plot_differences(ax, posterior(grid(looped=looped), dims), reference)


def test_iso_flop_has_a_panel_for_every_r_and_a_curve_for_every_budget(three):
    assert recurrences(three, "truncated") == [1, 2, 4]
    figure, axes = new_figure(3, sharex=True, sharey=True)
    plot_iso_flop(axes, three, "truncated")
    assert [ax.get_title() for ax in axes] == ["r = 1", "r = 2", "r = 4"]
    assert axes[0].get_ylabel() == "validation loss (nats/token)"
    assert figure.get_supxlabel() == "unique non-embedding parameters"
    for ax in axes:
        assert len(ax.collections) == 2  # bands of two budgets
        assert ax.get_xscale() == "log"
    assert len(markers(axes[0], "o")) == len(markers(axes[1], "s")) == 2  # the baseline's runs, then the probe's own
    assert labels(figure) == ["runs, baseline", "runs, truncated", "expected loss by budget (FLOP)", "95 % interval",
                              "its minimum"]


def test_iso_flop_shows_the_median_of_the_law_within_its_band(three):
    _, axes = new_figure(3)
    plot_iso_flop(axes, three, "truncated")
    curve = iso_flop(three, "truncated", 4, 3e17)
    drawn = next(line for line in axes[2].lines if len(line.get_xdata()) == len(curve.size))
    np.testing.assert_allclose(drawn.get_ydata(), np.median(curve.loss, axis=0))
    low, high = np.quantile(curve.loss, (0.025, 0.975), axis=0)
    corners = axes[2].collections[0].get_paths()[0].vertices
    for edge in (low, high):
        assert all(np.isclose(corners[:, 1], value).any() for value in edge)
    assert ((low <= drawn.get_ydata()) & (drawn.get_ydata() <= high)).all()


def test_iso_flop_marks_a_minimum_only_inside_the_sizes_run(three):
    _, axes = new_figure(3)
    plot_iso_flop(axes, three, "baseline")
    marked = markers(axes[1], "D")
    curve = iso_flop(three, "baseline", 2, 3e17)
    middle = np.median(curve.loss, axis=0)
    assert marked[0].get_xdata()[0] == curve.size[middle.argmin()]
    assert marked[0].get_ydata()[0] == middle.min()
    _, axes = new_figure(3)
    plot_iso_flop(axes, posterior(grid(widths=(128, 256))), "baseline")
    assert not markers(axes[1], "D")


def test_iso_flop_wants_one_axes_for_each_r(three):
    _, axes = new_figure(2)
    with pytest.raises(ValueError, match=r"2 axes for 3 recurrence counts \(1, 2, 4\)"):
        plot_iso_flop(axes, three)


def test_figures_over_budgets_want_budgets():
    post = posterior(grid().drop(columns="budget"))
    with pytest.raises(PosteriorError, match="have no budgets"):
        recurrences(post, "baseline")
    _, ax = new_figure()
    plot_residuals(ax, post)
    assert [text.get_text() for text in ax.get_xticklabels()] == ["no budget"]
    assert [name for name, _ in figures(post)] == ["forest", "residuals"]


def test_residuals_show_every_run_in_mnats(three):
    figure, ax = new_figure()
    plot_residuals(ax, three)
    shown = np.concatenate([line.get_ydata() for line in ax.lines if line.get_linestyle() == "None"])
    np.testing.assert_allclose(np.sort(shown), np.sort(1e3 * residuals(three)["residual"]))
    assert "mnats/token" in ax.get_ylabel()
    assert ax.get_xlabel() == "budget: training compute (FLOP)"
    assert [text.get_text() for text in ax.get_xticklabels()] == [r"$3\times10^{17}$", r"$6\times10^{17}$"]
    assert labels(figure) == ["r = 1", "r = 2", "r = 4", *THREE, "median of the column"]


def test_frontier_is_the_lowest_expected_loss_at_each_budget(three):
    figure, ax = new_figure()
    plot_frontier(ax, three, "truncated")
    curves = [iso_flop(three, "truncated", 2, budget) for budget in (3e17, 6e17)]
    drawn = next(line for line in ax.lines if line.get_color() == r_style(2)["color"])
    np.testing.assert_allclose(drawn.get_ydata(), [np.median(curve.loss.min(axis=1)) for curve in curves])
    assert ax.get_xlabel() == "training compute (FLOP)"
    assert ax.get_ylabel() == "compute-optimal validation loss (nats/token)"
    assert labels(figure) == ["r = 1", "r = 2", "r = 4", "optimum of the runs"]


def test_frontier_of_another_posterior_for_contrast(three):
    figure, ax = new_figure()
    plot_frontier(ax, three, contrast=posterior(grid(counts=(2,)), fix={"phi": 1.0}))
    assert "every r, φ = 1" in labels(figure)


def test_every_figure_has_one_legend_and_all_are_drawn(three, by_r):
    drawn = dict(figures(three, rope=(-0.05, 0.05), contrast=posterior(grid(), fix={"phi": 1.0})))
    assert list(drawn) == ["forest", "differences", *(f"{kind}_{probe}" for probe in THREE
                                                      for kind in ("iso_flop", "frontier")), "residuals"]
    assert "every r, φ = 1" in labels(drawn["frontier_baseline"])
    assert "every r, φ = 1" not in labels(drawn["frontier_truncated"])  # the contrast has not seen it
    for figure in (*drawn.values(), *dict(figures(by_r)).values()):
        assert len(legends(figure)) == 1


def test_axes_of_one_figure_share_the_legend(three):
    figure, axes = new_figure(2)
    plot_forest(axes[0], three)
    plot_differences(axes[1], three, rope=(-0.1, 0.1))
    assert len(legends(figure)) == 1
    assert labels(figure) == ["median", "50 %", "95 %", "ROPE −0.1 to 0.1"]


def test_no_text_leaves_the_figure_or_covers_another(three, by_r):
    for post in (three, by_r, posterior(grid(looped=THREE), converged=0)):
        for name, figure in figures(post, rope=(-0.05, 0.05)):
            canvas = FigureCanvasAgg(figure)
            canvas.draw()
            box, renderer = figure.bbox.padded(1), canvas.get_renderer()
            legend = legends(figure)[0].get_window_extent(renderer)
            assert box.contains(*legend.min), name
            assert box.contains(*legend.max), name
            for ax in figure.axes:
                for axis in (ax.xaxis, ax.yaxis):
                    extents = [text.get_window_extent(renderer) for text in axis.get_ticklabels() if text.get_text()]
                    shown = [extent for extent in extents if box.overlaps(extent) and extent.width > 0]
                    for one, other in itertools.pairwise(shown):
                        assert not one.padded(-1).overlaps(other.padded(-1)), name


def test_colours_agree_across_figures(three):
    drawn = dict(figures(three))
    forest = {line.get_color() for line in drawn["forest"].axes[0].lines if line.get_marker() in "os^"}
    assert {to_hex(color) for color in forest} == {to_hex(probe_style(probe, THREE).color) for probe in THREE}
    iso = [{to_hex(line.get_color()) for line in ax.lines} for ax in drawn["iso_flop_truncated"].axes]
    frontier = {to_hex(line.get_color()) for line in drawn["frontier_truncated"].axes[0].lines}
    missed = {to_hex(line.get_color()) for line in markers(drawn["residuals"].axes[0], "o")}
    by_count = [r_style(r)["color"] for r in (1, 2, 4)]
    assert all(color in panel for color, panel in zip(by_count, iso, strict=True))
    assert set(by_count) == frontier == missed


def test_unknown_probes_get_styles_of_their_own():
    probes = ["mine", "baseline", "another", *(f"extra{i}" for i in range(5))]
    styles = {probe: probe_style(probe, probes) for probe in [*probes, *THREE]}
    assert len({style.color for style in styles.values()}) == len({style.marker for style in styles.values()}) == 10
    assert probe_style("mine", reversed(probes)) == styles["mine"]


def test_recurrence_counts_differ_in_colour_and_line():
    looks = [r_style(r) for r in (1, 2, 4, 8)]
    assert len({look["color"] for look in looks}) == len({str(look["linestyle"]) for look in looks}) == 4
    lightness = [np.dot(matplotlib.colors.to_rgb(look["color"]), (0.299, 0.587, 0.114)) for look in looks]
    assert (np.diff(lightness) > 0.05).all()  # told apart in grey
    assert lightness[-1] < 0.75  # and from white paper


def test_a_table_of_one_unknown_probe_can_be_drawn():
    runs = grid().replace({"probe": {"baseline": "my/recipe"}})
    drawn = dict(figures(posterior(runs)))
    assert list(drawn) == ["forest", "iso_flop_my_recipe", "frontier_my_recipe", "residuals"]


def test_a_posterior_that_has_not_converged_is_marked():
    post = posterior(grid(looped=THREE), converged=0)
    for name, figure in figures(post):
        assert "sampler not converged" in labels(figure), name


def test_files_are_written_whole_and_the_same_each_time(tmp_path, three):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        figure, ax = new_figure()
        plot_forest(ax, three)
        svg, png = save_figure(figure, tmp_path / folder / "phi.v1")
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == ["phi.v1.png", "phi.v1.svg"]
    assert png.read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in svg.read_bytes()
    assert svg.read_bytes() == (tmp_path / "one" / "phi.v1.svg").read_bytes()
    with pytest.raises(InputError, match="missing"):
        save_figure(figure, tmp_path / "missing" / "phi")


def test_drawing_leaves_no_state_behind(three):
    before = dict(matplotlib.rcParams)
    figure, ax = new_figure()
    plot_forest(ax, three)
    assert dict(matplotlib.rcParams) == before
    assert isinstance(figure, Figure)
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or figure not in [pyplot.figure(number) for number in pyplot.get_fignums()]


def test_runs_without_loops_can_be_drawn():
    runs = pd.DataFrame(grid().query("r == 1").reset_index(drop=True))
    names = [name for name, _ in figures(posterior(runs, fix={"phi": 0.5}))]
    assert names == ["iso_flop_baseline", "frontier_baseline", "residuals"]
