"""Recurrent mechanisms of a sequence that is spread over ranks: ranks exchange states, not keys.

All ranks read their own keys at the same time, starting from an empty state, and gather what the others have read. A
rank then starts from the state after the ranks before it (LASP, Sun et al. 2024, arXiv:2404.02882; gathered at once, as
in LASP-2, arXiv:2502.07563). A state has D x E numbers for each key-value head, whatever the length.

Sums over keys are added. A state with gates or the delta rule is linear in the state before,

    S_after = T S_before + B,    out_t = out'_t + R_t S_before

so that B and out' are those of an empty state, and T and R those of D further columns of values, which are zero and
start from the identity.
"""

from dataclasses import replace

import torch
from torch import Tensor

from ..contract import Attention
from ..kernels.dense import widen
from ..kernels.derivatives import wants_gradient
from ..kernels.half_precision import HALF_DTYPES
from ..kernels.linear import scan, sums
from ..kernels.linear.linear_config import KeyInputs
from ..kernels.linear.sums import Sums, relative_weights
from ..variants.linear.fla_linear import FlaLinearAttention
from ..variants.linear.lanes import Lane, unfold
from ..variants.linear.linear_attention import LinearAttention, fold_valid
from ..variants.linear.retention import Retention
from ..variants.recurrent.recurrent_state import RecurrentAttention
from .collectives import Ranks, gather_parts


def why_no_states(attn: Attention) -> str | None:
    """Why `attend_with_states` does not support a mechanism; None if it does."""
    if attn.requested_backend == "fla":
        return "its backend 'fla' computes whole sequences"
    if isinstance(attn, RecurrentAttention):
        return None if type(attn).compute is RecurrentAttention.compute else "it has a computation of its own"
    if not isinstance(attn, LinearAttention):
        return "it has no state of a fixed size that ranks could pass on"
    if isinstance(attn, Retention) and attn.normalised:
        return "its normalised decays count the positions of all ranks"
    if type(attn).key_weights is not LinearAttention.key_weights:
        return "its keys have weights that depend on the positions before"
    if type(attn).compute not in (LinearAttention.compute, FlaLinearAttention.compute, Retention.compute):
        return "it has a computation of its own"
    return None


def attend_with_states(
    attn: Attention, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, causal: bool, ranks: Ranks, **inputs: Tensor
) -> Tensor:
    """The rows of ``q [B, H, N, D]``, this rank's part in contiguous order, over the keys of all ranks: k ``[B, Hkv, N,
    D]``, v ``[B, Hkv, N, E]``, zero where padded; valid: bool ``[B, N]``."""
    if isinstance(attn, RecurrentAttention):
        return _attend_recurrent(attn, q, k, v, ranks, **inputs)
    assert isinstance(attn, LinearAttention)
    return _attend_linear(attn, q, k, v, valid, causal, ranks, **inputs)


def _attend_recurrent(
    attn: RecurrentAttention, q: Tensor, k: Tensor, v: Tensor, ranks: Ranks, **inputs: Tensor
) -> Tensor:
    keys = attn.fold_inputs(q, k, v, **inputs)
    rows = widen(q).unflatten(1, (k.shape[1], -1)).flatten(0, 1)
    heads, steps, width = keys.k.shape
    value_width = v.shape[3]
    values = widen(keys.v)
    identity = torch.eye(width, dtype=values.dtype, device=values.device).expand(heads, -1, -1)
    start = torch.cat([values.new_zeros(heads, width, value_width), identity], 2)
    columns = torch.cat([values, values.new_zeros(heads, steps, width)], 2)
    out, end = attn.scan_rows(rows, keys._replace(v=columns), start)
    ends = gather_parts(end, ranks)
    state = ends[:0, ..., :value_width].sum(0)  # zeros that depend on the other ranks, so that all go backward together
    for after in ends[: ranks.rank]:
        state = after[..., :value_width] + after[..., value_width:] @ state
    out = out[..., :value_width] + out[..., value_width:] @ state[:, None]
    return out.reshape(*q.shape[:3], value_width).to(q.dtype)


def _attend_linear(
    attn: LinearAttention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor | None,
    causal: bool,
    ranks: Ranks,
    **inputs: Tensor,
) -> Tensor:
    start = ranks.rank * k.shape[2]
    config = attn.make_config(start, start, attn.divisor)
    if q.dtype in HALF_DTYPES and wants_gradient(q, k, v, *config.parameters):
        config = replace(config, wide_rows=True)
    out = []
    for lane in attn.split_lanes(q, k, valid, **inputs):
        keys = KeyInputs(k.flatten(0, 1), v.flatten(0, 1), fold_valid(valid, k), lane.logs)
        gathered = _gather_sums(lane.rebase(sums.sum_keys(config, keys)), ranks)
        if causal:
            past = _add_sums(gathered, lane, ranks.rank)
            out.append(scan.scan(config, lane.rows, keys, past)[0])
        else:
            out.append(sums.read(config, lane.rows, _add_sums(gathered, lane, ranks.size)))
    return unfold(out, q).to(q.dtype)


def _gather_sums(local: Sums, ranks: Ranks) -> Sums:
    """The sums of all ranks, each ``[W, Bh, ...]``, in one message, but for the references."""
    joined = gather_parts(torch.cat([local.kv, local.z[..., None]], 2), ranks)
    reference = None if local.reference is None else gather_parts(local.reference, ranks)
    return Sums(joined[..., :-1], joined[..., -1], reference)


def _add_sums(gathered: Sums, lane: Lane, count: int) -> Sums:
    """The sums over the keys of the first ``count`` ranks, as those before the next position."""
    kv, z, reference = gathered.kv[:count], gathered.z[:count], gathered.reference
    if reference is None:
        return Sums(kv.sum(0), z.sum(0))
    references = reference[:count]
    if count == 0:
        return Sums(kv.sum(0), z.sum(0), torch.full_like(reference[0], float("-inf")))
    if lane.next is not None:  # weights decay over the ranks in between, and are relative to the newest position
        distance = torch.arange(count - 1, -1, -1, device=reference.device)[:, None]
        references = references - distance * lane.next
        newest = references[-1]
    else:
        newest = references.amax(0)
    weights = relative_weights(references, newest).to(kv.dtype)[..., None]
    return Sums((kv * weights[..., None]).sum(0), (z * weights).sum(0), newest)
