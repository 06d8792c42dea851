"""Count the work and the memory of a call, operator by operator, without a clock."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ..contract.mask import Mask
from ..contract.mechanism import Attention
from .subject import Subject


class _WorkCounter(TorchDispatchMode):
    """Count the work of operators: multiply-adds as far as torch counts them, plus one for each number written."""

    def __init__(self) -> None:
        super().__init__()
        self.work = 0.0
        self.largest = 0  # bytes of the largest tensor that was created

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports its compiler, which takes longer than the calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        created = [x for x in (out if isinstance(out, tuple | list) else (out,)) if isinstance(x, Tensor)]
        self.work += sum(x.numel() for x in created)
        self.largest = max([self.largest, *(x.untyped_storage().nbytes() for x in created)])
        count_flops = flop_registry.get(func._overloadpacket)
        if count_flops is not None:
            self.work += count_flops(*args, **(kwargs or {}), out_val=out) / 2
        elif "flash_attention_for_cpu" in str(func) and "backward" not in str(func):
            q, k, v = args[:3]
            self.work += q.shape[:-1].numel() * k.shape[-2] * (q.shape[-1] + v.shape[-1])
        return out


class CountedCall(NamedTuple):
    """attn: the called instance. n: the length. work: in multiply-adds. largest: bytes of the largest tensor.
    pair_work: multiply-adds of one query-key pair in each head."""

    attn: Attention
    n: int
    work: float
    largest: int
    input_bytes: int
    pair_work: int


def count_call(subject: Subject, n: int, causal: bool, width: int = 8) -> CountedCall:
    """A call of the preferred backend over n positions, with heads of a width."""
    heads = subject.attn.kv_heads or 1
    shape = subject.shape(n, batch=1, heads=heads, kv_heads=heads, head_dim=width, value_dim=width)
    call = subject.draw(shape, mask=Mask(causal=causal), dtype=torch.float32)
    attn = subject.make(shape, dtype=torch.float32)
    with torch.no_grad(), _WorkCounter() as counter:
        call.run(attn)
    q = call["q"]
    pair_work = q.shape[1] * (q.shape[-1] + call.tensors.get("v", q).shape[-1])
    input_bytes = sum(x.nbytes for x in call.tensors.values())
    return CountedCall(attn, n, counter.work, counter.largest, input_bytes, pair_work)


def growth_exponent(short: float, long: float) -> float:
    """The exponent of the growth of a quantity with these values at one length and at one four times as long."""
    return math.log(max(long, 1e-9) / max(short, 1e-9)) / math.log(4)
