"""The bytes that a rank sends in one call, by formula; `collectives.count_sent` counts what it sends.

Sizes are those of a rank's part, n and m positions of the W n and W m of the sequence. training: with the backward
pass. padded: with a mask of keys, a byte each. Half precision has its sums in float32.
"""

from dataclasses import replace

from torch import dtype as Dtype

from ..contract import Attention, Shape
from ..variants.linear.linear_attention import LinearAttention
from .collectives import Ranks
from .context_parallel import Scheme
from .halo import Halo, find_halo, list_receives, list_sends

AGREEMENT_FACTS = 11  # integers of 8 bytes that ranks compare before a call of a layer, not on GPUs
REFERENCE_BYTES = 8  # of the float64 relative to which sums of weighted keys are stored


def count_ring_bytes(shape: Shape, ranks: Ranks, dtype: Dtype, *, training: bool = False, padded: bool = False) -> int:
    """(W - 1) blocks of keys and values; with the backward pass as many again, and the sums of their gradients."""
    numbers = shape.batch * shape.kv_heads * shape.m * (shape.head_dim + shape.value_dim)
    mask = shape.batch * shape.m if padded else 0
    block = numbers * dtype.itemsize + mask
    sums = numbers * max(dtype.itemsize, 4)
    return (ranks.size - 1) * (2 * block + sums if training else block)


def count_head_bytes(shape: Shape, ranks: Ranks, dtype: Dtype, *, training: bool = False, padded: bool = False) -> int:
    """(W - 1) / W of the queries, keys, values and outputs; with the backward pass twice that."""
    queries = shape.heads * shape.n * (shape.head_dim + shape.value_dim)
    keys = shape.kv_heads * shape.m * (shape.head_dim + shape.value_dim)
    tensors = shape.batch * (queries + keys) * dtype.itemsize * (2 if training else 1)
    mask = shape.batch * shape.m * ranks.size if padded else 0
    return (tensors + mask) * (ranks.size - 1) // ranks.size


def count_halo_bytes(
    shape: Shape, ranks: Ranks, dtype: Dtype, halo: Halo, *, training: bool = False, padded: bool = False
) -> int:
    """The keys and values that others need; with the backward pass also the gradients of those received."""
    sent, received = (
        sum(s.size for s in list_slices(halo, shape.m, ranks)) for list_slices in (list_sends, list_receives)
    )
    position = shape.batch * shape.kv_heads * (shape.head_dim + shape.value_dim) * dtype.itemsize
    mask = shape.batch * sent if padded else 0
    return position * (sent + (received if training else 0)) + mask


def count_state_bytes(
    shape: Shape, ranks: Ranks, dtype: Dtype, features: int, *, training: bool = False, weighted: bool = False
) -> int:
    """(W - 1) states of a linear mechanism: features x (E + 1) numbers for each key-value head; with the backward pass
    as many gradients. A recurrent mechanism with keys of width D sends D x (E + D) numbers instead. weighted: keys have
    weights relative to a reference; for decays by head, count heads as key-value heads."""
    heads = shape.batch * shape.kv_heads
    state = heads * features * (shape.value_dim + 1) * max(dtype.itemsize, 4)
    reference = heads * REFERENCE_BYTES if weighted else 0
    return (ranks.size - 1) * (state * (2 if training else 1) + reference)


def count_recurrent_bytes(shape: Shape, ranks: Ranks, dtype: Dtype, *, training: bool = False) -> int:
    """(W - 1) states and transitions, D x (E + D) numbers for each key-value head; with the backward pass as many
    gradients."""
    numbers = shape.batch * shape.kv_heads * shape.head_dim * (shape.value_dim + shape.head_dim)
    return (ranks.size - 1) * numbers * max(dtype.itemsize, 4) * (2 if training else 1)


def count_agreement_bytes(ranks: Ranks) -> int:
    """What ranks compare before a call of a layer, on the CPU."""
    return (ranks.size - 1) * AGREEMENT_FACTS * 8


def count_call_bytes(
    attn: Attention,
    scheme: Scheme,
    shape: Shape,
    ranks: Ranks,
    dtype: Dtype,
    *,
    causal: bool,
    training: bool = False,
    padded: bool = False,
) -> int:
    """What a rank sends in a call of a layer on the CPU, without weights of keys that depend on the call."""
    agreement = count_agreement_bytes(ranks)
    if scheme == "ring":
        return agreement + count_ring_bytes(shape, ranks, dtype, training=training, padded=padded)
    if scheme == "heads":
        return agreement + count_head_bytes(shape, ranks, dtype, training=training, padded=padded)
    if scheme == "halo":
        halo = find_halo(attn, causal) or Halo(0, 0)
        return agreement + count_halo_bytes(shape, ranks, dtype, halo, training=training, padded=padded)
    if not isinstance(attn, LinearAttention):
        return agreement + count_recurrent_bytes(shape, ranks, dtype, training=training)
    if type(attn).rates is not LinearAttention.rates:  # each head has sums of its own
        shape = replace(shape, kv_heads=shape.heads)
    features, weighted = attn.feature_map.width(shape.head_dim), attn.weighs_keys
    return agreement + count_state_bytes(shape, ranks, dtype, features, training=training, weighted=weighted)
