"""One call of attention over the ranks of a group, and the same call in one process."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.distributed import (
    ContextParallel,
    Ranks,
    count_sent,
    get_ranks,
    join_sequence,
    list_positions,
    ring_attention,
    split_sequence,
)
from efficient_attn.distributed.sequence_parts import Order
from efficient_attn.kernels.dense import softmax_attention

WRITTEN = Path("/proc/self/io")  # Linux counts what a process writes, to sockets as well


@dataclass(frozen=True)
class RankCase:
    """length: of the whole sequence; cross: that of the keys, if it differs. padding: ``left``, ``right``, ``both``,
    ``holes``, ``first`` (all keys of the first rank), or ``lengths``, which are given as lengths. strided: tensors as
    projections leave them."""

    scheme: str
    spec: str
    world: int
    causal: bool = True
    padding: str = ""
    batch: int = 2
    heads: int = 6
    kv_heads: int = 2
    length: int = 24
    cross: int = 0
    head_dim: int = 16
    value_dim: int = 0
    dtype: torch.dtype = torch.float32
    strided: bool = False
    max_len: int | None = None
    seed: int = 0

    def __str__(self) -> str:
        values = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return ",".join(f"{name}={value}" for name, value in values.items())

    @property
    def shape(self) -> ea.Shape:
        keys, value_dim = self.cross or self.length, self.value_dim or self.head_dim
        return ea.Shape(self.batch, self.heads, self.kv_heads, self.length, keys, self.head_dim, value_dim)

    @property
    def local_shape(self) -> ea.Shape:
        return replace(self.shape, n=self.shape.n // self.world, m=self.shape.m // self.world)

    def create(self) -> ea.Attention:
        s, max_len = self.shape, self.max_len or self.shape.m
        dims = ea.Dims(heads=s.heads, kv_heads=s.kv_heads, head_dim=s.head_dim, value_dim=s.value_dim, max_len=max_len)
        return ea.create(self.spec, dims=dims)

    def make_parallel(self, group: Any = None) -> ContextParallel:
        return ContextParallel(self.scheme, group)  # pyright: ignore[reportArgumentType]

    def select(self, x: Tensor, rank: int, dim: int = 2) -> Tensor:
        """A rank's part of a tensor."""
        ranks = Ranks(None, rank, self.world)  # pyright: ignore[reportArgumentType]
        order = self.make_parallel().order(self.causal)
        return x.index_select(dim, list_positions(x.shape[dim] // self.world, ranks, order))

    def draw(self) -> dict[str, Tensor]:
        """q, k, v and further inputs of the whole call, and the gradient of its output."""
        generator = torch.Generator().manual_seed(self.seed)
        q, k, v, inputs = self.create().sample(self.shape, generator=generator, dtype=self.dtype)
        assert v is not None
        grad = torch.randn(*q.shape[:3], v.shape[3], generator=generator).to(self.dtype)
        return {"q": q, "k": k, "v": v, **inputs, "grad": grad}

    def make_valid(self) -> Tensor | None:
        """``[B, M]``, the valid keys; rows of the batch differ."""
        m = self.shape.m
        j, size = torch.arange(m), torch.arange(self.batch)[:, None] * (m // 3) + 3
        return {
            "": None,
            "left": j >= size,
            "right": j < m - size,
            "lengths": j < m - size,
            "both": (j >= size) & (j < m - 2),
            "first": (j >= m // max(self.world, 2)).expand(self.batch, m),
            "holes": torch.rand(self.batch, m, generator=torch.Generator().manual_seed(1)) < 0.5,
        }[self.padding]

    def make_mask(self, rank: int | None = None) -> ea.Mask:
        """The mask of the whole call, or of a rank's part."""
        valid = self.make_valid()
        if valid is None:
            return ea.Mask(self.causal)
        if self.padding == "lengths":
            return ea.Mask(self.causal, valid.sum(1))
        return ea.Mask(self.causal, key_mask=valid if rank is None else self.select(valid, rank, 1))


def run_alone(case: RankCase) -> dict[str, Tensor]:
    """Output and gradients of the whole call in this process."""
    tensors = case.draw()
    grad = tensors.pop("grad")
    leaves = {name: x.requires_grad_() for name, x in tensors.items()}
    out = case.create()(**leaves, mask=case.make_mask())
    out.backward(grad)
    return {"out": out.detach(), **collect_gradients(leaves)}


def run_on_rank(group: Any, case: RankCase) -> dict[str, Any]:
    """Output and gradients of this rank's part, in a second call of the mechanism, the bytes that it sent forward
    (``sent``) and in all (``sent_training``), and those that the process wrote in all (``written``)."""
    rank, parallel, attn = get_ranks(group).rank, case.make_parallel(group), case.create()
    parts = {name: case.select(x, rank) for name, x in case.draw().items()}
    if case.strided:
        parts = {name: x.transpose(1, 2).contiguous().transpose(1, 2) for name, x in parts.items()}
    mask, grad = case.make_mask(rank), parts.pop("grad")
    parallel.attend(attn, **{name: x.flip(2) for name, x in parts.items()}, mask=mask)
    leaves = {name: x.requires_grad_() for name, x in parts.items()}
    written = count_written()
    with count_sent() as traffic:
        out = parallel.attend(attn, **leaves, mask=mask)
        sent = traffic.sent
        out.backward(grad)
    bytes_by_name = {"sent": sent, "sent_training": traffic.sent, "written": count_written() - written}
    return {"out": out.detach(), **collect_gradients(leaves), **bytes_by_name}


def collect_gradients(leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.grad for name, x in leaves.items() if x.grad is not None}


def count_written() -> int:
    """The bytes that this process has written."""
    fields = dict(line.split(": ") for line in WRITTEN.read_text().splitlines())
    return int(fields["wchar"])


def join_parts(case: RankCase, parts: list[Tensor]) -> Tensor:
    """The whole tensor."""
    whole = torch.cat(parts, 2)
    positions = torch.cat([case.select(torch.arange(whole.shape[2]), rank, 0) for rank in range(case.world)])
    return whole.index_select(2, positions.argsort())


def find_differences(case: RankCase, parts: list[Any]) -> dict[str, float]:
    """The largest difference of output and gradients from one process, relative to the largest number or to 1."""
    assert not [part for part in parts if isinstance(part, str)], parts  # the text of an exception
    alone = run_alone(case)
    assert alone.keys() <= parts[0].keys()
    joined = {name: join_parts(case, [part[name] for part in parts]) for name in alone}
    assert all(bool(x.isfinite().all()) for x in joined.values())  # `max` ignores NaN
    return {
        name: float((joined[name].double() - x.double()).abs().max() / x.abs().max().clamp(min=1))
        for name, x in alone.items()
    }


def split_and_join(group: Any, whole: Tensor, order: Order) -> Tensor:
    """A tensor that was split and joined again."""
    return join_sequence(split_sequence(whole, order=order, group=group), order=order, group=group)


def run_contiguous_ring(group: Any, causal: bool) -> float:
    """The difference of a ring in contiguous order with a scale of its own from dense attention."""
    ranks, generator = get_ranks(group), torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 5 * ranks.size, 8, generator=generator) for _ in range(3))
    allowed = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool)
    expected = softmax_attention(q, k, v, allowed.tril() if causal else allowed, scale=0.7)
    part = list_positions(5, ranks)
    q, k, v = (x[:, :, part] for x in (q, k, v))
    out = ring_attention(q, k, v, causal=causal, scale=0.7, group=group)
    return float((out - expected[:, :, part]).abs().max())


def differentiate_twice(group: Any, scheme: str) -> tuple[bool, str]:
    """Whether two backward passes of one graph give equal gradients, and the message of a second derivative."""
    attn = ea.create("full" if scheme == "ring" else "sliding_window:window=3")
    q, k, v = (torch.randn(1, 2, 4, 8).requires_grad_() for _ in range(3))
    out = ContextParallel(scheme, group).attend(attn, q, k, v, ea.Mask(True))  # pyright: ignore[reportArgumentType]
    first, second = (torch.autograd.grad(out.sum(), (q, k, v), retain_graph=True) for _ in range(2))
    equal = all(torch.equal(x, y) for x, y in zip(first, second, strict=True))
    grads = torch.autograd.grad(out.square().sum(), [q, k, v], create_graph=True)
    try:
        torch.autograd.grad(torch.stack([g.square().sum() for g in grads]).sum(), q)
    except ea.UnsupportedError as error:
        return equal, str(error)
    return equal, ""
