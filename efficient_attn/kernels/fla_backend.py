"""flash-linear-attention's Triton kernels (package fla-core) for whole causal sequences on CUDA, with its gradients.

Tensors are ``[B, H, N, ..]``, those of keys ``[B, Hkv, N, ..]``; the library takes ``[B, N, H, ..]``. Where it knows no
groups, the heads of a group get copies of their keys and values.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # of the kernels, which multiply float32 in TF32
MIN_VERSION = (0, 6)  # of fla-core, whose functions are called
MAX_WIDTH = 256  # of keys and values; some of the kernels support no wider ones
MAX_HEADS = 65_535  # of a whole batch: the last dimension of CUDA's grids
MIN_LOG = -100.0  # smaller logarithms of decays are raised to this: the library subtracts their sums, which may be -inf

# operation and function by whether there are step sizes of the delta rule, and by what has decays of its own
STATE_KERNELS = {
    (False, "none"): ("simple_gla", "chunk_simple_gla"),
    (False, "heads"): ("simple_gla", "chunk_simple_gla"),
    (False, "channels"): ("gla", "chunk_gla"),
    (True, "none"): ("delta_rule", "chunk_delta_rule"),
    (True, "heads"): ("gated_delta_rule", "chunk_gated_delta_rule"),
    (True, "channels"): ("kda", "chunk_kda"),
}


@cache
def why_no_library() -> str | None:
    """Why the kernels cannot run here; None if they can. With a CUDA device, imports the library."""
    if not torch.cuda.is_available():
        return "flash-linear-attention's kernels need a CUDA device"
    if missing := [name for name in ("fla", "triton") if not importlib.util.find_spec(name)]:
        return f"flash-linear-attention's kernels need {' and '.join(missing)}: pip install fla-core triton"
    if tuple(map(int, version("fla-core").split(".")[:2])) < MIN_VERSION:
        return f"needs fla-core {'.'.join(map(str, MIN_VERSION))} or newer, not {version('fla-core')}"
    try:
        importlib.import_module("fla.ops")
    except ImportError as error:
        return f"flash-linear-attention cannot be imported: {error}"
    return None


@cache
def why_no_gate_gradients() -> str | None:
    """Why the library has no gradients with decays of each head that depend on the input: compiled by some versions of
    Triton they are wrong on Hopper GPUs, so that it refuses them."""
    utils = importlib.import_module("fla.utils")
    if utils.IS_NVIDIA_HOPPER and utils.TRITON_ABOVE_3_4_0 and not utils.TRITON_ABOVE_3_7_1:
        return "flash-linear-attention's gradients with decays of each head need Triton 3.7.1 or newer on Hopper GPUs"
    return None


def load_kernel(operation: str, name: str) -> Callable[..., Any]:
    """A function of the library."""
    return getattr(importlib.import_module(f"fla.ops.{operation}"), name)


def attend_features(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Linear attention, normalized: q and k are non-negative features, k zero where keys are hidden."""
    return _run("linear_attn", "chunk_linear_attn", q, {"k": k, "v": v}, scale=1.0, normalize=True)


def attend_decaying(q: Tensor, k: Tensor, v: Tensor, log_decays: Tensor) -> Tensor:
    """sum_j e^(g (i - j)) (q_i . k_j / sqrt(D)) v_j with constant logarithms g of decays ``[H]``, in float32."""
    return _run("simple_gla", "chunk_simple_gla", q, {"k": k, "v": v}, g_gamma=log_decays)


def attend_state(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, beta: Tensor | None) -> Tensor:
    """q_t S_t / sqrt(D) of the state of `RecurrentAttention`: log_decay ``[B, Hkv, N, 1 or D]``, beta ``[B, Hkv, N]``,
    keys already of unit norm where that is wanted."""
    of_keys, gates = {"k": k.to(q.dtype), "v": v.to(q.dtype)}, "none"
    if beta is not None:
        of_keys["beta"] = beta
    if log_decay is not None:
        gates = "heads" if log_decay.shape[3] == 1 else "channels"
        of_keys["g"] = (log_decay[..., 0] if gates == "heads" else log_decay).clamp(min=MIN_LOG)
    return _run(*STATE_KERNELS[beta is not None, gates], q, of_keys)


def attend_forgetting(q: Tensor, k: Tensor, v: Tensor, log_forget: Tensor) -> Tensor:
    """softmax(q_i . k_j / sqrt(D) + c_i - c_j) v with c_t = sum of log_forget ``[B, Hkv, N]`` over s <= t. The kernel
    knows groups."""
    gates = _expand(log_forget.float(), q.shape[1])
    kernel = load_kernel("forgetting_attn", "parallel_forgetting_attn")
    return kernel(**{name: x.transpose(1, 2) for name, x in zip("qkv", (q, k, v), strict=True)}, g=gates).transpose(
        1, 2
    )


def _run(operation: str, name: str, q: Tensor, of_keys: dict[str, Tensor], **options: Any) -> Tensor:
    """The output of a function that returns a state as well, in our layout."""
    tensors = {key: _expand(x, q.shape[1]) for key, x in of_keys.items()}
    return load_kernel(operation, name)(q=q.transpose(1, 2), **tensors, **options)[0].transpose(1, 2)


def _expand(x: Tensor, heads: int) -> Tensor:
    """``[B, Hkv, N, ..]`` to ``[B, N, H, ..]``."""
    x, group = x.transpose(1, 2), heads // x.shape[1]
    if group == 1:
        return x
    return x.unsqueeze(3).expand(*x.shape[:3], group, *x.shape[3:]).flatten(2, 3)
