"""flash-linear-attention's plain torch forms equal our retention and causal linear attention, without a GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import tiny_suites
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.bench.measuring.samples import verify_workload
from efficient_attn.bench.measuring.workload import Workload
from efficient_attn.peers.hosting import load_fla_operations
from efficient_attn.testing import CHECKS, Check, Subject, run_check

CAUSAL = ea.Mask(causal=True)
OURS = {
    "peer_simple_gla": "retention",
    "peer_simple_gla:chunk_size=8": "retention",
    "peer_simple_gla:form=recurrent": "retention",
    "peer_simple_gla:form=parallel": "retention",
    "peer_fla_linear": "linear",
}


@pytest.fixture(autouse=True)
def _loaded() -> Iterator[None]:
    with tiny_suites.isolated_registry():
        ea.load_plugin("efficient_attn.peers.fla")
        yield


@pytest.fixture
def installed() -> None:
    pytest.importorskip("fla")


def _draw(n: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(n)
    return [torch.randn(2, 3, n, width, generator=generator, dtype=dtype) for width in (16, 16, 5)]


def _with_gradients(spec: str, tensors: list[Tensor]) -> list[Tensor]:
    leaves = [x.clone().requires_grad_() for x in tensors]
    out = ea.create(spec)(*leaves, CAUSAL)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream)]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("n", [1, 7, 64, 130])  # shorter than a chunk, one chunk, no multiple of it
@pytest.mark.parametrize(("peer", "ours"), OURS.items())
def test_the_peer_equals_our_mechanism(peer: str, ours: str, n: int) -> None:
    inputs = _draw(n)
    before = [x.clone() for x in inputs]
    got, want = _with_gradients(peer, inputs), _with_gradients(f"{ours}:backend=dense", inputs)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True)), "it wrote into its inputs"


@pytest.mark.usefixtures("installed")
def test_the_linear_form_equals_ours_in_float64() -> None:
    inputs = _draw(100, torch.float64)
    for mine, theirs in zip(*(_with_gradients(s, inputs) for s in ("peer_fla_linear", "linear")), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-8)  # it adds 1e-10 to sums


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("n", [1, 64, 130])
def test_forgetting_attention_equals_ours(n: int) -> None:
    tensors = [*_draw(n), -torch.rand(2, 3, n, generator=torch.Generator().manual_seed(n))]
    results = []
    for spec in ("peer_forgetting", "forgetting", "forgetting:backend=dense"):
        q, k, v, log_forget = leaves = [x.clone().requires_grad_() for x in tensors]
        out = ea.create(spec)(q, k, v, CAUSAL, log_forget=log_forget)
        results.append([out.detach(), *torch.autograd.grad(out.sin().sum(), leaves)])
    for theirs, *ours in zip(*results, strict=True):
        for mine in ours:
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("spec", ["peer_simple_gla", "peer_simple_gla:form=parallel", "peer_fla_linear"])
def test_half_precision_outputs_have_the_input_dtype(spec: str) -> None:
    inputs = _draw(130, torch.bfloat16)
    out = ea.create(spec)(*inputs, CAUSAL)
    want = ea.create(spec, backend="dense")(*(x.double() for x in inputs), CAUSAL)
    assert out.dtype == torch.bfloat16
    assert (out.double() - want).norm() / want.norm() < 0.01


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("mode", ["forward", "forward_backward"])
@pytest.mark.parametrize("spec", ["peer_simple_gla", "peer_fla_linear"])
def test_it_passes_verification(spec: str, mode: str) -> None:
    assert verify_workload(Workload(tiny_suites.case(spec, mode, seq_len=500, causal=True, head_dim=64)))[0] < 1e-5


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.name)
@pytest.mark.parametrize(
    ("spec", "dtype"),
    [
        ("peer_simple_gla:chunk_size=24", torch.float32),
        ("peer_fla_linear", torch.float64),
        ("peer_forgetting", torch.float32),
    ],
)
def test_the_peer_passes_the_conformance_tests(spec: str, dtype: torch.dtype, check: Check) -> None:
    outcome = run_check(check, Subject(spec, dtype=dtype))
    assert outcome.status in ("passed", "not_claimed"), outcome.reason


REFUSED = {
    "no causal mask": ("peer_simple_gla", ea.Mask(), torch.float32, "a mask that is not causal"),
    "padding": ("peer_fla_linear", ea.Mask(causal=True, key_lengths=torch.tensor([3, 4])), torch.float32, "padding"),
    "float64 would be rounded": ("peer_simple_gla", CAUSAL, torch.float64, "not torch.float64"),
    "float16 would overflow": ("peer_fla_linear", CAUSAL, torch.float16, "not torch.float16"),
}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("spec", "mask", "dtype", "message"), REFUSED.values(), ids=REFUSED)
def test_unsupported_inputs_are_refused(spec: str, mask: ea.Mask, dtype: torch.dtype, message: str) -> None:
    with pytest.raises(ea.UnsupportedError, match=message):
        ea.create(spec)(*_draw(64, dtype), mask)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("option", ["chunk_size=0", "form=fused"])
def test_options_out_of_range(option: str) -> None:
    with pytest.raises(ea.UsageError, match="peer_simple_gla"):
        ea.create(f"peer_simple_gla:{option}")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("spec", ["peer_simple_gla", "peer_fla_linear"])
def test_only_the_file_is_executed(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing the file as a module would import all operations, and Triton."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "fla"]:
        monkeypatch.delitem(sys.modules, name)
    ea.create(spec)
    assert not [name for name in sys.modules if name.partition(".")[0] == "fla"]


@pytest.mark.parametrize("absent", ["fla", "einops"])
@pytest.mark.parametrize("peer", ["peer_simple_gla", "peer_fla_linear"])
def test_a_missing_library_is_reported_with_the_command_to_install_it(
    peer: str, absent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_fla_operations.cache_clear()
    monkeypatch.setitem(sys.modules, absent, None)  # what is None there cannot be imported
    with pytest.raises(
        ea.UsageError, match=rf"^{peer} needs the package fla-core: pip install 'efficient-attn\[peers\]'$"
    ):
        ea.create(peer)
