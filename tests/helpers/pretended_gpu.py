"""A pretended GPU: tensors that report a CUDA device and hold data of the processor, and counts of what a GPU would do.

Every operation on such tensors is one kernel, unless it is a view or only reserves memory. torch's fused attention is
one kernel, and three in the backward pass.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

Result = TypeVar("Result")

GPU = torch.device("cuda", 0)
STANDS_FOR_GPU = torch.device("meta")  # a device that torch knows without a GPU; its C++ sees this one
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
        current().work.waits[f"tolist {find_line()}"] += 1
        return self.data_here.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return current().run(func, args, kwargs or {})


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
        place = f"{name} {find_line()}"
        self.work.launches[place] += 1
        if any(isinstance(x, Tensor) and x.dtype == torch.float64 for x in tree_flatten(result)[0]):
            self.work.doubles[place] += 1

    def _count_transfers(
        self, name: str, args: Any, tensors: list[Tensor], there: list[OnGpu], *, is_there: bool
    ) -> None:
        place, here = f"{name} {find_line()}", [x for x in tensors if not isinstance(x, OnGpu)]
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


active: list[PretendedGpu] = []


def current() -> PretendedGpu:
    return active[-1]


def find_line() -> str:
    """The innermost line of the package."""
    frame = sys._getframe()
    while frame is not None:
        path = frame.f_code.co_filename
        if "/efficient_attn/" in path and "/helpers/" not in path:
            return f"{path.rpartition('/efficient_attn/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


def count(gpu: PretendedGpu, call: Callable[[], Result]) -> tuple[Work, Result]:
    """The work of a call, and its result."""
    gpu.work = Work()
    result = call()
    return gpu.work, result
