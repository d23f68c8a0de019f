"""The optimisers against known values and against independent implementations."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch

from training.grid import Rates, paper_run
from training.optim import MuonH, Optimiser, multiplier, orthogonalise, peak_rates, run_rates

GOLDEN = [
    ((4, 6), 1, (0.00614, 0.64482, 0.94397), -0.40743, 2.22869),
    ((4, 6), 2, (-0.10140, 0.54737, 0.90973), -0.48217, 2.00467),
    ((6, 4), 1, (0.01075, 0.66175, 0.95243), -0.42078, 2.45178),
    ((6, 4), 2, (-0.08044, 0.58593, 0.85365), -0.52401, 1.98073),
]
SINGULAR = {(4, 6): ((0.2205, 0.1900, 0.1731, 0.0624), (1.0821, 1.0728, 1.0649, 0.9688)),
            (6, 4): ((0.2403, 0.1812, 0.1343, 0.1001), (1.1366, 1.0479, 0.9978, 0.8932))}
# size, r, scheme, bptt_k, budget → MuonH peak rate, width factor of the AdamW rates
CELLS = [
    (6, 1, "linear", None, 4.64e17, 0.014030, 1.290994), (12, 8, "linear", None, 4.64e17, 0.020179, 0.912871),
    (10, 4, "linear", None, 1e18, 0.014281, 1.0), (16, 2, "linear", None, 2.15e18, 0.014249, 0.790569),
    (20, 4, "linear", None, 1e19, 0.009882, 0.707107), (34, 8, "linear", None, 2.15e19, 0.010558, 0.542326),
    (10, 4, "linear", 2, 1e18, 0.013100, 1.0), (22, 2, "linear", 1, 4.64e18, 0.012112, 0.674200),
    (12, 8, "linear", 4, 2.15e18, 0.011307, 0.912871), (10, 4, "hyperconnect", None, 1e18, 0.014196, 1.0),
    (6, 2, "hyperconnect", None, 4.64e17, 0.014178, 1.290994),
    (18, 8, "hyperconnect", None, 2.15e18, 0.015135, 0.745356),
]


def start(shape: tuple[int, int]) -> torch.Tensor:
    return torch.sin(0.7 * torch.arange(24, dtype=torch.float64) + 0.1).reshape(shape).float()


def gradient(shape: tuple[int, int], t: int) -> torch.Tensor:
    i = torch.arange(24, dtype=torch.float64)
    return torch.cos(0.3 * i + (0.05 + 0.02 * (t - 1)) * i**2).reshape(shape).float()


@pytest.mark.parametrize(("shape", "steps", "head", "last", "total"), GOLDEN)
def test_muonh_golden_values(shape: tuple[int, int], steps: int, head: tuple[float, ...], last: float,
                             total: float) -> None:
    weight = torch.nn.Parameter(start(shape))
    optimiser = MuonH([weight], lr=0.1)
    for t in range(1, steps + 1):
        weight.grad = gradient(shape, t)
        optimiser.step()
    assert weight.norm().item() == pytest.approx(3.380587, abs=1e-4)
    np.testing.assert_allclose(weight[0, :3].detach(), head, atol=1e-4)
    assert weight[-1, -1].item() == pytest.approx(last, abs=1e-4)
    assert weight.sum().item() == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize("shape", SINGULAR)
def test_polar_express_golden_singular_values(shape: tuple[int, int]) -> None:
    g = gradient(shape, 1)
    n = (1 - 0.95) * g + 0.95 * 0.05 * g  # Nesterov mix of the first step, from zero momentum
    before, after = SINGULAR[shape]
    np.testing.assert_allclose(torch.linalg.svdvals(n), before, atol=1e-4)
    x = orthogonalise((n / (1.02 * n.norm() + 1e-6))[None])[0]
    np.testing.assert_allclose(torch.linalg.svdvals(x), after, atol=1e-4)


def numpy_muonh(w: np.ndarray, grads: list[np.ndarray], rate: float) -> np.ndarray:
    """MuonH in float64 by the singular value decomposition: the iteration acts on singular values alone."""
    triples = [(8.156554524902461, -22.48329292557795, 15.878769915207462),
               (4.042929935166739, -2.808917465908714, 0.5000178451051316),
               (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
               (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
               (2.3465413258596377, -1.7097828382687081, 0.42323551169305323)]
    c, m = np.linalg.norm(w), np.zeros_like(w)
    for g in grads:
        m = 0.95 * m + 0.05 * g
        n = 0.05 * g + 0.95 * m
        u, s, vt = np.linalg.svd(n, full_matrices=False)
        s = s / (1.02 * np.linalg.norm(n) + 1e-6)
        for a, b, q in triples:
            s = a * s + b * s**3 + q * s**5
        x = u @ np.diag(s) @ vt
        w = w - rate * x * c / np.linalg.norm(x)
        w = w * c / np.linalg.norm(w)
    return w


@pytest.mark.parametrize("shape", [(16, 32), (32, 16), (24, 24), (16, 64)])
def test_muonh_against_float64(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    starts = [rng.normal(size=shape) for _ in range(3)]
    grads = [[rng.normal(size=shape) for _ in range(10)] for _ in starts]
    weights = [torch.nn.Parameter(torch.tensor(w, dtype=torch.float32)) for w in starts]
    optimiser = MuonH(weights, lr=0.02)
    for t in range(10):
        for weight, mine in zip(weights, grads, strict=True):
            weight.grad = torch.tensor(mine[t], dtype=torch.float32)
        optimiser.step()
    for weight, w, mine in zip(weights, starts, grads, strict=True):
        # float32 through ten times five steps that amplify small singular values up to 8-fold each
        np.testing.assert_allclose(weight.detach(), numpy_muonh(w, mine, 0.02), atol=5e-4)
        assert weight.norm().item() == pytest.approx(np.linalg.norm(w), rel=1e-4)


def test_muonh_orthogonalised_in_bfloat16_stays_on_the_sphere_and_close() -> None:
    torch.manual_seed(0)
    one, two = (torch.nn.Parameter(torch.randn(32, 64, generator=torch.Generator().manual_seed(1))) for _ in range(2))
    norm = one.norm().item()
    steps = [MuonH([one], lr=0.02), MuonH([two], lr=0.02, dtype=torch.bfloat16)]
    for _ in range(10):
        one.grad = torch.randn(32, 64)
        two.grad = one.grad.clone()
        for optimiser in steps:
            optimiser.step()
    assert two.norm().item() == pytest.approx(norm, rel=1e-4)
    # ten steps of relative length 0.02; bfloat16 keeps 8 bits, so directions agree to about a per cent
    assert ((one - two).norm() / norm).item() < 0.01


def test_adamw_groups_against_torch_with_rates_by_hand() -> None:
    torch.manual_seed(0)
    n_steps, peak = 5, {"matrix": 0.01, "head": 0.004, "embed": 0.3, "norm": 0.005, "lane": 0.01}
    groups = {name: [torch.nn.Parameter(torch.randn(4, 6))] for name in peak}
    copies = {name: torch.nn.Parameter(params[0].detach().clone()) for name, params in groups.items()}
    optimiser = Optimiser(groups, peak, n_steps)
    reference = {name: torch.optim.AdamW([copy], lr=peak[name], betas=(0.8, 0.95), eps=1e-10, weight_decay=0.0)
                 for name, copy in copies.items() if name != "matrix"}
    for t in range(n_steps):
        for name, params in groups.items():
            params[0].grad = torch.randn(4, 6)
            copies[name].grad = params[0].grad.clone()
        optimiser.step(t)
        for name, other in reference.items():
            other.param_groups[0]["lr"] = peak[name] * ((n_steps - t) / n_steps * 0.9 + 0.1)
            other.step()
    for name in reference:
        torch.testing.assert_close(groups[name][0], copies[name])
    assert not torch.equal(groups["matrix"][0], copies["matrix"])


def test_optimiser_state_survives_a_round_trip_in_float32() -> None:
    torch.manual_seed(0)
    peak = {"matrix": 0.01, "head": 0.004, "embed": 0.3, "norm": 0.005, "lane": 0.01}

    def make() -> dict[str, list[torch.nn.Parameter]]:
        return {name: [torch.nn.Parameter(torch.ones(4, 6)), torch.nn.Parameter(torch.ones(6, 4))] for name in peak}

    one, two = make(), make()
    first, second = Optimiser(one, peak, 9), Optimiser(two, peak, 9)

    def step(groups: dict[str, Any], optimiser: Optimiser, t: int) -> None:
        generator = torch.Generator().manual_seed(t)
        for params in groups.values():
            for param in params:
                param.grad = torch.randn(param.shape, generator=generator)
        optimiser.step(t)

    for t in range(3):
        step(one, first, t)
    buffer = io.BytesIO()
    torch.save(first.state_dict(), buffer)
    buffer.seek(0)
    second.load_state_dict(torch.load(buffer, weights_only=True))
    for name, params in one.items():
        for a, b in zip(params, two[name], strict=True):
            b.data.copy_(a.data)
    floats = [value for state in (*second.muonh.state.values(), *second.adamw.state.values())
              for value in state.values() if torch.is_tensor(value)]
    assert all(value.dtype == torch.float32 for value in floats)
    for t in range(3, 6):
        step(one, first, t)
        step(two, second, t)
    for name, params in one.items():
        for a, b in zip(params, two[name], strict=True):
            assert torch.equal(a, b)


def test_schedule_golden_values() -> None:
    expected = {0: 1.0, 1: 0.999758, 1863: 0.55, 3725: 0.100242}
    assert {t: multiplier(t, 3726) for t in expected} == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize(("size", "r", "scheme", "bptt_k", "budget", "rate", "width"), CELLS)
def test_transferred_rates_of_the_published_cells(size: int, r: int, scheme: str, bptt_k: int | None, budget: float,
                                                  rate: float, width: float) -> None:
    config = paper_run(size, r, budget, scheme=scheme, bptt_k=bptt_k, lanes=2 if scheme == "hyperconnect" else 0)
    rates = run_rates(config)
    assert rates["matrix"] == pytest.approx(rate, abs=5.1e-7)
    for name, base in (("head", 0.004), ("embed", 0.3), ("norm", 0.005), ("lane", 0.01)):
        assert rates[name] / base == pytest.approx(width, abs=5.1e-7)


def test_the_batch_moves_all_rates_but_those_of_norms_and_lanes() -> None:
    base, twice = (peak_rates(Rates(), 640, batch, 1e9) for batch in (262_144, 524_288))
    factor = {name: twice[name] / base[name] for name in base}
    expected = {"matrix": 1.47222, "head": 1.47222, "embed": 1.47222, "norm": 1.0, "lane": 1.0}
    assert factor == pytest.approx(expected, abs=1e-5)
