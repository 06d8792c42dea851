"""flash-linear-attention's kernels equal our references in every mechanism that has them, with gradients.

Its functions are replaced by its naive forms, which take the arguments that are in its sources; tensors pretend to be
on a GPU. Only a GPU shows whether its kernels compute the same as its naive forms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tiny_suites
import torch
from intercepted_kernels import pretended_gpu
from pretended_gpu import count, get_data, move, to_gpu
from torch import Tensor

import efficient_attn as ea
from efficient_attn import feature_maps
from efficient_attn.contract.shapes import Sample
from efficient_attn.kernels import fla_backend
from efficient_attn.spec import Spec

# mechanisms with options, and the function that computes them
FUNCTIONS = {
    "linear": "chunk_linear_attn",
    "relu_linear": "chunk_linear_attn",
    "retention": "chunk_simple_gla",
    "lightning:share=0.4": "chunk_simple_gla",
    "mamba2": "chunk_simple_gla",
    "gla": "chunk_gla",
    "delta_net": "chunk_delta_rule",
    "delta_net:beta_max=2": "chunk_delta_rule",
    "delta_product:n=1": "chunk_delta_rule",
    "gated_delta_net:beta_max=2": "chunk_gated_delta_rule",
    "kda": "chunk_kda",
    "forgetting": "parallel_forgetting_attn",
}
BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
GPU = torch.device("cuda")
TOLERANCES = {FP32: 2e-5, BF16: 4e-2, FP16: 3e-3}
SIZES = {  # batch, heads, key-value heads, positions, widths of keys and values
    "one chunk, groups of 3": (2, 6, 2, 37, 16, 16),
    "values wider, groups of 2": (1, 2, 1, 77, 64, 96),
    "wide heads, values narrower": (1, 1, 1, 65, 128, 64),
}


@pytest.fixture(autouse=True)
def _library() -> None:
    pytest.importorskip("fla")


def _prepare(spec: str, dtype: torch.dtype, sizes: tuple[int, ...], **options: Any) -> tuple[ea.Attention, Sample]:
    batch, heads, kv_heads, n, width, value_width = sizes
    shape = ea.Shape(batch, heads, kv_heads, n, n, width, value_width)
    dims = ea.Dims(heads=heads, kv_heads=kv_heads, head_dim=width, value_dim=value_width, max_len=1024)
    attn = ea.create(spec, dims=dims, **options).to(dtype)
    return attn, attn.sample(shape, generator=torch.Generator().manual_seed(sum(sizes)), dtype=dtype)


def _differentiate(attn: ea.Attention, sample: Sample, mask: ea.Mask) -> list[Tensor]:
    """The output, and the gradients of all inputs and parameters."""
    assert sample.v is not None
    q, k, v, *inputs = leaves = [x.requires_grad_() for x in (sample.q, sample.k, sample.v, *sample.inputs.values())]
    out = attn(q, k, v, mask, **dict(zip(sample.inputs, inputs, strict=True)))
    weights = torch.linspace(-1, 1, out.shape[3], dtype=out.dtype)
    weights = to_gpu(weights) if out.is_cuda else weights
    return [out, *torch.autograd.grad((out * weights).sum(), [*leaves, *attn.parameters()])]


def _map(sample: Sample, function: Any) -> Sample:
    assert sample.v is not None
    inputs = {name: function(x.detach()) for name, x in sample.inputs.items()}
    return Sample(function(sample.q.detach()), function(sample.k.detach()), function(sample.v.detach()), inputs)


def _make_mask(**fields: Any) -> ea.Mask:
    """A mask whose tensors are on the pretended GPU."""
    moved: dict[str, Any] = {name: to_gpu(x) if isinstance(x, Tensor) else x for name, x in fields.items()}
    return ea.Mask(**moved)


def _run_both(attn: ea.Attention, sample: Sample, mask: ea.Mask) -> tuple[list[Tensor], list[Tensor], set[str]]:
    """Results on the pretended GPU, those of the reference in float64, and the functions that ran."""
    spec = attn.origin.spec
    assert isinstance(spec, Spec)
    reference = ea.create(spec.without_backend(), dims=attn.dims, backend="dense").double()
    reference.load_state_dict(attn.state_dict())
    expected = _differentiate(reference, _map(sample, torch.Tensor.double), mask)
    with pretended_gpu() as gpu:
        move(attn)
        moved = _make_mask(**vars(mask))
        work, got = count(gpu, lambda: _differentiate(attn, _map(sample, to_gpu), moved))
    functions = {place.split()[0] for place in work.launches} & set(FUNCTIONS.values())
    return [get_data(x).detach() for x in got], [x.detach() for x in expected], functions


def _assert_close(got: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for x, y in zip(got, expected, strict=True):
        assert (x.double() - y).norm() <= tolerance * y.norm() + 1e-6, float((x.double() - y).norm() / y.norm())


@pytest.mark.parametrize("dtype", [BF16, FP32, FP16])
@pytest.mark.parametrize("spec", FUNCTIONS)
def test_results_and_gradients_equal_the_reference(spec: str, dtype: torch.dtype) -> None:
    """By default in half precision, and float32 where requested: every kind of size in one of them."""
    sizes = dict(zip((BF16, FP32, FP16), SIZES.values(), strict=True))[dtype]
    with pretended_gpu():
        attn, sample = _prepare(spec, dtype, sizes, backend="fla" if dtype == FP32 else None)
        if dtype not in attn.only_dtypes["fla"]:
            assert attn.backend != "fla" or attn.why_not_dtype(dtype)
            return
    got, expected, functions = _run_both(attn, sample, ea.Mask(causal=True))
    assert functions == {FUNCTIONS[spec]}
    assert got[0].dtype == dtype
    _assert_close(got, expected, TOLERANCES[dtype])


PADDED = [x for x in FUNCTIONS if x != "forgetting"]


@pytest.mark.parametrize("spec", PADDED)
def test_hidden_keys_count_for_nothing(spec: str) -> None:
    attn, sample = _prepare(spec, BF16, (3, 2, 1, 70, 16, 24))
    key_mask = torch.ones(3, 70, dtype=torch.bool)
    key_mask[0, :5], key_mask[1, 30:40] = False, False
    mask = ea.Mask(causal=True, key_mask=key_mask, key_lengths=torch.tensor([70, 70, 33]))
    for x in (sample.k, sample.v, *sample.inputs.values()):
        assert x is not None
        x[2, :, 33:], x[0, :, :5] = torch.nan, torch.inf
    got, expected, functions = _run_both(attn, sample, mask)
    assert functions == {FUNCTIONS[spec]}
    _assert_close(got, expected, TOLERANCES[BF16])


@pytest.mark.parametrize("spec", ["mamba2", "gla", "gated_delta_net", "kda"])
def test_decays_of_zero_forget_everything(spec: str) -> None:
    """The library subtracts sums of their logarithms."""
    attn, sample = _prepare(spec, BF16, (1, 1, 1, 70, 16, 16))
    name = "dt" if spec == "mamba2" else "log_decay"
    sample.inputs[name][:, :, 20] = 1e4 if spec == "mamba2" else -torch.inf
    with torch.no_grad():
        sample.k[:, :, 20] = 0 if spec == "mamba2" else sample.k[:, :, 20]
        with pretended_gpu():
            move(attn)
            there = _map(sample, to_gpu)
            out = get_data(attn(there.q, there.k, there.v, ea.Mask(causal=True), **there.inputs))
    assert out.isfinite().all()


OTHERS = {
    "another backend": ("linear:backend=chunked", BF16, {}, {}),
    "float32": ("retention", FP32, {}, {}),
    "float64": ("gla", FP64, {}, {}),
    "float16 overflows": ("linear", FP16, {}, {}),
    "bidirectional": ("linear", BF16, {"causal": False}, {}),
    "other queries": ("retention", BF16, {"query_start": 3}, {}),
    "fewer queries": ("kda", BF16, {}, {"n": 5}),
    "one position": ("kda", BF16, {}, {"length": 1}),
    "odd widths": ("gla", BF16, {}, {"width": 15}),
    "wide heads": ("delta_net", BF16, {}, {"width": 258}),
    "a norm of its own": ("retention:normalised=true", BF16, {}, {}),
    "several steps": ("delta_product:n=2", BF16, {}, {}),
    "hidden keys": ("forgetting", BF16, {"key_lengths": torch.tensor([4])}, {}),
    "weights of keys": ("cosformer", BF16, {}, {}),
}


@pytest.mark.parametrize(("spec", "dtype", "fields", "sizes"), OTHERS.values(), ids=OTHERS)
def test_other_calls_run_our_form(spec: str, dtype: torch.dtype, fields: dict[str, Any], sizes: dict[str, int]) -> None:
    """`what_runs` reports what runs, as far as it is asked."""
    length, width = sizes.get("length", 9), sizes.get("width", 16)
    attn, sample = _prepare(spec, dtype, (1, 2, 2, length, width, 16))
    fields = {"causal": True} | fields
    n, mask = sizes.get("n", length), ea.Mask(**fields)
    assert sample.v is not None
    with pretended_gpu() as gpu:
        move(attn)
        q, k, v, inputs = _map(sample, to_gpu)
        call: dict[str, Any] = {
            "causal": mask.causal,
            "dtype": dtype,
            "device": GPU,
            "gradient": False,
            "padded": mask.pads_keys,
        }
        reported, _ = attn.what_runs(ea.Shape(1, 2, 2, n, length, width, 16), **call)
        moved = _make_mask(**vars(mask))
        with torch.no_grad():
            work, _ = count(gpu, lambda: attn(q[:, :, :n], k, v, moved, **inputs))
    assert not {place.split()[0] for place in work.launches} & set(FUNCTIONS.values())
    assert mask.query_start is not None or reported == attn.backend != "fla"


@pytest.mark.parametrize("spec", FUNCTIONS)
def test_it_is_reported_and_declares_less_if_requested(spec: str) -> None:
    default, _ = _prepare(spec, BF16, (1, 2, 2, 9, 16, 16))
    shape, call = ea.Shape(1, 2, 2, 9, 9, 16, 16), {"causal": True, "dtype": BF16, "gradient": True}
    with pretended_gpu():
        requested, _ = _prepare(spec, BF16, (1, 2, 2, 9, 16, 16), backend="fla")
        for attn in (default, requested):
            assert attn.what_runs(shape, device=GPU, **call)[0] == "fla"
            assert attn.compiles_on("cuda")
        assert default.what_runs(shape, device=torch.device("cpu"), **call)[0] == default.backend == default.backends[0]
        one_more = ea.Shape(1, 2, 2, 1, 9, 16, 16)  # a decode step
        assert default.what_runs(one_more, device=GPU, **call)[0] == default.backend
        assert default.what_runs(shape, device=GPU, **call, stepwise=True)[0] == default.backend
    traits = requested.traits
    assert not any((traits.bidirectional, traits.cross, traits.decode))
    assert traits.padding == (spec in PADDED)
    assert all((default.traits.cross, default.traits.decode, default.traits.padding))
    assert not default.compiles_on("cpu")


def _refuse(spec: str, dtype: torch.dtype = BF16, width: int = 16, **fields: Any) -> None:
    attn, sample = _prepare(spec, dtype, (1, 2, 2, 9, width, 16), backend="fla")
    move(attn)
    q, k, v, inputs = _map(sample, to_gpu)
    attn(q, k, v, _make_mask(**({"causal": True} | fields)), **inputs)


REFUSALS = {
    "float64": (("gla", FP64), {}, "takes torch.float32 and torch.bfloat16 and torch.float16 only, not torch.float64"),
    "float32 of the delta rule": (("delta_net", FP32), {}, "not torch.float32"),
    "float16 that overflows": (("relu_linear", FP16), {}, "not torch.float16"),
    "bidirectional": (("linear",), {"causal": False}, "a mask that is not causal"),
    "other queries": (("kda",), {"query_start": 2}, "queries that are not aligned"),
    "hidden keys": (("forgetting",), {"key_lengths": torch.tensor([5])}, "padding"),
    "odd widths": (("mamba2", BF16, 17), {}, "even widths of heads up to 256, not 17"),
    "wide heads": (("retention", BF16, 512), {}, "even widths of heads up to 256, not 512"),
    "a norm of its own": (("retention:normalised=true",), {}, "constant decays of rows that are not divided"),
    "several steps": (("delta_product:n=3",), {}, "one step at a position"),
    "a mechanism without it": (("performer",), {}, "has no backend 'fla'"),
}


@pytest.mark.parametrize(("call", "fields", "message"), REFUSALS.values(), ids=REFUSALS)
def test_what_it_cannot_compute_is_refused_if_requested(call: Any, fields: dict[str, Any], message: str) -> None:
    with pretended_gpu(), pytest.raises(ea.UnsupportedError, match=message):
        _refuse(*call, **fields)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_it_needs_a_gpu() -> None:
    fla_backend.why_no_library.cache_clear()
    with pytest.raises(ea.UnsupportedError, match=r"backend 'fla' is not available: .* need a CUDA device"):
        ea.create("linear", backend="fla")
    assert (
        ea.create("linear").what_runs(
            ea.Shape(1, 2, 2, 9, 9, 16, 16), causal=True, dtype=BF16, device=GPU, gradient=False
        )[0]
        == "chunked"
    )


@pytest.mark.parametrize(("spec", "gated"), [("mamba2", True), ("gated_delta_net", True), ("kda", False)])
def test_gradients_that_the_library_refuses_are_ours(spec: str, gated: bool) -> None:
    attn, sample = _prepare(spec, BF16, (1, 2, 2, 9, 16, 16))
    with pretended_gpu() as gpu, pytest.MonkeyPatch.context() as patch:
        patch.setattr(fla_backend, "why_no_gate_gradients", lambda: "needs a newer Triton")
        move(attn)
        for gradient in (False, True):
            with torch.set_grad_enabled(gradient):
                q, k, v, inputs = _map(sample, lambda x: to_gpu(x).requires_grad_())
                work, _ = count(gpu, lambda q=q, k=k, v=v, x=inputs: attn(q, k, v, ea.Mask(causal=True), **x))
            runs = bool({place.split()[0] for place in work.launches} & set(FUNCTIONS.values()))
            assert runs == (not (gated and gradient))
            call = {"causal": True, "dtype": BF16, "device": GPU, "gradient": gradient}
            assert (attn.what_runs(ea.Shape(1, 2, 2, 9, 9, 16, 16), **call)[0] == "fla") == runs
        attn.backend = "fla"
        if gated:
            with pytest.raises(ea.UnsupportedError, match="needs a newer Triton"):
                attn(q, k, v, ea.Mask(causal=True), **inputs)


@pytest.mark.parametrize("spec", ["gated_delta_net", "linear", "forgetting"])
def test_without_the_library_nothing_of_it_is_imported(spec: str) -> None:
    attn, sample = _prepare(spec, BF16, (1, 2, 2, 9, 16, 16))
    with pretended_gpu(), pytest.MonkeyPatch.context() as patch:
        for name in ("why_no_gate_gradients", "load_kernel"):
            patch.setattr(fla_backend, name, lambda *names: pytest.fail(f"imported: {names}"))
        patch.setattr(fla_backend, "why_no_library", lambda: "it is not installed")
        move(attn)
        q, k, v, inputs = _map(sample, lambda x: to_gpu(x).requires_grad_())
        attn(q, k, v, ea.Mask(causal=True), **inputs).sum().backward()
        assert not attn.compiles_on("cuda")


@pytest.fixture
def registry() -> Iterator[None]:
    with tiny_suites.isolated_registry():
        yield


@pytest.mark.usefixtures("registry")
def test_a_mechanism_that_changes_what_is_computed_runs_its_own_form() -> None:
    linear: Any = type(ea.create("linear"))
    gla: Any = type(ea.create("gla", dims=ea.Dims(head_dim=16)))

    class OtherMap(linear):
        feature_map = feature_maps.scaled_identity

    class Undivided(linear):
        divisor = None

    class OtherForm(gla):
        def compute(self, *tensors: Any, **inputs: Any) -> Tensor:
            return super().compute(*tensors, **inputs)

    with pretended_gpu():
        for cls in (OtherMap, Undivided):
            assert cls().why_not("fla")
        assert OtherForm(dims=ea.Dims(head_dim=16)).why_not("fla") == "it computes in its own way"
