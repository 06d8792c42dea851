"""The subject of a check: one mechanism, of which checks create instances, for which they draw calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from ..contract.mask import Mask
from ..contract.mechanism import Attention
from ..contract.shapes import Dims, Shape
from ..contract.traits import Traits
from ..errors import UsageError
from ..registry import create
from ..spec import parse
from .covering_design import Case
from .mechanism_call import Call, Run, Side
from .tensor_comparison import TOLERANCES, assert_close, assert_same

Factory = Callable[[Dims, int, str | None], Attention]  # (dims, seed, backend)

MAX_LEN = 320
AFTER = 32  # positions that query_start may go beyond a sequence
HEADS = (4, 6, 8, 16)  # tried in order, for mechanisms whose key-value heads must divide them
SQUARE = (1, 2, 17, 130, 300)  # N = M: odd lengths, and beyond every chunk size of the kernels: 32, 64, 128, 256
CROSS = ((1, 300), (17, 130), (130, 300), (130, 17), (2, 1))
_NOT_FLOAT32 = 1 - 3e-8  # makes float32 numbers ones that only float64 can represent


@dataclass(frozen=True)
class Subject:
    """One mechanism under test, from its spec or from a factory ``(dims, seed, backend) -> Attention``."""

    source: str | Factory
    backend: str | None = None
    device: str = "cpu"
    dtype: torch.dtype = torch.float64  # of all calls, except in checks of dtypes
    seed: int = 0  # of random sizes, splits and inputs
    thorough: bool = False  # whether checks of drawn calls test all of them instead of a part
    met: list[Case] = field(default_factory=list, compare=False, repr=False)  # drawn calls that were compared
    others: tuple[Subject, ...] | None = None  # the same mechanism with other options; derived automatically for specs

    @property
    def label(self) -> str:
        """Its name in messages."""
        return self.source if isinstance(self.source, str) else getattr(self.source, "__name__", repr(self.source))

    @cached_property
    def attn(self) -> Attention:
        """An instance from which traits are read; checks create new ones."""
        for heads in HEADS[:-1]:
            with suppress(UsageError):
                return self.new(Dims(heads=heads, head_dim=8, value_dim=8, max_len=MAX_LEN))
        return self.new(Dims(heads=HEADS[-1], head_dim=8, value_dim=8, max_len=MAX_LEN))

    @cached_property
    def heads(self) -> int:
        """The number of query heads in calls."""
        return self.attn.dims.heads or HEADS[0]

    @cached_property
    def traits(self) -> Traits:
        """The traits that the mechanism declares."""
        return self.attn.traits

    @property
    def causalities(self) -> tuple[bool, ...]:
        """The values of causal that the mechanism supports."""
        return self.traits.directions

    @property
    def plain_masks(self) -> list[Mask]:
        """The masks that the mechanism supports without padding."""
        return [Mask(causal=causal) for causal in self.traits.directions]

    @property
    def kv_head_counts(self) -> list[int]:
        """Numbers of key-value heads to test: that of query heads, and 2 if fewer are supported."""
        return [self.heads, 2] if self.traits.grouped else [self.heads]

    @cached_property
    def fast_backends(self) -> tuple[str, ...]:
        """The tested backends other than the reference; those with fewer traits are tested where requested."""
        device, limited = torch.device(self.device).type, self.attn.limited
        chosen = [b for b in self.attn.backends if b != "dense" and self.backend in (None, b)]
        chosen = [b for b in chosen if b == self.backend or b not in limited]
        return tuple(b for b in chosen if self.attn.why_not(b) is None and self.attn.only_on.get(b, device) == device)

    def backends_for(self, dtype: torch.dtype) -> tuple[str, ...]:
        """The tested backends that support a dtype."""
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
        """A shape that the mechanism supports. Defaults: M = N, and Hkv = H or the number that it requires."""
        heads = heads or self.heads
        kv_heads = self.attn.kv_heads or kv_heads or heads
        return Shape(batch, heads, kv_heads, n, n if m is None else m, head_dim, value_dim)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Lengths (N, M) to test."""
        return [(n, n) for n in SQUARE] + list(CROSS if self.traits.cross else ())

    def assert_alike(self, got: Tensor, want: Tensor, label: str) -> None:
        """Assert that results are equal bit for bit, or close if the mechanism is not deterministic."""
        (assert_same if self.traits.deterministic else assert_close)(got, want, label)

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The dtypes to test: all that the tested backend supports, or the requested one."""
        dtypes = tuple(TOLERANCES) if self.dtype == torch.float64 else (self.dtype,)
        return tuple(dtype for dtype in dtypes if self.attn.why_not_dtype(dtype) is None)

    def make(
        self, shape: Shape, *, seed: int = 0, backend: str | None = None, dtype: torch.dtype | None = None
    ) -> Attention:
        """Create an instance for tensors of this shape."""
        sizes = {name: getattr(shape, name) for name in ("heads", "kv_heads", "head_dim", "value_dim")}
        dims = Dims(**sizes, max_len=max(MAX_LEN, shape.n + AFTER, shape.m + AFTER))
        return self.new(dims, seed, backend).to(device=self.device, dtype=dtype or self.dtype)

    def oracle(self, shape: Shape, *, seed: int = 0, dtype: torch.dtype | None = None) -> Attention:
        """Create the same instance as `make`, with the reference backend."""
        attn = self.make(shape, seed=seed, dtype=dtype)
        attn.backend = "dense"
        return attn

    def truth(self, shape: Shape, dtype: torch.dtype) -> Attention:
        """Create the reference in float64, with parameters rounded to the dtype of the tested instance."""
        return self.oracle(shape, dtype=dtype).to(torch.float64)

    def new(self, dims: Dims, seed: int = 0, backend: str | None = None) -> Attention:
        """Create an instance for these dims, with the registry or the factory."""
        backend = backend or self.backend
        if isinstance(self.source, str):
            spec_backend = parse(self.source).backend  # if the spec has one, `create` refuses another
            return create(self.source, dims=dims, seed=seed, backend=None if spec_backend else backend)
        attn = self.source(dims, seed, backend)
        if attn.dims == Dims():
            attn.dims = dims
        if backend is not None:
            attn.backend = backend
        return attn

    def draw(self, shape: Shape, *, mask: Mask | None = None, seed: int = 0, dtype: torch.dtype | None = None) -> Call:
        """Draw inputs with the mechanism's own sampler. mask: by default the simplest that the mechanism supports."""
        dtype = dtype or self.dtype
        generator = torch.Generator().manual_seed(seed + 17 + 1000 * self.seed)
        sample = self.make(shape, dtype=dtype).sample(shape, generator=generator, dtype=dtype, device=self.device)
        named = {"q": sample.q, "k": sample.k, "v": sample.v, **sample.inputs}
        sides: dict[str, Side] = {"q": "query", "k": "key", "v": "key"}
        sides |= {name: i.side for name, i in self.traits.inputs.items()}
        call = Call({n: x for n, x in named.items() if x is not None}, sides, self.mask() if mask is None else mask)
        # samplers draw in float32: otherwise checks could not detect that a mechanism rounds its inputs to float32
        return call.change(lambda x: x * _NOT_FLOAT32) if dtype == torch.float64 else call

    def prepare(
        self, n: int, m: int | None = None, *, mask: Mask | None = None, dtype: torch.dtype | None = None, **sizes: int
    ) -> tuple[Attention, Call]:
        """Create an instance and draw its inputs. n, m, sizes: see `shape`. mask, dtype: see `draw`."""
        shape = self.shape(n, m, **sizes)
        return self.make(shape, dtype=dtype), self.draw(shape, mask=mask, dtype=dtype)

    def evaluate(
        self, call: Call, attn: Attention, *, gradients: bool = True, run: Run = Call.run, incoming: float = 1.0
    ) -> dict[str, Tensor]:
        """The output of a call, and its gradients if the mechanism has any, by name. run, incoming: see
        `Call.gradients`."""
        if not (gradients and self.traits.gradient):
            return {"output": run(call, attn)}
        out, grads = call.gradients(attn, run=run, incoming=incoming)
        return {"output": out, **{f"gradient by {name}": grad for name, grad in grads.items()}}

    def mask(self, **fields: object) -> Mask:
        """The simplest mask that the mechanism supports, with these fields."""
        return Mask(**{"causal": not self.traits.bidirectional, **fields})  # pyright: ignore[reportArgumentType]

    def lengths(self, *values: int) -> Tensor:
        """An integer tensor on the tested device."""
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

    def under_masks(self, call: Call) -> Iterator[Call]:
        """The call under every kind of mask that the mechanism supports."""
        (batch, _, n, _), m = call["q"].shape, call["k"].shape[2]
        return map(call.under, self.masks(self.shape(n, m, batch=batch)))
