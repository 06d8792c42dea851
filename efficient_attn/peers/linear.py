"""Linear attention of the packages linear-attention-transformer and performer-pytorch."""

import io
from contextlib import redirect_stdout
from dataclasses import replace

import torch
from torch import Tensor

from ..contract import Dims, Growth, Mask, Shape, Traits
from ..errors import UnsupportedError, UsageError, check_at_least_one
from ..kernels.dense import widen
from ..registry import register
from .hosting import LibraryAttention, check_value_width, import_library, seeded_generator

WIDEST_IN_HALF = 32  # largest width of heads whose gradients in bfloat16 performer-pytorch computes within 4%
SELF = Traits(normalised=False, cross=False, padding=False, decode=False, grouped=False)


@register("peer_linear_transformer", family="linear")
class PeerLinearTransformer(LibraryAttention):
    """linear-attention-transformer: softmax of queries over their width and of keys over the length, or exp of keys if
    causal.

    Not causal: softmax_D(q) / sqrt(D) times the sum of softmax_N(k) v, with weights that sum to 1 / sqrt(D) instead of
    1. Causal: phi(q) = softmax_D(q) / sqrt(D) and phi(k) = exp(k), divided by their sum or by 0.001 if that is larger.
    Keys are summed by buckets of ``bucket_size``: at 1, which its models pass, each position has its own D x D sum, and
    all are written to memory; above 1 (its function's default is 64) a query does not see its own bucket, which is
    another mechanism, and N must be a multiple.
    """

    def __init__(self, *, bucket_size: int = 1) -> None:
        super().__init__()
        check_at_least_one("peer_linear_transformer", bucket_size=bucket_size)
        self.bucket_size = bucket_size
        package_and_module = "linear-attention-transformer", "linear_attention_transformer.linear_attention_transformer"
        module = import_library("peer_linear_transformer", *package_and_module)
        self._bidirectional, self._causal = module.linear_attn, module.causal_linear_attn

    @property
    def traits(self) -> Traits:
        return replace(SELF, positional=self.bucket_size > 1)

    @property
    def growth(self) -> Growth:
        sums = "O(N D^2): a sum for every position" if self.bucket_size == 1 else "O(N D^2 / bucket)"
        width = self.dims.head_dim or 64
        return Growth("O(N)", f"{sums} when causal, else O(N)", lambda n, m, causal: (n + m) * width / 2)

    def count_sums(self, shape: Shape, *, causal: bool) -> int:
        return shape.n // self.bucket_size * shape.head_dim * shape.value_dim if causal else 0

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        rows = widen(q).softmax(-1) * q.shape[-1] ** -0.5
        if not mask.causal:
            return (rows @ widen(k).softmax(-2).mT @ widen(v)).to(q.dtype)
        bucket = torch.arange(q.shape[2], device=q.device) // self.bucket_size
        visible = bucket[:, None] > bucket if self.bucket_size > 1 else bucket[:, None] >= bucket
        weights = (rows @ widen(k).exp().mT).masked_fill(~visible, 0)
        return (weights / weights.sum(-1, keepdim=True).clamp(min=1e-3) @ widen(v)).to(q.dtype)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        check_value_width(self, q, v)
        if not mask.causal:
            return self._bidirectional(q, k, v)
        if q.shape[2] % self.bucket_size:
            raise UnsupportedError(f"{self.label}: N must be a multiple of {self.bucket_size}, not {q.shape[2]}")
        return self._causal(q, k, v, bucket_size=self.bucket_size)


@register("peer_performer", family="linear")
class PeerPerformer(LibraryAttention):
    """performer-pytorch's FastAttention: FAVOR+ with positive orthogonal features, the default of its models.

    phi(q) = exp(w.q - |q|^2 / 2 - max) + 0.0001, with q and k divided by D^(1/4) first, and divided by
    sqrt(n_features). A query has its own maximum; keys have one over all keys and features of a head, including
    later keys: with the added constant, a causal row depends slightly on the future. Its gradient ignores the maxima.
    Causal, 0.000001 is added to every sum of features. Without its CUDA kernel the causal form writes a sum of
    n_features x E for each position to memory. The features are drawn once, from ``seed``; the library's models draw
    new ones in training.
    """

    declared = replace(SELF, strictly_causal=False)
    projection: Tensor

    def __init__(self, *, n_features: int = 256, dims: Dims = Dims(), seed: int = 0) -> None:
        super().__init__()
        check_at_least_one("peer_performer", n_features=n_features)
        if dims.head_dim is None:
            raise UsageError("peer_performer: needs dims with head_dim, from which its features are drawn")
        self.n_features = n_features
        attention = import_library("peer_performer", "performer-pytorch", "performer_pytorch").FastAttention
        # the causal class prints that its CUDA kernel is missing
        with seeded_generator(seed), redirect_stdout(io.StringIO()):
            self._attention = {causal: attention(dims.head_dim, n_features, causal=causal) for causal in (False, True)}
        # passed to the library in each call, so that state dicts and .to() apply
        self.register_buffer("projection", self._attention[False].projection_matrix)

    @property
    def growth(self) -> Growth:
        work = self.n_features  # of a position: half for the features, half for their sums
        return Growth("O(N)", "O(N F D), F features, when causal, else O(N F)", lambda n, m, causal: (n + m) * work)

    def count_sums(self, shape: Shape, *, causal: bool) -> int:
        return shape.n * self.n_features * shape.value_dim if causal else 0

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        rows, keys = self._compute_features(q, (-1,)), self._compute_features(k, (-1, -2))
        weights = (rows @ keys.mT).tril() if mask.causal else rows @ keys.mT
        total = weights.sum(-1, keepdim=True)
        if mask.causal:
            total = total + 1e-6 * rows.sum(-1, keepdim=True)
        return (weights / total @ widen(v)).to(q.dtype)

    def _compute_features(self, x: Tensor, dims: tuple[int, ...]) -> Tensor:
        scaled = widen(x) * x.shape[-1] ** -0.25
        products = scaled @ self.projection.to(scaled.dtype).mT
        maximum = products.amax(dims, keepdim=True).detach()
        features = (products - scaled.square().sum(-1, keepdim=True) / 2 - maximum).exp() + 1e-4
        return features * self.n_features**-0.5

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        if q.dtype == torch.float16:
            raise UnsupportedError(f"{self.label}: the library's sums of features underflow in float16")
        training = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
        if q.dtype == torch.bfloat16 and training and q.shape[-1] > WIDEST_IN_HALF:
            raise UnsupportedError(
                f"{self.label}: rounded exponents in bfloat16 put the library's gradients off by 4% and more at "
                f"D > {WIDEST_IN_HALF}; call it under torch.no_grad()"
            )
        attention = self._attention[mask.causal]
        attention.projection_matrix = self.projection
        return attention(q, k, v)
