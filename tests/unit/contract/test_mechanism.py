"""The base class: dims, shapes, checks of calls, backends, steps and samples."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.contract.mask import Mask
from efficient_attn.contract.mechanism import Attention
from efficient_attn.contract.shapes import Dims, Shape
from efficient_attn.contract.traits import Input, Traits


class Echo(Attention):
    """Stores the arguments of `compute` and returns ones; its oracle returns twos."""

    backends = ("fast", "dense")
    claims = Traits()

    @property
    def traits(self) -> Traits:
        return self.claims

    def why_not(self, backend: str) -> str | None:
        return "today is Sunday" if backend == "fast" and self.seed == 7 else None

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        self.seen = (q, k, v, mask, inputs)
        return q.new_ones(*q.shape[:3], v.shape[3])

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        return q.new_full((*q.shape[:3], v.shape[3]), 2.0)


def with_traits(**claims: object) -> Echo:
    attn = Echo()
    attn.claims = Traits(**claims)  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
    return attn


def tensors(n: int = 3, m: int = 3, *, heads: int = 4, kv_heads: int = 4, e: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ones(2, heads, n, 5), torch.ones(2, kv_heads, m, 5), torch.ones(2, kv_heads, m, e)


class TestDims:
    @pytest.mark.parametrize("value", [0, -1, 1.5, "8", True])
    @pytest.mark.parametrize("name", ["heads", "head_dim", "kv_heads", "value_dim", "max_len"])
    def test_values_other_than_positive_integers_are_refused(self, name: str, value: object) -> None:
        with pytest.raises(ea.UsageError, match=f"{name} must be a whole number of at least 1, not {value!r}"):
            Dims(**{name: value})  # pyright: ignore[reportArgumentType]

    def test_kv_heads_must_divide_heads(self) -> None:
        assert Dims(heads=8, kv_heads=2).kv_heads == 2
        with pytest.raises(ea.UsageError, match="kv_heads=3 does not divide heads=8"):
            Dims(heads=8, kv_heads=3)

    def test_equality_and_hash_compare_values(self) -> None:
        assert Dims(heads=2) == Dims(heads=2)
        assert hash(Dims(heads=2)) == hash(Dims(heads=2))
        with pytest.raises(FrozenInstanceError):
            Dims().heads = 3  # pyright: ignore[reportAttributeAccessIssue]


class TestShape:
    def test_sizes_are_read_from_tensors(self) -> None:
        assert Shape.of(*tensors(3, 6, kv_heads=2)) == Shape(2, 4, 2, 3, 6, 5, 2)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda q, k, v: (q[0], k, v), r"q must have 4 dimensions .* got \[4, 3, 5\]"),
            (lambda q, k, v: (q, k, v[..., 0]), "v must have 4 dimensions"),
            (lambda q, k, v: (q, k.double(), v), "share one floating dtype, got q torch.float32 and k torch.float64"),
            (lambda q, k, v: (q.long(), k.long(), v.long()), "floating dtype"),
            (lambda q, k, v: (q, k.to("meta"), v), "on one device, got q on cpu and k on meta"),
            (lambda q, k, v: (q, k[..., :4], v), "shapes do not fit"),
            (lambda q, k, v: (q, k[:1], v[:1]), "shapes do not fit"),
            (lambda q, k, v: (q, k, v[:, :, :2]), "shapes do not fit"),
            (lambda q, k, v: (q, k, v[:, :2]), "shapes do not fit"),
            (lambda q, k, v: (q, k[:, :3], v[:, :3]), "4 heads of q are not a multiple of the 3 heads"),
            (lambda q, k, v: (q, k[:, :0], v[:, :0]), "not a multiple of the 0 heads"),
        ],
    )
    def test_mismatched_tensors_are_reported(self, change, message: str) -> None:
        with pytest.raises(ea.UsageError, match=message):
            Shape.of(*change(*tensors()))


class TestForward:
    def test_the_first_backend_runs_by_default_and_dense_is_the_oracle(self) -> None:
        attn = Echo()
        assert attn.backend == "fast"
        assert attn(*tensors()).unique().tolist() == [1.0]
        attn.backend = "dense"
        assert attn(*tensors()).unique().tolist() == [2.0]

    def test_padded_keys_are_replaced_by_zeros(self) -> None:
        attn = Echo()
        q, k, v = tensors()
        lengths = torch.tensor([1, 3])
        mask = Mask(key_lengths=lengths, key_mask=torch.tensor([[True, True, True], [False, True, True]]))
        attn(q, k.fill_(9), v.fill_(9), mask)
        seen_k = attn.seen[1]
        assert seen_k[:, 0, :, 0].tolist() == [[9, 0, 0], [0, 9, 9]]
        assert k.unique().tolist() == [9]

    def test_padded_query_rows_are_zero(self) -> None:
        out = Echo()(*tensors(), Mask(query_lengths=torch.tensor([1, 2])))
        assert out[:, 0, :, 0].tolist() == [[1, 0, 0], [1, 1, 0]]

    @pytest.mark.parametrize(("n", "m"), [(3, 0), (0, 3), (0, 0)])
    def test_empty_inputs_give_zeros_with_a_backward_pass(self, n: int, m: int) -> None:
        q, k, v = (x.requires_grad_() for x in tensors(n, m))
        out = Echo()(q, k, v)
        assert tuple(out.shape) == (2, 4, n, 2)
        assert not out.any()
        out.sum().backward()

    def test_constant_outputs_have_a_backward_pass(self) -> None:
        q, k, v = (x.requires_grad_() for x in tensors())
        Echo()(q, k, v).sum().backward()
        assert q.grad is not None
        assert not q.grad.any()
        with torch.no_grad():
            assert not Echo()(q, k, v).requires_grad

    @pytest.mark.parametrize(
        ("claims", "mask", "sizes", "message"),
        [
            ({"causal": False}, Mask(causal=True), {}, "does not support a causal mask"),
            ({"bidirectional": False}, None, {}, "does not support a mask that is not causal"),
            ({"padding": False}, Mask(key_lengths=torch.tensor([1, 1])), {}, "does not support padding"),
            ({"cross": False}, None, {"n": 2}, r"queries that are not aligned with the keys \(N != M or query_start\)"),
            ({"cross": False}, Mask(query_start=1), {}, "queries that are not aligned with the keys"),
            ({"grouped": False}, None, {"kv_heads": 2}, "does not support fewer key-value heads than heads"),
        ],
    )
    def test_calls_without_the_trait_are_refused(self, claims, mask: Mask | None, sizes, message: str) -> None:
        with pytest.raises(ea.UnsupportedError, match=message):
            with_traits(**claims)(*tensors(**sizes), mask)

    def test_query_start_zero_with_equal_lengths_needs_no_cross_trait(self) -> None:
        with_traits(cross=False)(*tensors(), Mask(query_start=0))

    def test_gradients_without_the_trait_are_refused(self) -> None:
        q, k, v = (x.requires_grad_() for x in tensors())
        with pytest.raises(ea.UnsupportedError, match="has no gradient"):
            with_traits(gradient=False)(q, k, v)
        with torch.no_grad():
            with_traits(gradient=False)(q, k, v)

    def test_inputs_are_passed_by_keyword(self) -> None:
        attn, gate = with_traits(inputs={"gate": Input("key")}), torch.ones(2, 4, 3)
        attn(*tensors(), gate=gate)
        assert attn.seen[4]["gate"] is gate
        with pytest.raises(ea.UsageError, match=r"takes the inputs \['gate'\], got \[\]"):
            attn(*tensors())
        with pytest.raises(ea.UsageError, match=r"takes the inputs \[\], got \['gate'\]"):
            Echo()(*tensors(), gate=gate)

    @pytest.mark.parametrize("name", ["heads", "head_dim", "value_dim", "kv_heads"])
    def test_calls_that_differ_from_dims_are_refused(self, name: str) -> None:
        attn = Echo()
        attn.dims = Dims(**{name: 1})
        with pytest.raises(ea.UsageError, match=f"was created for {name}=1, got [2-9]"):
            attn(*tensors())


class TestBackend:
    def test_unknown_backends_are_reported_with_the_available_ones(self) -> None:
        with pytest.raises(ea.UnsupportedError, match=r"no backend 'slow' \(it has: fast, dense\)"):
            Echo().backend = "slow"

    def test_unavailable_backends_are_skipped_and_refused_with_a_reason(self) -> None:
        attn = Echo()
        attn.seed = 7
        assert attn.backend == "dense"
        with pytest.raises(ea.UnsupportedError, match="backend 'fast' is not available: today is Sunday"):
            attn.backend = "fast"

    def test_none_resets_the_backend(self) -> None:
        attn = Echo()
        attn.backend = "dense"
        attn.backend = None
        assert attn.backend == "fast"


class TestSteps:
    def test_init_state_needs_the_trait_and_sizes(self) -> None:
        with pytest.raises(ea.UnsupportedError, match="cannot decode step by step"):
            with_traits(decode=False).init_state(1, 1)
        for batch, max_len in ((0, 1), (1, 0)):
            with pytest.raises(ea.UsageError, match="must be at least 1"):
                Echo().init_state(batch, max_len)

    def test_a_step_needs_equal_numbers_of_queries_and_keys(self) -> None:
        attn = ea.create("full")
        state = attn.init_state(2, 4)
        for n, m in ((1, 2), (2, 1), (0, 0)):
            with pytest.raises(ea.UsageError, match=f"got {n} and {m}"):
                attn.step(*tensors(n, m), state)

    def test_default_absorb_gives_the_state_of_the_override(self) -> None:
        attn = ea.create("full", dims=Dims(heads=4, kv_heads=2, head_dim=5, value_dim=2))
        _q, k, v = (torch.randn(x.shape) for x in tensors(kv_heads=2))
        default = Attention.absorb(attn, k, v, attn.init_state(2, 4))
        override = attn.absorb(k, v, attn.init_state(2, 4))
        assert torch.equal(default.keys, override.keys)
        assert torch.equal(default.values, override.values)


class TestSample:
    def test_samples_have_the_shape_dtype_and_inputs(self) -> None:
        attn = with_traits(inputs={"gate": Input("key"), "step": Input("query", per_head=False, tail=(7,))})
        s = attn.sample(Shape(2, 4, 2, 3, 6, 5, 1), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        assert [tuple(x.shape) for x in (s.q, s.k, s.v)] == [(2, 4, 3, 5), (2, 2, 6, 5), (2, 2, 6, 1)]
        assert {n: tuple(x.shape) for n, x in s.inputs.items()} == {"gate": (2, 2, 6), "step": (2, 1, 3, 7)}
        assert s.q.dtype == s.inputs["gate"].dtype == torch.float64

    def test_equal_generators_give_equal_samples(self) -> None:
        shape = Shape(1, 1, 1, 2, 2, 2, 2)
        first, second = (Echo().sample(shape, generator=torch.Generator().manual_seed(3)) for _ in range(2))
        assert torch.equal(first.v, second.v)


def test_missing_methods_of_a_subclass_are_reported() -> None:
    class Bare(Attention):
        pass

    for access in (lambda: Bare().traits, lambda: Bare().growth):
        with pytest.raises(ea.UnsupportedError, match="Bare declares no"):
            access()
    q = torch.ones(1, 1, 1, 1)
    for method, message in ((Bare().oracle, "no reference implementation"), (Bare().compute, "no fast form")):
        with pytest.raises(ea.UnsupportedError, match=message):
            method(q, q, q, Mask())
    assert Bare().pairs(1, 1, True) is None
    assert Bare().pairs_computed(1, 1, True) is None


def test_repr_has_the_mechanism_and_its_backend() -> None:
    assert "sliding_window:window=3, backend=adaptive" in repr(ea.create("sliding_window:window=3"))


class _OneWeight(ea.SoftmaxAttention):
    """Its only parameter is a single number, without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(2.0))

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        return super().compute(q, k, v, mask) * self.weight


def test_calls_without_keys_have_a_gradient_of_zero_for_a_number() -> None:
    attn, q, k = _OneWeight(), torch.randn(1, 2, 3, 8), torch.randn(1, 2, 0, 8)
    out = attn(q, k, k)
    out.sum().backward()
    assert out.abs().max() == 0
    assert attn.weight.grad == 0
