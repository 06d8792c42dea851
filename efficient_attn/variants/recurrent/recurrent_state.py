"""Attention through a recurrent state with gates: decays, and corrections of what the state already holds."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...contract import Dims, Growth, Mask, Shape, Traits, Values, require_values
from ...contract.row_starts import RowStarts
from ...errors import UnsupportedError, UsageError
from ...kernels import fla_backend
from ...kernels.custom_ops import have_numbers
from ...kernels.dense import widen
from ...kernels.derivatives import wants_gradient
from ...kernels.gated import recurrence
from ...kernels.gated.passes import CHUNK, STRETCH_ELEMENTS
from ...kernels.gated.stretch import Inputs
from ...kernels.selected_keys import recompute
from ..fla_attention import FlaAttention

GATED = Traits(bidirectional=False, normalised=False, positional=True)
KEPT_STATES = 64  # of the reference, for gradients: of a whole sequence they would take gigabytes
MIN_NORM = 1e-6  # of keys that are divided by their norm: shorter ones are divided by this


class Recurrence(NamedTuple):
    """What the state reads and writes: keys ``[B, Hkv, M, D]``, values ``[B, Hkv, M, E]``, logarithms of decays ``[B,
    Hkv, M, 1 or D]`` and step sizes of the delta rule ``[B, Hkv, M]``, if there are any."""

    k: Tensor
    v: Tensor
    log_decay: Tensor | None = None
    beta: Tensor | None = None


@dataclass(frozen=True)
class RecurrentState:
    """The decode state: S ``[B Hkv, D, E]``, whose size does not depend on the number of positions."""

    s: Tensor | None = None  # none until sizes are known
    length: int = 0
    starts: RowStarts | None = None


class RecurrentAttention(FlaAttention):
    """S'_t = diag(e^(g_t)) S_(t-1), S_t = S'_t + k_t^T u_t, out_t = q_t S_t / sqrt(D), with u_t = v_t or, with the
    delta rule, u_t = beta_t (v_t - k_t S'_t). Causal only. A subclass makes a `Recurrence` of its inputs; the traits in
    `declared`, of the class or of an instance, have these inputs.

    Inputs of keys that a mask hides are zeros, as the keys are, so that such positions leave the state as it is.
    Queries after the last key read the last state. Backends: ``chunked``; ``fla``, flash-linear-attention's kernels for
    whole sequences on CUDA; ``dense`` is the recurrence, step by step.
    """

    backends = ("chunked", "fla", "dense")
    declared = GATED
    delta = False  # whether `recur` returns step sizes of the delta rule
    substeps = 1  # keys and values of a position
    gated_by_head = True  # unless a subclass has no decays, or others
    _checked_sizes: tuple[torch.Size, torch.Size] | None = None

    def recur(self, k: Tensor, v: Tensor, **inputs: Tensor) -> Recurrence:
        """The recurrence of a call's tensors."""
        raise UnsupportedError(f"{type(self).__name__} has no recurrence")

    def _make_recurrence(self, k: Tensor, v: Tensor, **inputs: Tensor) -> Recurrence:
        """The result of `recur`. Its sizes are checked in the first call of its sizes, because some wrong ones would
        compute something else."""
        result, sizes = Recurrence(*self.recur(k, v, **inputs)), (k.shape, v.shape)
        if torch.compiler.is_compiling():
            self._check_recurrence(result, k, v)
        elif sizes != self._checked_sizes:
            self._check_recurrence(result, k, v)
            self._checked_sizes = sizes
        return result

    def _check_recurrence(self, result: Recurrence, k: Tensor, v: Tensor) -> None:
        keys = (*k.shape[:2], k.shape[2] * self.substeps)
        g_sizes = ((*keys, 1), (*keys, k.shape[3]))
        for name, x, sizes in (
            ("k", result.k, ((*keys, k.shape[3]),)),
            ("v", result.v, ((*keys, v.shape[3]),)),
            ("log_decay", result.log_decay, g_sizes),
            ("beta", result.beta, (keys,)),
        ):
            if x is not None and x.shape not in sizes:
                expected = " or ".join(str(list(size)) for size in sizes)
                raise UsageError(f"{self.label}: recur must return {name} {expected}, not {list(x.shape)}")
        if (result.beta is not None) != self.delta:
            has = "beta, but delta is false" if result.beta is not None else "no beta, but delta is true"
            raise UsageError(f"{self.label}: recur returns {has}; costs depend on it")

    @property
    def traits(self) -> Traits:
        return self.narrow(self.declared)

    def why_no_kernel(self) -> str | None:
        if self.substeps > 1:
            return "flash-linear-attention's kernels are called for one step at a position"
        if type(self).compute is not RecurrentAttention.compute:
            return "it computes in its own way"
        return None

    @property
    def absolute(self) -> bool:
        return False  # decays depend on distances

    def why_no_starts(self) -> str | None:
        return None

    @property
    def growth(self) -> Growth:
        return Growth("O(N)", "O(N)", self._cost, self._step_cost)

    def _cost(self, n: int, m: int, causal: bool) -> float:
        """In pairs: two products with the state, and those of a position with its chunk; the delta rule has another of
        the first, three of the second, and the inverse of the chunk's triangle."""
        width = self.dims.head_dim or 64
        pairs = width + CHUNK + (width / 2 + 1.5 * CHUNK + CHUNK**2 / (6 * width) if self.delta else 0)
        return m * self.substeps * pairs

    def _step_cost(self, m: int) -> float:
        return self.substeps * (self.dims.head_dim or 64) * (1.5 if self.delta else 1)

    def workspace_bytes(self, shape: Shape, itemsize: int, *, causal: bool, training: bool) -> int:
        """At least the states of a stretch and their gradients, and its keys some times over, whatever the length."""
        size = super().workspace_bytes(shape, itemsize, causal=causal, training=training)
        if self.backend == "dense":
            return size
        states = shape.batch * shape.kv_heads * shape.head_dim * shape.value_dim * itemsize
        stretch = min(shape.m * shape.batch * shape.kv_heads * shape.head_dim, STRETCH_ELEMENTS) * itemsize
        return max(size, (4 if training else 2) * states) + (16 if training else 8) * stretch

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        n, m, kv_heads = q.shape[2], k.shape[2], k.shape[1]
        keys, values, g, beta = (None if x is None else widen(x) for x in self._make_recurrence(k, v, **inputs))
        assert keys is not None
        # all at once, because the gradient of a single selection is as long as the sequence
        steps: list[Any] = [[None] * keys.shape[2] if x is None else x.unbind(2) for x in (keys, values, g, beta)]
        queries = (widen(q) * q.shape[3] ** -0.5).unflatten(1, (kv_heads, -1)).unbind(3)
        rows_at: dict[int, list[int]] = {}
        for row, position in enumerate(mask.positions(n, m, device=q.device).tolist()):
            rows_at.setdefault(min(position, m - 1), []).append(row)
        state = keys.new_zeros(*keys.shape[:2], keys.shape[3], v.shape[3])
        outputs = [state.new_zeros(*q.shape[:2], v.shape[3])] * n

        def run_steps(positions: range, state: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
            outputs_at: dict[int, Tensor] = {}
            for j in range(positions.start * self.substeps, positions.stop * self.substeps):
                key, value, decay, size = (x[j] for x in steps)
                if decay is not None:
                    state = state * decay[..., None].exp()
                if size is not None:
                    value = size[..., None] * (value - (key[..., None] * state).sum(2))
                state = state + key[..., None] * value[..., None, :]
                if (j + 1) % self.substeps == 0:
                    rows = rows_at.get(j // self.substeps, ())
                    outputs_at |= {row: (queries[row] @ state).flatten(1, 2) for row in rows}
            return state, outputs_at

        end = max(rows_at, default=-1) + 1
        for first in range(0, end, KEPT_STATES):
            positions = range(first, min(first + KEPT_STATES, end))
            state, outputs_at = recompute(partial(run_steps, positions), state)
            for row, out in outputs_at.items():
                outputs[row] = out
        return torch.stack(outputs, 2).to(q.dtype)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        if self.runs_fla(q, k, v, mask, **inputs):
            return fla_backend.attend_state(q, *self._make_recurrence(k, v, **inputs))
        n, m = q.shape[2], k.shape[2]
        start = mask.start(n, m)
        n_blind, first = min(max(-start, 0), n), min(max(start, 0), m)
        n_aligned = min(n - n_blind, m - first)  # queries aligned with keys
        keys, rows = self.fold_inputs(q, k, v, **inputs), q.unflatten(1, (k.shape[1], -1)).flatten(0, 1)
        state = self._make_state(len(keys.k), k.shape[3], v.shape[3], v)
        parts = [rows.new_zeros(*rows.shape[:2], n_blind, v.shape[3])] if n_blind else []
        if first:
            no_rows = q.new_zeros(len(rows), 0, first, q.shape[3])
            _, state = self.scan_rows(no_rows, self._select(keys, 0, first), state)
        if n_aligned:
            aligned = self._select(keys, first, first + n_aligned)
            out, state = self.scan_rows(rows[:, :, n_blind : n_blind + n_aligned], aligned, state)
            parts.append(out)
        if n_blind + n_aligned < n:
            parts.append(recurrence.read(rows[:, :, n_blind + n_aligned :], state))
        return (parts[0] if len(parts) == 1 else torch.cat(parts, 2)).view(*q.shape[:3], -1)

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> RecurrentState:
        d = self.dims
        kv_heads = self.kv_heads or d.heads
        if kv_heads is None or d.head_dim is None:
            return RecurrentState()
        like = torch.zeros(0, dtype=dtype, device=device)
        return RecurrentState(self._make_state(batch * kv_heads, d.head_dim, d.value_dim or d.head_dim, like))

    def advance(
        self, q: Tensor, k: Tensor, v: Tensor, state: RecurrentState, **inputs: Tensor
    ) -> tuple[Tensor, RecurrentState]:
        keys, rows = self.fold_inputs(q, k, v, **inputs), q.unflatten(1, (k.shape[1], -1)).flatten(0, 1)
        past = self._make_state(len(keys.k), k.shape[3], v.shape[3], v) if state.s is None else state.s
        if k.shape[2] == 1 and not wants_gradient(rows, past, *(x for x in keys if x is not None)):
            for i in range(self.substeps - 1):
                recurrence.write(self._select_steps(keys, slice(i, i + 1)), past)
            last = self._select_steps(keys, slice(self.substeps - 1, self.substeps))
            out, past = recurrence.step(last._replace(q=rows), past)
        else:
            out, past = self.scan_rows(rows, keys, past)
        return out.reshape(*q.shape[:3], -1), replace(state, s=past, length=state.length + k.shape[2])

    def absorb(self, k: Tensor, v: Values, state: Any, **inputs: Tensor) -> Any:
        return super().absorb(k, require_values(v), state, **inputs)

    def scan_rows(self, rows: Tensor, keys: Inputs, state: Tensor) -> tuple[Tensor, Tensor]:
        """Rows ``[Bh, G, N, D]`` after each position's last key."""
        if self.substeps == 1:
            return recurrence.scan(keys._replace(q=rows), state)
        out, state = recurrence.scan(keys._replace(q=rows.repeat_interleave(self.substeps, 2)), state)
        return out[:, :, self.substeps - 1 :: self.substeps], state

    def fold_inputs(self, q: Tensor, k: Tensor, v: Tensor, **inputs: Tensor) -> Inputs:
        """The recurrence with heads folded into the batch, still without queries."""
        k, v, g, beta = self._make_recurrence(k, v, **inputs)
        folded = (None if x is None else x.flatten(0, 1) for x in (k, v, g, beta))
        return Inputs(q, *folded)  # pyright: ignore[reportArgumentType]

    def _select(self, keys: Inputs, first: int, last: int) -> Inputs:
        """The keys of some positions, each with those of its steps."""
        return self._select_steps(keys, slice(first * self.substeps, last * self.substeps))

    def _select_steps(self, keys: Inputs, steps: slice) -> Inputs:
        return Inputs(keys.q, *(None if x is None else x[:, steps] for x in keys[1:]))  # pyright: ignore[reportArgumentType]

    def _make_state(self, rows: int, width: int, value_width: int, like: Tensor) -> Tensor:
        return widen(like[:0]).new_zeros(rows, width, value_width)

    def check_range(self, name: str, x: Tensor, low: float, high: float) -> None:
        """Raise `UsageError` for an input out of its range. On other devices the check would wait for them."""
        if x.device.type != "cpu" or not have_numbers(x) or x.numel() == 0:
            return
        smallest, largest = (float(t) for t in torch.aminmax(x.detach()))
        if not (low <= smallest and largest <= high):  # also NaN
            raise UsageError(f"{self.label}: {name} must be from {low:g} to {high:g}, got {smallest:g} to {largest:g}")


def normalise(k: Tensor) -> Tensor:
    """Keys of unit norm, in float32 or wider, and zero where a key is zero."""
    dtype = widen(k[:0]).dtype
    x = widen(k) if wants_gradient(k) else k  # whose gradient would be a difference of rounded numbers
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=dtype).clamp(min=MIN_NORM)


def require_head_dim(name: str, dims: Dims) -> int:
    """The width of heads, which a mechanism with decays by channel needs when it is created."""
    if dims.head_dim is None:
        raise UsageError(f"{name}: needs dims with head_dim, because it has a decay for each channel")
    return dims.head_dim
