"""Custom ops: kernels are wrapped where torch traces a call's operations. An op costs about 20 microseconds a call, and
hides its operations from torch. Eager calls do not use them."""

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import Parameter, Signature
from typing import Any

import torch
from torch import Tensor


def is_traced(x: Tensor) -> bool:
    """Whether a call with x is compiled or exported, or computes shapes only, on the meta device."""
    return torch.compiler.is_compiling() or x.is_meta


def in_functorch_transform() -> bool:
    """Whether a transformation of torch.func is at work, which hides the numbers of tensors."""
    return torch._C._are_functorch_transforms_active()  # pyright: ignore[reportAttributeAccessIssue]


def have_numbers(*tensors: Tensor) -> bool:
    """Whether C++ may read these: tensors of other classes, and all in tracing and transformations, hide theirs."""
    is_hidden = torch.compiler.is_compiling() or in_functorch_transform()
    return not is_hidden and all(type(x) in (Tensor, torch.nn.Parameter) for x in tensors)


def any_functorch_wrapped(tensors: Iterable[Tensor]) -> bool:
    """Whether a transformation of torch.func follows any of these, as it does parameters in ``functional_call``."""
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # pyright: ignore[reportAttributeAccessIssue]
    return in_functorch_transform() and any(map(is_wrapped, tensors))


def make_op(name: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """``run`` as the op ``efficient_attn::name``; its signature is typed. fake: the same for shapes only. The op's
    results are contiguous whatever ``run`` returns, because compiled code assumes it."""

    @wraps(run)
    def run_contiguous(*arguments: Any) -> Any:
        result = run(*arguments)
        return result.contiguous() if isinstance(result, Tensor) else tuple(x.contiguous() for x in result)

    schema = torch.library.infer_schema(run, mutates_args=())
    op = torch.library.custom_op(f"efficient_attn::{name}", run_contiguous, mutates_args=(), schema=schema)
    op.register_fake(fake)
    return op


def set_signature(function: Any, types: dict[str, Any], n_results: int) -> None:
    """Give a function of ``*arguments`` that returns so many tensors the signature from which torch makes a schema."""
    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=t) for name, t in types.items()]
    function.__signature__ = Signature(parameters, return_annotation=tuple[(Tensor,) * n_results])
