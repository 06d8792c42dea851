"""A pretended GPU: tensors that report a CUDA device and hold data of the processor, and counts of what a GPU would do.

Every operation on such tensors is one kernel, unless it is a view or only reserves memory. torch's fused attention is
one kernel, and three in the backward pass.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from efficient_attn.contract import Mask
from efficient_attn.feature_maps import FeatureMap
from efficient_attn.kernels.gated import recurrence
from efficient_attn.kernels.linear import sums
from efficient_attn.kernels.linear.linear_config import KeyInputs, LinearConfig, replace_zero_by_one
from efficient_attn.kernels.native import triton_step
from efficient_attn.kernels.sparse import flex_backend
from efficient_attn.patterns import Pattern
from efficient_attn.variants.sparse.sparse_attention import attend_pattern

Result = TypeVar("Result")

GPU = torch.device("cuda", 0)
STANDS_FOR_GPU = torch.device("meta")  # a device that torch knows without a GPU; its C++ sees this one
BACKWARD_KERNELS = 3  # of fused attention
COPIES = ("_to_copy", "copy_")
RESERVES = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "detach", "alias", "lift_fresh")
VIEWS = ("_unsafe_view", "_reshape_alias")
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "repeat_interleave")
INDEXED = ("index", "index_put_", "index_put", "_index_put_impl_")


@dataclass
class Work:
    """What a GPU was asked to do, by operation and line of the package. launches: of kernels. waits: of the host for a
    result. copies: from the host. mixed: operations on tensors of both devices. doubles: results of float64."""

    launches: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)
    mixed: Counter[str] = field(default_factory=Counter)
    doubles: Counter[str] = field(default_factory=Counter)


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
    for frame in reversed(traceback.extract_stack()):
        if "/efficient_attn/" in frame.filename and "/helpers/" not in frame.filename:
            return f"{frame.filename.rpartition('/efficient_attn/')[2]}:{frame.lineno}"
    return "elsewhere"


class _Fused(torch.autograd.Function):
    """torch's fused attention as one kernel, and its backward pass as three."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Tensor], name: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        _current().work.launches[f"{name} {_find_line()}"] += 1
        ctx.run, ctx.name = run, name
        ctx.save_for_backward(q, k, v)
        return OnGpu(run(*map(get_data, (q, k, v))))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        _current().work.launches[f"{ctx.name} backward"] += BACKWARD_KERNELS
        with torch.enable_grad():
            leaves = [get_data(x).detach().requires_grad_() for x in ctx.saved_tensors]
            out = ctx.run(*leaves)
        found = torch.autograd.grad(out, leaves, get_data(grads[0]))
        return None, None, *map(OnGpu, found)


def _step_sums(
    phi: FeatureMap | None, q: Tensor, keys: KeyInputs, past: Any, *, divisor: Any, decays: bool, dtype: torch.dtype
) -> Any:
    """`triton_step.step_sums` as one kernel, with the results of the step in torch."""
    _current().work.launches[f"Triton {_find_line()}"] += 1
    totals: list[Tensor] = []

    def store_totals(total: Tensor) -> Tensor:
        totals.append(total)
        return torch.ones_like(total)

    config = LinearConfig(phi or FeatureMap(lambda x: x), divisor, decays)
    if divisor not in (None, replace_zero_by_one):
        config = LinearConfig(config.phi, store_totals, decays)
    here = KeyInputs(*map(get_data, keys))
    out, (_, _, reference) = sums.step(config, get_data(q).float(), here, sums.Sums(*map(get_data, past)))
    results = (out, totals[0], reference) if totals else (out.to(dtype), None, reference)
    return tuple(None if x is None else OnGpu(x) for x in results)


def _step_state(*tensors: Tensor | None) -> Tensor:
    """`triton_step.step_state`, as `_step_sums`."""
    _current().work.launches[f"Triton {_find_line()}"] += 1
    *inputs, state = map(get_data, tensors)
    return OnGpu(recurrence.step(recurrence.Inputs(*inputs), state)[0])


@contextmanager
def pretended_gpu() -> Iterator[PretendedGpu]:
    """A pretended GPU. Fused kernels are intercepted where they are called: torch's attention, flex_attention, and
    decode steps in Triton."""
    attend = F.scaled_dot_product_attention

    def attend_fused(q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None, **options: Any) -> Tensor:
        if not isinstance(q, OnGpu):
            return attend(q, k, v, attn_mask=attn_mask, **options)
        if attn_mask is not None and not isinstance(attn_mask, OnGpu):
            _current().work.mixed[f"mask of fused attention {_find_line()}"] += 1
        mask = get_data(attn_mask)
        return _Fused.apply(lambda *x: attend(*x, attn_mask=mask, **options), "fused attention", q, k, v)

    def attend_flex(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, mask: Mask, scale: float) -> Tensor:
        g = flex_backend.Geometry(q.shape[2], k.shape[2], mask.start(q.shape[2], k.shape[2]), mask.causal)
        flex_backend.block_mask(pattern, g, device=q.device, valid=mask.key_valid(k.shape[2]))  # its own work counts
        here = Mask(**{name: get_data(x) for name, x in vars(mask).items()})
        group = q.shape[1] // k.shape[1]

        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = (x.repeat_interleave(group, 1) for x in (k, v))
            return attend_pattern(q, keys, values, here, pattern).to(q.dtype)

        return _Fused.apply(run, "flex_attention", q, k, v)

    gpu = PretendedGpu()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "_lazy_init", lambda: None)
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(F, "scaled_dot_product_attention", attend_fused)
        patch.setattr(flex_backend, "attend", attend_flex)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        patch.setattr(triton_step, "have_numbers", lambda *tensors: True)
        patch.setattr(triton_step, "why_no_triton", lambda device: None)
        patch.setattr(triton_step, "step_sums", _step_sums)
        patch.setattr(triton_step, "step_state", _step_state)
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
