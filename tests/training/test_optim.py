"""The optimisers against known values and against independent implementations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from training.optim import MuonH

GOLDEN = [
    ((4, 6), 1, (0.00614, 0.64482, 0.94397), -0.40743, 2.22869),
    ((4, 6), 2, (-0.10140, 0.54737, 0.90973), -0.48217, 2.00467),
    ((6, 4), 1, (0.01075, 0.66175, 0.95243), -0.42078, 2.45178),
    ((6, 4), 2, (-0.08044, 0.58593, 0.85365), -0.52401, 1.98073),
]


def golden_gradient(shape: tuple[int, int], t: int) -> torch.Tensor:
    i = torch.arange(24, dtype=torch.float64)
    return torch.cos(0.3 * i + (0.05 + 0.02 * (t - 1)) * i**2).reshape(shape).float()


@pytest.mark.parametrize(("shape", "steps", "head", "last", "total"), GOLDEN)
def test_muonh_golden_values(shape: tuple, steps: int, head: tuple, last: float, total: float) -> None:
    weight = torch.nn.Parameter(torch.sin(0.7 * torch.arange(24, dtype=torch.float64) + 0.1).reshape(shape).float())
    optimiser = MuonH([weight], lr=0.1)
    for t in range(1, steps + 1):
        weight.grad = golden_gradient(shape, t)
        optimiser.step()
    assert weight.norm().item() == pytest.approx(3.380587, abs=1e-5)
    np.testing.assert_allclose(weight[0, :3].detach(), head, atol=1e-4)
    assert weight[-1, -1].item() == pytest.approx(last, abs=1e-4)
    assert weight.sum().item() == pytest.approx(total, abs=2e-4)
