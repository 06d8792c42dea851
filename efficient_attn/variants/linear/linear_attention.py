"""Attention from a feature map: exp(q.k) is replaced by phi(q).phi(k), so that keys can be summed first."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ...contract import Attention, Growth, Mask, Shape, Traits, Values, require_values
from ...contract.mask import zero_invalid
from ...contract.row_starts import RowStarts
from ...errors import UnsupportedError
from ...feature_maps import FeatureMap
from ...kernels.custom_ops import any_functorch_wrapped, in_functorch_transform
from ...kernels.dense import expand_heads
from ...kernels.derivatives import wants_gradient
from ...kernels.half_precision import HALF_DTYPES
from ...kernels.linear import bidirectional, decode_step, scan, sums
from ...kernels.linear.chunks import CHUNK
from ...kernels.linear.linear_config import (
    MAX_FEATURE_ELEMENTS,
    Divisor,
    KeyInputs,
    LinearConfig,
    replace_zero_by_one,
)
from ...kernels.linear.short_sequences import attend_short, is_short
from ...kernels.linear.sums import Sums
from ...kernels.native.building import why_no_native
from .lanes import Lane, attend_causal, make_decaying_lanes, unfold

# created once, because every call reads them
PLAIN_TRAITS, POSITIONAL_TRAITS = (Traits(positional=positional) for positional in (False, True))
MIN_DIVISOR = 1e-6  # smallest absolute value of sums of weights of both signs: see `away_from_zero`


@dataclass(frozen=True)
class LinearState:
    """The decode state of linear attention; its size does not depend on the number of positions."""

    sums: tuple[Sums, ...] = ()  # one for all heads of a group, or one for each; none until sizes are known
    length: int = 0
    starts: RowStarts | None = None


LinearStep = tuple[Tensor, LinearState]


class KeyWeights(NamedTuple):
    """Weights of keys in addition to their features: logarithms ``[B, Hkv, M]``, and those of a key of weight 1 at the
    next position ``[B, Hkv]``, from which decoding continues."""

    keys: Tensor
    next: Tensor


class LinearAttention(Attention):
    """sum_j phi(q).phi(k_j) v_j / sum_j phi(q).phi(k_j). A subclass passes its feature map to ``super().__init__``.

    With p for the pairs that the mask allows, and if neither map nor subclass weights keys, the reference is

        w = einsum("bhnf,bhmf->bhnm", phi(q), phi(k)) * p
        out = einsum("bhnm,bhme->bhne", w / w.sum(-1, keepdim=True), v)

    Backends: ``chunked`` sums keys chunk by chunk, causal with a scan; few keys are summed at once. Scans of keys
    without weights, and bidirectional calls with elu + 1 or relu, run in C++ if that is built and faster. ``cpp`` is
    the same with all of these in C++, for the CPU, built if it is not there. ``dense`` forms all N x M weights. A map
    with learned parameters keeps them on the mechanism, where the backward pass finds them.
    """

    backends = ("chunked", "cpp", "dense")
    only_on: ClassVar[Mapping[str, str]] = {"cpp": "cpu"}

    def __init__(self, feature_map: FeatureMap) -> None:
        super().__init__()
        self._feature_map = feature_map

    # -- methods that subclasses may override ----------------------------------------------------------------------

    @property
    def feature_map(self) -> FeatureMap:
        """phi; maps that are drawn make it from their buffers, which move from device to device."""
        return self._feature_map

    @property
    def divisor(self) -> Divisor | None:
        """The divisors of outputs, from the sums of weights; None if outputs are not divided."""
        return away_from_zero if self.feature_map.signed else replace_zero_by_one

    def rates(self, heads: int) -> Tensor | None:
        """The decay of each head: logarithms for each position ``[H]``. Requires causal masks."""
        return None

    def key_weights(self, k: Tensor, valid: Tensor | None, **inputs: Tensor) -> KeyWeights | None:
        """Weights of keys in addition to their features, such as gates; valid: ``[B, M]``."""
        return None

    @property
    def weighs_keys(self) -> bool:
        """Whether keys have weights besides their features, from the map itself or from the two methods above."""
        cls, base = type(self), LinearAttention
        overridden = cls.key_weights is not base.key_weights or cls.rates is not base.rates
        return overridden or self.feature_map.scaled

    def why_not(self, backend: str) -> str | None:
        if backend != "cpp":
            return None
        if self.weighs_keys:
            return "its keys have weights, which the C++ kernel does not support"
        return why_no_native("scan") or why_no_native("sums")

    @property
    def traits(self) -> Traits:
        return self.claims()

    def claims(self, **overrides: Any) -> Traits:
        """The traits of linear attention, with others; torch.compile does not support ``super().traits``."""
        positional = self.feature_map.positional
        if overrides:
            return Traits(**{"positional": positional, **overrides})
        return POSITIONAL_TRAITS if positional else PLAIN_TRAITS

    @property
    def growth(self) -> Growth:
        return Growth("O(N)", "O(N)", self._cost)

    def _cost(self, n: int, m: int, causal: bool) -> float:
        """In pairs: F x E multiply-adds for each key and query, and half a chunk of pairs for each query if causal."""
        features = self.feature_map.width(self.dims.head_dim or 64)
        return (n + m) * features / 2 + (n * CHUNK if causal else 0)

    def workspace_bytes(self, shape: Shape, itemsize: int, *, causal: bool, training: bool) -> int:
        """Forward, also the features of some positions, three times over, whatever the length. At least the sums over
        keys, three times over, with gradients four."""
        size = super().workspace_bytes(shape, itemsize, causal=causal, training=training)
        if self.backend == "dense":
            return size
        sums = shape.batch * shape.kv_heads * self.feature_map.width(shape.head_dim) * (shape.value_dim + 1) * itemsize
        if training:
            return max(size, 4 * sums)
        output = shape.batch * shape.heads * shape.n * shape.value_dim
        return max(size + 3 * min(output, MAX_FEATURE_ELEMENTS) * itemsize, 3 * sums)

    # -- three forms: dense, chunked, step by step ----------------------------------------------------------------

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        n, m = q.shape[2], k.shape[2]
        config, allowed = self.make_config(0, 0, self.divisor), mask.dense(n, m, device=q.device)
        weights = self.key_weights(k, mask.key_valid(m), **inputs)
        k, v = expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])
        x, _ = config.phi(config.widen(q), mask.positions(n, m, device=q.device))  # the factor of a query cancels
        y, a = config.keys(k, slice(0, m), None, None)
        products = x @ y.mT
        if weights is not None:
            logs = expand_heads(weights.keys, q.shape[1])
            a = logs if a is None else a + logs
        if a is not None:
            logs = a[:, :, None].masked_fill(~allowed, float("-inf"))
            max_log = logs.detach().amax(-1, keepdim=True)
            products = products * (logs - max_log.masked_fill(max_log.isinf(), 0)).exp().to(products.dtype)
        products = products.masked_fill(~allowed, 0)
        out = products @ config.widen(v)
        if self.divisor:
            out = out / self.divisor(products.sum(-1, keepdim=True))
        return out.to(q.dtype)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        if in_functorch_transform() and any_functorch_wrapped((*self.parameters(), *self.buffers())):
            raise UnsupportedError(f"{self.label}: torch.func does not support its map's tensors; use backend=dense")
        return self._attend(q, k, v, mask, self.divisor, **inputs)

    def clamped_rows(self, q: Tensor, k: Tensor, v: Values, mask: Mask, **inputs: Tensor) -> int | None:
        if self.divisor is not away_from_zero:
            return None
        counts = []

        def count_clamped(total: Tensor) -> Tensor:
            counts.append(int(((total.abs() < MIN_DIVISOR) & (total != 0)).sum()))
            return away_from_zero(total)

        with torch.no_grad():
            self._attend(q, k, require_values(v), mask, count_clamped, **inputs)
        return sum(counts)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, divisor: Divisor | None, **inputs: Tensor) -> Tensor:
        n, m, valid = q.shape[2], k.shape[2], mask.key_valid(k.shape[2])
        keys, values, folded = k.flatten(0, 1), v.flatten(0, 1), fold_valid(valid, k)
        start = mask.start(n, m)
        config = self.make_config(start, 0, divisor)
        tensors = q, k, v, *inputs.values(), *config.parameters
        is_followed = divisor is not None and (in_functorch_transform() or wants_gradient(*tensors))
        if is_followed and q.dtype in HALF_DTYPES:
            config = replace(config, wide_rows=True)
        causal = mask.causal and start < m - 1
        out = []
        for lane in self.split_lanes(q, k, valid, **inputs):
            lane_keys = KeyInputs(keys, values, folded, lane.logs)
            if not causal and bidirectional.is_chosen(config, lane.rows, lane_keys):
                out.append(bidirectional.attend(config, lane.rows, lane_keys))
            elif is_short(config, lane.rows, lane_keys, causal, weighted=self.weighs_keys):
                rates = lane.rates if config.steady else ()
                # rows of float64 would take much memory in longer calls
                short_config = replace(config, wide_rows=True) if is_followed and config.phi.exact else config
                out.append(attend_short(short_config, lane.rows, lane_keys, causal, rates))
            elif causal:
                out.append(attend_causal(lane.configure(config), lane, lane_keys))
            else:
                past = sums.sum_keys(config, lane_keys)
                out.append(sums.read(config, lane.rows, past, lane.compute_fade(start - m + 1)))
        return unfold(out, q).to(q.dtype)

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> LinearState:
        d = self.dims
        kv_heads, heads = d.kv_heads or d.heads, d.heads or d.kv_heads
        if kv_heads is None or heads is None or d.head_dim is None:
            return LinearState()
        lanes = 1 if self.rates(heads) is None else heads // kv_heads
        like = torch.zeros(0, dtype=dtype, device=device)
        sizes = (batch * kv_heads, d.head_dim, d.value_dim or d.head_dim)
        return LinearState(tuple(self._make_empty_sums(*sizes, like) for _ in range(lanes)))

    @property
    def absolute(self) -> bool:
        """Whether its feature map depends on positions; decays depend on distances."""
        return self.feature_map.positional

    def why_no_starts(self) -> str | None:
        return "its feature map depends on positions" if self.absolute else None

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: LinearState, **inputs: Tensor) -> LinearStep:
        config = self.make_config(state.length, state.length, self.divisor)
        keys, values = k.flatten(0, 1), v.flatten(0, 1)
        valid = _valid_positions(state, k)
        folded = fold_valid(valid, k)
        lanes = self.split_lanes(q, k, valid, **inputs)
        past_sums = state.sums or [self._make_empty_sums(len(keys), k.shape[3], v.shape[3], v[:0]) for _ in lanes]
        out, next_sums = [], []
        for lane, past in zip(lanes, past_sums, strict=True):
            sources = q, k, v, past.kv, *inputs.values(), *self.parameters()
            single = q.shape[2] == 1 and valid is None and not wants_gradient(*sources)
            attend = decode_step.step if single else scan.scan
            rows, past = attend(lane.configure(config), lane.rows, KeyInputs(keys, values, folded, lane.logs), past)
            out.append(rows)
            next_sums.append(lane.rebase(past))
        return unfold(out, q), LinearState(tuple(next_sums), state.length + q.shape[2], state.starts)

    def absorb(self, k: Tensor, v: Values, state: LinearState, **inputs: Tensor) -> LinearState:
        if self.rates(k.shape[1]) is not None or not isinstance(state, LinearState):
            return super().absorb(k, v, state, **inputs)
        valid = _valid_positions(state, k)
        k, v = zero_invalid(k, valid), zero_invalid(require_values(v), valid)
        config, keys, values = self.make_config(0, state.length, self.divisor), k.flatten(0, 1), v.flatten(0, 1)
        (lane,) = self.split_lanes(k, k, valid, **inputs)
        past_sums = state.sums[0] if state.sums else None
        next_sums = sums.sum_keys(config, KeyInputs(keys, values, fold_valid(valid, k), lane.logs), past_sums)
        return LinearState((lane.rebase(next_sums),), state.length + k.shape[2], state.starts)

    def make_config(self, start: int, first: int, divisor: Divisor | None) -> LinearConfig:
        """The kernels' arguments. start, first: the positions of the first query and the first key."""
        decays = type(self).rates is not LinearAttention.rates
        parameters = tuple(self.parameters())
        return LinearConfig(self.feature_map, divisor, decays, start, first, parameters, self.backend == "cpp")

    def _make_empty_sums(self, rows: int, width: int, value_width: int, like: Tensor) -> Sums:
        config = self.make_config(0, 0, self.divisor)
        return sums.make_sums(config, rows, width, value_width, like, weighted=self.weighs_keys)

    def split_lanes(self, q: Tensor, k: Tensor, valid: Tensor | None, **inputs: Tensor) -> list[Lane]:
        """All heads of a group together, or one after another if they weight keys differently."""
        _, kv_heads, m, _ = k.shape
        rows = q.unflatten(1, (kv_heads, -1)).flatten(0, 1)
        rates = self.rates(q.shape[1])
        if rates is None:
            weights = self.key_weights(k, valid, **inputs)
            if weights is None:
                return [Lane(rows)]
            return [Lane(rows, weights.keys.flatten(0, 1), weights.next.flatten(0, 1))]
        return make_decaying_lanes(rows, rates.view(kv_heads, -1), m)


def _valid_positions(state: LinearState, k: Tensor) -> Tensor | None:
    """The valid ones of a step's positions ``[B, T]``, after their rows' starts; None if all are."""
    return None if state.starts is None else state.starts.valid_or_none(state.length, k.shape[2])


def fold_valid(valid: Tensor | None, k: Tensor) -> Tensor | None:
    """``[B, M]`` to ``[B Hkv, M]``, as keys are folded."""
    return None if valid is None else valid.repeat_interleave(k.shape[1], dim=0)


def away_from_zero(total: Tensor) -> Tensor:
    """A sum of weights of either sign, moved away from zero to `MIN_DIVISOR` where it is closer than that."""
    return total.abs().clamp(min=MIN_DIVISOR).copysign(total)
