"""Communication between the ranks of a process group: differentiable, and counted in bytes.

Every tensor that leaves a rank is sent by a function of this module, so that `count_sent` sees all of them. The
backward pass of each function communicates as well: all ranks must run the same calls in the same order, forward and
backward, as with any collective of `torch.distributed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import UsageError


class Ranks(NamedTuple):
    """A process group, the number of this process in it, and the number of processes."""

    group: dist.ProcessGroup
    rank: int
    size: int


def get_ranks(group: dist.ProcessGroup | None = None) -> Ranks:
    """The ranks of a group, by default of all processes. Raises `UsageError` without a process group."""
    if not (dist.is_available() and dist.is_initialized()):
        raise UsageError("context parallelism needs a process group: call torch.distributed.init_process_group first")
    group = dist.group.WORLD if group is None else group
    assert group is not None
    if dist.get_rank(group) < 0:
        raise UsageError("this process is not in the process group of the call")
    return Ranks(group, dist.get_rank(group), dist.get_world_size(group))


@dataclass
class Traffic:
    """The bytes that this rank has sent to other ranks."""

    sent: int = 0


_counters: list[Traffic] = []


@contextmanager
def count_sent() -> Iterator[Traffic]:
    """Count the bytes that this rank sends to others in the block, in forward and backward passes."""
    traffic = Traffic()
    _counters.append(traffic)
    try:
        yield traffic
    finally:
        _counters.remove(traffic)


def _count(n_bytes: int) -> None:
    for traffic in _counters:
        traffic.sent += n_bytes


class Transfer(NamedTuple):
    """Sends and receives under way. sent: must exist until they have left."""

    works: Sequence[Any]
    sent: tuple[Tensor, ...]
    received: tuple[Tensor, ...]

    def wait(self) -> tuple[Tensor, ...]:
        """What has arrived."""
        for work in self.works:
            work.wait()
        return self.received


def start_transfer(
    sends: Sequence[tuple[Tensor, int]], receives: Sequence[tuple[Tensor, int]], ranks: Ranks
) -> Transfer:
    """Send tensors to ranks, and receive from ranks into contiguous tensors, without waiting for them."""
    sent = tuple(x.contiguous() for x, _ in sends)
    operations = [
        dist.P2POp(operation, x, group=ranks.group, group_peer=peer)
        for operation, tensors, peers in (
            (dist.isend, sent, [peer for _, peer in sends]),
            (dist.irecv, [x for x, _ in receives], [peer for _, peer in receives]),
        )
        for x, peer in zip(tensors, peers, strict=True)
    ]
    _count(sum(x.nbytes for x in sent))
    works = dist.batch_isend_irecv(operations) if operations else []
    return Transfer(works, sent, tuple(x for x, _ in receives))


def start_shift(tensors: Sequence[Tensor], ranks: Ranks) -> Transfer:
    """Send tensors to the next rank of the ring, and receive those of the previous one, of the same shapes."""
    following, previous = (ranks.rank + 1) % ranks.size, (ranks.rank - 1) % ranks.size
    buffers = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in tensors]
    return start_transfer([(x, following) for x in tensors], [(x, previous) for x in buffers], ranks)


def exchange_parts(x: Tensor, ranks: Ranks) -> Tensor:
    """``[W, ...]``: part r goes to rank r, which gets one from every rank. Differentiable."""
    return x if ranks.size == 1 else _ExchangeFunction.apply(x, ranks)


def gather_parts(x: Tensor, ranks: Ranks) -> Tensor:
    """``[W, ...]``: the tensors of all ranks, of equal shapes. Differentiable: gradients of all ranks are added."""
    return x[None] if ranks.size == 1 else _GatherFunction.apply(x, ranks)


def _all_to_all(x: Tensor, ranks: Ranks) -> Tensor:
    _count(x.nbytes // ranks.size * (ranks.size - 1))  # a rank's part for itself stays
    received = torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.all_to_all_single(received, x.contiguous(), group=ranks.group)
    return received


def _gather(x: Tensor, ranks: Ranks) -> Tensor:
    _count(x.nbytes * (ranks.size - 1))
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(ranks.size)]
    dist.all_gather(parts, x.contiguous(), group=ranks.group)
    return torch.stack(parts)


class _ExchangeFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return _all_to_all(x, ranks)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _ExchangeFunction.apply(grads[0], ctx.ranks), None


class _GatherFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return _gather(x, ranks)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return exchange_parts(grads[0], ctx.ranks).sum(0), None


def check_agreement(ranks: Ranks, device: torch.device, **facts: int) -> None:
    """Raise `UsageError` on all ranks unless their facts are equal: calls that differ would wait for each other
    forever. Not on GPUs, which would be synchronized."""
    if ranks.size == 1 or device.type != "cpu":
        return
    values = _gather(torch.tensor(list(facts.values())), ranks)
    for other, row in enumerate(values.tolist()):
        for name, value, reference in zip(facts, row, values[0].tolist(), strict=True):
            if value != reference:
                raise UsageError(
                    f"the ranks' calls differ: {name} is {reference} on rank 0 and {value} on rank {other}"
                )
