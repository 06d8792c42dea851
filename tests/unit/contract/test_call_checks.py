"""Checks of calls: dropout of attention weights, dtypes of backends, and the cache of accepted calls."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import efficient_attn as ea
from efficient_attn.contract.call_checks import MAX_ACCEPTED_CALLS, check_dropout, check_dtype
from efficient_attn.contract.shapes import Shape
from efficient_attn.kernels.native import building

DIMS = ea.Dims(heads=4, head_dim=8, max_len=32)
needs_compiler = pytest.mark.skipif(building.load_library("decode")[1] is not None, reason="no C++ compiler")


def tensors(dtype: torch.dtype = torch.float32, n: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 4, n, 8, generator=g).to(dtype) for _ in range(3))
    return q, k, v


@pytest.mark.parametrize("name", ea.names())
def test_dropout_is_supported_or_refused_as_declared(name: str) -> None:
    attn = ea.create(name, dims=DIMS)
    assert attn.traits.dropout == (name in ("full", "dot", "general", "cosine", "gqa", "mqa"))
    attn.dropout = 0
    if attn.traits.dropout:
        attn.dropout = 0.25
        assert (attn.dropout, attn.dropping, attn.eval().dropping) == (0.25, 0.25, 0)
        assert "dropout=0.25" in repr(attn)
    else:
        with pytest.raises(ea.UnsupportedError, match=rf"^{name}: .* its traits do not claim dropout$"):
            attn.dropout = 0.25
        assert (attn.dropout, attn.dropping) == (0, 0)


class Replaced(ea.SoftmaxAttention):
    """Overrides `compute` without dropout."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class Inherits(ea.SoftmaxAttention):
    pass


def test_an_overridden_compute_does_not_inherit_dropout() -> None:
    assert Inherits().traits.dropout
    with pytest.raises(ea.UnsupportedError, match="Replaced: backend 'sdpa' does not drop attention weights"):
        Replaced().dropout = 0.1


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_dropout_outside_0_to_1_is_refused(p: float) -> None:
    with pytest.raises(ea.UsageError, match="full: dropout is a probability from 0 to 1"):
        ea.create("full").dropout = p


@pytest.mark.parametrize("backend", ["sdpa", "dense"])
def test_dropout_of_one_gives_zeros(backend: str) -> None:
    attn = ea.create("full", backend=backend)
    attn.dropout = 1
    assert not attn(*tensors()).any()


@needs_compiler
def test_a_backend_without_dropout_refuses_training_calls() -> None:
    attn = ea.create("full")
    attn.dropout = 0.1
    attn.backend = "cpp"
    with pytest.raises(ea.UnsupportedError, match="full: backend 'cpp' does not drop attention weights"):
        attn(*tensors())
    attn.eval()(*tensors())
    attn.train().backend = "sdpa"
    attn(*tensors())
    check_dropout(attn, ea.Traits(dropout=True), 0.1)
    with pytest.raises(ea.UnsupportedError):
        check_dropout(attn, ea.Traits(), 0.1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["full", "gqa", "mqa", "mla"])
def test_a_backend_refuses_dtypes_that_it_does_not_declare(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    attn = ea.create(name, dims=DIMS, backend="dense")
    monkeypatch.setattr(type(attn), "only_dtypes", {"dense": (torch.float32, torch.float64)})
    words = rf"^{name}:backend=dense: backend 'dense' takes torch.float32 and torch.float64 only, not {dtype}$"
    shape = ea.testing.Subject(name).shape(6, heads=4)
    q, k, v, _ = attn.sample(shape, generator=torch.Generator(), dtype=dtype)
    with pytest.raises(ea.UnsupportedError, match=words):
        attn(q, k, v)
    with pytest.raises(ea.UnsupportedError, match=words):
        attn.init_state(2, 6, dtype)
    with pytest.raises(ea.UnsupportedError, match=words):
        check_dtype(attn, dtype)
    assert attn.why_not_dtype(torch.float32) is attn.why_not_dtype(torch.float64) is None
    attn.backend = None
    assert attn.why_not_dtype(dtype) is None
    assert attn(q, k, v).dtype == dtype


@needs_compiler
@pytest.mark.parametrize("name", ["linear", "cosformer"])
def test_the_cpp_scan_supports_all_dtypes(name: str) -> None:
    attn = ea.create(name, dims=DIMS, backend="cpp")
    mask = ea.Mask(causal=True)
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        assert attn.why_not_dtype(dtype) is None
        assert attn(*tensors(dtype), mask).dtype == dtype


# -- accepted calls are not checked again, and invalid calls are still refused ----------------------------------------


class Counting(ea.SoftmaxAttention):
    """Counts how often the shape of a call is computed."""

    checked = 0
    claims = ea.Traits()

    @property
    def traits(self) -> ea.Traits:
        return self.claims

    def shape_of(self, q: Tensor, k: Tensor, v: Tensor | None) -> Shape:
        self.checked += 1
        return super().shape_of(q, k, v)


def test_calls_of_equal_shapes_are_checked_once() -> None:
    attn, short, long = Counting(), tensors(), tensors(n=7)
    for _ in range(3):
        attn(*short)
        attn(*long)
        attn(*short, ea.Mask(causal=True))
    assert attn.checked == 3
    assert copy.deepcopy(attn).accepted_calls == pickle.loads(pickle.dumps(attn)).accepted_calls == ()
    for n in range(8, 20):
        attn(*tensors(n=n))
    assert len(attn.accepted_calls) == MAX_ACCEPTED_CALLS


def test_steps_are_checked_once() -> None:
    attn = Counting()
    state = attn.init_state(2, 8)
    for _ in range(5):
        _, state = attn.step(*tensors(n=1), state)
    assert attn.checked == 1


def _set(attn: Counting, **changes: Any) -> None:
    for name, value in changes.items():
        setattr(attn, name, value)


LENGTHS = torch.tensor([6, 6])
REFUSED: dict[str, tuple[Callable[[Counting], None], Callable[[], tuple[Any, ...]], str]] = {
    "a width of v": (lambda attn: None, lambda: (*tensors()[:2], tensors(n=5)[2]), "shapes do not fit"),
    "a dtype": (lambda attn: None, lambda: (*tensors()[:2], tensors(torch.float64)[2]), "one floating dtype"),
    "dtypes": (lambda attn: None, lambda: tuple(x.int() for x in tensors()), "one floating dtype"),
    "a device": (lambda attn: None, lambda: (tensors()[0], *(x.to("meta") for x in tensors()[1:])), "on one device"),
    "no v": (lambda attn: None, lambda: (*tensors()[:2], None), "v is missing"),
    "dims": (lambda attn: _set(attn, dims=ea.Dims(heads=2)), tensors, "created for heads=2, got 4"),
    "a claim": (lambda attn: _set(attn, claims=ea.Traits(bidirectional=False)), tensors, "a mask that is not causal"),
    "dropout": (lambda attn: _set(attn, _dropout=0.5), tensors, "does not drop attention weights"),
    "a backend's dtypes": (
        lambda attn: _set(attn, only_dtypes={"dense": (torch.float64,)}, backend="dense"),
        tensors,
        "takes torch.float64 only",
    ),
    "a backend's device": (
        lambda attn: _set(attn, only_on={"dense": "cuda"}, backend="dense"),
        tensors,
        "runs on cuda only",
    ),
    "a field of the mask": (
        lambda attn: _set(attn, known_mask_fields=frozenset({"causal"})),
        lambda: (*tensors(), ea.Mask(query_start=0)),
        "does not support the mask field query_start",
    ),
    "causality": (
        lambda attn: _set(attn, claims=ea.Traits(causal=False)),
        lambda: (*tensors(), ea.Mask(causal=True)),
        "a causal mask",
    ),
    "padding": (
        lambda attn: _set(attn, claims=ea.Traits(padding=False)),
        lambda: (*tensors(), ea.Mask(key_lengths=LENGTHS)),
        "does not support padding",
    ),
    "lengths": (lambda attn: None, lambda: (*tensors(), ea.Mask(key_lengths=LENGTHS + 1)), "must lie in"),
    "rows": (lambda attn: None, lambda: (*tensors(), ea.Mask(query_lengths=LENGTHS[:1])), "must have shape"),
    "a mask of keys": (lambda attn: None, lambda: (*tensors(), ea.Mask(key_mask=torch.ones(2, 5).bool())), "shape"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_invalid_calls_are_refused_after_accepted_calls(what: str) -> None:
    change, make_call, message = REFUSED[what]
    attn = Counting()
    for mask in (None, ea.Mask(causal=True), ea.Mask(key_lengths=LENGTHS), ea.Mask(query_start=0)):
        attn(*tensors(), mask)
    change(attn)
    for _ in range(2):
        with pytest.raises((ea.UsageError, ea.UnsupportedError), match=message):
            attn(*make_call())


def test_unknown_inputs_are_refused_after_accepted_calls() -> None:
    attn = Counting()
    attn(*tensors())
    with pytest.raises(ea.UsageError, match=r"takes the inputs \[\], got \['gate'\]"):
        attn(*tensors(), gate=tensors()[0])


def test_threads_can_share_an_instance() -> None:
    attn = Counting()
    calls = [tensors(n=5 + i % 7) for i in range(70)]
    with ThreadPoolExecutor(4) as pool:
        outs = list(pool.map(lambda call: attn(*call), calls))
    for call, out in zip(calls, outs, strict=True):
        assert torch.equal(out, attn(*call))
