"""One stretch of a recurrence: all its chunks together, but for the states before each. See `recurrence`."""

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


def prepare(inputs: Inputs, rows: slice, size: int) -> Chunks:
    """All of a stretch that does not depend on the state."""
    q, k, v = (fold(x, rows, size) for x in (inputs.q.transpose(1, 2), inputs.k, inputs.v))
    decay = make_decay(None if inputs.g is None else fold(inputs.g, rows, size))
    if inputs.b is None:
        pairs = _weigh_queries(decay, q, k)
        return Chunks(q, k, v, None, decay, pairs, None, None, v, None, decay.to_end(k))
    b = fold(inputs.b[..., None], rows, size)
    pairs, key_pairs = _weigh_queries(decay, q, k), decay.weigh_pairs(k[:, :, None], k)[:, :, 0]
    inverse = invert(key_pairs * b)
    scaled = inverse * b.mT  # T diag(b)
    return Chunks(
        q, k, v, b, decay, pairs, key_pairs, inverse, scaled @ v, scaled @ decay.from_start(k), decay.to_end(k)
    )


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
    if stretch.reads is None:
        sums = (stretch.writes.mT @ stretch.local_u).unflatten(0, (heads, count))
        for j, over_all in enumerate(_decay_steps(stretch, heads, count)):
            torch.add(over_all(states[:, j]), sums[:, j], out=states[:, j + 1])
        return states, stretch.local_u
    reads = _by_chunk(stretch.reads, heads)
    u = u.clone()
    for j, over_all in enumerate(_decay_steps(stretch, heads, count)):
        u[:, j].baddbmm_(reads[:, j], states[:, j], alpha=-1)
        torch.baddbmm(over_all(states[:, j]), writes[:, j].mT, u[:, j], out=states[:, j + 1])
    return states, u.flatten(0, 1)


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
    after = torch.empty_like(grad_states)  # by the state after each chunk
    local_grad_u, writes = _by_chunk(grad_u, heads), _by_chunk(stretch.writes, heads)
    reads = None if stretch.reads is None else _by_chunk(stretch.reads, heads)
    steps = list(_decay_steps(stretch, heads, grad_states.shape[1]))
    for j in reversed(range(len(steps))):
        after[:, j] = grad_state
        grad_state = grad_states[:, j] + steps[j](grad_state)
        if reads is not None:
            local_grad_u[:, j].baddbmm_(writes[:, j], after[:, j])
            grad_state.baddbmm_(reads[:, j].mT, local_grad_u[:, j], alpha=-1)
    after = after.flatten(0, 1)
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


def _decay_steps(stretch: Chunks, heads: int, count: int) -> list[Any]:
    """For each chunk, a function that applies its decay to states ``[Bh, D, E]``."""
    starts = getattr(stretch.decay, "starts", None)
    if starts is None:
        return [lambda x: x] * count
    factors = starts[:, -1, :, None].unflatten(0, (heads, count)).unbind(1)
    return [factor.mul for factor in factors]


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
