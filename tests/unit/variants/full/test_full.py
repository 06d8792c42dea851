"""The options of `full`: plain softmax attention without them, the formula with them, and invalid values."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.variants.full.full import Full, FullWithOptions
from efficient_attn.variants.full.softmax_attention import SoftmaxAttention

HEADS, GROUPS, WIDTH, VALUE = 4, 2, 6, 5
DIMS = ea.Dims(heads=HEADS, kv_heads=GROUPS, head_dim=WIDTH, value_dim=VALUE)
SPECS = ("full:softcap=0.7", "full:softcap=900", "full:sink=learned", "full:softcap=0.7:sink=learned")


def make(spec: str, backend: str | None = None) -> Any:
    attn: Any = ea.create(spec, dims=DIMS, backend=backend).double()
    if attn.sink is not None:
        with torch.no_grad():
            attn.sink.copy_(torch.tensor([-1.0, 0.0, 0.5, 3.0]))  # not the initial zeros
    return attn


def draw(n: int, m: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    shapes = (2, HEADS, n, WIDTH), (2, GROUPS, m, WIDTH), (2, GROUPS, m, VALUE)
    q, k, v = (torch.randn(shape, dtype=dtype) for shape in shapes)
    return q, k, v


def reference(attn: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """The formula, in a loop over heads and queries."""
    n, m = q.shape[2], k.shape[2]
    out = q.new_zeros(*q.shape[:3], v.shape[3])
    for b, h, i in torch.cartesian_prod(*(torch.arange(size) for size in q.shape[:3])):
        seen, group = m - n + i + 1 if causal else m, h // (HEADS // GROUPS)
        scores = k[b, group, :seen] @ q[b, h, i] / WIDTH**0.5
        scores = scores if attn.softcap is None else attn.softcap * torch.tanh(scores / attn.softcap)
        total = scores.exp().sum() + (0 if attn.sink is None else attn.sink[h].exp())
        out[b, h, i] = scores.exp() / total @ v[b, group, :seen]
    return out


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", [None, "dense"])
def test_outputs_equal_the_formula(spec: str, causal: bool, backend: str | None) -> None:
    q, k, v = draw(4, 7)
    attn = make(spec, backend)
    torch.testing.assert_close(
        attn(q, k, v, ea.Mask(causal=causal)), reference(attn, q, k, v, causal), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("spec", SPECS)
def test_gradients_equal_the_oracles(spec: str) -> None:
    inputs = [x.requires_grad_() for x in draw(70, 90)]
    mask = ea.Mask(causal=True, key_lengths=torch.tensor([90, 31]))
    gradients = []
    for backend in (None, "dense"):
        attn = make(spec, backend)
        gradients.append(torch.autograd.grad(attn(*inputs, mask).cos().sum(), [*inputs, *attn.parameters()]))
    for got, want in zip(*gradients, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("spec", SPECS)
def test_steps_equal_the_causal_forward_pass(spec: str) -> None:
    attn, (q, k, v) = make(spec), draw(9, 9)
    state, rows = attn.init_state(2, 9, torch.float64), []
    for part in (slice(0, 5), slice(5, 6), slice(6, 9)):
        out, state = attn.step(q[:, :, part], k[:, :, part], v[:, :, part], state)
        rows.append(out)
    torch.testing.assert_close(torch.cat(rows, 2), attn(q, k, v, ea.Mask(causal=True)), rtol=0, atol=1e-12)


def test_full_without_options_is_plain_softmax_attention() -> None:
    attn = ea.create("full", dims=DIMS)
    assert type(attn) is Full
    assert all(getattr(Full, name) is getattr(SoftmaxAttention, name) for name in ("compute", "oracle", "advance"))
    assert attn.traits.exact
    assert attn.traits.dropout
    assert not list(attn.parameters())


def test_a_large_softcap_and_a_low_sink_have_no_effect() -> None:
    q, k, v = draw(8, 8)
    want = ea.create("full", dims=DIMS)(q, k, v)
    torch.testing.assert_close(make("full:softcap=1e8")(q, k, v), want, rtol=0, atol=1e-12)
    attn = make("full:sink=learned")
    torch.nn.init.constant_(attn.sink, -1e3)
    torch.testing.assert_close(attn(q, k, v), want, rtol=0, atol=1e-12)


def test_a_sink_of_zero_adds_one_to_the_denominator() -> None:
    """The initial sink, and Miller's softmax."""
    attn: Any = ea.create("full:sink=learned", dims=DIMS)
    assert torch.equal(attn.sink, torch.zeros(HEADS))
    q, k, v = draw(3, 5)
    scores = (q @ k.repeat_interleave(2, 1).mT / WIDTH**0.5).exp()
    want = scores / (1 + scores.sum(-1, keepdim=True)) @ v.repeat_interleave(2, 1)
    torch.testing.assert_close(attn.double()(q, k, v), want, rtol=0, atol=1e-12)


def test_rows_without_keys_are_zero() -> None:
    q, k, v = draw(5, 5)
    for spec in SPECS:
        out = make(spec)(q, k, v, ea.Mask(causal=True, query_start=-2))
        assert not out[:, :, :2].any()
        assert out[:, :, 2:].all()


def test_traits_and_backends_depend_on_the_options() -> None:
    capped, sink, both = (make(spec) for spec in SPECS[1:])
    assert [x.backend for x in (capped, sink, both)] == ["blocks", "sdpa", "blocks"]
    assert [x.traits.normalised for x in (capped, sink, both)] == [True, False, False]
    assert not any(x.traits.exact or x.traits.dropout for x in (capped, sink, both))
    with pytest.raises(ea.UnsupportedError, match="dropout"):
        capped.dropout = 0.1
    with pytest.raises(ea.UnsupportedError, match="torch's fused kernel has no softcap"):
        capped.backend = "sdpa"
    with pytest.raises(ea.UnsupportedError, match="it is only for a softcap"):
        sink.backend = "blocks"


@pytest.mark.parametrize("spec", SPECS)
def test_copies_and_pickles_give_equal_outputs(spec: str) -> None:
    attn, (q, k, v) = make(spec), draw(4, 4)
    for copied in (copy.deepcopy(attn), pickle.loads(pickle.dumps(attn))):
        assert type(copied) is FullWithOptions
        torch.testing.assert_close(copied(q, k, v), attn(q, k, v), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("spec", SPECS)
def test_half_precision_is_close_to_float64(spec: str, dtype: torch.dtype) -> None:
    q, k, v = draw(30, 30, dtype)
    attn = make(spec)
    want = attn(*(x.double() for x in (q, k, v)))
    got = attn.to(dtype)(q, k, v)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want, rtol=0, atol=0.03)


def test_subclasses_of_full_refuse_the_options() -> None:
    class Own(Full):
        pass

    assert Own().traits.exact
    with pytest.raises(ea.UsageError, match="Own: with softcap or sink, subclass FullWithOptions, not Full"):
        Own(softcap=5.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"softcap": 0.0}, "softcap must be a number above 0, not 0.0"),
        ({"softcap": -5.0}, "softcap must be a number above 0"),
        ({"softcap": float("inf")}, "softcap must be a number above 0"),
        ({"softcap": float("nan")}, "softcap must be a number above 0"),
        ({"sink": "learned", "dims": ea.Dims(head_dim=8)}, "needs dims with heads"),
    ],
)
def test_invalid_options_are_reported(options: dict[str, Any], message: str) -> None:
    dims = options.pop("dims", DIMS)
    with pytest.raises(ea.UsageError, match=message):
        Full(**options, dims=dims)
    with pytest.raises(ea.UsageError, match=message):
        ea.create("full", dims=dims, **options)


@pytest.mark.parametrize("sink", ["fixed", ""])
def test_an_unknown_sink_is_reported(sink: Any) -> None:
    with pytest.raises(ea.UsageError, match=f"sink must be 'learned' or none, not '{sink}'"):
        Full(sink=sink, dims=DIMS)
    message = rf"full: option sink='{sink}' does not fit Optional\[Literal\['learned'\]\]: Input should be 'learned'"
    with pytest.raises(ea.UsageError, match=message):
        ea.create("full", dims=DIMS, sink=sink)
