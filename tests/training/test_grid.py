"""Run configurations: identity, validation, and the published cells."""

from __future__ import annotations

import dataclasses

import pytest

from bayesloop.architecture import ArchitectureError
from training.grid import ConfigError, Operation, Rates, RunConfig, micro_run, paper_run


def test_published_and_measured_horizons() -> None:
    assert paper_run(10, 4, 1e18).horizon.n_steps == 3642
    assert micro_run(32, 1, 6e11).horizon.tokens == 579_072
    assert micro_run(32, 4, 6e11).horizon.tokens == 552_960
    assert paper_run(10, 1, 1e18).rates.ref_tokens == 983_315_200
    assert paper_run(10, 8, 1e18).rates.ref_tokens == 1_016_083_200


def test_identity_is_every_field_that_changes_the_result() -> None:
    base = micro_run(32, 4, 6e11)
    other = {"architecture": dataclasses.replace(base.architecture, bptt_k=2), "budget": 5e11, "data": "x",
             "batch_tokens": 1024, "eval_rows": 9, "fast_rows": 9, "rates": Rates(), "seed": 1, "allow_repeat": True,
             "residual_dtype": "reference"}
    labels = {"probe", "size"}
    assert {field.name for field in dataclasses.fields(RunConfig)} == set(other) | labels
    ids = {dataclasses.replace(base, **{name: value}).sha256 for name, value in other.items()}
    assert len(ids | {base.sha256}) == len(other) + 1
    assert dataclasses.replace(base, probe="mine").sha256 == base.sha256
    assert dataclasses.replace(base, budget=600_000_000_000).sha256 == base.sha256


def test_identity_does_not_move_between_releases() -> None:
    assert micro_run(32, 4, 6e11).run_id == "baseline-d32-r4-6e11-0b5cee6e71"
    assert paper_run(10, 4, 1e18).run_id == "baseline-s10-r4-1e18-ea3bf4db00"


def test_json_round_trip_and_refusals() -> None:
    config = paper_run(6, 2, 4.64e17, scheme="hyperconnect", lanes=2)
    assert RunConfig.from_json(config.to_json()) == config
    for text in ("{", "{}", '{"architecture": {"nonsense": 1}}', "[]"):
        with pytest.raises(ConfigError, match="not a run configuration"):
            RunConfig.from_json(text)


@pytest.mark.parametrize(("fields", "probe"), [
    ({"r": 1}, "baseline"), ({"r": 4}, "baseline"), ({"r": 4, "bptt_k": 2}, "truncated"),
    ({"r": 4, "scheme": "additive"}, "additive"), ({"r": 1, "scheme": "additive"}, "baseline"),
    ({"r": 4, "scheme": "hyperconnect", "lanes": 2}, "hyperconnections"),
    ({"r": 1, "scheme": "hyperconnect", "lanes": 2}, "hyperconnections"),
])
def test_probe_follows_from_the_recipe(fields: dict, probe: str) -> None:
    assert micro_run(32, budget=6e11, **fields).probe == probe


@pytest.mark.parametrize(("change", "message"), [
    ({"budget": -1.0}, "budget is -1.0"), ({"budget": float("nan")}, "budget is nan"),
    ({"batch_tokens": 100}, "not a multiple of seq_len = 64"), ({"eval_rows": 0}, "eval_rows is 0"),
    ({"residual_dtype": "float16"}, "expected float32 or reference"), ({"seed": -1}, "seed is -1"),
    ({"data": ""}, "data is empty"), ({"size": 6}, "size 6 means width 384, but the architecture has 32"),
])
def test_wrong_fields_are_named(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(micro_run(32, 4, 6e11), **change)


def test_other_refusals(tmp_path) -> None:
    with pytest.raises(ArchitectureError, match="less than half a step"):
        micro_run(32, 4, 1e5)
    with pytest.raises(ConfigError, match=r"rates\.matrix is 0"):
        Rates(matrix=0)
    with pytest.raises(ConfigError, match="compile is 'fast'"):
        Operation(tmp_path, tmp_path, compile="fast")
    with pytest.raises(ConfigError, match="device_rows is 0"):
        Operation(tmp_path, tmp_path, device_rows=0)
    with pytest.raises(ConfigError, match="threads must be"):
        Operation(tmp_path, tmp_path, threads=0)
