"""Short sequences, computed at once, have the results of stretches, with any mask, weights or offset."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.contract.mask import Mask
from efficient_attn.kernels.linear import short_sequences
from efficient_attn.kernels.linear.linear_config import KeyInputs
from efficient_attn.kernels.linear.short_sequences import MAX_LENGTH, MAX_LENGTH_CUT, compute_decays, is_short
from efficient_attn.testing.tensor_comparison import assert_close
from efficient_attn.variants.linear import linear_attention
from efficient_attn.variants.linear.lanes import make_decaying_lanes

SPECS = ["linear", "cosformer", "performer:n_features=16", "random_feature:n_features=8", "taylor", "retention"]
SPECS += ["retention:normalised=true"]
MISALIGNED = ("early", "late")  # queries without a key at their position: decaying weights have no reference there
MASKS = {
    "plain": Mask(),
    "causal": Mask(causal=True),
    "padded": Mask(causal=True, key_lengths=torch.tensor([30, 0])),
    "holes": Mask(key_mask=torch.arange(60).view(2, 30) % 3 > 0),
    "early": Mask(causal=True, query_start=-4),
    "late": Mask(causal=True, query_start=9),
}


def output_and_grads(attn: ea.Attention, mask: Mask, n: int = 30) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(1)
    inputs = [torch.randn(2, h, m, 8, generator=g, dtype=torch.float64) for h, m in ((4, n), (2, 30), (2, 30))]
    leaves = [x.requires_grad_() for x in inputs]
    out = attn(*leaves, mask)
    return out, *torch.autograd.grad((out * torch.linspace(-1, 1, 8, dtype=out.dtype)).sum(), leaves)


@pytest.mark.parametrize("lanes", [4, 3], ids=["all", "groups"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("spec", SPECS)
def test_short_calls_agree_with_stretches_and_reference(
    spec: str, mask: str, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_sequences, "_count_lanes", lambda *_: lanes)
    mechanisms = [
        ea.create(spec, dims=ea.Dims(heads=4, kv_heads=2, head_dim=8, max_len=64), backend=b) for b in (None, "dense")
    ]
    if MASKS[mask].causal not in mechanisms[0].traits.directions:
        pytest.skip("the mechanism does not support this direction")
    short_calls: list[bool] = []
    real = linear_attention.is_short
    monkeypatch.setattr(
        linear_attention,
        "is_short",
        lambda *inputs, **options: short_calls.append(real(*inputs, **options)) or short_calls[-1],
    )
    results, reference = (output_and_grads(attn, MASKS[mask]) for attn in mechanisms)
    assert set(short_calls) == {not (spec.startswith("retention") and mask in MISALIGNED)}
    monkeypatch.setattr(linear_attention, "is_short", lambda *_, **options: False)
    for got, by_stretches, want in zip(results, output_and_grads(mechanisms[0], MASKS[mask]), reference, strict=True):
        assert_close(got, by_stretches, f"{spec}, {mask}: stretches")
        assert_close(got, want, f"{spec}, {mask}: reference")


@pytest.mark.parametrize("lanes", [2, 1], ids=["all", "groups"])
def test_gates_have_gradients(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_sequences, "_count_lanes", lambda *_: lanes)
    attn, dense = (
        ea.create("random_feature:gated=true:n_features=8", dims=ea.Dims(heads=2, head_dim=8), backend=b)
        for b in (None, "dense")
    )
    g = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, 2, 20, 8, generator=g, dtype=torch.float64) for _ in range(3))
    gates = {name: torch.randn(1, 2, 20, *i.tail, generator=g).double() for name, i in attn.traits.inputs.items()}
    results = []
    for mechanism in (attn, dense):
        leaves = {name: x.clone().requires_grad_() for name, x in gates.items()}
        out = mechanism(q, k, v, Mask(causal=True), **leaves)
        results.append((out, *torch.autograd.grad(out.cos().sum(), list(leaves.values()))))
    for got, want in zip(*results, strict=True):
        assert_close(got, want, "gates")


def test_is_short_depends_on_length_width_and_weights() -> None:
    def short(spec: str, n: int, m: int, heads: int, *, causal: bool, start: int = 0, device: str = "cpu") -> bool:
        attn = ea.create(spec, dims=ea.Dims(heads=heads, head_dim=64))
        config = attn.make_config(start, 0, None)  # pyright: ignore
        q, k = torch.zeros(heads, 1, n, 64, device=device), torch.zeros(heads, m, 64, device=device)
        return is_short(config, q, KeyInputs(k, k), causal, weighted=attn.weighs_keys)

    assert short("linear", MAX_LENGTH, MAX_LENGTH, 4, causal=False)
    assert not short("linear", MAX_LENGTH, MAX_LENGTH, 4, causal=True)
    assert short("linear", 256, 256, 4, causal=True)
    for device, uncut in (("cpu", False), ("meta", True)):  # like a GPU: 256 lanes are one group
        assert short("linear", 256, 256, 256, causal=True, device=device) is uncut
    assert not short("linear", MAX_LENGTH + 1, 8, 1, causal=False)
    assert not short("linear", 8, MAX_LENGTH + 1, 1, causal=False)
    assert not short("linear", MAX_LENGTH, MAX_LENGTH, 16, causal=False)
    assert short("linear", MAX_LENGTH_CUT, MAX_LENGTH_CUT, 256, causal=True), "lanes are computed in groups"
    assert not short("linear", MAX_LENGTH_CUT + 1, MAX_LENGTH_CUT + 1, 256, causal=True)
    assert short("performer:n_features=64", MAX_LENGTH_CUT, MAX_LENGTH_CUT, 256, causal=True)
    assert not short("performer:n_features=64", MAX_LENGTH_CUT + 1, MAX_LENGTH_CUT + 1, 256, causal=True)
    assert not short("performer:n_features=8192", 64, 64, 1, causal=True), "one lane exceeds the limit"
    assert short("retention", 256, 256, 4, causal=True)
    assert not short("retention", 256, 256, 8, causal=True)
    assert not short("retention", 8, 8, 1, causal=True, start=1)
    assert short("taylor", MAX_LENGTH, MAX_LENGTH, 256, causal=True), "its kernel needs none of its features"
    assert short("taylor", MAX_LENGTH, MAX_LENGTH, 256, causal=False)
    assert not short("taylor", MAX_LENGTH + 1, MAX_LENGTH + 1, 1, causal=True)


# -- tables of decays ------------------------------------------------------------------------------------------------


def test_decays_are_cached_by_everything_that_they_depend_on() -> None:
    compute_decays.cache_clear()
    attn = ea.create("retention")

    def call(heads: int, n: int, m: int, dtype: torch.dtype) -> int:
        q, k = torch.ones(1, heads, n, 4, dtype=dtype), torch.ones(1, heads, m, 4, dtype=dtype)
        for _ in range(2):
            torch.testing.assert_close(
                attn(q, k, k, Mask(causal=True)), ea.create("retention", backend="dense")(q, k, k, Mask(causal=True))
            )
        return compute_decays.cache_info().misses

    calls = [(2, 5, 5, torch.float32), (3, 5, 5, torch.float32), (2, 4, 5, torch.float32), (2, 5, 5, torch.float64)]
    assert [call(*sizes) for sizes in calls] == [1, 2, 3, 4]
    assert call(2, 5, 5, torch.float16) == 4, "sums of half precision are float32"
    for n in range(6, 30):
        call(1, n, n, torch.float32)
    assert compute_decays.cache_info().currsize == compute_decays.cache_info().maxsize


def test_learned_decays_are_not_cached() -> None:
    rows, rates = torch.ones(4, 2, 3, 5), torch.tensor([[0.5, 0.25], [1, 2]])
    constant = make_decaying_lanes(rows, rates, 3)
    learned = make_decaying_lanes(rows, rates.requires_grad_(), 3)
    assert [lane.rates for lane in constant] == [(0.5, 1), (0.25, 2)]
    for lane, other in zip(constant, learned, strict=True):
        assert other.rates == ()
        for got, want in zip(lane[1:4], other[1:4], strict=True):
            torch.testing.assert_close(got, want, check_dtype=False)


def test_decays_cached_in_inference_mode_allow_training_and_copies() -> None:
    compute_decays.cache_clear()
    attn, x = ea.create("retention"), torch.randn(2, 2, 7, 4)
    with torch.inference_mode():
        want = attn(x, x, x, Mask(causal=True))
    for other in (attn, copy.deepcopy(attn), pickle.loads(pickle.dumps(attn))):
        leaf = x.clone().requires_grad_()
        out = other(leaf, leaf, leaf, Mask(causal=True))
        out.sum().backward()
        assert torch.equal(out, want)
    assert compute_decays.cache_info().misses == 1
    meta = x.to("meta")
    assert attn(meta, meta, meta, Mask(causal=True)).shape == x.shape
    mapped = torch.func.vmap(lambda y: attn(y, y, y, Mask(causal=True)))(torch.stack([x, x]))
    torch.testing.assert_close(mapped, torch.stack([want, want]))
    assert compute_decays.cache_info().misses == 1, "not read where numbers are hidden"
