"""Reformer's attention."""

from typing import Any

import torch
from torch import Tensor

from ...contract import Attention, Budget, Dims, Growth, Mask, Sample, Shape, Traits, Values
from ...errors import UnsupportedError, UsageError, check_at_least_one
from ...kernels.custom_ops import in_functorch_transform
from ...kernels.dense import softmax_attention, widen
from ...kernels.hashed.lsh import Rounds, choose_hash_bits, count_directions, draw_rotations, sort_rounds
from ...kernels.hashed.rounds import inverse_norms, softmax_over_rounds
from ...kernels.softmax.sdpa import pad_widths


class Reformer(Attention):
    """Softmax over keys of unit length that a hash puts near a query; queries and keys are one tensor (Kitaev et al.
    2020, arXiv:2001.04451). With p for pairs in the same chunk, or in neighboring ones, in any round, the reference is

        w = einsum("bhnd,bhmd->bhnm", q, normalize(k, dim=-1)).div(D**0.5).masked_fill(~p, -inf).softmax(-1)
        out = einsum("bhnm,bhme->bhne", w, v)

    n_hashes: rounds of hashing; a pair found in several counts once. bucket_size: positions of a chunk; a query sees
    its own chunk and the previous one, in the order of buckets. It sees itself only if it sees no other key. The random
    directions are drawn from the seed at creation, for ``dims.head_dim``. Raises `UsageError` for a k that is not q.

    A row of a batch has about ``length / bucket_size`` buckets, of its own length without padding; padded positions
    are neither queries nor keys, so their rows are zero. Backends: ``chunks`` (no N x N matrix) and ``dense``.
    """

    backends = ("chunks", "dense")

    def __init__(self, *, n_hashes: int = 4, bucket_size: int = 64, dims: Dims = Dims(), seed: int = 0) -> None:
        super().__init__()
        check_at_least_one("reformer", n_hashes=n_hashes, bucket_size=bucket_size)
        if dims.head_dim is None:
            raise UsageError("reformer: give dims with head_dim, which its random directions need")
        self.n_hashes, self.bucket_size, self.dims = n_hashes, bucket_size, dims
        self.rotations: Tensor
        self.register_buffer("rotations", draw_rotations(n_hashes, dims.head_dim, seed))

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        """Four rounds of hashing, in each two chunks that share the keys evenly."""
        if budget.keys < 8:
            raise UsageError(f"reformer: four rounds of two chunks need at least 8 keys, not {budget.keys}")
        return {"n_hashes": 4, "bucket_size": budget.keys // 8}

    @property
    def traits(self) -> Traits:
        return Traits(
            strictly_causal=False,  # a position's chunk depends on all others, the future included
            cross=False,
            decode=False,
            grouped=False,
            exact=True,
            positional=True,  # a chunk may end within a bucket, which is ordered by position
            mixes_queries=True,
        )

    @property
    def growth(self) -> Growth:
        return Growth("O(N log N)", "O(N)", self._cost)

    def _cost(self, n: int, m: int, causal: bool) -> float:
        """In pairs: two chunks of keys a query and round, and D multiply-adds for every direction of its hash."""
        width = self.dims.head_dim or 1
        n_directions = sum(count_directions(choose_hash_bits(n, self.bucket_size)))
        hashing = n_directions * width / (width + (self.dims.value_dim or width))
        return self.n_hashes * n * (2 * min(self.bucket_size, n) + hashing)

    def pairs_computed(self, n: int, m: int, causal: bool) -> int:
        if self.backend == "dense":
            return n * m
        size = min(self.bucket_size, n)
        return self.n_hashes * -(-n // size) * 2 * size * size

    def sample(self, shape: Shape, **options: Any) -> Sample:
        """Unit Gaussians, one tensor as queries and keys."""
        sample = super().sample(shape, **options)
        return sample._replace(k=sample.q)

    def forward(self, q: Tensor, k: Tensor, v: Values, mask: Mask | None = None, **inputs: Tensor) -> Tensor:
        if q.shape == k.shape and not _are_equal(q, k):
            raise UsageError(f"{self.label}: k must be q, its queries are its keys")
        return super().forward(q, k, v, mask, **inputs)

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        unit = widen(k) * inverse_norms(k)[..., None]
        visible = self._sort_rounds(k, mask).visible_pairs(mask.causal).unflatten(0, q.shape[:2])
        return softmax_attention(q, unit, v, visible)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        width, value_width = q.shape[-1], v.shape[-1]
        rounds = self._sort_rounds(k, mask)
        if (valid := mask.key_valid(q.shape[2])) is not None:  # a padded query's row is masked, and must not overflow
            q = q.masked_fill(~valid[:, None, :, None], 0)
        rows, keys, values = (x.flatten(0, 1) for x in pad_widths(q, k, v))
        out = softmax_over_rounds(rows, keys, values, rounds, mask.causal, width**-0.5).unflatten(0, q.shape[:2])
        return out[..., :value_width] if value_width < width else out

    def _sort_rounds(self, k: Tensor, mask: Mask) -> Rounds:
        """Sorted by the hash of k: padding is zero in it, queries beyond `query_lengths` are not."""
        n = k.shape[2]
        return sort_rounds(k.detach(), self.rotations, min(self.bucket_size, n), mask.key_valid(n))


def _are_equal(q: Tensor, k: Tensor) -> bool:
    """Whether two tensors of one shape are equal; compares contents only if their memory differs."""
    if q is k or q.dtype != k.dtype or q.device != k.device:
        return True  # or a misfit of another kind, which the base class names
    if torch.compiler.is_compiling() or in_functorch_transform():
        raise UnsupportedError("reformer: k must be q, one and the same object, under torch.compile and torch.func")
    same_memory = q.data_ptr() == k.data_ptr() and q.stride() == k.stride()
    return same_memory or torch.equal(q, k)
