"""Bugs under `torch.func`, with parameters as inputs, and of options fitted to a budget, by family of the mechanism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from efficient_attn.contract.budget import Budget
from efficient_attn.contract.mask import Mask
from efficient_attn.contract.mechanism import Attention
from efficient_attn.contract.shapes import Values
from efficient_attn.kernels.custom_ops import in_functorch_transform
from efficient_attn.testing.subject import Subject

from .family_world import wrap
from .methods import Methods, compute
from .planting import of_family, planter

plant = planter("transforms")


def _changes_fit(change: Callable[[Budget], Budget]) -> Methods:
    def methods(cls: type[Attention]) -> dict[str, Any]:
        return {"fit": classmethod(lambda sub, budget: cls.fit.__func__(sub, change(budget)))}  # pyright: ignore

    return methods


def _scaled_budget(factor: float) -> Methods:
    return _changes_fit(lambda budget: replace(budget, keys=int(budget.keys * factor)))


def _misspelled(cls: type[Attention]) -> dict[str, Any]:
    def fit(sub: type[Attention], budget: Budget) -> dict[str, int]:
        return {f"{name}s": value for name, value in cls.fit.__func__(sub, budget).items()}  # pyright: ignore

    return {"fit": classmethod(fit)}


def _no_fit(subject: Subject) -> str | None:
    try:
        type(subject.attn).fit(Budget(keys=48, length=256, head_dim=8, causal=subject.causalities[-1]))
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "its spec is a union" if "|" in subject.label else None


def _stores_queries(attn: Attention, run: Any, q: Tensor, k: Tensor, v: Any, mask: Mask) -> Tensor:
    """Queries are stored for a plot of the attention."""
    if isinstance(q, nn.Parameter):
        attn.last_queries = q
    return run(q, k, v)


def _keeps_type(out: Tensor, q: Tensor, *_: Any) -> Tensor:
    return type(q)(out.detach()) if isinstance(q, nn.Parameter) else out


class FirstScale(torch.autograd.Function):
    """The identity by dividing and multiplying; its vmap rule takes the scale of the first member of the batch."""

    @staticmethod
    def forward(x: Tensor, scale: Tensor) -> Tensor:
        return x * scale

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * ctx.saved_tensors[0], None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Tensor) -> Any:
        x, scale = args
        return x * (scale if in_dims[1] is None else scale.select(in_dims[1], 0)), in_dims[0]


def _first_scale(out: Tensor, q: Tensor, k: Tensor, v: Values, mask: Mask) -> Tensor:
    if not in_functorch_transform():
        return out
    scale = k.detach()[0, 0, 0, 0] + 5
    return FirstScale.apply(out / scale, scale)  # pyright: ignore[reportReturnType]


def _detached_in_func(q: Tensor, k: Tensor, v: Any, mask: Mask) -> Any:
    """torch.func's tensors have no address, so that the kernel gets copies without history."""
    return (q, k, v.detach(), mask) if in_functorch_transform() else (q, k, v, mask)


# fmt: off
BUGS = (
    plant("both_sides", "a budget of keys is used on each side", _scaled_budget(2), (),
          of_family("sparse", _no_fit), ("fit",)),
    plant("half_state", "a budget's features fill half of the state", _scaled_budget(0.5), ("decode",),
          of_family("linear", _no_fit), ("fit",)),
    plant("misspelled_option", "an option that does not exist is selected", _misspelled, (),
          of_family("sparse", _no_fit), ("fit",)),
    plant("stored_queries", "queries are stored on the module", wrap(_stores_queries, "forward"), (),
          of_family("full"), ("parameters_as_inputs",)),
    plant("type_of_queries", "the output has the type of the queries", compute(after=_keeps_type), (),
          of_family("hashed"), ("parameters_as_inputs",)),
    plant("first_of_vmap", "a vmap rule uses the first member's scale", compute(after=_first_scale), (),
          of_family("low_rank"), ("torch_func",)),
    plant("detached_in_func", "torch.func gets no gradient of values", compute(_detached_in_func),
          ("values", "gradient"), of_family("linear"), ("torch_func",)),
)
# fmt: on
