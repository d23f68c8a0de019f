"""The model against known values: losses and gradients of a filled model, agreed on by two other implementations."""

from __future__ import annotations

import math

import pytest
import torch

from bayesloop.architecture import Architecture
from training.looped_lm import LoopedLM


def golden_model(r: int, scheme: str, bptt_k: int | None = None, lanes: int = 0) -> LoopedLM:
    """The model of the golden values: every tensor filled with sines, in a fixed order of tensors."""
    ends, middle = (0, 3) if r == 1 else (1, 1)
    arch = Architecture(64, ends, middle, ends, r, scheme=scheme, bptt_k=bptt_k, lanes=lanes, head_dim=32, seq_len=16,
                        vocab_size=50)
    model = LoopedLM(arch)
    named = [("embedding", model.embedding)]
    for block in model.blocks():
        named += [("matrix", w) for w in block.matrices()] + [("norm", block.norm1), ("norm", block.norm2)]
    named += [("norm", model.norm_emb), ("norm", model.norm_recur), ("norm", model.norm_final), ("head", model.head)]
    if lanes:
        named += [("half", model.scheme.alpha), ("mix", model.scheme.mix), ("half", model.scheme.beta)]
    else:
        named += [("matrix", p) for p in model.scheme.parameters()]
    fill = {"embedding": lambda w: w, "head": lambda w: 0.2 * w, "norm": lambda w: 1 + 0.1 * w,
            "matrix": lambda w: w * math.sqrt(2 / w.shape[-1]), "half": lambda w: 0.5 + 0.2 * w,
            "mix": lambda w: 0.5 * w}
    with torch.no_grad():
        for j, (kind, tensor) in enumerate(named):
            i = torch.arange(tensor.numel(), dtype=torch.float64).reshape(tensor.shape)
            tensor.copy_(fill[kind](torch.sin(0.7 * i + 1.3 * j + 0.1)))
    return model


def golden_batch() -> tuple[torch.Tensor, torch.Tensor]:
    n = torch.arange(32)
    return ((7 * n + 3) % 50).reshape(2, 16), ((11 * n + 5) % 50).reshape(2, 16)


BASE = {"embedding": "embedding", "W_q": "prelude.0.w_q", "W_down": "recurrent.0.w_down", "coda": "coda.0.w_q",
        "norm": "norm_recur", "W_inj": "scheme.weight", "alpha": "scheme.alpha", "mix": "scheme.mix",
        "beta": "scheme.beta"}
GOLDEN = [
    ((1, "passthrough"), 4.126743, 2.30849, {"embedding": 0.02632, "W_down": 0.57724, "norm": 0.25443}),
    ((4, "linear", 4), 3.938793, 2.23605, {"embedding": 0.00851, "W_q": 0.01369, "W_down": 0.06192, "coda": 0.33648,
                                           "norm": 0.12815, "W_inj": 1.46771}),
    ((4, "linear", 2), 3.938793, 2.23493, {"embedding": 0.00850, "W_q": 0.01368, "W_down": 0.06186, "coda": 0.33648,
                                           "norm": 0.12809, "W_inj": 1.46614}),
    ((2, "linear", 1), 3.939534, 2.22435, {"embedding": 0.00837, "W_q": 0.01230, "W_down": 0.06366, "coda": 0.34261,
                                           "norm": 0.13039, "W_inj": 1.43955}),
    ((4, "additive"), 4.036285, 2.39826, {"embedding": 0.02385, "W_q": 0.01997, "W_down": 0.28954, "coda": 0.09405,
                                          "norm": 0.17314}),
    ((4, "passthrough"), 4.324975, 14.2459, {"embedding": 0.08696, "W_q": 0.26986, "W_down": 4.37887, "coda": 0.58051,
                                             "norm": 2.15329}),
    ((4, "hyperconnect", None, 2), 4.089867, 2.64440, {"embedding": 0.02309, "W_q": 0.04696, "W_down": 0.19326,
                                                       "coda": 0.21500, "norm": 0.06070, "alpha": 0.11373,
                                                       "mix": 0.22260, "beta": 0.03673}),
]


@pytest.mark.parametrize(("case", "loss", "total", "norms"), GOLDEN, ids=[str(case[0]) for case in GOLDEN])
def test_golden_losses_and_gradients(case: tuple, loss: float, total: float, norms: dict[str, float]) -> None:
    model = golden_model(*case)
    tokens, targets = golden_batch()
    mean = model(tokens, targets).mean()
    mean.backward()
    assert mean.item() == pytest.approx(loss, abs=2e-5)
    grads = {name: p.grad.norm().item() for name, p in model.named_parameters() if p.grad is not None}
    assert math.sqrt(sum(g * g for g in grads.values())) == pytest.approx(total, rel=2e-4)
    for name, value in norms.items():
        # the values are printed with five decimals
        assert grads[BASE[name]] == pytest.approx(value, rel=2e-4, abs=6e-6), name
