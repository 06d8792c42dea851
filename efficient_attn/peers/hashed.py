"""Hashed attention of the package reformer-pytorch."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..contract import Growth, Mask, Sample, Shape, Traits
from ..errors import UnsupportedError, check_at_least_one
from ..kernels.dense import widen
from ..registry import register
from .hosting import LibraryAttention, check_value_width, import_library, seeded_generator

UNSUPPORTED = Traits(cross=False, padding=False, decode=False, grouped=False)
SELF_SCORE = -5e4  # the library's score of a query's own key


@register("peer_reformer", family="hashed")
class PeerReformer(LibraryAttention):
    """reformer-pytorch's LSHAttention: positions sorted by hash, chunks that see themselves and the previous chunk.

    Queries are the keys: k must equal q, and is normalized as key. The chunks of all rounds form one ring, so that a
    round's first chunk sees the last of the previous round. A pair counts once for each round in which it matches;
    chunks see across buckets. A query's own key has a score of -50000, and so no weight unless the query sees no other.
    The library draws its rotations in each call, one draw for all rows and heads; here each call uses ``seed``,
    so that equal calls agree. Chunks depend on all positions, so that a causal row depends on later ones. N must be a
    multiple of ``2 bucket_size``; there are N / bucket_size buckets.
    """

    declared = replace(UNSUPPORTED, strictly_causal=False, positional=True, mixes_queries=True)
    draw: Tensor

    def __init__(self, *, n_hashes: int = 4, bucket_size: int = 64, seed: int = 0) -> None:
        super().__init__()
        check_at_least_one("peer_reformer", n_hashes=n_hashes, bucket_size=bucket_size)
        lsh_class = import_library("peer_reformer", "reformer-pytorch", "reformer_pytorch").LSHAttention
        self.n_hashes, self.bucket_size = n_hashes, bucket_size
        # in evaluation mode, where it does not cache hashes of earlier calls; it has no dropout in either mode
        self._lsh = {
            causal: lsh_class(bucket_size=bucket_size, n_hashes=n_hashes, causal=causal).eval()
            for causal in (False, True)
        }
        self.register_buffer("draw", torch.tensor(seed % 2**63))  # so that a state dict contains the rotations

    @property
    def growth(self) -> Growth:
        return Growth("O(N log N)", "O(N P): all weights are written to memory", self._cost)

    def _cost(self, n: int, m: int, causal: bool) -> float:
        """In pairs: two chunks for each query and round, and the N / bucket_size half-width products of the hashing."""
        return self.n_hashes * n * (2 * self.bucket_size + n / self.bucket_size / 4)

    def pairs_computed(self, n: int, m: int, causal: bool) -> int:
        return n * m if self.backend == "dense" else self.n_hashes * n * 2 * self.bucket_size

    def sample(self, shape: Shape, **options: Any) -> Sample:
        inputs = super().sample(shape, **options)
        return inputs._replace(k=inputs.q)  # the queries are the keys

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        batch, heads, n, width = q.shape
        check_value_width(self, q, v)
        self._check_inputs(q, k, mask)
        if mask.causal and q.dtype.itemsize < 4 and self.n_hashes > 1:
            raise UnsupportedError(
                f"{self.label}: in {q.dtype} logarithms near {SELF_SCORE:g} lose the number of rounds, so that outputs "
                f"of causal queries that see only themselves come out {self.n_hashes} times too large and more"
            )
        with seeded_generator(int(self.draw), q.device):
            out, _, _ = self._lsh[mask.causal](k.reshape(-1, n, width), v.reshape(-1, n, width))
        return out.view(batch, heads, n, width)

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        self._check_inputs(q, k, mask)
        counts = self._count_matches(k.flatten(0, 1)).unflatten(0, k.shape[:2]).to(widen(q).dtype)
        rows, keys = widen(k), torch.nn.functional.normalize(widen(k), dim=-1)
        i = torch.arange(q.shape[2], device=q.device)
        scores = (rows @ keys.mT * q.shape[-1] ** -0.5).masked_fill(i[:, None] == i, SELF_SCORE)
        # One softmax over all matching pairs, computed as the library does: a softmax per round, and rounds weighted by
        # their sums of exponentials. float32 resolves a logarithm near -50000 only to 0.002, so that the weights of
        # a query that sees only itself add up to 1 with that error, in the library and here.
        allowed = counts > 0
        if mask.causal:
            allowed = allowed & (i[:, None] >= i)
        visible_scores = scores[:, :, None].masked_fill(~allowed, float("-inf"))
        row_max = visible_scores.detach().amax(-1, keepdim=True)
        sums = row_max + (counts * (visible_scores - row_max).exp()).sum(-1, keepdim=True).log()
        share = (sums - sums.logsumexp(2, keepdim=True)).exp()
        return ((counts * (visible_scores - sums).exp() * share).sum(2) @ widen(v)).to(q.dtype)

    def _count_matches(self, x: Tensor) -> Tensor:
        """``[B, rounds, N, N]``: how often a round's query finds a key. Only uses the library's hash codes."""
        rows, n = x.shape[:2]
        with torch.no_grad(), seeded_generator(int(self.draw), x.device):
            codes = self._lsh[False].hash_vectors(n // self.bucket_size, x, set_cache=False)
        order = codes * n + torch.arange(n, device=x.device).repeat(self.n_hashes)
        rank = order.argsort(-1).argsort(-1)  # codes of later rounds are larger, so rounds follow each other
        chunk = (rank // self.bucket_size).view(rows, self.n_hashes, n)
        ring = self.n_hashes * n // self.bucket_size
        counts = x.new_zeros(rows, self.n_hashes, n, n)
        for other_chunks in chunk.unbind(1):
            counts += (chunk[..., None] - other_chunks[:, None, None]) % ring <= 1
        return counts

    def _check_inputs(self, q: Tensor, k: Tensor, mask: Mask) -> None:
        n = q.shape[2]
        if n % (2 * self.bucket_size):
            raise UnsupportedError(f"{self.label}: N must be a multiple of {2 * self.bucket_size}, not {n}")
        if q.data_ptr() == k.data_ptr() and q.stride() == k.stride():
            return  # the same tensor; comparing values would add to the measured time
        equal, query_valid = (q == k).all(-1), mask.query_valid(n)
        if not (equal if query_valid is None else equal | ~query_valid[:, None]).all():
            raise UnsupportedError(f"{self.label} shares queries and keys: k must equal q")
