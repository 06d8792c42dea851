"""A softmax kernel as a value: its forward and backward pass, as an autograd function and as a custom op.

    forward(inputs, options) = (out, lse)            out_i = sum_j w_ij v_j,  lse_i = log sum_j exp s_ij
    gradients(grad, saved, options)                  w_ij = exp(s_ij - lse_i),  delta_i = grad_i . out_i
                                                     ds_ij = w_ij (grad_i . v_j - delta_i),  dv_j = sum_i w_ij grad_i

The backward pass recomputes the weights from the saved log-sum-exps, so that N x M numbers are never stored
(FlashAttention, arXiv:2205.14135). ``inputs`` is a NamedTuple of tensors, queries, keys and values first; ``options``
has all other arguments, and is a NamedTuple as well if the kernel has an op.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, cast, get_type_hints

import torch
from torch import Tensor

from ..custom_ops import is_traced, make_op, set_signature
from ..derivatives import KernelFunction, differentiate_once, is_followed

Inputs = TypeVar("Inputs", bound=tuple[Any, ...])
Options = TypeVar("Options")


class SavedSoftmax(NamedTuple, Generic[Inputs]):
    """What a backward pass knows: inputs, output ``[.., N, E]``, and the log-sum-exp ``[.., N]`` of each row."""

    inputs: Inputs
    out: Tensor
    lse: Tensor


class SoftmaxKernel(Generic[Inputs, Options]):
    """A kernel that returns an output and one log-sum-exp for each row, and saves both with its inputs. name: in
    messages. gradients: of the first ``n_differentiated`` inputs. op: the name of its op, which traced calls use;
    without one they trace the kernel itself. The op's arguments are the fields of both types."""

    def __init__(
        self,
        name: str,
        inputs: type[Inputs],
        options: type[Options],
        forward: Callable[[Inputs, Options], tuple[Tensor, Tensor]],
        gradients: Callable[[Tensor, SavedSoftmax[Inputs], Options], tuple[Tensor, ...]],
        *,
        n_differentiated: int = 3,
        op: str | None = None,
    ) -> None:
        self.name, self.inputs, self.forward, self.gradients = name, inputs, forward, gradients
        self.n_differentiated = n_differentiated
        self.op = None if op is None else self._make_op(op, options)

    def __call__(self, inputs: Inputs, options: Options) -> Tensor:
        """The output, differentiable once."""
        if self.op is not None and is_traced(inputs[0]):
            return self.op(*inputs, *cast(Any, options))[0]
        if not is_followed(inputs):
            return self.forward(inputs, options)[0]
        return cast(tuple[Tensor, Tensor], _SoftmaxFunction.record(self, options, *inputs))[0]

    def differentiate(self, options: Options, grad: Tensor, *saved: Any) -> tuple[Tensor, ...]:
        """`gradients` from all saved tensors one by one, as autograd has to see them."""
        *inputs, out, lse = saved
        return self.gradients(grad, SavedSoftmax(self.inputs(*inputs), out, lse), options)

    def _make_op(self, name: str, options: type[Options]) -> Any:
        """The ops ``efficient_attn::name`` and ``name_backward``, whose signatures are flat."""
        inputs, option_types = get_type_hints(self.inputs), get_type_hints(options)
        count = len(inputs)

        def run(*arguments: Any) -> tuple[Tensor, Tensor]:
            return self.forward(self.inputs(*arguments[:count]), options(*arguments[count:]))

        def shapes(*arguments: Any) -> tuple[Tensor, Tensor]:
            q, _, v, *_ = arguments
            lse = q.new_empty(q.shape[:-1], dtype=torch.promote_types(q.dtype, torch.float32))
            return q.new_empty(*q.shape[:-1], v.shape[-1]), lse

        def run_backward(grad: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
            return self.differentiate(options(*arguments[count + 2 :]), grad, *arguments[: count + 2])

        def backward_shapes(_: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
            return tuple(x.new_empty(x.shape) for x in arguments[: self.n_differentiated])

        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.options = inputs[count:]
            ctx.save_for_backward(*inputs[:count], *output)
            ctx.mark_non_differentiable(output[1])

        def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
            n_others = count - self.n_differentiated + len(ctx.options)
            return *op_backward(grad, *ctx.saved_tensors, *ctx.options), *[None] * n_others

        saved = {**inputs, "out": Tensor, "lse": Tensor}
        set_signature(run, {**inputs, **option_types}, 2)
        set_signature(run_backward, {"grad": Tensor, **saved, **option_types}, self.n_differentiated)
        op, op_backward = make_op(name, run, shapes), make_op(f"{name}_backward", run_backward, backward_shapes)
        op.register_autograd(backward, setup_context=setup_context)
        return op


class _SoftmaxFunction(KernelFunction):
    """``(kernel, options, *inputs)``."""

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        _, _, *dims = in_dims  # torch looks into NamedTuples, such as options
        return super().vmap(info, (None, None, *dims), *args)

    @staticmethod
    def forward(kernel: SoftmaxKernel[Any, Any], options: Any, *inputs: Any) -> Any:
        return kernel.forward(kernel.inputs(*inputs), options)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.kernel, ctx.options, *tensors = inputs
        _, lse = output
        ctx.save_for_backward(*tensors, *output)
        ctx.mark_non_differentiable(lse)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (grad, _), kernel, saved = grads, ctx.kernel, ctx.saved_tensors
        gradients = differentiate_once(kernel.name, partial(kernel.differentiate, ctx.options), grad, *saved)
        return None, None, *gradients, *[None] * (len(saved) - 2 - kernel.n_differentiated)


def cut_range(size: int, step: int) -> Iterator[slice]:
    """The slices of at most ``step`` that cover ``range(size)``."""
    return (slice(first, min(first + step, size)) for first in range(0, size, step))
