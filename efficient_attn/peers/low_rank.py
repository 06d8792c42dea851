"""Low-rank attention of the packages linformer and transformers (Nystromformer)."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from ..contract import Dims, Growth, Mask, Traits
from ..errors import UnsupportedError, UsageError, check_at_least_one
from ..kernels.dense import widen
from ..kernels.low_rank.landmarks import iterate_inverse
from ..registry import register
from .hosting import LibraryAttention, check_value_width, fixed_outputs, import_library, make_layer

INVERSE_STEPS = 6  # of the library's iteration
ENCODER = Traits(
    causal=False, strictly_causal=False, padding=False, decode=False, grouped=False, normalised=False, positional=True
)


@register("peer_linformer", family="low_rank")
class PeerLinformer(LibraryAttention):
    """The PyPI package linformer: keys and values projected along the length to ``rank``, then softmax over those.

    ``LinformerSelfAttention(seq_len=max_len, k=rank)``, with its projections to q, k, v and from the heads replaced.
    The projections along the length, [max_len, rank] for keys and for values, are learned and shared by the heads; they
    are parameters here, drawn from ``seed`` as the library draws them. Shorter sequences use their first rows.
    """

    declared = ENCODER

    def __init__(self, *, rank: int = 256, dims: Dims = Dims(), seed: int = 0) -> None:
        super().__init__()
        check_at_least_one("peer_linformer", rank=rank)
        if dims.max_len is None:
            raise UsageError("peer_linformer: needs dims with max_len for its projections")
        self.rank, self.max_len = rank, dims.max_len
        self._layer_class = import_library("peer_linformer", "linformer", "linformer").LinformerSelfAttention
        generator = torch.Generator().manual_seed(seed % 2**63)
        drawn = (torch.rand(self.max_len, rank, generator=generator) * 2 - 1 for _ in range(2))
        self.proj_k, self.proj_v = (nn.Parameter(x * rank**-0.5) for x in drawn)
        self._layers: dict[tuple[int, int], nn.Module] = {}

    @property
    def growth(self) -> Growth:
        memory, rank = "O(N R): all weights are written to memory", self.rank
        return Growth("O(N R), R the rank", memory, lambda n, m, causal: (n + m) * rank)

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        self._check_length(k)
        rows = slice(k.shape[2])
        keys, values = widen(self.proj_k[rows]).mT @ widen(k), widen(self.proj_v[rows]).mT @ widen(v)
        return ((widen(q) @ keys.mT * q.shape[-1] ** -0.5).softmax(-1) @ values).to(q.dtype)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        check_value_width(self, q, v)
        self._check_length(k)
        batch, heads, n, width = q.shape
        layer = self._get_layer(heads, width)
        layer.proj_k, layer.proj_v = self.proj_k, self.proj_v
        rows, context = (q.new_zeros(()).expand(batch, m, heads * width) for m in (n, k.shape[2]))
        # [B, N, H, D] is a view that its reshape of queries accepts; keys and values are used as [B, M, H D]
        k, v = (x.transpose(1, 2).flatten(2) for x in (k, v))
        with fixed_outputs(layer, to_q=q.transpose(1, 2), to_k=k, to_v=v):
            out = layer(rows, context=context)
        return out.unflatten(-1, (heads, width)).transpose(1, 2)

    def _check_length(self, k: Tensor) -> None:
        if k.shape[2] > self.max_len:
            raise UnsupportedError(f"{self.label} was created for max_len={self.max_len}, got {k.shape[2]} keys")

    def _get_layer(self, heads: int, width: int) -> nn.Module:
        if (heads, width) not in self._layers:
            create = partial(self._layer_class, heads * width, self.max_len, k=self.rank, heads=heads)
            layer = self._layers[heads, width] = make_layer(create, "to_q", "to_k", "to_v")
            layer.to_out = nn.Identity()
        return self._layers[heads, width]


@register("peer_nystromformer", family="low_rank")
class PeerNystromformer(LibraryAttention):
    """transformers' NystromformerSelfAttention without its convolution: softmax through segment means.

    Its inverse is 6 steps of an iteration whose start is divided by the largest column sum of the whole batch, so that
    rows of the batch and heads affect each other: the library's default, and the same in the reference. (Its other
    start, ``inv_coeff_init_option=True``, fails when the layer is created.) N must be a multiple of ``n_landmarks``; if
    they are equal, the library computes exact attention.
    """

    declared = replace(ENCODER, cross=False, mixes_queries=True)

    def __init__(self, *, n_landmarks: int = 64) -> None:
        super().__init__()
        check_at_least_one("peer_nystromformer", n_landmarks=n_landmarks)
        self.n_landmarks = n_landmarks
        name = "transformers.models.nystromformer.modeling_nystromformer"
        model = import_library("peer_nystromformer", "transformers", name)
        self._config_class, self._layer_class = model.NystromformerConfig, model.NystromformerSelfAttention
        self._layers: dict[tuple[int, int], nn.Module] = {}

    @property
    def growth(self) -> Growth:
        return Growth("O(N L), L landmarks", "O(N L): all weights are written to memory", self._cost)

    def _cost(self, n: int, m: int, causal: bool) -> float:
        landmarks, width = self.n_landmarks, self.dims.head_dim or 64
        inverse = INVERSE_STEPS * 4 * landmarks**3 / 2 / width
        return (n + m) * landmarks + inverse + n * landmarks**2 / 2 / width

    def _check_length(self, n: int) -> None:
        if n % self.n_landmarks or n == 0:
            raise UnsupportedError(f"{self.label}: N must be a multiple of {self.n_landmarks}, not {n}")

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        self._check_length(q.shape[2])
        rows, keys, values = widen(q) * q.shape[-1] ** -0.25, widen(k) * q.shape[-1] ** -0.25, widen(v)
        if q.shape[2] == self.n_landmarks:
            return ((rows @ keys.mT).softmax(-1) @ values).to(q.dtype)
        mean_rows, mean_keys = (x.unflatten(2, (self.n_landmarks, -1)).mean(3) for x in (rows, keys))
        factors = (rows, mean_keys), (mean_rows, mean_keys), (mean_rows, keys)
        first, middle, last = ((a @ b.mT).softmax(-1) for a, b in factors)
        inverse = iterate_inverse(middle, middle.mT / middle.sum(-2).max(), INVERSE_STEPS)
        return (first @ inverse @ (last @ values)).to(q.dtype)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        check_value_width(self, q, v)
        batch, heads, n, width = q.shape
        self._check_length(n)
        if q.element_size() < 4:
            raise UnsupportedError(f"{self.label}: the library's inverse cannot multiply {q.dtype}")
        layer = self._get_layer(heads, width)
        setattr(layer, "seq_len", n)  # noqa: B010  (normally from its configuration; not a tensor)
        hidden = q.new_zeros(()).expand(batch, n, heads * width)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # views of the shape that the layer requests
        with fixed_outputs(layer, query=q, key=k, value=v):
            (out,) = layer(hidden)
        return out.unflatten(-1, (heads, width)).transpose(1, 2)

    def _get_layer(self, heads: int, width: int) -> nn.Module:
        if (heads, width) not in self._layers:
            sizes = {"hidden_size": heads * width, "num_attention_heads": heads, "num_landmarks": self.n_landmarks}
            create = partial(self._layer_class, self._config_class(**sizes))
            layer = self._layers[heads, width] = make_layer(create, "query", "key", "value")
            setattr(layer, "conv_kernel_size", None)  # noqa: B010  (no convolution; its configuration requires a number)
        return self._layers[heads, width]
