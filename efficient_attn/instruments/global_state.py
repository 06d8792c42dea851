"""Watch the global state of a process: threads, dtypes, random numbers, inputs, the clock."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
import torch.nn.modules.module as hooks
from torch import Tensor

from . import integrity
from .environment.gpu import SDP_KERNELS, read_precision


class GlobalStateChanged(Exception):
    """A mechanism changed global state."""


_TINY = torch.tensor(1e-40)
_FP32_OPERATIONS = ("all", "matmul", "conv", "rnn")  # each with a precision of its own
_HOOKS = (
    *(hooks._global_forward_hooks, hooks._global_forward_pre_hooks),
    *(hooks._global_backward_hooks, hooks._global_backward_pre_hooks),
)


def _flushes_denormals() -> bool:
    """Whether denormal numbers are flushed to zero, which torch does not report."""
    return not bool((_TINY * 1).item())


@cache
def _settle_kernel_order() -> None:
    """Call torch's attention on the GPU once: its first call may itself change the order of torch's kernels."""
    x = torch.zeros(1, 1, 1, 8, device="cuda")
    F.scaled_dot_product_attention(x, x, x)


def _set_niceness(value: int) -> None:
    with suppress(PermissionError):  # only root may lower the niceness again
        os.setpriority(os.PRIO_PROCESS, 0, value)


def _remove_hooks(count: int) -> None:
    """Remove the newest hooks of all modules, until so many are left."""
    for registered in reversed(_HOOKS):
        while registered and sum(map(len, _HOOKS)) > count:
            registered.popitem()


def _leave_function_modes(depth: int) -> None:
    while torch._C._len_torch_function_stack() > depth:
        torch._C._pop_torch_function_stack()


def _list_settings() -> Iterator[tuple[str, Callable[[], Any], Callable[[Any], object]]]:
    """Settings of the process with functions that read and write them; those of switches are booleans.

    Some make torch's own functions faster or slower, for all mechanisms.
    """
    native = torch._C
    yield "the number of threads", torch.get_num_threads, torch.set_num_threads
    yield "the default dtype", torch.get_default_dtype, torch.set_default_dtype
    yield "gradients", torch.is_grad_enabled, torch.set_grad_enabled
    read, write = torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms
    yield "deterministic algorithms", read, write
    read, write = torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    yield "the precision of matrix products", partial(read_precision, read), write
    for library in ("cublas", "cudnn"):
        read, write = getattr(native, f"_get_{library}_allow_tf32"), getattr(native, f"_set_{library}_allow_tf32")
        yield f"{library}'s products in TF32", partial(read_precision, read), write
    read, write = native._get_fp32_precision_getter, native._set_fp32_precision_setter
    # the older settings above come first: torch refuses to read those that differ from these
    for names in (("generic", "all"), *product(("cuda", "mkldnn"), _FP32_OPERATIONS)):
        yield f"the float32 precision of {' '.join(names)}", partial(read, *names), partial(write, *names)
    yield "cuDNN's choice of kernels by timing", native._get_cudnn_benchmark, native._set_cudnn_benchmark
    yield "cuDNN's deterministic kernels", native._get_cudnn_deterministic, native._set_cudnn_deterministic
    read, write = native._get_cublas_allow_fp16_accumulation, native._set_cublas_allow_fp16_accumulation
    yield "cuBLAS's sums in float16", read, write
    yield "the flushing of denormal numbers", _flushes_denormals, torch.set_flush_denormal
    yield "oneDNN's kernels", native._get_mkldnn_enabled, native._set_mkldnn_enabled
    if hasattr(os, "sched_getaffinity"):
        yield "the processors that it may use", partial(os.sched_getaffinity, 0), partial(os.sched_setaffinity, 0)
    if hasattr(os, "getpriority"):
        yield "the process's niceness", partial(os.getpriority, os.PRIO_PROCESS, 0), _set_niceness
    yield "the profiling function", sys.getprofile, sys.setprofile
    yield "the tracing function", sys.gettrace, sys.settrace
    for kernel in SDP_KERNELS:
        read, write = getattr(native, f"_get_{kernel}_sdp_enabled"), getattr(native, f"_set_sdp_use_{kernel}")
        yield f"the {kernel} kernel of scaled_dot_product_attention", read, write
    if hasattr(native, "_set_sdp_priority_order"):  # not in older versions
        read, write = native._get_sdp_priority_order, native._set_sdp_priority_order
        yield "the order of scaled_dot_product_attention's kernels", read, write
    read, write = torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled
    yield "the fast path of torch's encoder layers", read, write
    yield "anomaly detection", torch.is_anomaly_enabled, torch.set_anomaly_enabled
    yield "autocast", partial(torch.is_autocast_enabled, "cpu"), partial(torch.set_autocast_enabled, "cpu")
    yield "the number of active torch function modes", native._len_torch_function_stack, _leave_function_modes
    yield "the number of hooks of all modules", lambda: sum(map(len, _HOOKS)), _remove_hooks


SETTINGS = tuple(_list_settings())


@dataclass(frozen=True)
class GlobalState:
    """The process's settings at one moment, in the order of `SETTINGS`, and torch's random state."""

    values: tuple[Any, ...]
    random: Tensor

    @classmethod
    def capture(cls) -> GlobalState:
        """The current settings and random state."""
        if torch.cuda.is_initialized():
            _settle_kernel_order()
        return cls(tuple(read() for _, read, _ in SETTINGS), torch.get_rng_state())

    def restore(self) -> None:
        """Restore them, and measuring functions that were replaced."""
        for (_, read, write), value in zip(SETTINGS, self.values, strict=True):
            if read() != value:
                write(value)
        torch.set_rng_state(self.random)
        integrity.restore()

    def describe_change(self, *, random: bool = True, replacements: bool = True) -> str | None:
        """A description of the first change since then; None without changes.

        random: whether random numbers count, which constructors may draw. replacements: whether functions are compared,
        which takes longer than the rest.
        """
        if replacements and (reason := integrity.describe_replacement()):
            return reason
        current = GlobalState.capture()
        for (label, _, _), a, b in zip(SETTINGS, self.values, current.values, strict=True):
            if a != b and isinstance(a, bool) and isinstance(b, bool):
                return f"it turned {label} {'on' if b else 'off'} and did not restore it"
            if a != b:
                return f"it changed {label} from {a} to {b}"
        if random and not torch.equal(current.random, self.random):
            return "it used torch's global random number generator, so that results depend on earlier calls"
        return None


@contextmanager
def watch_global_state(
    tensors: Sequence[Tensor] = (), *, random: bool = True, replacements: bool = True
) -> Iterator[None]:
    """Raise `GlobalStateChanged` if code in this context changes global settings or writes into these tensors.

    The settings are restored then, and after any other error, so that later mechanisms are not affected. random,
    replacements: as of `GlobalState.describe_change`.
    """
    before, versions = GlobalState.capture(), [t._version for t in tensors]
    try:
        yield
        if reason := before.describe_change(random=random, replacements=replacements):
            raise GlobalStateChanged(reason)
        if versions != [t._version for t in tensors]:
            raise GlobalStateChanged("it wrote into its inputs")
    except BaseException:
        before.restore()
        raise


@contextmanager
def use_threads(count: int | None) -> Iterator[None]:
    """Set torch's number of threads in this context; None leaves it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
