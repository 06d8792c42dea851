"""flash-linear-attention's functions without Triton: their arguments, read from its sources, and its naive forms."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from efficient_attn.peers.hosting import load_fla_operations

CHUNK_SIZE = 64


class NaiveKernel(NamedTuple):
    """A function in plain torch, and the kernels that the library launches, counted in its sources: in the forward
    pass, and in the backward pass with what it computes again. stateless: whether it returns the output alone."""

    compute: Callable[..., Tensor]
    forward: int
    backward: int
    stateless: bool = False


def list_sources(*folders: str) -> list[Path]:
    """The files of one of the library's folders."""
    package = importlib.util.find_spec("fla")
    assert package
    assert package.submodule_search_locations
    return sorted(Path(package.submodule_search_locations[0], *folders).glob("*.py"))


@cache
def read_arguments(operation: str, name: str) -> tuple[frozenset[str], frozenset[str]]:
    """The names of a function's arguments, and of those without defaults."""
    (function,) = (
        node
        for file in list_sources("ops", operation)
        for node in ast.parse(file.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    positional = [x.arg for x in function.args.args]
    required = positional[: len(positional) - len(function.args.defaults)]
    return frozenset(positional + [x.arg for x in function.args.kwonlyargs]), frozenset(required)


def check_arguments(operation: str, name: str, arguments: dict[str, Any]) -> None:
    """Assert that the library takes these arguments, and what its kernels require of them."""
    known, required = read_arguments(operation, name)
    assert required <= arguments.keys() <= known, (name, sorted(arguments))
    q, k, v = (arguments[x] for x in "qkv")
    assert q.dtype == k.dtype == v.dtype != torch.float64
    assert q.shape == k.shape or (name == "parallel_forgetting_attn" and q.shape[2] % k.shape[2] == 0), name
    assert v.shape[:3] == k.shape[:3]
    assert not (name == "chunk_delta_rule" and q.dtype == torch.float32), "the library refuses float32"
    heads = q.shape[:3]
    assert "beta" not in arguments or arguments["beta"].shape == heads
    assert "g" not in arguments or arguments["g"].shape == (q.shape if name in ("chunk_gla", "chunk_kda") else heads)
    assert "g_gamma" not in arguments or arguments["g_gamma"].shape == q.shape[2:3]


def _pad(x: Tensor) -> Tensor:
    """``[B, N, H, ..]`` to whole chunks, with zeros."""
    return F.pad(x, (0, 0) * (x.ndim - 2) + (0, -x.shape[1] % CHUNK_SIZE))


def _linear(operation: str, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    naive = load_fla_operations("test", operation).naive_chunk_linear_attn
    return naive(*(_pad(x.float()) for x in (q, k, v)), **options)[:, : q.shape[1]].to(q.dtype)


def _simple_gla(
    operation: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, g_gamma: Tensor | None = None
) -> Tensor:
    logs = q.new_zeros(q.shape[2]) if g_gamma is None else g_gamma
    gates = logs.expand(q.shape[:3]) if g is None else g
    return load_fla_operations("test", operation).naive_chunk_simple_gla(q, k, v, gates)[0].to(q.dtype)


def _gla(operation: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return load_fla_operations("test", operation).naive_recurrent_gla(q, k, v, g)[0]


def _delta_rule(operation: str, q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    tensors = [_pad(x.float()).transpose(1, 2) for x in (q, k, v, beta)]
    out, _ = load_fla_operations("test", operation).delta_rule_chunkwise(*tensors, chunk_size=CHUNK_SIZE)
    return out.transpose(1, 2)[:, : q.shape[1]].to(q.dtype)


def _gated_delta_rule(operation: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    return load_fla_operations("test", operation).naive_chunk_gated_delta_rule(q, k, v, g, beta)[0].to(q.dtype)


def _kda(operation: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    return load_fla_operations("test", operation).naive_recurrent_kda(q, k, v, g, beta)[0]


def _forgetting(operation: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return load_fla_operations("test", operation).naive_forgetting_attn(q, k, v, g).to(q.dtype)


KERNELS = {
    "chunk_linear_attn": NaiveKernel(_linear, 8, 16),
    "chunk_simple_gla": NaiveKernel(_simple_gla, 3, 5),
    "chunk_gla": NaiveKernel(_gla, 5, 7),
    "chunk_delta_rule": NaiveKernel(_delta_rule, 5, 7),
    "chunk_gated_delta_rule": NaiveKernel(_gated_delta_rule, 5, 9),
    "chunk_kda": NaiveKernel(_kda, 6, 9),
    "parallel_forgetting_attn": NaiveKernel(_forgetting, 2, 5, stateless=True),
}
