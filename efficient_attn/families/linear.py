"""A feature map made into a mechanism: exp(q.k) replaced by phi(q).phi(k), so that keys can be summed first."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..feature_maps import FeatureMap
from ..kernels import scan
from ..kernels.dense import expand_heads, weighted_average, wide
from ..mask import Mask
from ..mechanism import Attention, Growth, Traits


@dataclass(frozen=True)
class LinearState:
    """Everything that linear attention keeps of the past; its size does not depend on how long that was."""

    sums: scan.Sums | None  # None until the first step, where the dims do not tell their sizes
    length: int = 0


class LinearAttention(Attention):
    """sum_j phi(q).phi(k_j) v_j / sum_j phi(q).phi(k_j). A subclass passes its feature map to ``super().__init__``.

    Backends: ``chunked`` sums keys chunk by chunk; causal, it scans; ``dense`` forms all N x M weights.
    """

    backends = ("chunked", "dense")

    def __init__(self, feature_map: FeatureMap) -> None:
        super().__init__()
        self.feature_map = feature_map

    @property
    def traits(self) -> Traits:
        return Traits()

    @property
    def growth(self) -> Growth:
        return Growth("O(N)", "O(N)", self._cost)

    def _cost(self, n: int, m: int, causal: bool) -> float:
        """In pairs: F x E multiply-adds a key and a query, and half a chunk's pairs a query when causal."""
        features = self.feature_map.width(self.dims.head_dim or 64)
        return (n + m) * features / 2 + (n * scan.SCAN_CHUNK if causal else 0)

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        k, v = expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])
        x, y, values = wide(self.feature_map(q)), wide(self.feature_map(k)), wide(v)
        allowed = mask.dense(q.shape[2], k.shape[2], device=q.device)
        return weighted_average((x @ y.mT).masked_fill(~allowed, 0), values).to(q.dtype)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        n, m = q.shape[2], k.shape[2]
        rows, keys, values, valid = _fold(q, k, v, mask.key_valid(m))
        start = mask.start(n, m)
        if not mask.causal or start >= m - 1:
            return scan.read(self.feature_map, rows, scan.summed(self.feature_map, keys, values, valid)).view(
                *q.shape[:3], -1
            )
        return self._causal(rows, keys, values, valid, start).view(*q.shape[:3], -1)

    def _causal(self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, start: int) -> Tensor:
        """Any alignment: rows before the first key are zero, rows behind the last see everything, the rest scan."""
        n, m, phi = q.shape[2], k.shape[1], self.feature_map
        blind = min(max(-start, 0), n)
        first = max(start, 0)  # the key on which the first seeing query stands
        along = min(n - blind, m - first)  # queries that stand on keys
        ends = [first, first + along]
        past = scan.summed(phi, k[:, :first], v[:, :first], _part(valid, 0, first)) if first else None
        parts = [q.new_zeros(*q.shape[:2], blind, v.shape[2])]
        if along:
            here = slice(*ends)
            out, past = scan.scan(
                phi, q[:, :, blind : blind + along], k[:, here], v[:, here], _part(valid, *ends), past
            )
            parts.append(out)
        if (rest := n - blind - along) and past is not None:
            parts.append(scan.read(phi, q[:, :, n - rest :], past))
        return torch.cat(parts, 2) if len(parts) > 2 or blind else parts[-1]

    # -- decoding: the recurrent form -----------------------------------------------------------------------------

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> LinearState:
        d = self.dims
        heads = d.kv_heads or d.heads
        if heads is None or d.head_dim is None:
            return LinearState(None)
        features, rows = self.feature_map.width(d.head_dim), batch * heads
        wider = torch.float64 if dtype == torch.float64 else torch.float32
        kv = torch.zeros(rows, features, d.value_dim or d.head_dim, dtype=wider, device=device)
        return LinearState(scan.Sums(kv, torch.zeros(rows, features, dtype=wider, device=device)))

    def advance(
        self, q: Tensor, k: Tensor, v: Tensor, state: LinearState, **inputs: Tensor
    ) -> tuple[Tensor, LinearState]:
        rows, keys, values, _ = _fold(q, k, v, None)
        if q.shape[2] == 1:
            sums = scan.summed(self.feature_map, keys, values, None, state.sums)
            out = scan.read(self.feature_map, rows, sums)
        else:
            out, sums = scan.scan(self.feature_map, rows, keys, values, None, state.sums)
        return out.view(*q.shape[:3], -1), LinearState(sums, state.length + q.shape[2])

    def absorb(self, k: Tensor, v: Tensor, state: LinearState, **inputs: Tensor) -> LinearState:
        _, keys, values, _ = _fold(k, k, v, None)
        sums = scan.summed(self.feature_map, keys, values, None, state.sums)
        return LinearState(sums, state.length + k.shape[2])


def _fold(q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Batch and key-value heads become one dimension; the heads of a group stay beside each other."""
    batch, heads, n, width = q.shape
    kv_heads = k.shape[1]
    rows = q.reshape(batch * kv_heads, heads // kv_heads, n, width)
    if valid is not None:
        valid = valid.repeat_interleave(kv_heads, dim=0)
    return rows, k.reshape(-1, *k.shape[2:]), v.reshape(-1, *v.shape[2:]), valid


def _part(valid: Tensor | None, first: int, last: int) -> Tensor | None:
    return None if valid is None else valid[:, first:last]
