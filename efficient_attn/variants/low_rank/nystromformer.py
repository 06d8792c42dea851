"""Nystromformer."""

import torch
from torch import Tensor

from ...contract import Attention, Budget, Growth, Mask, Traits
from ...errors import check_at_least_one
from ...kernels.dense import expand_heads, masked_softmax, widen
from ...kernels.low_rank.landmarks import assign_segments, landmark_weights, pseudo_inverse, segment_means_with_input
from ...kernels.softmax.sdpa import attend_fused

FLOAT32_STEPS = 10  # with s steps the inverse multiplies rounding by up to 3.25^(s / 2), by 360 here


class Nystromformer(Attention):
    """Softmax attention through landmarks, the means q~ and k~ of segments (Xiong et al. 2021, arXiv:2102.03902):
    softmax(q k~^T / sqrt(D)) pinv(softmax(q~ k~^T / sqrt(D))) softmax(q~ k^T / sqrt(D)) v. The reference is

        a, b, c = (einsum("bhid,bhjd->bhij", x, y).div(D**0.5).softmax(-1) for x, y in ((q, k_), (q_, k_), (q_, k)))
        out = einsum("bhni,bhij,bhjm,bhme->bhne", a, pinv(b), c, v)

    n_landmarks: at most so many segments, each of ceil(L / n_landmarks) of a row's L valid positions; the last may be
    shorter. n_iterations: steps of the iterated pseudo-inverse, ``kernels.low_rank.landmarks.pseudo_inverse``. The
    paper's 6 damp small singular values. With more steps the weights of a row approach a sum of 1, if queries have as
    many landmarks as keys, and with one for every position at least 20 steps approach full attention. A converged
    inverse of a nearly singular matrix amplifies rounding, so more than 10 steps are computed in float64; two orders of
    summation can still differ by 3.25^(s / 2) 1e-16 after s steps, 1e-10 after 24. Does not include the paper's
    depthwise convolution. Options below 1 raise `UsageError`.
    """

    backends = ("landmarks", "dense")

    def __init__(self, *, n_landmarks: int = 64, n_iterations: int = 6) -> None:
        super().__init__()
        check_at_least_one("nystromformer", n_landmarks=n_landmarks, n_iterations=n_iterations)
        self._n_landmarks, self._n_iterations = n_landmarks, n_iterations

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        return {"n_landmarks": budget.keys}

    @property
    def traits(self) -> Traits:
        return Traits(
            causal=False, strictly_causal=False, decode=False, normalised=False, positional=True, mixes_queries=True
        )

    @property
    def growth(self) -> Growth:
        return Growth("O(N m), m landmarks", "O(N)", self._cost)

    def dense_pairs(self, n: int, m: int) -> int:
        return self._n_landmarks * (n + m + self._n_landmarks)

    def _cost(self, n: int, m: int, causal: bool) -> float:
        rows, columns = (min(self._n_landmarks, x) for x in (n, m))
        width = self.dims.head_dim or 64
        pair_work = width + (self.dims.value_dim or width)
        step = 2 * rows * rows * (rows + columns)
        return n * columns + rows * m + rows * columns + self._n_iterations * step / pair_work

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        heads, n, m, scale = q.shape[1], q.shape[2], k.shape[2], q.shape[-1] ** -0.5
        dtype, k, v = q.dtype, expand_heads(k, heads), expand_heads(v, heads)
        q, k, v = (widen(self._widen_for_inverse(x)) for x in (q, k, v))
        rows, columns = _valid_or_all(mask.query_valid(n), q), _valid_or_all(mask.key_valid(m), k)
        average_q, average_k = (_make_averaging_matrix(x, self._n_landmarks, q.dtype) for x in (rows, columns))
        q_means, k_means = average_q @ q, average_k @ k
        q_present, k_present = average_q.any(-1, keepdim=True), average_k.any(-1)[..., None, :]
        to_landmarks = masked_softmax(q @ k_means.mT * scale, rows[:, None, :, None] & k_present)
        between_landmarks = masked_softmax(q_means @ k_means.mT * scale, q_present & k_present)
        to_keys = masked_softmax(q_means @ k.mT * scale, q_present & columns[:, None, None, :])
        return (to_landmarks @ pseudo_inverse(between_landmarks, self._n_iterations) @ to_keys @ v).to(dtype)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        dtype, (q, k, v) = q.dtype, (self._widen_for_inverse(x) for x in (q, k, v))
        valid = mask.key_valid(k.shape[2])
        q, q_marks = segment_means_with_input(q, mask.query_valid(q.shape[2]), self._n_landmarks)
        k, k_marks = segment_means_with_input(k, valid, self._n_landmarks)
        k_marks = k_marks._replace(means=expand_heads(k_marks.means, q.shape[1]))  # few, unlike the keys themselves
        inverse = pseudo_inverse(landmark_weights(q_marks, k_marks, q.shape[-1] ** -0.5), self._n_iterations)
        context = attend_fused(q_marks.means.to(q.dtype), k, v, allowed=_broadcast_valid(valid))
        # the contribution of a missing landmark is dropped here: its column of the inverse is zero
        values = (inverse @ widen(context)).to(q.dtype)
        return attend_fused(q, k_marks.means.to(q.dtype), values, allowed=_broadcast_valid(k_marks.present)).to(dtype)

    def _widen_for_inverse(self, x: Tensor) -> Tensor:
        return x.double() if self._n_iterations > FLOAT32_STEPS else x


def _valid_or_all(valid: Tensor | None, x: Tensor) -> Tensor:
    return torch.ones(x.shape[0], x.shape[2], dtype=torch.bool, device=x.device) if valid is None else valid


def _broadcast_valid(valid: Tensor | None) -> Tensor | None:
    return None if valid is None else valid[:, None, None]


def _make_averaging_matrix(valid: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """The matrix ``[B, 1, slots, L]`` that maps a sequence to the means of its segments."""
    segment, filled = assign_segments(valid, count)
    in_segment = segment[:, None, None] == torch.arange(filled.shape[1], device=valid.device)[:, None]
    return in_segment.to(dtype) / filled.clamp(min=1)[:, None, :, None]
