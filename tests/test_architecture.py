"""Counts, FLOPs and horizons against the published vectors, integer for integer."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from bayesloop.architecture import Architecture, ArchitectureError, horizon, iso_depth, width_from_size

DATA = Path(__file__).parents[1] / "data" / "paper_grid.csv"

# budget, s, r, k, scheme, N_once, N_rec (formula), N_once, N_rec (exact), F, steps, tokens, target tokens
VECTORS = [
    (4.64e17, 6, 1, 1, "passthrough", 0, 35389440, 0, 35404800, 475047936, 3726, 976748544, 976743534),
    (4.64e17, 12, 8, 8, "linear", 28311552, 15335424, 28317696, 15338496, 1431392256, 1237, 324272128, 324159920),
    (1.00e18, 10, 4, 4, "linear", 19660800, 20480000, 19665920, 20485120, 1047336960, 3642, 954728448, 954802549),
    (2.15e18, 16, 2, 2, "linear", 50331648, 102760448, 50339840, 102776832, 2235678720, 3669, 961806336, 961676640),
    (1.00e19, 20, 4, 4, "linear", 78643200, 81920000, 78653440, 81930240, 3313643520, 11512, 3017801728, 3017826129),
    (2.15e19, 34, 8, 8, "linear", 227278848, 123109376, 227296256, 123118080, 8761620480, 9361, 2453929984, 2453883964),
    (1.00e18, 10, 4, 2, "linear", 19660800, 20480000, 19665920, 20485120, 799569920, 4771, 1250689024, 1250672361),
    (4.64e18, 22, 2, 1, "linear", 95158272, 194281472, 95169536, 194304000, 2903836672, 6095, 1597767680, 1597886012),
    (2.15e18, 12, 8, 4, "linear", 28311552, 15335424, 28317696, 15338496, 1085313024, 7557, 1981022208, 1980995300),
    (1.00e18, 10, 4, 4, "hyperconnect", 19660800, 19660800, 19665920, 19665952, 1027799040, 3712, 973078528, 972952844),
    (4.64e17, 6, 2, 2, "hyperconnect", 7077888, 14155776, 7080960, 14161936, 475084800, 3726, 976748544, 976667744),
    (2.15e18, 18, 8, 8, "hyperconnect", 63700992, 31850496, 63710208, 31855168, 2699606016, 3038, 796393472, 796412508),
]


def build(size: int, r: int, k: int, scheme: str) -> Architecture:
    return iso_depth(width_from_size(size), r, scheme=scheme, bptt_k=k, lanes=2 if scheme == "hyperconnect" else 0)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"s{v[1]}-r{v[2]}-k{v[3]}-{v[4]}")
def test_published_vectors(vector: tuple) -> None:
    budget, size, r, k, scheme, *expected = vector
    architecture = build(size, r, k, scheme)
    run = horizon(budget, architecture.flops_per_token, 262_144)
    got = [architecture.n_once("formula"), architecture.n_rec("formula"), architecture.n_once(), architecture.n_rec(),
           architecture.flops_per_token, run.n_steps, run.tokens, run.target_tokens]
    assert got == expected


def test_parameter_dictionary_of_the_reference_cell() -> None:
    looped, plain = build(10, 4, 4, "linear"), build(10, 1, 1, "passthrough")
    assert looped.vocab_padded * looped.width == 20_520_960
    assert (looped.n_once(), looped.n_recur * looped.layer(), looped.n_inject) == (2 * 9_832_960, 19_665_920, 819_200)
    assert (looped.n_total, looped.n_by_use, plain.n_by_use) == (81_194_880, 101_608_320, 98_331_520)


def test_micro_configuration() -> None:
    micro = {"depth": 10, "ends": 1, "head_dim": 8, "seq_len": 64, "vocab_size": 256}
    plain, looped = iso_depth(32, 1, **micro), iso_depth(32, 4, **micro)
    assert (plain.flops_per_token, looped.flops_per_token) == (1_036_032, 1_085_184)
    assert (plain.n_rec(), looped.n_once(), looped.n_rec()) == (123_520, 24_704, 26_752)
    assert horizon(6e11, plain.flops_per_token, 512).n_steps == 1131
    assert horizon(6e11, looped.flops_per_token, 512).tokens == 552_960


def test_shipped_table_agrees_with_the_formulae() -> None:
    with DATA.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 240
    for row in rows:
        r, probe = int(row["r"]), row["probe"]
        scheme = "hyperconnect" if probe == "hyperconnections" else "linear"
        k = -(-r // 2) if probe == "truncated" else r
        architecture = build(int(row["size"]), r, k, scheme)
        run = horizon(float(row["budget"]), architecture.flops_per_token, 262_144)
        got = (architecture.width, architecture.n_once("formula"), architecture.n_rec("formula"),
               architecture.n_inject, run.tokens)
        written = tuple(int(row[name]) for name in ("width", "n_once", "n_rec", "n_inject", "tokens"))
        assert got == written, row["run_id"]
        assert float(row["flops"]) == pytest.approx(run.tokens * architecture.flops_per_token, rel=1e-12)


def test_odd_sizes_round_up_to_the_head_dimension() -> None:
    assert [width_from_size(size) for size in (6, 7, 8, 34)] == [384, 512, 512, 2176]


@pytest.mark.parametrize(("fields", "expected"), [
    ({"scheme": "hyperconnect", "lanes": 1}, "lanes ≥ 2"),
    ({"scheme": "hyperconnect", "lanes": 2, "bptt_k": 2}, "no gradient"),
    ({"scheme": "passthrough", "bptt_k": 2}, "no gradient"),
    ({"scheme": "linear", "lanes": 2}, "only hyperconnect has lanes"),
    ({"bptt_k": 5}, "exceeds r"),
    ({"scheme": "spiral"}, "expected one of"),
    ({"head_dim": 24}, "multiple of the head dimension"),
    ({"n_recur": 0}, "n_recur is 0"),
    ({"r": True}, "r is True"),
])
def test_impossible_shapes_are_refused_with_the_reason(fields: dict, expected: str) -> None:
    with pytest.raises(ArchitectureError, match=expected):
        Architecture(**{"width": 64, "n_prelude": 1, "n_recur": 1, "n_coda": 1, "r": 4, "head_dim": 32, **fields})


def test_r_must_divide_the_block_and_the_budget_pay_for_a_step() -> None:
    with pytest.raises(ArchitectureError, match="does not divide the 16 looped layers"):
        iso_depth(640, 3)
    with pytest.raises(ArchitectureError, match="less than half a step"):
        horizon(1e9, 10**6, 10**5)
