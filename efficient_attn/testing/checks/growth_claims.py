"""Declared growth: work and memory measured at two lengths, compared with the published growth."""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ...contract.mask import Mask
from ...contract.mechanism import Attention
from ..check import CheckFailure, check
from ..subject import Call, Subject

SHORT, LONG = 1280, 5120  # both beyond where a mechanism may rather do more work in one call
FAR = (8192, 32768)  # where a constant part no longer hides the growth
AMPLE = 4.0  # times the published cost
PLENTY = 16  # times the inputs: smaller values may be a buffer of a fixed size
SLACK = 0.35  # of an exponent: slower terms matter for short sequences, and a logarithm adds a little


class _Work(TorchDispatchMode):
    """Counts the work of operators: multiply-adds where torch knows them, plus one for each number written."""

    def __init__(self) -> None:
        super().__init__()
        self.done = 0.0
        self.largest = 0  # bytes of the largest tensor created

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler, which takes longer than everything counted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = [x for x in (out if isinstance(out, tuple | list) else (out,)) if isinstance(x, Tensor)]
        self.done += sum(x.numel() for x in made)
        self.largest = max([self.largest, *(x.untyped_storage().nbytes() for x in made)])
        count_flops = flop_registry.get(func._overloadpacket)
        if count_flops is not None:
            self.done += count_flops(*args, **(kwargs or {}), out_val=out) / 2
        elif "flash_attention_for_cpu" in str(func) and "backward" not in str(func):
            q, k, v = args[:3]
            self.done += q.shape[:-1].numel() * k.shape[-2] * (q.shape[-1] + v.shape[-1])
        return out


def _calls(subject: Subject, causal: bool) -> list[tuple[int, Call, Attention]]:
    heads = subject.attn.kv_heads or 1
    calls = []
    for n in (SHORT, LONG):
        shape = subject.shape(n, batch=1, heads=heads, kv_heads=heads)
        call = subject.draw(shape, mask=Mask(causal=causal), dtype=torch.float32)
        calls.append((n, call, subject.make(shape, dtype=torch.float32)))
    return calls


def _published(measured_call: tuple[int, Call, Attention], causal: bool) -> float:
    """The published cost of a call in multiply-adds."""
    n, call, attn = measured_call
    pair = call["q"].shape[-1] + call.tensors.get("v", call["q"]).shape[-1]
    return call["q"].shape[1] * pair * attn.growth.cost(n, n, causal)


def grows(short: float, long: float) -> float:
    """The exponent of a quantity with these values at one length and at another four times as long."""
    return math.log(max(long, 1e-9) / max(short, 1e-9)) / math.log(LONG / SHORT)


def _highest_power(formula: str) -> float | None:
    """The power of N in formulas such as ``O(N^1.5)``, ``O(N log N)`` or ``O(1)``; None if other letters determine
    it."""
    inside = re.fullmatch(r"O\((.*)\)", formula)
    if not inside or set(re.findall(r"[A-Za-z]+", inside[1])) - {"N", "log", "sqrt"}:
        return None
    plain = re.sub(r"log N|log\(N\)", "", inside[1])
    whole = [float(power or 1) for power in re.findall(r"(?<!sqrt\()N(?:\^([\d.]+))?", plain)]
    return sum(whole) + 0.5 * plain.count("sqrt(N)")


def _not_to_be_seen(subject: Subject) -> str | None:
    if subject.attn.compiles:  # under a dispatch mode torch would compile nothing, and never again in this process
        return "its calls are compiled, so that their operations cannot be counted"
    return "it runs its reference, whose cost is not limited" if subject.attn.backend == "dense" else None


@check(ask=_not_to_be_seen)
def growth_is_measured(subject: Subject) -> str | None:
    """Work and memory of a call grow no faster between two lengths than its growth declares, as a formula and as a
    cost."""
    growth, unread = subject.attn.growth, []
    for causal in subject.causalities:
        calls, works = _calls(subject, causal), []
        for _, call, attn in calls:
            with torch.no_grad(), _Work() as work:
                call.run(attn)
            works.append(work)
        between = f"between N={SHORT} and N={LONG}, causal={causal},"
        worked = grows(*(work.done for work in works))
        # the result's memory grows with N in any case, even below a buffer of a fixed size
        held = grows(*(float(work.largest) for work in works))
        far = grows(*(growth.cost(n, n, causal) for n in FAR))  # where no window is longer than the sequence
        costs = grows(*(attn.growth.cost(n, n, causal) for n, _, attn in calls))
        # if a cost above the actual work overestimates short sequences, its growth is still correct
        much = works[-1].largest > PLENTY * sum(x.nbytes for x in calls[-1][1].tensors.values())
        beyond = works[-1].done > AMPLE * _published(calls[-1], causal)
        for quantity, measured, name, claimed, formula in (
            ("work", worked, "growth.cost", costs, f"N^{costs:.2f}"),
            ("growth.cost", far, "growth.time", _highest_power(growth.time), repr(growth.time)),
            ("the largest tensor", max(held, 1.0), "growth.memory", _highest_power(growth.memory), repr(growth.memory)),
        ):
            if claimed is None:
                unread.append(f"{name} is {formula}, of which other letters than N decide")
            elif measured > claimed + SLACK and {"growth.cost": beyond, "growth.memory": much or claimed == 0}.get(
                name, True
            ):
                raise CheckFailure(
                    f"{between} {quantity} grows as N^{measured:.2f}, {name} declares {formula}: correct it"
                )
    return "; ".join(dict.fromkeys(unread)) or None


CHECKS = (growth_is_measured,)
