"""Decode steps in Triton: one program reads, updates and writes columns of a head's state. Imported where they run.

Inputs are contiguous and have a single position: q ``[Bh, G, 1, D]``, k ``[Bh, 1, D]``, v ``[Bh, 1, E]``. No other
program touches the same numbers of a state, but threads of a program may hold copies of one number. Barriers make all
of them read it before one writes. Indices of a head are 64 bits wide, because states may have more than 2^31 numbers. A
kernel is compiled for each set of constants, and for sizes that are 1 or multiples of 16, but not again for inputs at
other addresses.
"""

# variables are bound in branches of constants, of which the compiler of Triton keeps one
# pyright: reportMissingImports=false, reportPossiblyUnboundVariable=false, reportOperatorIssue=false
import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _make_features(x, scale, MAP: tl.constexpr):
    """The maps of `triton_step`, in their order; NaN stays NaN."""
    if MAP == 0:
        x = tl.where(x < 0, 0.0, x)
    elif MAP == 1:
        x = tl.where(x > 0, x + 1, tl.exp2(x * LOG2_E))
    elif MAP == 2:
        x = x * scale
    return x


@triton.jit(do_not_specialize_on_alignment=["q", "k", "v", "logs"])
def step_sums(
    q,
    k,
    v,
    logs,
    kv,
    z,
    reference,
    next_reference,
    out,
    totals,
    logs_stride,
    reference_stride,
    features,
    columns,
    group,
    scale,
    MAP: tl.constexpr,
    WEIGHTED: tl.constexpr,
    DECAYS: tl.constexpr,
    SUMS_WEIGHTS: tl.constexpr,
    DIVIDES: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_G: tl.constexpr,
):
    """`decode_step.step`. SUMS_WEIGHTS: whether there are sums of weights, of which one program for each head makes z.
    DIVIDES: by these, or 1 where they are zero; otherwise they are stored in ``totals``."""
    head = tl.program_id(0).to(tl.int64)
    e = tl.program_id(1) * BLOCK_E + tl.arange(0, BLOCK_E)
    rows = tl.arange(0, BLOCK_G)
    is_column = e < columns
    values = tl.load(v + head * columns + e, mask=is_column, other=0).to(tl.float32)
    if WEIGHTED:
        a = tl.load(logs + head * logs_stride).to(tl.float64)
        past = tl.load(reference + head * reference_stride).to(tl.float64)
        newest = a
        if not DECAYS:
            newest = tl.where((a > past) | (a != a), a, past)
        base = tl.where(newest == float("-inf"), 0.0, newest)
        carry = tl.exp(past - base).to(tl.float32)
        weight = tl.exp(a - base).to(tl.float32)
        if tl.program_id(1) == 0:
            tl.store(next_reference + head, newest)
    top = tl.zeros([BLOCK_G, BLOCK_E], tl.float32)
    total = tl.zeros([BLOCK_G], tl.float32)
    for first in range(0, features, BLOCK_F):
        f = first + tl.arange(0, BLOCK_F)
        is_feature = f < features
        y = tl.load(k + head * features + f, mask=is_feature, other=0).to(tl.float32)
        y = tl.where(is_feature, _make_features(y, scale, MAP), 0.0)
        places = kv + head * features * columns + f[:, None] * columns + e[None, :]
        is_inside = is_feature[:, None] & is_column[None, :]
        state = tl.load(places, mask=is_inside, other=0)
        if SUMS_WEIGHTS:
            norms = tl.load(z + head * features + f, mask=is_feature, other=0)
        tl.debug_barrier()
        if WEIGHTED:
            y = y * weight
            state = state * carry
        state += y[:, None] * values[None, :]
        tl.store(places, state, mask=is_inside)
        if SUMS_WEIGHTS:
            if WEIGHTED:
                norms = norms * carry
            norms += y
            tl.store(z + head * features + f, norms, mask=is_feature)
        for row in range(group):
            x = tl.load(q + (head * group + row) * features + f, mask=is_feature, other=0).to(tl.float32)
            x = tl.where(is_feature, _make_features(x, scale, MAP), 0.0)
            top += tl.where(rows[:, None] == row, tl.sum(x[:, None] * state, 0)[None, :], 0.0)
            if SUMS_WEIGHTS:
                total += tl.where(rows == row, tl.sum(x * norms, 0), 0.0)
    if DIVIDES:
        top = tl.div_rn(top, tl.broadcast_to(tl.where(total == 0, 1.0, total)[:, None], [BLOCK_G, BLOCK_E]))
    elif SUMS_WEIGHTS:
        tl.store(totals + head * group + rows, total, mask=rows < group)
    is_inside = (rows < group)[:, None] & is_column[None, :]
    tl.store(out + (head * group + rows)[:, None] * columns + e[None, :], top, mask=is_inside)


@triton.jit(do_not_specialize_on_alignment=["q", "k", "v", "log_decay", "beta"])
def step_state(
    q,
    k,
    v,
    log_decay,
    beta,
    state,
    out,
    width,
    columns,
    group,
    scale,
    DECAYS: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
    DELTA: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_G: tl.constexpr,
):
    """`recurrence.step`, with all rows of the state at once. DECAYS: whether there are any, BY_CHANNEL one for each
    row. DELTA: the delta rule."""
    head = tl.program_id(0).to(tl.int64)
    d, rows = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_G)
    e = tl.program_id(1) * BLOCK_E + tl.arange(0, BLOCK_E)
    is_row, is_column = d < width, e < columns
    is_inside = is_row[:, None] & is_column[None, :]
    key = tl.load(k + head * width + d, mask=is_row, other=0).to(tl.float32)
    update = tl.load(v + head * columns + e, mask=is_column, other=0).to(tl.float32)
    places = state + head * width * columns + d[:, None] * columns + e[None, :]
    s = tl.load(places, mask=is_inside, other=0)
    tl.debug_barrier()
    if DECAYS:
        if BY_CHANNEL:
            decay = tl.exp(tl.load(log_decay + head * width + d, mask=is_row, other=0).to(tl.float32))
            s = s * decay[:, None]
        else:
            s = s * tl.exp(tl.load(log_decay + head).to(tl.float32))
    if DELTA:
        update = (update - tl.sum(key[:, None] * s, 0)) * tl.load(beta + head).to(tl.float32)
    s += key[:, None] * update[None, :]
    tl.store(places, s, mask=is_inside)
    top = tl.zeros([BLOCK_G, BLOCK_E], tl.float32)
    for row in range(group):
        x = tl.load(q + (head * group + row) * width + d, mask=is_row, other=0).to(tl.float32)
        top += tl.where(rows[:, None] == row, tl.sum(x[:, None] * s, 0)[None, :], 0.0)
    is_inside = (rows < group)[:, None] & is_column[None, :]
    tl.store(out + (head * group + rows)[:, None] * columns + e[None, :], top * scale, mask=is_inside)
