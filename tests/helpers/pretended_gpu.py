"""A pretended GPU: tensors that report a CUDA device and hold data of the processor, and counts of what a GPU would do.

Every operation on such tensors is one kernel, unless it is a view or only reserves memory. torch's fused attention is
one kernel, and three in the backward pass.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import naive_fla
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention import varlen as torch_varlen
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from efficient_attn.contract import Mask
from efficient_attn.kernels import fla_backend
from efficient_attn.kernels.dense import softmax_attention
from efficient_attn.kernels.softmax import sdpa_kernels
from efficient_attn.kernels.sparse import flex_backend
from efficient_attn.patterns import Pattern
from efficient_attn.variants.sparse.sparse_attention import attend_pattern

Result = TypeVar("Result")

GPU = torch.device("cuda", 0)
STANDS_FOR_GPU = torch.device("meta")  # a device that torch knows without a GPU; its C++ sees this one
BACKWARD_KERNELS = 3  # of fused attention
SDPA_KERNELS = {"flash": "flash", "cudnn": "cudnn", "efficient": "mem_efficient", "math": "math"}  # and torch's names
COPIES = ("_to_copy", "copy_")
RESERVES = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "detach", "alias", "lift_fresh")
VIEWS = ("_unsafe_view", "_reshape_alias")
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "repeat_interleave")
INDEXED = ("index", "index_put_", "index_put", "_index_put_impl_")


@dataclass
class Work:
    """What a GPU was asked to do, by operation and line of the package. launches: of kernels. waits: of the host for a
    result. copies: from the host. mixed: operations on tensors of both devices. doubles: results of float64. requested:
    for each call of torch's attention the kernels that it may use, or ``varlen``. timed: for each kernel that was."""

    launches: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)
    mixed: Counter[str] = field(default_factory=Counter)
    doubles: Counter[str] = field(default_factory=Counter)
    requested: list[str] = field(default_factory=list)
    timed: list[str] = field(default_factory=list)


class OnGpu(Tensor):
    """A tensor of the pretended GPU. data: on the processor."""

    data_here: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore

    @staticmethod
    def __new__(cls, data: Tensor) -> OnGpu:
        layout = {"strides": data.stride(), "storage_offset": data.storage_offset(), "dtype": data.dtype}
        made = Tensor._make_wrapper_subclass(cls, data.size(), device=STANDS_FOR_GPU, **layout)  # pyright: ignore
        made.data_here = data
        return made

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]
        return GPU

    @property
    def is_cuda(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return True

    @property
    def is_meta(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return False

    def data_ptr(self) -> int:
        return self.data_here.data_ptr()

    def tolist(self) -> Any:
        _current().work.waits[f"tolist {_find_line()}"] += 1
        return self.data_here.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _current().run(func, args, kwargs or {})


def to_gpu(x: Tensor) -> Tensor:
    """A tensor of the pretended GPU with this data."""
    return OnGpu(x.detach())


def move(attn: nn.Module) -> None:
    """Move a module's parameters and buffers there."""
    for module in attn.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else to_gpu(buffer)
        for name, parameter in module._parameters.items():
            moved = None if parameter is None else nn.Parameter(to_gpu(parameter), parameter.requires_grad)
            module._parameters[name] = moved


class PretendedGpu(TorchDispatchMode):
    """While it is active, tensors of the pretended GPU can be used, and ``work`` is counted."""

    def __init__(self) -> None:
        super().__init__()
        self.work = Work()
        self.seconds = {"flash": 2.0, "cudnn": 1.0}  # that kernels of torch's attention take when they are timed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Run an operation on the data here, and count it if it concerns the GPU."""
        name = func.overloadpacket.__name__
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        there = [x for x in tensors if isinstance(x, OnGpu)]
        target = None if kwargs.get("device") is None else torch.device(kwargs["device"]).type
        is_there = bool(there)
        if name == "copy_":
            is_there = isinstance(args[0], OnGpu)
        elif target is not None:
            is_there = target in (GPU.type, STANDS_FOR_GPU.type)
        here_kwargs = dict(kwargs) | ({} if target is None else {"device": torch.device("cpu")})
        if there or is_there:
            self._count_transfers(name, args, tensors, there, is_there=is_there)
        result = func(*tree_map(get_data, args), **tree_map(get_data, here_kwargs))
        if name == "_local_scalar_dense" or not is_there:
            return result
        if not func.is_view and name not in (*RESERVES, *VIEWS):
            self._count_kernel(name, result)
        wrappers = {id(x.data_here): x for x in there}  # of operations in place

        def wrap(x: Any) -> Any:
            return OnGpu(x) if isinstance(x, Tensor) and id(x) not in wrappers else wrappers.get(id(x), x)

        return tree_map(wrap, result)

    def _count_kernel(self, name: str, result: Any) -> None:
        place = f"{name} {_find_line()}"
        self.work.launches[place] += 1
        if any(isinstance(x, Tensor) and x.dtype == torch.float64 for x in tree_flatten(result)[0]):
            self.work.doubles[place] += 1

    def _count_transfers(
        self, name: str, args: Any, tensors: list[Tensor], there: list[OnGpu], *, is_there: bool
    ) -> None:
        place, here = f"{name} {_find_line()}", [x for x in tensors if not isinstance(x, OnGpu)]
        if name in COPIES:
            self.work.copies[place] += is_there and bool(here)
            self.work.waits[place] += not is_there
        elif name in INDEXED and isinstance(args[0], OnGpu):
            self.work.copies[place] += any(x.ndim > 0 for x in here)
            self.work.waits[place] += any(x.dtype == torch.bool for x in tensors[1:])
        elif there and any(x.ndim > 0 for x in here):
            self.work.mixed[place] += 1
        self.work.waits[place] += name in WAITS


def get_data(x: Any) -> Any:
    return x.data_here if isinstance(x, OnGpu) else x


_active: list[PretendedGpu] = []


def _current() -> PretendedGpu:
    return _active[-1]


def _find_line() -> str:
    """The innermost line of the package."""
    frame = sys._getframe()
    while frame is not None:
        path = frame.f_code.co_filename
        if "/efficient_attn/" in path and "/helpers/" not in path:
            return f"{path.rpartition('/efficient_attn/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


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
        _current().work.launches[f"{call.name} {_find_line()}"] += call.kernels
        ctx.call = call
        ctx.save_for_backward(*tensors)
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):  # those of the processor
            return OnGpu(call.run(*map(get_data, tensors)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        _current().work.launches[f"{ctx.call.name} backward"] += ctx.call.backward_kernels
        with torch.enable_grad():
            leaves = [get_data(x).detach().requires_grad_() for x in ctx.saved_tensors]
            out = ctx.call.run(*leaves)
        found = torch.autograd.grad(out, leaves, get_data(grads[0]), allow_unused=True)
        return None, *(None if x is None else OnGpu(x) for x in found)


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
    work, ends = _current().work, [get_data(x).tolist() for x in (cu_seq_q, cu_seq_k)]
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


@contextmanager
def pretended_gpu() -> Iterator[PretendedGpu]:
    """A pretended GPU. Fused kernels are intercepted where they are called: torch's attention, of which it takes
    whatever kernel is requested, its varlen_attn, flex_attention, and flash-linear-attention's functions."""
    attend = F.scaled_dot_product_attention

    def attend_fused(q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None, **options: Any) -> Tensor:
        if not isinstance(q, OnGpu):
            return attend(q, k, v, attn_mask=attn_mask, **options)
        cuda = torch.backends.cuda
        enabled = [name for name, torchs in SDPA_KERNELS.items() if getattr(cuda, f"{torchs}_sdp_enabled")()]
        _current().work.requested.append(",".join(enabled))
        if attn_mask is not None and not isinstance(attn_mask, OnGpu):
            _current().work.mixed[f"mask of fused attention {_find_line()}"] += 1
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
        _active.append(gpu)
        try:
            with gpu:
                yield gpu
        finally:
            _active.pop()


def count(gpu: PretendedGpu, call: Callable[[], Result]) -> tuple[Work, Result]:
    """The work of a call, and its result."""
    gpu.work = Work()
    result = call()
    return gpu.work, result
