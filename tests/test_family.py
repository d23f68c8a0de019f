"""Families of models: the paper's grid, and widths between trainable ones."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

import bayesloop as bl
from bayesloop.architecture import ArchitectureError, iso_depth
from bayesloop.family import RECIPES, Family, family_of
from bayesloop.posterior import PosteriorError
from bayesloop.problems import RunsWarning
from tests.posteriors import grid, posterior


@pytest.mark.parametrize("injection", ["rec", "once", "none"])
def test_every_run_of_the_paper_comes_out(injection: str) -> None:
    runs = bl.read_runs("data/paper_grid.csv", injection=injection)
    assert set(runs["probe"]) == set(RECIPES)
    for _, run in runs.iterrows():
        family = Family(convention="formula", injection=injection, **RECIPES[run["probe"]])
        made = family.run(int(run["width"]), int(run["r"]), run["budget"])
        np.testing.assert_allclose([made[name] for name in ("n_once", "n_rec", "tokens", "flops")],
                                   run[["n_once", "n_rec", "tokens", "flops"]].astype(float), rtol=1e-12)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
@pytest.mark.parametrize("r", [1, 2, 4])
def test_counts_at_any_width_are_those_of_the_architecture_where_it_exists(recipe: dict, r: int) -> None:
    family = Family(head_dim=64, **recipe)
    width = 64 * 23
    model = family.model(width, r)
    np.testing.assert_allclose(family.counts(width, r), (model.n_once(), model.n_rec(), model.flops_per_token),
                               rtol=1e-12, atol=1e-3)  # quadratics, exact but for rounding
    assert family.width_of(model.n_once() + model.n_rec(), r) == pytest.approx(width, rel=1e-5)  # interpolated in log
    design = family.design(np.array([width - 0.5, width + 0.5]), r, 1e18)
    assert design.tokens[0] > 1e18 / model.flops_per_token > design.tokens[1]


def test_truncation_saves_training_but_not_inference() -> None:
    full, cut = Family(), Family(bptt_k="half")
    assert cut.counts(1024, 8)[2] < full.counts(1024, 8)[2]
    assert cut.model(1024, 8).backward_recurrences == 4
    assert cut.inference(1024, 8) == full.inference(1024, 8)
    assert Family(bptt_k=3).model(1024, 2).backward_recurrences == 2


def test_inference_counts_every_recurrence() -> None:
    cost = Family().inference(1024, 4)
    model = iso_depth(1024, 4)
    matrices = model.n_once() + 4 * model.n_rec() + model.vocab_padded * 1024
    attention = 4 * 20 * 1024 * 2048  # scores and weighted sum, each 2 FLOPs a multiply-add, at full context
    assert cost["inference_flops"] == pytest.approx(2 * matrices + attention, rel=1e-12)
    assert cost["kv_bytes"] == 2 * 2 * 20 * 1024
    assert cost["weight_bytes"] == 2 * model.n_total


def test_trainable_widths_surround_the_optimum() -> None:
    assert Family().trainable(700.0) == [640, 768]
    assert Family().trainable(768.0) == [768]
    assert Family().trainable(50.0) == [128, 256]


def test_recipe_follows_from_name_or_columns_and_r_1_is_the_anchor() -> None:
    runs = grid(looped=("baseline", "mine")).assign(lanes=0).drop(columns="budget")
    mine = runs["probe"] == "mine"
    runs = runs.assign(scheme=np.where(mine, "additive", "linear"), bptt_k=np.where(mine, 1, runs["r"]))
    post = posterior(runs, data_count_convention="formula", data_injection="once")
    assert family_of(post, "baseline") == Family(convention="formula", injection="once")
    cut = family_of(post, "mine", 2)
    assert (cut.scheme, cut.bptt_k) == ("additive", 1)  # k = 1 at r = 4 too
    assert family_of(post, "mine", 1).scheme == "linear"
    plain = grid().drop(columns="budget").query("r == 1")
    own = pd.concat([runs, plain.assign(probe="mine", scheme="additive", bptt_k=1, lanes=0)])
    assert family_of(posterior(own.reset_index(drop=True)), "mine", 1).scheme == "additive"
    half = posterior(runs.assign(bptt_k=(runs["r"] + 1) // 2))
    assert family_of(half, "mine", 2).bptt_k == "half"
    assert family_of(post, "mine", 2, depth=12, bptt_k=None) == Family(depth=12, scheme="additive",
                                                                      convention="formula", injection="once")


def test_a_budget_that_is_not_the_models_compute_is_doubted() -> None:
    runs = grid()
    family_of(posterior(runs), "baseline")
    six = 6 * (runs["n_once"] + runs["r"] * runs["n_rec"]) * runs["tokens"]
    with pytest.warns(RunsWarning, match=r"would cost [12]\.\d+ times the compute that the table gives"):
        family_of(posterior(runs.assign(budget=six)), "baseline")


def test_a_family_that_was_not_run_is_doubted() -> None:
    runs = grid().drop(columns="budget")
    deeper = posterior(runs.assign(n_rec=2 * runs["n_rec"]))
    with pytest.warns(RunsWarning, match=r"depth 20, 2 layers .* not those that were run: r = 1, width 256"):
        family_of(deeper, "baseline")
    with pytest.warns(RunsWarning, match="width 200: width 200 is not a multiple of the head dimension 128"):
        family_of(posterior(runs.assign(width=200)), "baseline")
    family_of(deeper, "baseline", depth=40)  # said on purpose


def test_without_widths_the_parts_that_run_once_and_r_times_tell() -> None:
    runs = grid().drop(columns="width")
    family_of(posterior(runs), "baseline")
    with pytest.warns(RunsWarning, match="not those that were run: r = 2 of .* parameters would run .* once, but runs"):
        family_of(posterior(runs.assign(n_once=2 * runs["n_once"])), "baseline")


@pytest.mark.parametrize(("changes", "message"), [
    ({"dept": 12}, "did you mean 'depth'"), ({"depth": "deep"}, "depth is 'deep'; expected an integer"),
    ({"injection": "twice"}, "injection is 'twice'"), ({"bptt_k": "some"}, "'half' for"),
    ({"batch_tokens": 0}, "batch_tokens is 0"),
])
def test_faults_are_named(changes: dict, message: str) -> None:
    with pytest.raises(ArchitectureError, match=message):
        family_of(posterior(grid()), "baseline", **changes)


def test_impossible_runs_are_refused() -> None:
    with pytest.raises(ArchitectureError, match="less than half a step"):
        Family().run(1024, 4, 1e12)
    with pytest.raises(ArchitectureError, match="r = 3 does not divide the 16 looped layers"):
        Family().counts(1024, 3)
    with pytest.raises(ArchitectureError, match="width 1000 is not a multiple"):
        Family().run(1000, 4, 1e18)
    with pytest.raises(PosteriorError, match="no run of probe 'mine'"):
        family_of(posterior(grid()), "mine")


def test_models_of_another_depth_are_known_by_the_columns_of_their_runs() -> None:
    """The shipped small grid: ten layers, bytes, heads of 8; every run has the counts and the FLOPs of its family."""
    runs = bl.read_runs("data/micro_grid.h5")
    post = posterior(runs)
    for (probe, r), own in runs.groupby(["probe", "r"]):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            family = family_of(post, str(probe), int(r))
        assert (family.depth, family.ends, family.head_dim, family.batch_tokens) == (10, 1, 8, 512)
        for run in own.itertuples():
            made = family.model(run.width, run.r)
            assert (made.n_once(), made.n_rec()) == (run.n_once, run.n_rec)
            assert made.flops_per_token * run.tokens == run.flops
