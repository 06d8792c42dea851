"""Convert a trained multi-head layer to grouped-query attention."""

from dataclasses import replace
from typing import Literal, get_args

from torch import Tensor, nn

from ..contract import Attention
from ..errors import UnsupportedError, UsageError, make_unknown_error
from ..registry import create
from ..spec import Spec
from .multi_head import MultiHeadAttention
from .weights import make_projection

PoolingMethod = Literal["mean", "first", "random"]
Pooling = Literal["mean", "first"]


def mean_pool_kv(
    layer: MultiHeadAttention | nn.MultiheadAttention, kv_heads: int, *, how: PoolingMethod = "mean", seed: int = 0
) -> MultiHeadAttention:
    """A layer with the same weights and fewer key-value heads, adjacent heads forming a group, for further training
    (Ainslie et al. 2023, arXiv:2305.13245, section 2.1). One key-value head gives multi-query attention.

    how: ``mean`` averages the parameters of the heads of a group, ``first`` keeps each group's first head, ``random``
    draws new projections of keys and values from the seed: the paper's three. Gates and parameters of the mechanism for
    each key-value head are pooled too, by ``mean`` also with ``random``; everything else is copied. Outputs are
    unchanged if the heads of each group are equal, except with ``random``.

    layer: ours, grouped or not, or torch's; it is not changed. The new one has the same mechanism, dtype, device,
    dropout, training mode and requires_grad. Raises `UsageError` if kv_heads does not divide the layer's, and
    `UnsupportedError` for mechanisms without groups, or that `create` did not create.
    """
    if how not in get_args(PoolingMethod):
        raise make_unknown_error("how", how, get_args(PoolingMethod), where="mean_pool_kv")
    if isinstance(layer, nn.MultiheadAttention):
        layer = MultiHeadAttention.from_torch(layer)
    if kv_heads < 1 or layer.kv_heads % kv_heads:
        raise UsageError(f"mean_pool_kv: kv_heads={kv_heads} does not divide the layer's {layer.kv_heads}")
    grouped = MultiHeadAttention(
        layer.d_model,
        layer.heads,
        variant=_regroup(layer.attn, kv_heads),
        kv_heads=kv_heads,
        head_dim=layer.head_dim,
        value_dim=layer.value_dim,
        bias=layer.q_proj.bias is not None,
        positions=layer.positions,
        norm=layer.q_norm is not None,
        gated=layer.output_gate_proj is not None,
    ).to(layer.q_proj.weight.device)
    for name, parameter in grouped.named_parameters():
        parameter.requires_grad_(layer.get_parameter(name).requires_grad)
    state = _pool_state(layer, grouped, "first" if how == "first" else "mean")
    if how == "random":
        state.update(_draw_projections(layer, kv_heads, seed))
    grouped.load_state_dict(state, assign=True)  # so that each tensor keeps its dtype
    return grouped.train(layer.training)


def pool_heads(x: Tensor, heads: int, kv_heads: int, how: Pooling) -> Tensor:
    """Reduce a tensor ``[heads * rows, ..]`` to ``[kv_heads * rows, ..]``, from groups of adjacent heads."""
    groups = x.unflatten(0, (kv_heads, heads // kv_heads, -1))
    return (groups.mean(1) if how == "mean" else groups[:, 0].clone()).flatten(0, 1)


def _regroup(attn: Attention, kv_heads: int) -> Attention:
    spec = attn.origin.spec
    if spec is None:
        raise UnsupportedError(f"mean_pool_kv: {attn.label} cannot be created again: it was not made by ea.create")
    if isinstance(spec, Spec) and "kv_heads" in spec.options:
        spec = replace(spec, options={**spec.options, "kv_heads": kv_heads})
    grouped_attn = create(str(spec), dims=replace(attn.dims, kv_heads=kv_heads), seed=attn.seed)
    grouped_attn.backend, grouped_attn.dropout = attn.requested_backend, attn.dropout
    return grouped_attn


def _pool_state(layer: MultiHeadAttention, grouped: MultiHeadAttention, how: Pooling) -> dict[str, Tensor]:
    grouped_state, parameter_names = grouped.state_dict(), {name for name, _ in layer.named_parameters()}
    heads, kv_heads = layer.kv_heads, grouped.kv_heads
    state = {}
    for name, x in layer.state_dict().items():
        size = grouped_state[name].shape
        if size == x.shape:
            state[name] = x.clone()
        elif name in parameter_names and (len(x) * kv_heads, x.shape[1:]) == (size[0] * heads, size[1:]):
            state[name] = pool_heads(x, heads, kv_heads, how)
        else:
            raise UnsupportedError(
                f"mean_pool_kv: {name} of {layer.attn.label} is {list(x.shape)} with {heads} key-value heads and "
                f"{list(size)} with {kv_heads}: there is no rule to pool it"
            )
    return state


def _draw_projections(layer: MultiHeadAttention, kv_heads: int, seed: int) -> dict[str, Tensor]:
    """New projections of keys and values, from the seed; different from those of a layer with that seed."""
    state = {}
    for name in ("k_proj", "v_proj"):
        if (old := getattr(layer, name)) is not None:
            size, has_bias = old.out_features // layer.kv_heads * kv_heads, old.bias is not None
            new = make_projection(layer.d_model, size, bias=has_bias, seed=seed, name=f"mean_pool_kv {name}")
            state |= {f"{name}.{part}": x.to(getattr(old, part)) for part, x in new.state_dict().items()}
    return state
