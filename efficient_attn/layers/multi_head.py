"""The multi-head layer: projections around any mechanism."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import torch
from torch import Tensor, nn

from ..contract import Attention, Dims, Input, Mask, Shape
from ..contract.autocast import is_autocast_enabled
from ..contract.mask import EVERYTHING
from ..errors import UnsupportedError, UsageError
from ..registry import create
from ..spec import SpecLike
from .positions import Positions
from .weights import make_projection

if TYPE_CHECKING:
    from ..distributed.context_parallel import ContextParallel, Scheme

Start: TypeAlias = int | Tensor | tuple[int, ...]  # a first position; of each row; of each equal chunk of a part
EPSILON = 1e-6  # added to mean squares by the norms of queries and keys


@dataclass(frozen=True)
class LayerState:
    """A layer's decode state, the number of positions that it has seen, and the first one of each row."""

    state: Any
    length: int = 0
    starts: Tensor | None = None

    @property
    def next(self) -> int | Tensor:
        """The next position, counted from each row's start."""
        return self.length if self.starts is None else self.length - self.starts


class MultiHeadAttention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017, arXiv:1706.03762) with any registered mechanism: projections of x, the
    mechanism, and an output projection. x, context: ``[B, N or M, d_model]``.

    variant: a spec, or an instance. kv_heads: by default those that the mechanism requires, else heads. head_dim: by
    default d_model / heads; value_dim: by default head_dim. max_len: for mechanisms that need the longest sequence.
    positions: applied to queries and keys, `Rotary` or `Alibi`. norm: divides each head's queries and keys by their
    root mean square, with a learned scale (Henry et al. 2020, arXiv:2010.04245). gated: multiplies the output of
    attention by a sigmoid of a projection of x (Qiu et al. 2025, arXiv:2505.06708). dropout: of attention weights, in
    training; by default the mechanism's. seed: of the initial weights (Xavier-uniform, biases zero) and of the
    mechanism. context_parallel: ``ring``, ``heads``, ``halo`` or ``state``, if each process has a part of the sequence:
    see `ContextParallel`.

    Modules: ``q_proj``, ``k_proj``, ``v_proj``, ``out_proj``, and ``attn``, the mechanism. Each further input of a
    mechanism has a projection, ``gate_proj`` for ``gate``, from x or from the context. ``k_proj`` is None if the
    mechanism uses its queries as keys, ``v_proj`` if it computes values from keys. ``q_norm`` and ``k_norm`` exist with
    ``norm``, ``output_gate_proj`` if gated.

    Raises `UsageError` for sizes that do not fit, and `UnsupportedError` for groups or dropout that the mechanism does
    not support.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        *,
        variant: SpecLike | Attention = "full",
        kv_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        bias: bool = True,
        max_len: int | None = None,
        positions: Positions | None = None,
        norm: bool = False,
        gated: bool = False,
        dropout: float | None = None,
        seed: int = 0,
        context_parallel: "Scheme | ContextParallel | None" = None,
    ) -> None:
        super().__init__()
        if d_model < 1 or heads < 1:
            raise UsageError(f"MultiHeadAttention: d_model and heads must be at least 1, got {d_model} and {heads}")
        if head_dim is None and d_model % heads:
            raise UsageError(f"MultiHeadAttention: heads={heads} does not divide d_model={d_model}; give head_dim")
        self.d_model, self.heads = d_model, heads
        self.head_dim = d_model // heads if head_dim is None else head_dim
        self.value_dim = self.head_dim if value_dim is None else value_dim
        self.positions = positions
        width = self.head_dim + (positions.extra if positions else 0)
        dims = Dims(heads=heads, head_dim=width, kv_heads=kv_heads, value_dim=self.value_dim, max_len=max_len)
        self.attn = _create(variant, dims, seed)
        if dropout is not None:
            self.attn.dropout = dropout
        self.kv_heads = kv_heads or self.attn.kv_heads or heads
        _check_fit(self.attn, replace(dims, kv_heads=self.kv_heads))
        if positions:
            positions.check(self.attn, heads, self.head_dim)
        self.context_parallel: ContextParallel | None = None
        if context_parallel is not None:
            from ..distributed.context_parallel import make_context_parallel  # imports all mechanisms that it supports

            self.context_parallel = make_context_parallel(context_parallel, self.attn)

        def make_linear(name: str, size: int) -> nn.Linear:
            return make_projection(d_model, size, bias=bias, seed=seed, name=name)

        self.q_proj = make_linear("q_proj", heads * self.head_dim)
        shape = Shape(1, heads, self.kv_heads, 1, 1, self.head_dim, self.value_dim)
        sample = self.attn.sample(shape, generator=torch.Generator())
        keys_are_queries, takes_values = sample.k is sample.q, self.attn.traits.values
        self.k_proj = None if keys_are_queries else make_linear("k_proj", self.kv_heads * self.key_dim)
        self.v_proj = make_linear("v_proj", self.kv_heads * self.value_dim) if takes_values else None
        self.out_proj = make_projection(heads * self.value_dim, d_model, bias=bias, seed=seed, name="out_proj")
        for name, input_spec in self.attn.traits.inputs.items():
            size = self._count_heads(input_spec) * math.prod(input_spec.tail)
            self.add_module(f"{name}_proj", make_linear(f"{name}_proj", size).requires_grad_(input_spec.gradient))
        self.q_norm = nn.RMSNorm(self.head_dim, eps=EPSILON) if norm else None
        self.k_norm = nn.RMSNorm(self.key_dim, eps=EPSILON) if norm and not keys_are_queries else None
        self.output_gate_proj = make_linear("output_gate_proj", heads * self.value_dim) if gated else None

    @property
    def key_dim(self) -> int:
        """The width of a key: that of queries, unless the mechanism requires another."""
        return self.attn.key_dim or self.head_dim

    def forward(self, x: Tensor, context: Tensor | None = None, mask: Mask | None = None) -> Tensor:
        """Attend from x ``[B, N, d_model]`` to the context ``[B, M, d_model]``, by default x itself.

        Returns ``[B, N, d_model]``. Raises `UsageError` for tensors that do not fit, and `UnsupportedError` for
        features that the mechanism does not declare.
        """
        self._check("x", x)
        if context is not None:
            self._check("context", context, batch=x.shape[0])
            if self.k_proj is None and context is not x:
                raise UnsupportedError(f"{self.attn.label} uses its queries as keys, so it takes no context")
        context = x if context is None else context
        start: Start = 0
        if self.positions:
            self.positions.check_mask(mask or EVERYTHING)
            start = (mask or EVERYTHING).start(x.shape[1], context.shape[1])
        if self.context_parallel is not None:
            return self._attend_across_ranks(self.context_parallel, x, context, mask or EVERYTHING)
        q, k, v, inputs = self._project(x, context, start)
        return self._project_output(self.attn(q, k, v, mask, **inputs), x)

    def _attend_across_ranks(self, parallel: "ContextParallel", x: Tensor, context: Tensor, mask: Mask) -> Tensor:
        starts = parallel.list_starts(x.shape[1], context.shape[1], mask.causal)
        q, k, v, inputs = self._project(x, context, *starts)
        return self._project_output(parallel.attend(self.attn, q, k, v, mask, **inputs), x)

    def init_state(
        self,
        batch: int,
        max_len: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        starts: Tensor | None = None,
    ) -> Any:
        """An empty decode state for up to ``max_len`` positions; dtype and device are by default the weights'.

        starts: ``[B]``, the first position of each row, as in `Attention.init_state`. Raises `UnsupportedError` if the
        mechanism or the positions do not support it. Under autocast the default dtype is autocast's.
        """
        if self.context_parallel is not None:
            raise UnsupportedError("MultiHeadAttention: a layer with context_parallel does not decode")
        if starts is not None and self.positions and not self.positions.by_row:
            raise UnsupportedError(f"{type(self.positions).__name__} does not support starts: all rows begin together")
        weight = self.q_proj.weight
        like = weight.new_empty(0, device=device)
        if dtype is None:
            dtype = torch.get_autocast_dtype(like.device.type) if is_autocast_enabled(like) else weight.dtype
        starts_option = {} if starts is None else {"starts": starts}
        state = self.attn.init_state(batch, max_len, dtype, like.device, **starts_option)
        first = None if starts is None else starts.to(like.device)
        return LayerState(state, starts=first) if self.positions else state

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Attend from T >= 1 new positions ``[B, T, d_model]`` to all so far; returns their rows and the next state.

        The rows equal those of the causal forward pass. The given state may be updated in place: use the returned one.
        """
        self._check("x", x)
        n_seen = state.next if self.positions else 0
        q, k, v, inputs = self._project(x, x, n_seen, n_seen)
        if not self.positions:
            out, state = self.attn.step(q, k, v, state, **inputs)
            return self._project_output(out, x), state
        out, inner = self.attn.step(q, k, v, state.state, **inputs)
        return self._project_output(out, x), replace(state, state=inner, length=state.length + x.shape[1])

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> Self:
        """The layer with the weights of torch's, and the same outputs, always ``[B, N, d_model]``.

        Raises `UnsupportedError` for features without a counterpart: add_bias_kv, add_zero_attn, kdim or vdim other
        than embed_dim.
        """
        size = module.embed_dim
        for wrong, message in (
            (module.bias_k is not None, "add_bias_kv"),
            (module.add_zero_attn, "add_zero_attn"),
            (module.kdim != size or module.vdim != size, "kdim or vdim other than embed_dim"),
        ):
            if wrong:
                raise UnsupportedError(f"from_torch: MultiHeadAttention has no counterpart of {message}")
        like = module.out_proj.weight
        layer = cls(size, module.num_heads, bias=module.in_proj_bias is not None, dropout=module.dropout)
        layer = layer.to(like.device, like.dtype)
        with torch.no_grad():
            for name, weight in _iterate_weights(module):
                parameter = layer.get_parameter(name)
                parameter.copy_(weight)
                parameter.requires_grad_(weight.requires_grad)
        return layer.train(module.training)

    def extra_repr(self) -> str:
        """Its sizes, for ``print``."""
        return f"{self.d_model}, heads={self.heads}, kv_heads={self.kv_heads}"

    def _project(
        self, x: Tensor, context: Tensor, start: Start, keys_start: Start = 0
    ) -> tuple[Tensor, Tensor, Tensor | None, dict[str, Tensor]]:
        """The mechanism's inputs. start, keys_start: the positions of the first query and the first key."""
        q = split_heads(self.q_proj(x), self.heads, self.head_dim)
        k = None if self.k_proj is None else split_heads(self.k_proj(context), self.kv_heads, self.key_dim)
        q = q if self.q_norm is None else self.q_norm(q)
        k = k if k is None or self.k_norm is None else self.k_norm(k)
        if self.positions:
            q = _place(self.positions.place_queries, q, start)
            k = None if k is None else _place(self.positions.place_keys, k, keys_start)
        k = q if k is None else k
        v = None if self.v_proj is None else split_heads(self.v_proj(context), self.kv_heads, self.value_dim)
        inputs = {}
        for name, input_spec in self.attn.traits.inputs.items():
            source = x if input_spec.side == "query" else context
            projected = self.get_submodule(f"{name}_proj")(source if input_spec.gradient else source.detach())
            inputs[name] = input_spec.fit(split_heads(projected, self._count_heads(input_spec), *input_spec.tail))
        return q, k, v, inputs

    def _project_output(self, out: Tensor, x: Tensor) -> Tensor:
        joined = out.transpose(1, 2).flatten(2)
        return self.out_proj(joined if self.output_gate_proj is None else joined * self.output_gate_proj(x).sigmoid())

    def _count_heads(self, input_spec: Input) -> int:
        return (self.heads if input_spec.side == "query" else self.kv_heads) if input_spec.per_head else 1

    def _check(self, name: str, x: Tensor, *, batch: int | None = None) -> None:
        if x.ndim != 3 or x.shape[2] != self.d_model or batch not in (None, x.shape[0]):
            expected = f"[{'B' if batch is None else batch}, length, {self.d_model}]"
            raise UsageError(f"MultiHeadAttention: {name} must be {expected}, got {list(x.shape)}")


def _place(place: Callable[[Tensor, Any], Tensor], x: Tensor, start: Start) -> Tensor:
    """x with positions from start on, or from the start of each of several equal chunks on."""
    if not isinstance(start, tuple):
        return place(x, start)
    return torch.cat([place(*pair) for pair in zip(x.chunk(len(start), 2), start, strict=True)], 2)


def split_heads(x: Tensor, heads: int, *tail: int) -> Tensor:
    """``[B, N, heads * tail]`` to ``[B, heads, N, *tail]``."""
    return x.unflatten(2, (heads, *tail)).movedim(2, 1)


def _create(variant: SpecLike | Attention, dims: Dims, seed: int) -> Attention:
    """Create the mechanism for these sizes; without kv_heads, a first instance determines the number."""
    if isinstance(variant, Attention):
        return variant
    attn = create(variant, dims=dims, seed=seed)
    if dims.kv_heads is not None:
        return attn
    return create(variant, dims=replace(dims, kv_heads=attn.kv_heads or dims.heads), seed=seed)


def _check_fit(attn: Attention, dims: Dims) -> None:
    """Raise an error if a mechanism was made for other sizes than the layer's, or does not support its groups."""
    attn_dims = replace(attn.dims, kv_heads=attn.kv_heads)
    for name in (f.name for f in fields(Dims)):
        attn_size, layer_size = getattr(attn_dims, name), getattr(dims, name)
        if None not in (attn_size, layer_size) and attn_size != layer_size:
            difference = f"was created for {name}={attn_size}, the layer has {layer_size}"
            raise UsageError(f"MultiHeadAttention: {attn.label} {difference}")
    if dims.kv_heads != dims.heads and not attn.traits.grouped:
        raise UnsupportedError(f"{attn.label} does not support fewer key-value heads than heads")


def _iterate_weights(module: nn.MultiheadAttention) -> Iterator[tuple[str, Tensor]]:
    """The parameters of torch's layer, with the names of `MultiHeadAttention`."""
    names = ("q_proj", "k_proj", "v_proj")
    joint_weight: Tensor | None = module.in_proj_weight
    separate = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    weights = separate if joint_weight is None else joint_weight.chunk(3)
    yield from ((f"{name}.weight", weight) for name, weight in zip(names, weights, strict=True))
    yield "out_proj.weight", module.out_proj.weight
    if module.in_proj_bias is not None:
        yield from ((f"{name}.bias", bias) for name, bias in zip(names, module.in_proj_bias.chunk(3), strict=True))
        yield "out_proj.bias", module.out_proj.bias
