"""Mechanisms in transformers' models: ``model.set_attn_implementation("efficient_attn:full")``.

Importing this module registers every mechanism with its default options, and windows of the usual sizes. Others are
registered by their spec: ``model.set_attn_implementation(register("attention_sinks:window=508:n_sink=4"))``. Weights
are unchanged; each layer gets its own instance, seeded by its number, untrained. Mechanisms receive masks as a `Mask`.
Features of a model that a mechanism does not support raise `UnsupportedError`.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from ..contract.mask import Mask
from ..contract.mechanism import Attention
from ..contract.shapes import Dims, Shape
from ..errors import UnsupportedError
from ..patterns import Band
from ..registry import create, names, rename_backend
from ..spec import SpecLike, parse
from ..variants.full.softmax_attention import SoftmaxAttention
from ..variants.sparse.sparse_attention import SparseAttention
from .first_pass import check_named_mechanisms
from .mask_tensors import describe_tensor_mask
from .model_masks import ModelMask, describe_mask
from .observers import report_call, report_inputs
from .score_features import ScoreFeatures, attend_with_features
from .state_cache import PREFIX, StateLayer, take_waiting

OTHERS = ("sdpa", "flash", "flex_attention", "paged", "eager")  # parts of names that transformers treats specially
WINDOWS = (64, 128, 256, 512, 1024)
# unsupported arguments of a model's attention, with their meaning
REFUSED = {
    "output_attentions": "weights as an output",
}


PROBE = Dims(heads=24, head_dim=16, value_dim=16, max_len=64)  # sizes of instances that only check support
_bands: dict[tuple[int, bool], SparseAttention] = {}  # by window and causality
INSTANCES = "_efficient_attn_instances"  # of a layer's module: its own instance of each mechanism, by spec and draw
SEEDS_PER_DRAW = 1000  # more than any model has layers


def register(spec: SpecLike, *, draw: int = 0) -> str:
    """Register a mechanism in transformers' tables of attentions and masks; returns its name there.

    draw: of a random mechanism's layers, whose seeds are their numbers for 0, and others for each other draw.

    Without the second table transformers passes no mask, and so no causality. The name is ``efficient_attn:`` and the
    spec, except for parts with another meaning for transformers: ``backend=sdpa`` is ``backend=s-dpa``. Raises
    `UsageError` for an unknown spec, and `UnsupportedError` for a mechanism with further inputs.
    """
    parsed = rename_backend(parse(spec))
    check_serves(create(parsed, dims=PROBE))
    name = avoid_reserved_words(f"{PREFIX}{parsed}{f':draw-{draw}' if draw else ''}")
    AttentionInterface.register(name, partial(attend, str(parsed), draw=draw))
    AttentionMaskInterface.register(name, describe_mask)
    return name


def avoid_reserved_words(name: str) -> str:
    """A name without the parts that transformers treats specially."""
    for word in OTHERS:
        name = name.replace(word, f"{word[0]}-{word[1:]}")
    return name


def check_serves(attn: Attention) -> None:
    """Raise `UnsupportedError` for a mechanism with inputs that a trained model does not provide."""
    sample = attn.sample(Shape(1, 24, attn.kv_heads or 24, 1, 1, 16, 16), generator=torch.Generator())
    for is_missing, requirement in (
        (bool(attn.traits.inputs), f"the inputs {', '.join(attn.traits.inputs)}, which a trained model does not have"),
        (not attn.traits.values, "keys that are its values as well"),
        (sample.k is sample.q, "queries as keys"),
    ):
        if is_missing:
            raise UnsupportedError(f"{attn.label} requires {requirement}")


def attend(
    spec: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: ModelMask | Tensor | None,
    *,
    draw: int = 0,
    **options: Any,
) -> tuple[Tensor, None]:
    """The function that transformers calls in each layer: `run_mechanism` with the layer's own instance."""
    attn = _get_instance(spec, draw, module, query, key, value).train(module.training)
    return run_mechanism(attn, module, query, key, value, attention_mask, **options)


def run_mechanism(
    attn: Attention,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: ModelMask | Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """A layer's attention by a mechanism: ``[B, N, H, E]``, and no weights.

    query ``[B, H, N, D]``, key ``[B, Hkv, M, D]``, value ``[B, Hkv, M, E]``. Raises `UnsupportedError` for features of
    this layer that the mechanism does not support.
    """
    compiling, layer_index = torch.compiler.is_compiling(), getattr(module, "layer_idx", None)
    start = None if compiling else time.perf_counter()
    state = None if compiling else take_waiting()
    for name, feature in REFUSED.items():
        if options.get(name) is not None and options[name] is not False:
            raise UnsupportedError(f"{attn.label}: {type(module).__name__} requires {feature} ({name})")
    model_mask = _read_mask(module, attention_mask, len(query), is_causal, sliding_window)
    features = ScoreFeatures.read(options, model_mask.bias)
    if state is not None and not state.expects(key.shape[2], model_mask.keys):
        state = None
    if dropout or attn.dropout:
        attn.dropout = dropout
    if scaling is not None and (factor := scaling * query.shape[-1] ** 0.5) != 1:
        query = query * factor
    report_inputs(layer_index, query, key, value)
    if state is not None and features is not None:
        raise UnsupportedError(f"{attn.label}: StateCache does not support {features}; use transformers' own cache")
    if state is not None:
        out = state.attend(_restrict_to_window(attn, model_mask), query, key, value, model_mask)
    else:
        model_mask.check_keys(key.shape[2], type(module).__name__)
        attn = _apply_window(attn, model_mask, query, key)
        mask = model_mask.in_graph(attn) if compiling else model_mask.mask
        if features is None:
            out = attn(query, key, value, mask=mask)
        else:
            out = attend_with_features(attn, features, query, key, value, model_mask.mask, dropout=dropout)
    out = out.transpose(1, 2).contiguous()
    report_call(module if layer_index is None else layer_index, start)
    return out, None


def store_prompt(
    attn: Attention,
    state: StateLayer,
    module: nn.Module,
    key: Tensor,
    value: Tensor,
    attention_mask: ModelMask | Tensor | None,
    *,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> None:
    """Add the keys and values of a prompt, which a layer reads with its own attention, to a mechanism's state."""
    model_mask = _read_mask(module, attention_mask, len(key), is_causal, sliding_window)
    if not state.expects(key.shape[2], model_mask.keys):
        return
    if (features := ScoreFeatures.read(options, model_mask.bias)) is not None:
        raise UnsupportedError(f"{attn.label}: StateCache does not support {features}; use transformers' own cache")
    state.absorb(_restrict_to_window(attn, model_mask), key, value, model_mask)


def _read_mask(
    module: nn.Module,
    attention_mask: ModelMask | Tensor | None,
    batch: int,
    causal: bool | None,
    window: int | None,
) -> ModelMask:
    """The mask of a layer. If a model passes None, the layer defines whether it is causal."""
    if isinstance(attention_mask, ModelMask):
        attention_mask.check_supported()
        return attention_mask
    if attention_mask is not None:
        return describe_tensor_mask(attention_mask, batch, type(module).__name__)
    causal = getattr(module, "is_causal", False) if causal is None else causal
    return ModelMask(Mask(causal=bool(causal)), window)


def _get_instance(spec: str, draw: int, module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Attention:
    """The layer's own instance, created at its first call."""
    instances = module.__dict__.get(INSTANCES)  # not a submodule: the model's parameters remain those of its weights
    if instances is None or (spec, draw) not in instances:
        if torch.compiler.is_compiling():
            raise UnsupportedError(f"{spec}: run the model once before it is compiled, or use ea.swap")
        instances = module.__dict__.setdefault(INSTANCES, {})
        (_, heads, _, head_dim), (_, kv_heads, keys, _) = query.shape, key.shape
        sizes = {"head_dim": head_dim, "value_dim": value.shape[3], "max_len": find_max_len(module) or keys}
        dims = Dims(heads=heads, kv_heads=kv_heads, **sizes)
        layer_index = getattr(module, "layer_idx", None) or 0
        instances[spec, draw] = create(spec, dims=dims, seed=layer_index + SEEDS_PER_DRAW * draw)
    return instances[spec, draw].to(query.device)


def find_max_len(module: nn.Module) -> int | None:
    """The number of positions of a layer's model, if it has one."""
    return getattr(getattr(module, "config", None), "max_position_embeddings", None)


def _apply_window(attn: Attention, model_mask: ModelMask, query: Tensor, key: Tensor) -> Attention:
    """The mechanism restricted to the model's window, if that hides any visible key."""
    n, m = query.shape[2], key.shape[2]
    reach = attn.pattern.reach if isinstance(attn, SparseAttention) else None
    if model_mask.shift and attn.traits.positional and (reach is None or reach.prefix):
        problem = "depends on absolute positions, and the cache of this layer dropped its first keys"
        raise UnsupportedError(f"{attn.label} {problem}")
    window = model_mask.window
    if window is not None and not torch.compiler.is_compiling():
        _make_banded_attention(window, model_mask.mask.causal)  # also for short passes, so that a graph finds it
    if window is None or max(m, model_mask.mask.start(n, m) + n) <= (window if model_mask.mask.causal else window // 2):
        return attn
    return _restrict_to_window(attn, model_mask)


def _restrict_to_window(attn: Attention, model_mask: ModelMask) -> Attention:
    """The mechanism restricted to the model's window, if it has one, also for sequences that are shorter."""
    reach = attn.pattern.reach if isinstance(attn, SparseAttention) else None
    fits = reach is not None and not reach.prefix and model_mask.mask.causal and reach.back < (model_mask.window or 0)
    if model_mask.window is None or fits:
        return attn
    if type(attn).compute is SoftmaxAttention.compute:
        return _make_banded_attention(model_mask.window, model_mask.mask.causal)
    raise UnsupportedError(f"{attn.label} cannot be restricted to this model's window of {model_mask.window} keys")


def _make_banded_attention(window: int, causal: bool) -> SparseAttention:
    """Softmax within a model's window. Not an `lru_cache`, whose contents a compiled graph does not read."""
    if (window, causal) not in _bands:
        if torch.compiler.is_compiling():
            raise UnsupportedError("this model has a window: run it once before it is compiled, or use ea.swap")
        attn = SparseAttention(Band(0, window - 1) if causal else Band(-(window // 2), window // 2))
        _ = attn.backend  # selected now, not within a graph
        _bands[window, causal] = attn
    return _bands[window, causal]


check_named_mechanisms()
for _spec in (*names(), *(f"sliding_window:window={w}" for w in WINDOWS)):
    with suppress(UnsupportedError):  # mechanisms whose inputs models do not provide
        register(_spec)
