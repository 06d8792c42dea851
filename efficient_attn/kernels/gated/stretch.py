"""One stretch of a recurrence: all its chunks together, but for the states before each. See `recurrence`."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..dense import widen
from .decays import NoDecay, make_decay


class Inputs(NamedTuple):
    """The tensors of a call; g and b are None without decays and without the delta rule."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None
    b: Tensor | None


class Chunks(NamedTuple):
    """The chunks of a stretch, in the dtype of the state. local_u: T diag(b) V, or V. reads:
    T diag(b) K, whose product with the state is subtracted from it. writes: K up to the chunk's end."""

    q: Tensor  # [n, c, G, D]
    k: Tensor  # [n, c, D]
    v: Tensor  # [n, c, E]
    b: Tensor | None  # [n, c, 1]
    decay: NoDecay
    pairs: Tensor  # P, [n, c, G, c]
    key_pairs: Tensor | None  # A, [n, c, c], of which what is below the diagonal counts
    inverse: Tensor | None  # T, [n, c, c]
    local_u: Tensor  # [n, c, E]
    reads: Tensor | None  # [n, c, D]
    writes: Tensor  # [n, c, D]
    transitions: Tensor | None  # [n, D, D], of the state over a chunk, on a GPU, where its steps are too many


def prepare(inputs: Inputs, rows: slice, size: int) -> Chunks:
    """All of a stretch that does not depend on the state."""
    q, k, v = (fold(x, rows, size) for x in (inputs.q.transpose(1, 2), inputs.k, inputs.v))
    decay = make_decay(None if inputs.g is None else fold(inputs.g, rows, size))
    if inputs.b is None:
        pairs = _weigh_queries(decay, q, k)
        return Chunks(q, k, v, None, decay, pairs, None, None, v, None, decay.to_end(k), None)
    b = fold(inputs.b[..., None], rows, size)
    pairs, key_pairs = _weigh_queries(decay, q, k), decay.weigh_pairs(k[:, :, None], k)[:, :, 0]
    inverse = invert(key_pairs * b)
    scaled = inverse * b.mT  # T diag(b)
    reads, writes, transitions = scaled @ decay.from_start(k), decay.to_end(k), None
    if k.device.type != "cpu":
        identity = torch.eye(k.shape[2], dtype=k.dtype, device=k.device)
        transitions = decay.over_all(identity.expand(len(k), -1, -1)) - writes.mT @ reads
    return Chunks(q, k, v, b, decay, pairs, key_pairs, inverse, scaled @ v, reads, writes, transitions)


def _weigh_queries(decay: NoDecay, q: Tensor, k: Tensor) -> Tensor:
    """P, zero for later keys."""
    pairs = decay.weigh_pairs(q, k)
    return pairs if decay.masked else _mask_later(pairs)


def invert(lower: Tensor) -> Tensor:
    """(I + L)^-1 of L ``[n, c, c]``, of which only what is below the diagonal counts. Solved for rows, so that no
    matrix is transposed, which took the solver as long again."""
    identity = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device).expand_as(lower)
    return torch.linalg.solve_triangular(lower.mT, identity, upper=True, left=False, unitriangular=True).mT


def recur(stretch: Chunks, state: Tensor) -> tuple[Tensor, Tensor]:
    """States ``[Bh, C + 1, D, E]`` before each chunk and after the last, and u ``[n, c, E]``."""
    heads = len(state)
    u, writes = _by_chunk(stretch.local_u, heads), _by_chunk(stretch.writes, heads)
    count = u.shape[1]
    states = state.new_empty(heads, count + 1, *state.shape[1:])
    states[:, 0] = state
    if stretch.reads is not None and stretch.transitions is None:
        reads, u = _by_chunk(stretch.reads, heads), u.clone()
        for j, factor in enumerate(_list_decays(stretch, heads, count)):
            u[:, j].baddbmm_(reads[:, j], states[:, j], alpha=-1)
            decayed = states[:, j] if factor is None else states[:, j] * factor
            torch.baddbmm(decayed, writes[:, j].mT, u[:, j], out=states[:, j + 1])
        return states, u.flatten(0, 1)
    sums = _by_chunk(stretch.writes.mT @ stretch.local_u, heads)
    for j, transition in enumerate(_list_transitions(stretch, heads, count)):
        transition(sums[:, j], states[:, j], states[:, j + 1])
    if stretch.reads is None:
        return states, stretch.local_u
    return states, torch.baddbmm(stretch.local_u, stretch.reads, _fold_states(states[:, :-1]), alpha=-1)


def attend(stretch: Chunks, states: Tensor, u: Tensor) -> Tensor:
    """Outputs ``[n, c, G, E]``, from what `recur` returned."""
    out = stretch.pairs.flatten(1, 2) @ u
    return out.baddbmm_(_decayed_queries(stretch), _fold_states(states[:, :-1])).unflatten(1, stretch.q.shape[1:3])


def backward(
    stretch: Chunks, grad: Tensor, start: Tensor, grad_state: Tensor
) -> tuple[tuple[Tensor | None, ...], Tensor]:
    """Gradients by q, k, v, g and b of chunks, and by the state before the stretch. grad: ``[n, c, G, E]``."""
    heads = len(start)
    states, u = recur(stretch, start)
    flat, before = grad.flatten(1, 2), _fold_states(states[:, :-1])
    grad_u = stretch.pairs.flatten(1, 2).mT @ flat
    grad_states = _by_chunk(_decayed_queries(stretch).mT @ flat, heads)  # by the state before each chunk
    count = grad_states.shape[1]
    after = grad_state.new_empty(heads, count + 1, *grad_state.shape[1:])  # by the state before each chunk, and the end
    after[:, -1] = grad_state
    local_grad_u, writes = _by_chunk(grad_u, heads), _by_chunk(stretch.writes, heads)
    reads = None if stretch.reads is None else _by_chunk(stretch.reads, heads).mT
    if stretch.reads is not None and stretch.transitions is not None:
        grad_states = torch.baddbmm(grad_states.flatten(0, 1), stretch.reads.mT, grad_u, alpha=-1)
        grad_states, reads = _by_chunk(grad_states, heads), None
    steps = list(enumerate(_list_transitions(stretch, heads, count, transposed=True)))
    for j, transition in reversed(steps):
        transition(grad_states[:, j], after[:, j + 1], after[:, j])
        if reads is not None:
            local_grad_u[:, j].baddbmm_(writes[:, j], after[:, j + 1])
            after[:, j].baddbmm_(reads[:, j], local_grad_u[:, j], alpha=-1)
    grad_state, after = after[:, 0], after[:, 1:].flatten(0, 1)
    if reads is None:
        grad_u.baddbmm_(stretch.writes, after)
    return _backward_chunks(stretch, flat, u, grad_u, before, after), grad_state


def _backward_chunks(
    stretch: Chunks, flat: Tensor, u: Tensor, grad_u: Tensor, before: Tensor, after: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients by q, k, v, g and b, from those by outputs ``[n, c G, E]``, by u, and by states after chunks."""
    q, k, decay = stretch.q, stretch.k, stretch.decay
    grad_pairs = _mask_later((flat @ u.mT).unflatten(1, q.shape[1:3]))
    grad_q_reads = decay.from_start((flat @ before.mT).unflatten(1, q.shape[1:3]))
    grad_k_writes = decay.to_end(u @ after.mT)
    if stretch.inverse is None or stretch.b is None or stretch.key_pairs is None:
        grad_q, grad_k = decay.weigh_pairs_backward(grad_pairs, q, k)
        grad_q, grad_k = grad_q + grad_q_reads, grad_k + grad_k_writes
        grad_g = _log_decay_gradient(stretch, grad_q, None, grad_k, grad_k_writes, before, after)
        return grad_q, grad_k, grad_u, grad_g, None
    grad_r = stretch.inverse.mT @ grad_u  # by b (v - k S)
    grad_v = grad_r * stretch.b
    products = (grad_r @ u.mT).tril_(-1)
    grad_key_pairs = (products * stretch.b).neg_()
    past = decay.from_start(k) @ before
    grad_b = (grad_r * (stretch.v - past)).sum(-1, keepdim=True)
    grad_b -= (products * stretch.key_pairs.tril(-1)).sum(-1, keepdim=True)
    grad_q, grad_k = decay.weigh_pairs_backward(grad_pairs, q, k)
    grad_k_rows, grad_k_pairs = decay.weigh_pairs_backward(grad_key_pairs[:, :, None], k[:, :, None], k)
    grad_q = grad_q.add_(grad_q_reads)
    grad_k_rows = grad_k_rows[:, :, 0].sub_(decay.from_start(grad_v @ before.mT))
    grad_k = grad_k.add_(grad_k_pairs).add_(grad_k_writes)
    grad_g = _log_decay_gradient(stretch, grad_q, grad_k_rows, grad_k, grad_k_writes, before, after)
    return grad_q, grad_k + grad_k_rows, grad_v, grad_g, grad_b


def _log_decay_gradient(
    stretch: Chunks,
    grad_q: Tensor,
    grad_k_rows: Tensor | None,
    grad_k: Tensor,
    grad_k_writes: Tensor,
    before: Tensor,
    after: Tensor,
) -> Tensor | None:
    """``[n, c, 1 or D]``. A decay from i to r enters as e^(G_r) with what is read at r, and as e^(-G_i) with the key
    that is written at i, so that the products with their gradients are those by G. grad_k: as written ones;
    grad_k_rows: as rows that read."""
    decay, k = stretch.decay, stretch.k
    if type(decay) is NoDecay:
        return None
    grad_sums = (stretch.q * grad_q).sum(2) - k * grad_k
    if grad_k_rows is not None:
        grad_sums.addcmul_(k, grad_k_rows)
    grad_sums[:, -1] += (k * grad_k_writes).sum(1) + (decay.over_all(before) * after).sum(2)
    if decay.starts.shape[2] == 1:  # pyright: ignore[reportAttributeAccessIssue]
        grad_sums = grad_sums.sum(2, keepdim=True)
    return grad_sums.flip(1).cumsum(1).flip(1)


def _decayed_queries(stretch: Chunks) -> Tensor:
    """``[n, c G, D]``."""
    return stretch.decay.from_start(stretch.q).flatten(1, 2)


def _list_decays(stretch: Chunks, heads: int, count: int) -> Sequence[Tensor | None]:
    """The decays ``[Bh, 1 or D, 1]`` over each chunk, if there are any."""
    starts = getattr(stretch.decay, "starts", None)
    return [None] * count if starts is None else starts[:, -1, :, None].unflatten(0, (heads, count)).unbind(1)


def _list_transitions(
    stretch: Chunks, heads: int, count: int, *, transposed: bool = False
) -> list[Callable[[Tensor, Tensor, Tensor], Any]]:
    """For each chunk, a function of a sum, of the state ``[Bh, D, E]`` before the chunk, and of the tensor to write the
    state after it to; with the delta rule if there are `Chunks.transitions`."""
    if stretch.transitions is not None:
        matrices = _by_chunk(stretch.transitions.mT if transposed else stretch.transitions, heads).unbind(1)
        return [lambda total, x, out, m=m: torch.baddbmm(total, m, x, out=out) for m in matrices]
    return [
        (lambda total, x, out: torch.add(total, x, out=out))
        if factor is None
        else (lambda total, x, out, factor=factor: torch.addcmul(total, x, factor, out=out))
        for factor in _list_decays(stretch, heads, count)
    ]


def _mask_later(weights: Tensor) -> Tensor:
    """Weights ``[n, c, R, c]``, zero for later keys."""
    return weights.transpose(1, 2).tril().transpose(1, 2)


def fold(x: Tensor, rows: slice, size: int) -> Tensor:
    """Positions of ``[Bh, N, ...]`` as chunks ``[n, c, ...]``, widened, with zeros after the last position."""
    x = widen(x[:, rows])
    if missing := -x.shape[1] % size:
        x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, missing))
    return x.reshape(x.shape[0] * x.shape[1] // size, size, *x.shape[2:])  # not -1: there may be no queries


def unfold(x: Tensor, heads: int, rows: slice) -> Tensor:
    """Chunks ``[n, c, ...]`` as positions ``[Bh, N, ...]``."""
    return x.reshape(heads, x.shape[0] * x.shape[1] // heads, *x.shape[2:])[:, : rows.stop - rows.start]


def _by_chunk(x: Tensor, heads: int) -> Tensor:
    """``[n, ...]`` to a view ``[Bh, C, ...]``."""
    return x.unflatten(0, (heads, -1))


def _fold_states(states: Tensor) -> Tensor:
    """``[Bh, C, D, E]`` to ``[n, D, E]``."""
    return states.flatten(0, 1)
