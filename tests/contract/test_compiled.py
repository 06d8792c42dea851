"""torch.compile, torch.export and the meta device: one graph, and the results of the eager call."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from specs import SAMPLE
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported

import efficient_attn as ea
from efficient_attn.testing import Call, Subject

subject = cache(Subject)
N = 70
COMPILED = (*SAMPLE, "bigbird:window=5:n_global=3:n_random=2:block_size=16:backend=blocks", "performer", "retention")


class Program(nn.Module):
    """A call of a new instance, as a module whose arguments are tensors."""

    def __init__(self, spec: str, call: Call) -> None:
        super().__init__()
        self.attn = subject(spec).make(subject(spec).shape(N))
        self.mask, self.shares_qk = call.mask, call.shares_qk

    def forward(self, *tensors: Tensor) -> Tensor:
        q, k, v = (tensors[0], *tensors) if self.shares_qk else tensors
        return self.attn(q, k, v, self.mask)


def draw_call(spec: str) -> tuple[Call, list[Tensor]]:
    s = subject(spec)
    call = s.draw(s.shape(N), mask=ea.Mask(causal=s.traits.causal)).leaves()
    return call, list({id(x): x for x in call.tensors.values()}.values())


@pytest.fixture(autouse=True)
def _reset_compiler() -> None:
    torch.compiler.reset()


@pytest.mark.sampled
@pytest.mark.parametrize("spec", COMPILED)
def test_compiled_forward_and_backward_equal_eager_ones(spec: str) -> None:
    call, sources = draw_call(spec)
    out = torch.compile(Program(spec, call), fullgraph=True, backend="aot_eager")(*sources)
    want = call.run(subject(spec).make(subject(spec).shape(N)))
    torch.testing.assert_close(out, want)
    pairs = (torch.autograd.grad(x.sin().sum(), sources, materialize_grads=True) for x in (out, want))
    for got, exact in zip(*pairs, strict=True):
        torch.testing.assert_close(got, exact)


@pytest.mark.parametrize("spec", ["full", "sliding_window:window=9", "linear"])
def test_exported_programs_equal_eager_calls(spec: str) -> None:
    call, sources = draw_call(spec)
    program = Program(spec, call)
    tensors = [x.detach() for x in sources]
    exported = torch.export.export(program, tuple(tensors)).module()
    others = [x.flip(2) for x in tensors]
    torch.testing.assert_close(exported(*others), program(*others))


@pytest.mark.parametrize("spec", ["reformer", "longformer", "linear", "linformer", "gqa:kv_heads=2", "nystromformer"])
def test_shapes_come_from_the_meta_device(spec: str) -> None:
    call, _ = draw_call(spec)
    attn = subject(spec).make(subject(spec).shape(N))
    want = call.run(attn)
    call = call.change(lambda x: x.detach().to("meta"))
    got = call.run(attn.to("meta"))
    assert (got.device.type, got.shape, got.dtype) == ("meta", want.shape, want.dtype)


def test_a_user_defined_fact_is_one_graph_break() -> None:
    """Its plan has no text form, so that the kernel cannot be a custom op."""
    attn = ea.SparseAttention(ea.patterns.Where(lambda i, j: (i - j) % 3 == 0))
    q, k, v = torch.randn(3, 1, 2, 20, 8)
    with pytest.raises(Unsupported, match="_attend_blocks"):
        torch.compile(attn, fullgraph=True, backend="eager")(q, k, v)
    torch.testing.assert_close(torch.compile(attn, backend="eager")(q, k, v), attn(q, k, v))


def test_a_separate_key_tensor_is_refused_under_vmap() -> None:
    attn = ea.create("reformer", dims=ea.Dims(head_dim=8))
    q, v = torch.randn(2, 1, 2, 20, 8)
    with pytest.raises(ea.UnsupportedError, match="k must be q, one and the same object"):
        torch.func.vmap(lambda q: attn(q, q.clone(), v))(q[None])
