"""A state with decays and, optionally, the delta rule, in chunks of positions.

    S'_t = diag(e^(g_t)) S_(t-1),    S_t = S'_t + k_t^T u_t,    out_t = q_t S_t / sqrt(D),    state [D, E]
    u_t = v_t,  or with the delta rule  u_t = b_t (v_t - k_t S'_t)

Within a chunk, from the state S before it, with pairs' weights of `decays` (A of keys with earlier keys, P of queries):

    T = (I + diag(b) A)^-1,   U = T diag(b) (V - K S),   O = P U + Q S,   S <- S + K^T U

where K, Q and S have the decays of their positions (arXiv:2406.06484, 2412.06464, 2510.26692; T is the UT transform).
All chunks of a stretch are computed together, except for the recurrence of S itself: two products a chunk, with the
delta rule, else one. Stored are the states before stretches; the backward pass recomputes a stretch.

Shapes: q ``[Bh, G, N, D]``, k ``[Bh, N, D]``, v ``[Bh, N, E]``, g ``[Bh, N, 1 or D]``, b ``[Bh, N]``, and in a stretch
of C chunks of c positions n = Bh C, as in `decays`.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..dense import widen
from ..derivatives import KernelFunction, differentiate_once
from .decays import BLOCK, NoDecay, make_decay

CHUNK = 64  # positions: the pairs within a chunk cost more, the longer it is, and the recurrence more, the shorter
STRETCH_ELEMENTS = 2**18  # of keys in a stretch: more would not stay in the cache
MAX_STRETCH = 1024  # positions
KERNEL = "a recurrent state's kernel"


class Inputs(NamedTuple):
    """The tensors of a call; g and b are None without decays and without the delta rule."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None
    b: Tensor | None


class _Stretch(NamedTuple):
    """The chunks of a stretch, in the dtype of the state, with queries over sqrt(D). local_u: T diag(b) V, or V. reads:
    T diag(b) K, whose product with the state is subtracted from it. writes: K up to the chunk's end."""

    q: Tensor  # [n, c, G, D]
    k: Tensor  # [n, c, D]
    v: Tensor  # [n, c, E]
    b: Tensor | None  # [n, c, 1]
    decay: NoDecay
    pairs: Tensor  # P, [n, c, G, c]
    key_pairs: Tensor | None  # A, [n, c, c]
    inverse: Tensor | None  # T, [n, c, c]
    local_u: Tensor  # [n, c, E]
    reads: Tensor | None  # [n, c, D]
    writes: Tensor  # [n, c, D]


def scan(inputs: Inputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs ``[Bh, G, N, E]`` and the state after the last position. state: ``[Bh, D, E]``, which stays as it is."""
    if torch.compiler.is_compiling():
        from .recurrence_op import scan_op

        return scan_op(inputs, state)
    out, end, _ = _RecurrenceFunction.apply(*inputs, state)
    return out, end


def step(inputs: Inputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """`scan` of one position, without gradients; changes the state."""
    k, v = widen(inputs.k), widen(inputs.v)
    if inputs.g is not None:
        state.mul_(widen(inputs.g).mT.exp())
    if inputs.b is None:
        state.baddbmm_(k.mT, v)
    else:
        errors = torch.baddbmm(v, k, state, alpha=-1).mul_(widen(inputs.b)[..., None])
        state.baddbmm_(k.mT, errors)
    return read(inputs.q, state), state


def read(q: Tensor, state: Tensor) -> Tensor:
    """What queries ``[Bh, G, N, D]`` read of one state: ``[Bh, G, N, E]``."""
    out = widen(q).flatten(1, 2) @ state
    return out.mul_(q.shape[3] ** -0.5).unflatten(1, q.shape[1:3]).to(q.dtype)


def run(inputs: Inputs, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`scan`, with the states ``[stretches, Bh, D, E]`` before each stretch."""
    q, v = inputs.q, inputs.v
    stretches = list(cut(inputs))
    out = q.new_empty(*q.shape[:3], v.shape[2])
    starts = state.new_empty(len(stretches), *state.shape)
    for i, (rows, size) in enumerate(stretches):
        starts[i] = state
        stretch = _prepare(inputs, rows, size)
        states, u = _recur(stretch, state)
        state = states[:, -1]
        chunk_out = stretch.pairs.flatten(1, 2) @ u
        chunk_out.baddbmm_(_decayed_queries(stretch), _fold_states(states[:, :-1]))
        out[:, :, rows] = _unfold(chunk_out.unflatten(1, (size, q.shape[1])), len(q), rows).transpose(1, 2)
    return out, state.clone(), starts


def run_backward(
    grad: Tensor, grad_end: Tensor, inputs: Inputs, starts: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor]:
    """Gradients by q, k, v, g, b and the first state."""
    grads = [None if x is None else torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs]
    grad_state = grad_end
    stretches = list(cut(inputs))
    for (rows, size), start in zip(reversed(stretches), starts.flip(0), strict=True):
        stretch = _prepare(inputs, rows, size)
        stretch_grads, grad_state = _backward_stretch(
            stretch, _fold(grad.transpose(1, 2), rows, size), start, grad_state
        )
        for x, part in zip(grads, stretch_grads, strict=True):
            if x is not None and part is not None:
                part = _unfold(part, len(inputs.q), rows)
                if x is grads[0]:
                    x[:, :, rows] = part.transpose(1, 2).mul(x.shape[3] ** -0.5)
                else:
                    x[:, rows] = part[..., 0] if x is grads[4] else part
    return *grads, grad_state  # pyright: ignore[reportReturnType]


class _RecurrenceFunction(KernelFunction):
    """``(*inputs, state)``: outputs, the last state, and the states before stretches, which have no gradient."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        *inputs, state = arguments
        return run(Inputs(*inputs), state)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *tensors, _ = inputs
        *_, starts = output
        ctx.save_for_backward(*tensors, starts)
        ctx.mark_non_differentiable(starts)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad, grad_end, _ = grads
        *tensors, starts = ctx.saved_tensors
        inputs = Inputs(*tensors)
        if grad is None:
            grad = inputs.q.new_zeros(*inputs.q.shape[:3], inputs.v.shape[2])
        grad_end = torch.zeros_like(starts[0]) if grad_end is None else grad_end
        return differentiate_once(KERNEL, _gradients, grad, grad_end, *tensors, starts)


def _gradients(grad: Tensor, grad_end: Tensor, *arguments: Any) -> Any:
    *tensors, starts = arguments
    return run_backward(grad, grad_end, Inputs(*tensors), starts)


def cut(inputs: Inputs) -> Iterator[tuple[slice, int]]:
    """Stretches of whole chunks, and the rest of the positions as a chunk of its own; each with its chunk size."""
    heads, length, width = inputs.k.shape
    size = min(max(STRETCH_ELEMENTS // (heads * width * CHUNK), 1) * CHUNK, MAX_STRETCH)
    whole = length // CHUNK * CHUNK
    for first in range(0, whole, size):
        yield slice(first, min(first + size, whole)), CHUNK
    if whole < length:
        yield slice(whole, length), max(BLOCK, 1 << (length - whole - 1).bit_length())


def invert(lower: Tensor) -> Tensor:
    """(I + L)^-1 of strictly lower triangular L ``[n, c, c]``: what is above its diagonal does not count."""
    identity = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device).expand_as(lower)
    return torch.linalg.solve_triangular(lower, identity, upper=False, unitriangular=True)


def _prepare(inputs: Inputs, rows: slice, size: int) -> _Stretch:
    """All of a stretch that does not depend on the state."""
    q = _fold(inputs.q.transpose(1, 2), rows, size) * inputs.q.shape[3] ** -0.5
    k, v = _fold(inputs.k, rows, size), _fold(inputs.v, rows, size)
    decay = make_decay(None if inputs.g is None else _fold(inputs.g, rows, size))
    if inputs.b is None:
        pairs = _mask_later(decay.weigh_pairs(q, k))
        return _Stretch(q, k, v, None, decay, pairs, None, None, v, None, decay.to_end(k))
    b = _fold(inputs.b[..., None], rows, size)
    weights = decay.weigh_pairs(torch.cat([q, k[:, :, None]], 2), k)
    pairs, key_pairs = _mask_later(weights[:, :, :-1]), weights[:, :, -1].tril(-1)
    inverse = invert(key_pairs * b)
    local_u, reads = inverse @ (v * b), inverse @ decay.from_start(k * b)
    return _Stretch(q, k, v, b, decay, pairs, key_pairs, inverse, local_u, reads, decay.to_end(k))


def _recur(stretch: _Stretch, state: Tensor) -> tuple[Tensor, Tensor]:
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


def _backward_stretch(
    stretch: _Stretch, grad: Tensor, start: Tensor, grad_state: Tensor
) -> tuple[tuple[Tensor | None, ...], Tensor]:
    """Gradients by q, k, v, g and b of chunks, and by the state before the stretch. grad: ``[n, c, G, E]``."""
    heads = len(start)
    states, u = _recur(stretch, start)
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
    stretch: _Stretch, flat: Tensor, u: Tensor, grad_u: Tensor, before: Tensor, after: Tensor
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
    products = grad_r @ u.mT
    grad_key_pairs = (products * stretch.b).neg_().tril_(-1)
    past = decay.from_start(k) @ before
    grad_b = (grad_r * (stretch.v - past)).sum(-1, keepdim=True)
    grad_b -= (products * stretch.key_pairs).sum(-1, keepdim=True)
    rows, both = torch.cat([q, k[:, :, None]], 2), torch.cat([grad_pairs, grad_key_pairs[:, :, None]], 2)
    grad_rows, grad_k = decay.weigh_pairs_backward(both, rows, k)
    grad_q, grad_k_rows = grad_rows[:, :, :-1] + grad_q_reads, grad_rows[:, :, -1]
    grad_k_rows = grad_k_rows - decay.from_start(grad_v @ before.mT)
    grad_k = grad_k + grad_k_writes
    grad_g = _log_decay_gradient(stretch, grad_q, grad_k_rows, grad_k, grad_k_writes, before, after)
    return grad_q, grad_k + grad_k_rows, grad_v, grad_g, grad_b


def _log_decay_gradient(
    stretch: _Stretch,
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


def _decayed_queries(stretch: _Stretch) -> Tensor:
    """``[n, c G, D]``."""
    return stretch.decay.from_start(stretch.q).flatten(1, 2)


def _decay_steps(stretch: _Stretch, heads: int, count: int) -> list[Any]:
    """For each chunk, a function that applies its decay to states ``[Bh, D, E]``."""
    starts = getattr(stretch.decay, "starts", None)
    if starts is None:
        return [lambda x: x] * count
    factors = starts[:, -1, :, None].unflatten(0, (heads, count)).unbind(1)
    return [factor.mul for factor in factors]


def _mask_later(weights: Tensor) -> Tensor:
    """Weights ``[n, c, R, c]``, zero for later keys."""
    return weights.transpose(1, 2).tril().transpose(1, 2)


def _fold(x: Tensor, rows: slice, size: int) -> Tensor:
    """Positions of ``[Bh, N, ...]`` as chunks ``[n, c, ...]``, widened, with zeros after the last position."""
    x = widen(x[:, rows])
    if missing := -x.shape[1] % size:
        x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, missing))
    return x.reshape(-1, size, *x.shape[2:])


def _unfold(x: Tensor, heads: int, rows: slice) -> Tensor:
    """Chunks ``[n, c, ...]`` as positions ``[Bh, N, ...]``."""
    return x.reshape(heads, -1, *x.shape[2:])[:, : rows.stop - rows.start]


def _by_chunk(x: Tensor, heads: int) -> Tensor:
    """``[n, ...]`` to a view ``[Bh, C, ...]``."""
    return x.unflatten(0, (heads, -1))


def _fold_states(states: Tensor) -> Tensor:
    """``[Bh, C, D, E]`` to ``[n, D, E]``."""
    return states.flatten(0, 1)
