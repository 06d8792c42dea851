"""Declared growth, compared with work and memory measured at two lengths."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ...contract.mask import Mask
from ..check import CheckFailure, check
from ..subject import Subject

SHORT, LONG = 1280, 5120  # longer than sequences for which mechanisms prefer fewer calls to less work
FAR = (8192, 32768)  # lengths at which a constant part of the cost no longer hides its growth
MAX_WORK = 4.0  # times the published cost, from which on its growth is compared
MAX_UNDERSTATED_WORK = 256.0  # times the published cost; tiles and blocks that exceed a pattern take up to 60 times
MAX_MEMORY = 16  # times the inputs: smaller tensors may be buffers of a fixed size
SLACK = 0.35  # of an exponent: lower-order terms matter for short sequences, and logarithms add a little


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


class _MeasuredCall(NamedTuple):
    work: float
    largest: int  # bytes of the largest tensor
    input_bytes: int
    declared_cost: float  # in query-key pairs
    declared_work: float  # in multiply-adds


def _measure(subject: Subject, n: int, causal: bool) -> _MeasuredCall:
    heads = subject.attn.kv_heads or 1
    shape = subject.shape(n, batch=1, heads=heads, kv_heads=heads)
    call = subject.draw(shape, mask=Mask(causal=causal), dtype=torch.float32)
    attn = subject.make(shape, dtype=torch.float32)
    with torch.no_grad(), _WorkCounter() as counter:
        call.run(attn)
    q, cost = call["q"], attn.growth.cost(n, n, causal)
    multiply_adds = q.shape[1] * (q.shape[-1] + call.tensors.get("v", q).shape[-1])  # of one pair in each head
    input_bytes = sum(x.nbytes for x in call.tensors.values())
    return _MeasuredCall(counter.work, counter.largest, input_bytes, cost, multiply_adds * cost)


def growth_exponent(short: float, long: float) -> float:
    """The exponent of the growth of a quantity with these values at one length and at one four times as long."""
    return math.log(max(long, 1e-9) / max(short, 1e-9)) / math.log(LONG / SHORT)


def _highest_power(formula: str) -> float | None:
    """The power of N in a formula such as ``O(N^1.5)``, ``O(N log N)`` or ``O(1)``; None if it has other variables."""
    inside = re.fullmatch(r"O\((.*)\)", formula)
    if not inside or set(re.findall(r"[A-Za-z]+", inside[1])) - {"N", "log", "sqrt"}:
        return None
    plain = re.sub(r"log N|log\(N\)", "", inside[1])
    whole = [float(power or 1) for power in re.findall(r"(?<!sqrt\()N(?:\^([\d.]+))?", plain)]
    return sum(whole) + 0.5 * plain.count("sqrt(N)")


def _not_countable(subject: Subject) -> str | None:
    if subject.attn.compiles:  # a first call under a dispatch mode disables compilation for the rest of the process
        return "its calls are compiled, so that their operations cannot be counted"
    return "it runs its reference, whose cost is not limited" if subject.attn.backend == "dense" else None


@check(skip_reason=_not_countable)
def growth_is_measured(subject: Subject) -> str | None:
    """Work and memory of a call grow no faster between two lengths than the declared cost and formulas, and the work is
    of the declared order of magnitude."""
    growth, unread = subject.attn.growth, []
    time, memory = _highest_power(growth.time), _highest_power(growth.memory)
    for causal in subject.causalities:
        short, long = (_measure(subject, n, causal) for n in (SHORT, LONG))
        cost = growth_exponent(short.declared_cost, long.declared_cost)
        far_cost = growth_exponent(*(growth.cost(n, n, causal) for n in FAR))  # beyond the length of every window
        # outputs grow with N in any case, even if the largest tensor is a buffer of a fixed size
        largest = max(growth_exponent(short.largest, long.largest), 1.0)
        if long.work > MAX_UNDERSTATED_WORK * long.declared_work:
            raise CheckFailure(
                f"at N={LONG}, causal={causal}, a call takes {long.work / long.declared_work:.0f} times the work of "
                f"growth.cost, {long.declared_cost:.3g} query-key pairs: correct it"
            )
        # a cost that overestimates the work of short sequences may grow more slowly than the work
        exceeds_cost = long.work > MAX_WORK * long.declared_work
        exceeds_buffers = long.largest > MAX_MEMORY * long.input_bytes or memory == 0
        for quantity, measured, name, declared, formula, matters in (
            ("work", growth_exponent(short.work, long.work), "growth.cost", cost, f"N^{cost:.2f}", exceeds_cost),
            ("growth.cost", far_cost, "growth.time", time, repr(growth.time), True),
            ("the largest tensor", largest, "growth.memory", memory, repr(growth.memory), exceeds_buffers),
        ):
            if declared is None:
                unread.append(f"{name} is {formula}, which has other variables than N")
            elif matters and measured > declared + SLACK:
                raise CheckFailure(
                    f"between N={SHORT} and N={LONG}, causal={causal}, {quantity} grows as N^{measured:.2f}, "
                    f"{name} declares {formula}: correct it"
                )
    return "; ".join(dict.fromkeys(unread)) or None
