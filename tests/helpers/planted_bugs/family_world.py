"""Bugs of the backward pass, memory, torch's settings, extreme values and history, by family of the mechanism."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from efficient_attn.contract.mask import Mask
from efficient_attn.contract.mechanism import Attention
from efficient_attn.contract.shapes import Shape, Values
from efficient_attn.kernels.custom_ops import in_functorch_transform

from .methods import Methods, compute, queries_do_nothing, tampered
from .planting import of_family, planter

plant = planter("world")
FINE = 1 + 2.0**-9  # a number that bfloat16 rounds to 1
Wrapped = Callable[[Attention, Callable[..., Tensor], Tensor, Tensor, Values, Mask], Tensor]


def wrap(wrapped: Wrapped, method: str = "compute") -> Methods:
    """Methods with a ``compute`` or ``forward`` around the mechanism's own."""

    def methods(cls: type[Attention]) -> dict[str, Any]:
        def call(
            self: Attention, q: Tensor, k: Tensor, v: Values, mask: Mask | None = None, **inputs: Tensor
        ) -> Tensor:
            def run(q: Tensor, k: Tensor, v: Values) -> Tensor:
                return getattr(cls, method)(self, q, k, v, mask, **inputs)

            if self.backend == "dense":
                return run(q, k, v)
            return wrapped(self, run, q, k, v, mask or Mask())

        return {method: call}

    return methods


# -- backward ---------------------------------------------------------------------------------------------------------


class Recomputed(torch.autograd.Function):
    """Recomputes a forward pass for the gradients, as FlashAttention does, from tensors that it keeps itself."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        ctx.run, ctx.kept = run, [x.detach() for x in tensors]
        return run(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        leaves = [x.detach().requires_grad_() for x in ctx.kept]
        with torch.enable_grad():
            out = ctx.run(*leaves)
        return None, *torch.autograd.grad(out, leaves, grads[0].detach())


class RecomputedOnce(Recomputed):
    """The same, from saved tensors; the gradients have no graph."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        ctx.run = run
        return run(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.kept = ctx.saved_tensors
        return Recomputed.backward(ctx, *grads)


def _recomputing(function: type[torch.autograd.Function]) -> Wrapped:
    def wrapped(attn: Attention, run: Any, q: Tensor, k: Tensor, v: Any, mask: Mask) -> Tensor:
        if in_functorch_transform() or not torch.is_grad_enabled():
            return run(q, k, v)
        if q is k:
            return function.apply(lambda k, v: run(k, k, v), k, v)  # pyright: ignore[reportReturnType]
        if v is None:
            return function.apply(lambda q, k: run(q, k, None), q, k)  # pyright: ignore[reportReturnType]
        return function.apply(run, q, k, v)  # pyright: ignore[reportReturnType]

    return wrapped


def _gradient_of_output(change: Callable[[Tensor], Tensor]) -> Methods:
    return compute(after=lambda out, *_: tampered(out, change))


def _skips_small(g: Tensor) -> Tensor:
    """Nothing to do if the incoming gradient is zero, which is tested with a tolerance."""
    return torch.zeros_like(g) if g.abs().amax() < 1e-6 else g


def _as_packed(g: Tensor) -> Tensor:
    """A kernel reads the gradient as if its rows were adjacent in memory."""
    return torch.as_strided(g, g.shape, torch.empty(g.shape, device="meta").stride())


def _skips_rows(g: Tensor) -> Tensor:
    """Rows whose gradient is zero in the last head are skipped."""
    return g * (g[:, -1:].abs().sum(-1, keepdim=True) > 0)


def _keeps_first(attn: Attention, run: Any, q: Tensor, k: Tensor, v: Any, mask: Mask) -> Tensor:
    """What a call without gradients leaves is used by the next call of the same keys."""
    kept = attn.__dict__.setdefault("_kept", {})
    if not torch.is_grad_enabled():
        kept[k.data_ptr()] = k.detach()
        return run(q, k, v)
    return run(q, kept.pop(k.data_ptr(), k), v)


def _saves_less(attn: Attention, run: Any, q: Tensor, k: Tensor, v: Any, mask: Mask) -> Tensor:
    """Scaled keys are stored with their graph, so that a recomputation of the same keys saves fewer tensors."""
    stored, version = attn.__dict__.get("_scaled", (None, None))
    if stored is None or version != (k.data_ptr(), k._version) or not torch.is_grad_enabled():
        stored = k * 1.0
        attn.__dict__["_scaled"] = (stored, (k.data_ptr(), k._version))
    return run(stored if q is k else q, stored, v)


class KeepsOutput(torch.autograd.Function):
    """Computes the sum of products of output and gradient in the backward pass, from an output that it keeps itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = x.clone()
        ctx.out, ctx.x = out.detach(), x.detach()
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] + ((ctx.out - ctx.x) * grads[0]).sum(-1, keepdim=True)


def _keeps_output(out: Tensor, *_: Any) -> Tensor:
    if not out.requires_grad or in_functorch_transform():
        return out
    return KeepsOutput.apply(out)  # pyright: ignore[reportReturnType]


# -- memory -----------------------------------------------------------------------------------------------------------


def _dense_backward(q: Tensor, k: Tensor, v: Values, mask: Mask) -> Any:
    """The backward pass needs the weights of all pairs."""
    keys = k.detach()

    def gradient(g: Tensor) -> Tensor:
        weights = keys @ keys.mT
        return g + 0 * weights[..., :1, :1].nan_to_num()

    return q, tampered(k, gradient), v, mask


def _listed_backward(q: Tensor, k: Tensor, v: Values, mask: Mask) -> Any:
    """The scores of each chunk of 64 keys stay in a list until all are computed."""
    keys = k.detach()

    def gradient(g: Tensor) -> Tensor:
        chunks = [keys @ chunk.mT for chunk in keys.split(64, 2)]
        return g + 0 * sum(x[..., :1, :1].nan_to_num() for x in chunks)

    return q, k if v is None else tampered(k, gradient), v, mask


def _workspace(estimate: Callable[[Shape, int], int]) -> Methods:
    def methods(cls: type[Attention]) -> dict[str, Any]:
        def workspace_bytes(self: Attention, shape: Shape, itemsize: int, *, causal: bool, training: bool) -> int:
            return estimate(shape, itemsize)

        return {"workspace_bytes": workspace_bytes}

    return methods


# -- environment ------------------------------------------------------------------------------------------------------


def _default_scale(q: Tensor, k: Tensor, v: Values, mask: Mask) -> Any:
    """A scale in a tensor without a dtype."""
    scale = torch.tensor([FINE], device=q.device)
    return q * scale / FINE, k, v, mask


def _default_decay(out: Tensor, *_: Any) -> Tensor:
    return out * torch.full((1,), FINE, device=out.device) / FINE


def _unwritten(out: Tensor, *_: Any) -> Tensor:
    """The last block of a buffer is never written; zero pages hide it."""
    return out + torch.empty_like(out).clamp(0, 0)


def _when_compiled(out: Tensor, *_: Any) -> Tensor:
    """A simpler form is compiled, with another constant."""
    return out * 1.001 if torch.compiler.is_compiling() else out


def _fixed_length(out: Tensor, *_: Any) -> Tensor:
    """A compiled call has a constant from the first length."""
    if not torch.compiler.is_compiling():
        return out
    return out * (1 if out.shape[2] % 19 == 0 else 1.001)


def _half_steps(cls: type[Attention]) -> dict[str, Any]:
    """Decode steps under autocast scale the queries twice."""

    def step(self: Attention, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> Any:
        out, state = cls.step(self, q, k, v, state, **inputs)
        return (out * 1.5 if torch.is_autocast_enabled("cpu") and q.dtype == torch.float32 else out), state

    return {"step": step}


def _under_float16(attn: Attention, run: Any, q: Tensor, k: Tensor, v: Any, mask: Mask) -> Tensor:
    is_half = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.float16
    return run(q, k, v) * (1.5 if is_half else 1)


GRADIENT, VALUES = ("gradient",), ("values", "gradient")

BUGS = (
    plant("cut_softmax", "a recomputing backward pass has no graph", wrap(_recomputing(Recomputed)), VALUES,
          of_family("full"), ("second_derivatives",)),
    plant("cut_linear", "a recomputing backward pass has no graph", wrap(_recomputing(RecomputedOnce)), GRADIENT,
          of_family("linear", lambda s: "its gate is not recomputed" if s.traits.inputs else None),
          ("second_derivatives",)),
    plant("small_incoming", "incoming gradients below 1e-6 count as zero", _gradient_of_output(_skips_small), GRADIENT,
          of_family("full"), ("incoming_gradients",)),
    plant("clipped_incoming", "incoming gradients are clipped", _gradient_of_output(lambda g: g.clamp(-1e4, 1e4)),
          GRADIENT, of_family("sparse"), ("incoming_gradients",)),
    plant("packed_incoming", "incoming gradients are read as contiguous", _gradient_of_output(_as_packed), GRADIENT,
          of_family("low_rank"), ("incoming_gradients",)),
    plant("skipped_rows", "rows without gradient in the last head are skipped", _gradient_of_output(_skips_rows),
          GRADIENT, of_family("hashed"), ("incoming_gradients",)),
    plant("kept_keys", "keys of a call without gradients are used in the next", wrap(_keeps_first), GRADIENT,
          of_family("shared_kv"), ("checkpointing",)),
    plant("saves_less", "a recomputation saves fewer tensors", wrap(_saves_less), GRADIENT,
          of_family("low_rank"), ("checkpointing",)),
    plant("unchecked_softmax", "the backward pass keeps its inputs without a version", wrap(_recomputing(Recomputed)),
          VALUES, of_family("full"), ("changed_before_backward",)),
    plant("unchecked_hashed", "the backward pass keeps its inputs without a version", wrap(_recomputing(Recomputed)),
          VALUES, of_family("hashed"), ("changed_before_backward",)),
    plant("unchecked_output", "the backward pass keeps its output without a version", compute(after=_keeps_output),
          GRADIENT, of_family("sparse"), ("changed_before_backward",)),
    plant("unchecked_mixture", "the backward pass keeps its output without a version", compute(after=_keeps_output),
          GRADIENT, of_family("low_rank"), ("changed_before_backward",)),
    plant("dense_backward", "the backward pass makes all weights", compute(_dense_backward), GRADIENT,
          of_family("sparse"), ("training_memory",)),
    plant("listed_backward", "the backward pass keeps all chunks of scores", compute(_listed_backward), VALUES,
          of_family("linear"), ("training_memory",)),
    plant("no_workspace", "the workspace is declared as 0", _workspace(lambda s, size: 0), GRADIENT,
          of_family("linear"), ("training_memory",)),
    plant("squared_workspace", "the declared workspace has 4 N x M numbers",
          _workspace(lambda s, size: 4 * s.n * s.m * size), GRADIENT, of_family("shared_kv"), ("training_memory",)),
    plant("default_scale", "a scale has the default dtype", compute(_default_scale), (),
          of_family("full", queries_do_nothing), ("torch_settings",)),
    plant("default_decay", "a decay has the default dtype", compute(after=_default_decay), (),
          of_family("linear"), ("torch_settings",)),
    plant("unwritten", "memory is read before it is written", compute(after=_unwritten), (),
          of_family("sparse"), ("torch_settings",)),
    plant("compiled_constant", "a compiled call has another constant", compute(after=_when_compiled), (),
          of_family("full"), ("compiled",)),
    plant("compiled_length", "a compiled call has a constant of one length", compute(after=_fixed_length), (),
          of_family("sparse"), ("compiled",)),
    plant("autocast_steps", "steps under autocast scale twice", _half_steps, ("decode",),
          of_family("shared_kv"), ("autocast",)),
    plant("float16_autocast", "float16 autocast scales twice", wrap(_under_float16, "forward"), (),
          of_family("linear"), ("autocast",)),
)  # fmt: skip
