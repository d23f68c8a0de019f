"""The model against known values: losses and gradients of a filled model, agreed on by two other implementations."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

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


def loss_and_gradients(model: LoopedLM) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
    loss = model(*golden_batch()).mean()
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("scheme", ["linear", "additive"])
def test_truncation_leaves_the_forward_value_and_cuts_the_gradient_at_the_exact_iteration(scheme: str) -> None:
    """Against a loop written out here, which detaches the states leaving iterations 0 … r − k − 1."""
    for k in (1, 2, 3, 4):
        model = golden_model(4, scheme, k)
        loss, grads = loss_and_gradients(model)
        assert torch.equal(loss, loss_and_gradients(golden_model(4, scheme, 4))[0])
        written = golden_model(4, scheme, k)
        x = torch.nn.functional.rms_norm(written.embedding[golden_batch()[0]], (64,), written.norm_emb, 1e-6)
        e = written.prelude[0](x, written.cos, written.sin)
        state = torch.zeros_like(e) if scheme == "additive" else e
        for i in range(4):
            u = state + e if scheme == "additive" else torch.cat([e, state], -1) @ written.scheme.weight.T
            u = written.recurrent[0](u, written.cos, written.sin)
            state = torch.nn.functional.rms_norm(u, (64,), written.norm_recur, 1e-6)
            if i < 4 - k:
                state = state.detach()
        x = written.coda[0](state, written.cos, written.sin)
        x = torch.nn.functional.rms_norm(x, (64,), written.norm_final, 1e-6)
        logits = 15 * torch.tanh(x @ written.head.T[:, :50] / 15)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), golden_batch()[1].flatten()).backward()
        for name, p in written.named_parameters():
            torch.testing.assert_close(grads[name], p.grad, rtol=1e-4, atol=1e-7, msg=f"k = {k}, {name}")


def test_early_iterations_keep_no_graph() -> None:
    """Tensors saved for the backward pass: two more iterations with gradient save more, two without save none."""

    def saved(r: int, k: int) -> int:
        arch = Architecture(16, 1, 1, 1, r, bptt_k=k, head_dim=8, seq_len=16, vocab_size=50)
        count = 0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal count
            count += 1
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            LoopedLM(arch)(*golden_batch())
        return count

    assert saved(4, 2) == saved(2, 2)
    assert saved(4, 4) > saved(2, 2)


def test_r_1_has_no_injection_but_the_norm_of_the_recurrence() -> None:
    for scheme in ("linear", "additive", "passthrough"):
        model = golden_model(1, scheme)
        assert not list(model.scheme.parameters())
        loss, grads = loss_and_gradients(model)
        assert grads["norm_recur"].abs().sum() > 0
        assert loss.item() == pytest.approx(4.126743, abs=2e-5)  # all three are the same model


def test_lanes_start_as_stated_and_all_receive_gradient() -> None:
    arch = Architecture(16, 1, 1, 1, 4, scheme="hyperconnect", lanes=2, head_dim=8, seq_len=16, vocab_size=50)
    model = LoopedLM(arch)
    assert torch.equal(model.scheme.alpha, torch.tensor([[1.0, 0], [0, 1], [1, 0], [0, 1]]))
    e = torch.randn(2, 16, 16)
    assert torch.equal(model.scheme.inject(0, e, model.scheme.start(e)), e)
    torch.nn.init.normal_(model.head)  # the initial head is too small for gradients to be told from rounding
    _, grads = loss_and_gradients(model)
    for name in ("alpha", "mix", "beta"):
        per_iteration = grads[f"scheme.{name}"].flatten(1).abs().amax(1)
        assert (per_iteration > 0).all(), name


def test_padded_vocabulary_gets_no_gradient_and_ignored_targets_cost_nothing() -> None:
    model = golden_model(2, "linear")
    tokens, targets = golden_batch()
    targets[0, :4] = -1
    losses = model(tokens, targets)
    assert (losses[:4] == 0).all()
    losses.sum().backward()
    assert (model.head.grad[50:] == 0).all()
    assert (model.embedding.grad[50:] == 0).all()


def test_a_chunked_head_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = loss_and_gradients(golden_model(2, "linear"))
    monkeypatch.setattr("training.looped_lm.CHUNK_LOGITS", 64 * 10)
    loss, grads = loss_and_gradients(golden_model(2, "linear"))
    assert loss.item() == pytest.approx(whole[0].item(), rel=1e-6)
    for name, grad in grads.items():
        torch.testing.assert_close(grad, whole[1][name])


def test_initial_loss_is_chance_and_weights_depend_on_the_seed_alone() -> None:
    arch = Architecture(32, 1, 1, 1, 2, head_dim=8, seq_len=16, vocab_size=50)
    one, two, other = LoopedLM(arch, 1), LoopedLM(arch, 1), LoopedLM(arch, 2)
    assert one(*golden_batch()).mean().item() == pytest.approx(math.log(50), abs=0.01)
    for name, p in one.named_parameters():
        assert torch.equal(p, two.get_parameter(name))
    assert not torch.equal(one.embedding, other.embedding)
    for block in one.blocks():
        for w in block.matrices():
            assert w.std().item() == pytest.approx(1 / math.sqrt(w.shape[1]), rel=0.1)
            assert w.norm() > 0


@pytest.mark.parametrize("residual", [torch.float32, torch.bfloat16])
def test_bfloat16_matrices_stay_near_float32(residual: torch.dtype) -> None:
    """bfloat16 keeps 8 bits: 0.4 % of a tanh-capped logit of order 1, averaged over 32 tokens."""
    exact = golden_model(4, "linear")
    rounded = LoopedLM(exact.arch, compute_dtype=torch.bfloat16, residual_dtype=residual)
    rounded.load_state_dict(exact.state_dict())
    seen = []
    rounded.recurrent[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].dtype))
    loss = rounded(*golden_batch()).mean()
    loss.backward()
    assert loss.item() == pytest.approx(exact(*golden_batch()).mean().item(), abs=0.03)
    assert loss.dtype == torch.float32
    assert set(seen) == {residual}
    assert all(p.grad.dtype == torch.float32 for p in rounded.parameters())


@pytest.mark.parametrize(("r", "scheme", "k"),
                         [(1, "linear", 1), (4, "linear", 4), (4, "linear", 2), (4, "additive", 4)])
def test_flops_against_the_counter_of_torch(r: int, scheme: str, k: int) -> None:
    """The compute axis counts every matrix product that torch counts, and one thing more: norm scales as if they were
    weights of matrices (2 d a layer; 6 FLOPs each where gradient flows, 2 where not).

    Attention runs as plain products here: torch does not count the fused CPU kernel, and counts 2.5 instead of 2
    forward passes for the backward of the fused GPU kernels, which compute the scores again.
    """
    ends, middle = (0, 3) if r == 1 else (1, 1)
    arch = Architecture(64, ends, middle, ends, r, scheme=scheme, bptt_k=k, head_dim=32, seq_len=16, vocab_size=64)
    model = LoopedLM(arch)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(*golden_batch()).mean().backward()
    scales = 2 * arch.width * (6 * (2 * ends + k * middle) + 2 * (r - k) * middle)
    assert counter.get_total_flops() == 32 * (arch.flops_per_token - scales)
