"""The subject of a check: new instances of one mechanism, and calls for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from ..contract.mask import Mask
from ..contract.mechanism import Attention
from ..contract.shapes import Dims, Shape, Values
from ..contract.traits import Traits
from ..errors import UsageError
from ..registry import create
from ..spec import parse
from .tensor_comparison import EPSILONS, assert_close, assert_same

Factory = Callable[[Dims, int, str | None], Attention]  # (dims, seed, backend)
Side = Literal["query", "key"]

MAX_LEN = 320
AFTER = 32  # positions that query_start may go beyond a sequence
HEADS = (4, 6, 8, 16)  # tried in order, for mechanisms whose key-value heads must divide them
SQUARE = (1, 2, 17, 130, 300)  # odd, and across every chunk border of the kernels: 32, 64, 128, 256
CROSS = ((1, 300), (17, 130), (130, 300), (130, 17), (2, 1))
STARTS = (-40, -5, 0, 40, 125, 200)  # query_start for 17 queries over 130 keys: before, on and after the keys
_OFF_FLOAT32 = 1 - 3e-8  # less than float32 resolves relative to 1, far more than the error of float64


@dataclass(frozen=True)
class Call:
    """One call's tensors by name, the side that each belongs to, and the mask. A value: changes give a new call.

    Names are q, k, v (absent if a mechanism takes none) and those of the mechanism's further inputs.
    """

    tensors: Mapping[str, Tensor]
    sides: Mapping[str, Side]
    mask: Mask

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def run(self, attn: Attention) -> Tensor:
        """The mechanism's forward pass."""
        q, k, v, inputs = self._arguments()
        return attn(q, k, v, self.mask, **inputs)

    def step(self, attn: Attention, state: object) -> tuple[Tensor, object]:
        """One decode step with all positions of this call."""
        q, k, v, inputs = self._arguments()
        return attn.step(q, k, v, state, **inputs)

    def _arguments(self) -> tuple[Tensor, Tensor, Values, dict[str, Tensor]]:
        rest = dict(self.tensors)
        return rest.pop("q"), rest.pop("k"), rest.pop("v", None), rest

    def under(self, mask: Mask) -> Call:
        """The same call with another mask."""
        return replace(self, mask=mask)

    def change(self, fn: Callable[[Tensor], Tensor], side: Side | None = None) -> Call:
        """Apply fn to the tensors ``[B, heads, length, ..]`` of one side or both; a tensor used twice stays shared."""
        done = {id(x): fn(x) for name, x in self.tensors.items() if side in (None, self.sides[name])}
        new = {name: done.get(id(x), x) if side in (None, self.sides[name]) else x for name, x in self.tensors.items()}
        if self.tied:
            new["q"] = new["k"] = new["k" if side == "key" else "q"]
        return replace(self, tensors=new)

    def with_(self, **tensors: Tensor) -> Call:
        """The same call with some of its tensors replaced."""
        new = {**self.tensors, **tensors}
        if self.tied and "k" in tensors:
            new["q"] = new["k"]
        elif self.tied and "q" in tensors:
            new["k"] = new["q"]
        return replace(self, tensors=new)

    @property
    def tied(self) -> bool:
        """Whether the mechanism's own sampler uses one tensor as both queries and keys."""
        return self.tensors["q"] is self.tensors["k"]

    def queries(self, rows: slice) -> Call:
        """Some of the queries only; the mask stays."""
        return self.change(lambda x: x[:, :, rows], "query")

    def keys(self, columns: slice | Tensor) -> Call:
        """Some of the keys only; the mask stays."""
        return self.change(lambda x: x[:, :, columns], "key")

    def both(self, positions: slice) -> Call:
        """The same positions of queries and keys."""
        return self.change(lambda x: x[:, :, positions])

    def leaves(self) -> Call:
        """The same values as new tensors that require a gradient."""
        return self.change(lambda x: x.detach().clone().requires_grad_())

    def gradients(
        self, attn: Attention, rows: slice = slice(None), *, weight: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The output, and the gradient of a weighted sum over some of its rows for each tensor and parameter.

        The weights are fixed unless given.
        """
        call = self.leaves()
        out = call.run(attn)
        if weight is None:
            generator = torch.Generator().manual_seed(1)
            weight = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)
        sources = {**call.tensors, **{name: p for name, p in attn.named_parameters() if p.requires_grad}}
        grads = torch.autograd.grad((out * weight)[:, :, rows].sum(), list(sources.values()), allow_unused=True)
        zeroed = [torch.zeros_like(x) if g is None else g for g, x in zip(grads, sources.values(), strict=True)]
        return out.detach(), dict(zip(sources, zeroed, strict=True))


@dataclass(frozen=True)
class Subject:
    """One mechanism under test, from its spec or from a factory ``(dims, seed, backend) -> Attention``."""

    source: str | Factory
    backend: str | None = None
    device: str = "cpu"
    dtype: torch.dtype = torch.float64  # of all calls except those of checks of dtypes
    seed: int = 0  # of random sizes and cuts
    others: tuple[Subject, ...] | None = None  # the same mechanism with other options; derived automatically for specs

    @property
    def label(self) -> str:
        """Its name in messages."""
        return self.source if isinstance(self.source, str) else getattr(self.source, "__name__", repr(self.source))

    @cached_property
    def attn(self) -> Attention:
        """An instance to query its traits; checks run on new ones."""
        for heads in HEADS[:-1]:
            with suppress(UsageError):
                return self.new(Dims(heads=heads, head_dim=8, value_dim=8, max_len=MAX_LEN))
        return self.new(Dims(heads=HEADS[-1], head_dim=8, value_dim=8, max_len=MAX_LEN))

    @cached_property
    def heads(self) -> int:
        """Query heads of its calls."""
        return self.attn.dims.heads or HEADS[0]

    @cached_property
    def traits(self) -> Traits:
        """The traits that the mechanism declares."""
        return self.attn.traits

    @property
    def causalities(self) -> tuple[bool, ...]:
        """The values of causal that the mechanism supports."""
        return self.traits.directions

    @cached_property
    def fast_backends(self) -> tuple[str, ...]:
        """The tested backends other than the reference."""
        able = [b for b in self.attn.backends if b != "dense" and self.attn.why_not(b) is None]
        here = torch.device(self.device).type
        return tuple(b for b in able if self.backend in (None, b) and self.attn.only_on.get(b, here) == here)

    def backends_for(self, dtype: torch.dtype) -> tuple[str, ...]:
        """Those of the tested backends that support a dtype."""
        return tuple(b for b in self.fast_backends if dtype in self.attn.only_dtypes.get(b, (dtype,)))

    def shape(
        self,
        n: int,
        m: int | None = None,
        *,
        batch: int = 2,
        heads: int | None = None,
        kv_heads: int | None = None,
        head_dim: int = 8,
        value_dim: int = 8,
    ) -> Shape:
        """Sizes that this mechanism accepts: M is N, and Hkv the required number, unless given."""
        heads = heads or self.heads
        kv_heads = self.attn.kv_heads or kv_heads or heads
        return Shape(batch, heads, kv_heads, n, n if m is None else m, head_dim, value_dim)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Lengths (N, M) worth trying."""
        return [(n, n) for n in SQUARE] + list(CROSS if self.traits.cross else ())

    def assert_alike(self, got: Tensor, want: Tensor, label: str) -> None:
        """Bit for bit the same, or as close as a mechanism comes that does not repeat its bits."""
        (assert_same if self.traits.deterministic else assert_close)(got, want, label)

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The dtypes to test: all that the tested backend supports, or the requested one."""
        tried = (*EPSILONS,) if self.dtype == torch.float64 else (self.dtype,)
        return tuple(dtype for dtype in tried if self.attn.why_not_dtype(dtype) is None)

    def make(
        self, shape: Shape, *, seed: int = 0, backend: str | None = None, dtype: torch.dtype | None = None
    ) -> Attention:
        """A fresh instance for tensors of this shape."""
        dims = Dims(
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            value_dim=shape.value_dim,
            max_len=max(MAX_LEN, shape.n + AFTER, shape.m + AFTER),
        )
        return self.new(dims, seed, backend).to(device=self.device, dtype=dtype or self.dtype)

    def oracle(self, shape: Shape, *, seed: int = 0, dtype: torch.dtype | None = None) -> Attention:
        """The same instance as `make` creates, running its reference."""
        attn = self.make(shape, seed=seed, dtype=dtype)
        attn.backend = "dense"
        return attn

    def truth(self, shape: Shape, dtype: torch.dtype) -> Attention:
        """The reference in float64, with parameters rounded to a dtype like those of the tested instance."""
        return self.oracle(shape, dtype=dtype).to(torch.float64)

    def new(self, dims: Dims, seed: int = 0, backend: str | None = None) -> Attention:
        """A new instance for these dims, from the registry or the factory."""
        backend = backend or self.backend
        if isinstance(self.source, str):
            spec_backend = parse(self.source).backend  # a backend inside the spec is used, and may not be given twice
            return create(self.source, dims=dims, seed=seed, backend=None if spec_backend else backend)
        attn = self.source(dims, seed, backend)
        if attn.dims == Dims():
            attn.dims = dims
        if backend is not None:
            attn.backend = backend
        return attn

    def draw(self, shape: Shape, *, mask: Mask | None = None, seed: int = 0, dtype: torch.dtype | None = None) -> Call:
        """Inputs from the mechanism's own sampler, with the simplest mask that it supports unless one is given."""
        dtype = dtype or self.dtype
        generator = torch.Generator().manual_seed(seed + 17)
        sample = self.make(shape, dtype=dtype).sample(shape, generator=generator, dtype=dtype, device=self.device)
        named = {"q": sample.q, "k": sample.k, "v": sample.v, **sample.inputs}
        sides: dict[str, Side] = {"q": "query", "k": "key", "v": "key"}
        sides |= {name: i.side for name, i in self.traits.inputs.items()}
        plain = Mask(causal=not self.traits.bidirectional)
        call = Call({n: x for n, x in named.items() if x is not None}, sides, plain if mask is None else mask)
        # samplers draw in float32: without this a mechanism that rounds its inputs to float32 would not be seen
        return call.change(lambda x: x * _OFF_FLOAT32) if dtype == torch.float64 else call

    def mask(self, **fields: object) -> Mask:
        """The simplest mask that the mechanism supports, with these fields."""
        return Mask(**{"causal": not self.traits.bidirectional, **fields})  # pyright: ignore[reportArgumentType]

    def lengths(self, *values: int) -> Tensor:
        """Lengths as an integer tensor on the mechanism's device."""
        return torch.tensor(values, device=self.device)

    def holes(self, shape: Shape) -> Tensor:
        """A key mask ``[B, M]``: left padding in the first row of the batch, scattered holes in the others."""
        j = torch.arange(shape.m, device=self.device)
        rows = [j >= shape.m // 3] + [(j * 7 + b) % 5 != 0 for b in range(1, shape.batch)]
        return torch.stack(rows)

    def masks(self, shape: Shape) -> Iterator[Mask]:
        """Every kind of mask that the mechanism supports at these lengths; ragged lengths differ in each row."""
        m = shape.m
        ragged = self.lengths(*(max(m - 5 * b * m // 7 - 1, 0) for b in range(shape.batch)))
        for causal in self.causalities:
            yield Mask(causal=causal)
            if self.traits.padding:
                yield Mask(causal=causal, key_lengths=ragged)
                yield Mask(causal=causal, key_lengths=ragged, key_mask=self.holes(shape))
