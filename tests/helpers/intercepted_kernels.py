"""Kernels of libraries, intercepted where they are called on a pretended GPU: launches are counted, and data of the
processor is computed with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import naive_fla
import pytest
import torch
import torch.nn.functional as F
from pretended_gpu import OnGpu, PretendedGpu, active, current, find_line, get_data
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention import varlen as torch_varlen

from efficient_attn.contract import Mask
from efficient_attn.feature_maps import FeatureMap
from efficient_attn.kernels import fla_backend
from efficient_attn.kernels.dense import softmax_attention
from efficient_attn.kernels.gated import recurrence
from efficient_attn.kernels.linear import decode_step, sums
from efficient_attn.kernels.linear.linear_config import KeyInputs, LinearConfig, replace_zero_by_one
from efficient_attn.kernels.native import triton_step
from efficient_attn.kernels.softmax import sdpa_kernels
from efficient_attn.kernels.sparse import flex_backend
from efficient_attn.patterns import Pattern
from efficient_attn.variants.sparse.sparse_attention import attend_pattern

BACKWARD_KERNELS = 3  # of fused attention
SDPA_KERNELS = {"flash": "flash", "cudnn": "cudnn", "efficient": "mem_efficient", "math": "math"}  # and torch's names


class FusedCall(NamedTuple):
    """A call of a library's kernels: its function, its name, and the kernels of its forward and backward pass."""

    run: Callable[..., Tensor]
    name: str
    kernels: int = 1
    backward_kernels: int = BACKWARD_KERNELS


class _Fused(torch.autograd.Function):
    """A library's kernels, which compute with data of the processor."""

    @staticmethod
    def forward(ctx: Any, call: FusedCall, *tensors: Tensor) -> Tensor:
        current().work.launches[f"{call.name} {find_line()}"] += call.kernels
        ctx.call = call
        ctx.save_for_backward(*tensors)
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):  # those of the processor
            return OnGpu(call.run(*map(get_data, tensors)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        current().work.launches[f"{ctx.call.name} backward"] += ctx.call.backward_kernels
        with torch.enable_grad():
            leaves = [get_data(x).detach().requires_grad_() for x in ctx.saved_tensors]
            out = ctx.call.run(*leaves)
        found = torch.autograd.grad(out, leaves, get_data(grads[0]), materialize_grads=True)
        return None, *map(OnGpu, found)


def _attend_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
) -> Tensor:
    """torch's varlen_attn by its documentation; causal queries are aligned with the last key of their sequence."""
    work, ends = current().work, [get_data(x).tolist() for x in (cu_seq_q, cu_seq_k)]
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert {type(max_q), type(max_k)} == {int}
    assert enable_gqa is (k.shape[1] < q.shape[1])
    assert all(isinstance(x, OnGpu) and x.stride(-1) == 1 for x in (q, k, v, cu_seq_q, cu_seq_k))
    assert q.shape[-1] == v.shape[-1]
    assert q.shape[-1] % 8 == 0
    work.requested.append("varlen")
    work.launches["numbers of dropout, which varlen_attn fills with zeros"] += 1

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        outs, group = [q[:0]], q.shape[1] // k.shape[1]
        for (q_start, q_end), (k_start, k_end) in zip(*map(pairwise, ends), strict=True):
            assert q_end - q_start <= max_q and k_end - k_start <= max_k  # noqa: PT018
            if q_end == q_start or k_end == k_start:
                outs.append(torch.zeros_like(q[q_start:q_end]))
                continue
            rows = q[q_start:q_end].transpose(0, 1)
            keys, values = (x[k_start:k_end].transpose(0, 1).repeat_interleave(group, 0) for x in (k, v))
            allowed = Mask(causal=window_size == (-1, 0)).dense(rows.shape[1], keys.shape[1])[0]
            out = softmax_attention(rows[None], keys[None], values[None], allowed, scale=scale)
            outs.append(out[0].transpose(0, 1))
        assert len(q) == ends[0][-1] and len(k) == ends[1][-1]  # noqa: PT018
        return torch.cat(outs)

    return _Fused.apply(FusedCall(run, "varlen attention"), q, k, v)


def _step_sums(
    phi: FeatureMap | None, q: Tensor, keys: KeyInputs, past: Any, *, divisor: Any, decays: bool, dtype: torch.dtype
) -> Any:
    """`triton_step.step_sums` as one kernel, with the results of the step in torch."""
    current().work.launches[f"Triton {find_line()}"] += 1
    totals: list[Tensor] = []

    def store_totals(total: Tensor) -> Tensor:
        totals.append(total)
        return torch.ones_like(total)

    config = LinearConfig(phi or FeatureMap(lambda x: x), divisor, decays)
    if divisor not in (None, replace_zero_by_one):
        config = LinearConfig(config.phi, store_totals, decays)
    here = KeyInputs(*map(get_data, keys))
    out, (_, _, reference) = decode_step.step(config, get_data(q).float(), here, sums.Sums(*map(get_data, past)))
    results = (out, totals[0], reference) if totals else (out.to(dtype), None, reference)
    return tuple(None if x is None else OnGpu(x) for x in results)


def _step_state(*tensors: Tensor | None) -> Tensor:
    """`triton_step.step_state`, as `_step_sums`."""
    current().work.launches[f"Triton {find_line()}"] += 1
    *inputs, state = map(get_data, tensors)
    return OnGpu(recurrence.step(recurrence.Inputs(*inputs), state)[0])


@contextmanager
def pretended_gpu() -> Iterator[PretendedGpu]:
    """A pretended GPU. Fused kernels are intercepted where they are called: torch's attention, of which it takes
    whatever kernel is requested, its varlen_attn, flex_attention, flash-linear-attention's functions, and decode steps
    in Triton."""
    attend = F.scaled_dot_product_attention

    def attend_fused(q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None, **options: Any) -> Tensor:
        if not isinstance(q, OnGpu):
            return attend(q, k, v, attn_mask=attn_mask, **options)
        cuda = torch.backends.cuda
        enabled = [name for name, torchs in SDPA_KERNELS.items() if getattr(cuda, f"{torchs}_sdp_enabled")()]
        current().work.requested.append(",".join(enabled))
        if attn_mask is not None and not isinstance(attn_mask, OnGpu):
            current().work.mixed[f"mask of fused attention {find_line()}"] += 1
        mask = get_data(attn_mask)
        return _Fused.apply(FusedCall(lambda *x: attend(*x, attn_mask=mask, **options), "fused attention"), q, k, v)

    def attend_flex(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, mask: Mask, scale: float) -> Tensor:
        g = flex_backend.Geometry(q.shape[2], k.shape[2], mask.start(q.shape[2], k.shape[2]), mask.causal)
        flex_backend.block_mask(pattern, g, device=q.device, valid=mask.key_valid(k.shape[2]))  # its own work counts
        here = Mask(**{name: get_data(x) for name, x in vars(mask).items()})
        group = q.shape[1] // k.shape[1]

        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = (x.repeat_interleave(group, 1) for x in (k, v))
            return attend_pattern(q, keys, values, here, pattern).to(q.dtype)

        return _Fused.apply(FusedCall(run, "flex_attention"), q, k, v)

    def load_kernel(operation: str, name: str) -> Callable[..., Any]:
        kernel = naive_fla.KERNELS[name]

        def run_kernel(**arguments: Any) -> Any:
            naive_fla.check_arguments(operation, name, arguments)
            tensors = {key: x for key, x in arguments.items() if isinstance(x, Tensor)}
            others = {key: x for key, x in arguments.items() if key not in tensors}
            copied = [x.contiguous() for x in tensors.values()]  # as the library's functions do

            def run(*x: Tensor) -> Tensor:
                return kernel.compute(operation, **dict(zip(tensors, x, strict=True)), **others)

            out = _Fused.apply(FusedCall(run, name, kernel.forward, kernel.backward), *copied)
            return out if kernel.stateless else (out, None)

        return run_kernel

    def attend_last_queries(q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: float) -> Tensor:
        gpu.work.requested.append("flash")
        allowed = Mask(causal=True).dense(q.shape[2], k.shape[2])
        options = {"attn_mask": allowed, "dropout_p": dropout, "scale": scale, "enable_gqa": True}
        return _Fused.apply(FusedCall(lambda *x: attend(*x, **options), "flash attention"), q, k, v)

    def time_kernel(kernel: str, *_: Any, **__: Any) -> float:
        gpu.work.timed.append(kernel)
        return gpu.seconds[kernel]

    gpu = PretendedGpu()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "_lazy_init", lambda: None)
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        patch.setattr(F, "scaled_dot_product_attention", attend_fused)
        patch.setattr(torch_varlen, "varlen_attn", _attend_varlen)
        patch.setattr(sdpa_kernels, "attend_last_queries", attend_last_queries)
        patch.setattr(sdpa_kernels, "time_kernel", time_kernel)
        for name in ("flash", "cudnn", "efficient"):
            patch.setattr(torch.backends.cuda, f"can_use_{name}_attention", lambda params, debug=False: True)
        patch.setattr(flex_backend, "attend", attend_flex)
        patch.setattr(fla_backend, "why_no_library", lambda: None)
        patch.setattr(fla_backend, "why_no_gate_gradients", lambda: None)
        patch.setattr(fla_backend, "load_kernel", load_kernel)
        patch.setattr(triton_step, "have_numbers", lambda *tensors: True)
        patch.setattr(triton_step, "why_no_triton", lambda device: None)
        patch.setattr(triton_step, "step_sums", _step_sums)
        patch.setattr(triton_step, "step_state", _step_state)
        active.append(gpu)
        try:
            with gpu:
                yield gpu
        finally:
            active.pop()
