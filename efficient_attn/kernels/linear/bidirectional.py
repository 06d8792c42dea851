"""Bidirectional linear attention in C++, in one pass over keys and one over queries, where it is built and faster.

It supports maps of few instructions, whose features are cheaper to make again than to store. Elsewhere `sums` and
`short_sequences` do the same in torch.
"""

from functools import partial
from typing import Any, cast

from torch import Tensor

from ...feature_maps import elu_plus_one
from ..autotuning.autotuner import choose
from ..autotuning.candidates import GRADIENTS, Candidates, Tunable, TuningPoint, format_kind, make_calls
from ..custom_ops import have_numbers
from ..derivatives import KernelFunction, differentiate_once, wants_gradient
from ..native import cpp_sums
from ..native.building import is_available
from . import sums
from .linear_config import KeyInputs, LinearConfig, replace_zero_by_one


def is_chosen(config: LinearConfig, q: Tensor, keys: KeyInputs) -> bool:
    """Whether `attend` supports a call, with queries ``q [Bh, G, N, D]``, and is selected for it."""
    supported = config.phi in cpp_sums.MAPS and config.divisor in (None, replace_zero_by_one) and not config.decays
    supported = supported and keys.logs is None and q.device.type == "cpu" and q.dtype in cpp_sums.DTYPES
    if not supported or not q.dtype == keys.k.dtype == keys.v.dtype or not have_numbers(q, keys.k, keys.v):
        return False
    if config.native:
        return True
    kind = format_kind(q.dtype, trains=wants_gradient(q, keys.k, keys.v))
    sizes = len(q), q.shape[1], max(q.shape[2], keys.k.shape[1]), q.shape[3], keys.v.shape[2]
    return choose(SUMS, kind, *sizes) == "cpp"


def attend(config: LinearConfig, q: Tensor, keys: KeyInputs) -> Tensor:
    """Every query over all valid keys: ``[Bh, G, N, E]``, of float32."""
    return cast(tuple[Tensor, ...], _BidirectionalFunction.apply(config, q, *keys[:3]))[0]


class _BidirectionalFunction(KernelFunction):
    @staticmethod
    def forward(config: LinearConfig, q: Tensor, k: Tensor, v: Tensor, valid: Any) -> tuple[Tensor, ...]:
        return cpp_sums.attend(config.phi, q, k, v, valid, divides=config.divisor is not None)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.config, *tensors = inputs
        _, *others = output
        ctx.save_for_backward(*tensors, *output)
        ctx.mark_non_differentiable(*others)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad, *_ = grads
        return None, *differentiate_once(sums.KERNEL, partial(_gradients, ctx.config), grad, *ctx.saved_tensors)


def _gradients(config: LinearConfig, grad: Tensor, *saved: Any) -> tuple[Tensor | None, ...]:
    """Gradients by all arguments of `_BidirectionalFunction` but config."""
    tensors, results = saved[:4], saved[4:]
    return *cpp_sums.backward(config.phi, grad, tensors, results, divides=config.divisor is not None), None


def _make_candidates(point: TuningPoint) -> Candidates:
    """The calls of a point, whose sizes are key-value heads, query heads of each, positions, width and columns of v."""
    heads, group, length, width, columns = point.sizes
    config = LinearConfig(elu_plus_one, replace_zero_by_one, wide_rows=point.kind.endswith(GRADIENTS))

    def in_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sums.read(config, q, sums.sum_keys(config, KeyInputs(k, v))).to(q.dtype)

    computations = {"torch": in_torch}
    if is_available("sums"):
        computations["cpp"] = lambda q, k, v: attend(config, q, KeyInputs(k, v)).to(q.dtype)
    return make_calls(
        point, ((heads, group, length, width), (heads, length, width), (heads, length, columns)), computations
    )


def _list_points() -> tuple[TuningPoint, ...]:
    sizes = ((8, 1, 512, 64, 64), (2, 4, 512, 64, 64), (4, 1, 512, 128, 128), (8, 1, 64, 32, 32))
    kinds = (f"{dtype}{suffix}" for dtype in ("float32", "bfloat16", "float16") for suffix in ("", GRADIENTS))
    return tuple(TuningPoint(kind, size) for kind in kinds for size in sizes)


SUMS = Tunable(
    name="sums",
    implementations=("torch", "cpp"),
    points=_list_points(),
    make_candidates=_make_candidates,
    rule=lambda point: "cpp" if is_available("sums") else "torch",
    is_available=lambda name: name != "cpp" or is_available("sums"),
)
