"""Declared growth: consistent with itself, and with work and memory that are counted at two lengths."""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ...contract.mask import Mask
from ...contract.mechanism import Attention
from ...contract.traits import Growth
from ..check import CheckFailure, check, explain
from ..probing import declares_growth
from ..subject import MAX_LEN, Subject

SHORT, LONG = 1280, 5120  # longer than sequences for which mechanisms prefer fewer calls to less work
SHORTER = (320, 1280)  # for references, which store a tensor of N x M numbers or more
TRAINING = (1280, 2560)  # lengths of training steps, which take several times the work
FAR = (8192, 32768)  # lengths at which a constant part of the cost no longer hides its growth
MAX_WORK = 4.0  # times the published cost, from which on its growth is compared
MAX_UNDERSTATED_WORK = 256.0  # times the published cost; tiles and blocks that exceed a pattern take up to 60 times
MAX_WORKSPACE_RATIO = 5.0  # between the estimated and the counted memory of a training step
MAX_TRAINING_MEMORY = 16  # times the inputs, from which on the growth of a training step's memory is compared
MAX_MEMORY = 16  # times the inputs: smaller tensors may be buffers of a fixed size
SLACK = 0.35  # of an exponent: lower-order terms matter for short sequences, and logarithms add a little
WIDTH = 64  # of the heads for which a growth is written
POWERS = {1: "O(N)", 1.5: "O(N^1.5)", 2: "O(N^2)", 3: "O(N^3)"}


# their last argument holds the numbers that are written into some rows of the first one
WRITE_SOME_ROWS = {torch.ops.aten.index_add_, torch.ops.aten.index_copy_, torch.ops.aten.scatter_add_}


class WorkCounter(TorchDispatchMode):
    """Count the work of operators: multiply-adds as far as torch counts them, plus one for each number written.

    computed_only: do not count views, masks and indices.
    """

    def __init__(self, *, computed_only: bool = False) -> None:
        super().__init__()
        self._computed_only = computed_only
        self.work = 0.0
        self.largest = 0  # bytes of the largest tensor that was created
        self.allocated = self.peak = 0  # bytes of the created tensors that exist at present, and at most
        self._storages: set[int] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports its compiler, which takes longer than the calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [x for x in (out if isinstance(out, tuple | list) else (out,)) if isinstance(x, Tensor)]
        created = [x for x in tensors if x.device.type != "meta"]
        if tensors and not created:
            return out  # without data, such an operator does nothing
        is_view = self._computed_only and any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
        written = args[-1:] if func._overloadpacket in WRITE_SOME_ROWS and isinstance(args[-1], Tensor) else created
        numbers = [x for x in written if x.is_floating_point() or not self._computed_only]
        self.work += 0 if is_view else sum(x.numel() for x in numbers)
        self.largest = max([self.largest, *(x.untyped_storage().nbytes() for x in created)])
        for storage in (x.untyped_storage() for x in created):
            self._follow(storage)
        count_flops = flop_registry.get(func._overloadpacket)
        if count_flops is not None:
            self.work += count_flops(*args, **(kwargs or {}), out_val=out) / 2
        elif "flash_attention_for_cpu" in str(func) and "backward" not in str(func):
            q, k, v = args[:3]
            self.work += q.shape[:-1].numel() * k.shape[-2] * (q.shape[-1] + v.shape[-1])
        return out

    def _follow(self, storage: torch.UntypedStorage) -> None:
        """Count a storage until it is released."""
        address, size = storage._cdata, storage.nbytes()
        if address not in self._storages:
            self._storages.add(address)
            self.allocated += size
            self.peak = max(self.peak, self.allocated)
            weakref.finalize(storage, self._release, address, size).atexit = False

    def _release(self, address: int, size: int) -> None:
        self._storages.discard(address)
        self.allocated -= size


class CountedCall(NamedTuple):
    """attn: the called instance. work: in multiply-adds. largest: bytes of the largest tensor. pair_work: multiply-adds
    of one query-key pair in each head."""

    attn: Attention
    work: float
    largest: int
    input_bytes: int
    pair_work: int


def count_call(subject: Subject, n: int, causal: bool, width: int = 8) -> CountedCall:
    """A call of the preferred backend over n positions, with heads of a width."""
    heads = subject.attn.kv_heads or 1
    sizes = {"heads": heads, "kv_heads": heads, "head_dim": width, "value_dim": width}
    attn, call = subject.prepare(n, batch=1, mask=Mask(causal=causal), dtype=torch.float32, **sizes)
    with torch.no_grad(), WorkCounter() as counter:
        call.run(attn)
    q = call["q"]
    pair_work = q.shape[1] * (q.shape[-1] + call.tensors.get("v", q).shape[-1])
    input_bytes = sum(x.nbytes for x in call.tensors.values())
    return CountedCall(attn, counter.work, counter.largest, input_bytes, pair_work)


def growth_exponent(short: float, long: float) -> float:
    """The exponent of the growth of a quantity with these values at one length and at one four times as long."""
    return math.log(max(long, 1e-9) / max(short, 1e-9)) / math.log(4)


def _highest_power(formula: str) -> float | None:
    """The power of N in a formula such as ``O(N^1.5)``, ``O(N log N)`` or ``O(1)``; None if it has other variables."""
    inside = re.fullmatch(r"O\((.*)\)", formula)
    if not inside or set(re.findall(r"[A-Za-z]+", inside[1])) - {"N", "log", "sqrt"}:
        return None
    plain = re.sub(r"log N|log\(N\)", "", inside[1])
    whole = [float(power or 1) for power in re.findall(r"(?<!sqrt\()N(?:\^([\d.]+))?", plain)]
    return sum(whole) + 0.5 * plain.count("sqrt(N)")


def _compiles(subject: Subject) -> str | None:
    # a first call under a dispatch mode disables compilation for the rest of the process
    if subject.attn.compiles_on(torch.device(subject.device).type):
        return "its calls are compiled, so that their operations cannot be counted"
    return None


def write_growth(subject: Subject) -> tuple[str, ...]:
    """The lines that declare the counted growth: the nearest formulas, and the query-key pairs that take this work."""
    if _compiles(subject):
        return ()
    lengths = SHORTER if subject.attn.backend == "dense" else (SHORT, LONG)
    calls = {causal: [count_call(subject, n, causal, WIDTH) for n in lengths] for causal in subject.causalities}
    time = max(_nearest_power(call.work for call in pair) for pair in calls.values())
    memory = max(_nearest_power(call.largest for call in pair) for pair in calls.values())
    factors = {c: f"{float(f'{x.work / x.pair_work / lengths[-1] ** time:.2g}'):g}" for c, (_, x) in calls.items()}
    *_, factor = factors.values()
    if len(set(factors.values())) > 1:
        factor = f"({factors[True]} if causal else {factors[False]})"
    pairs = "(n + m) / 2" if time == 1 else f"n * m**{time - 1:g}".removesuffix("**1")
    cost = f"lambda n, m, causal: {factor} * {pairs}".replace(" 1 *", "")
    fields = f'time="{POWERS[time]}"', f'memory="{POWERS[memory]}"', f"cost={cost}"
    return ("growth = ea.Growth(", *(f"    {text}," for text in fields), ")")


def _nearest_power(values: Iterable[float]) -> float:
    exponent = growth_exponent(*values)
    return min(POWERS, key=lambda power: abs(power - exponent))


@check()
def published_cost(subject: Subject) -> None:
    """The growth is declared; its cost is positive and does not decrease with the length."""
    try:
        _check_cost(subject)
    except Exception as error:
        raise CheckFailure(explain(error), lines=write_growth(subject)) from error


def _check_cost(subject: Subject) -> None:
    growth = subject.make(subject.shape(4)).growth
    assert isinstance(growth, Growth), f"growth is a {type(growth).__name__}, no ea.Growth; is @property missing?"
    assert growth.time.strip(), "growth.time is empty"
    assert growth.memory.strip(), "growth.memory is empty"
    for causal in subject.causalities:
        lengths = (64, 100, 128, 200, 256, MAX_LEN)
        costs = [growth.cost(n, n, causal) for n in lengths]
        assert costs[0] > 0, f"cost({lengths[0]}) is {costs[0]}"
        assert costs == sorted(costs), f"cost decreases over the lengths {lengths}: {costs}"


def not_countable(subject: Subject) -> str | None:
    """Why the work of a mechanism cannot be compared with its growth; None if it can."""
    if not declares_growth(subject.attn):
        return "it declares no growth"
    dense = "it runs its reference, whose cost is not limited"
    return _compiles(subject) or (dense if subject.attn.backend == "dense" else None)


@check(skip_reason=not_countable)
def growth_is_measured(subject: Subject) -> str | None:
    """Work and memory of a call grow no faster between two lengths than the declared cost and formulas, and the work is
    of the declared order of magnitude."""
    try:
        return _compare_growth(subject)
    except AssertionError as error:
        raise CheckFailure(str(error), lines=write_growth(subject)) from error


def _compare_growth(subject: Subject) -> str | None:
    growth, unread = subject.attn.growth, []
    time, memory = _highest_power(growth.time), _highest_power(growth.memory)
    for causal in subject.causalities:
        short, long = (count_call(subject, n, causal) for n in (SHORT, LONG))
        costs = [x.attn.growth.cost(n, n, causal) for x, n in ((short, SHORT), (long, LONG))]
        excess, cost = long.work / (long.pair_work * costs[-1]), growth_exponent(*costs)
        assert excess <= MAX_UNDERSTATED_WORK, (
            f"at N={LONG}, causal={causal}, a call takes {excess:.0f} times the work of "
            f"growth.cost, {costs[-1]:.3g} query-key pairs: correct it"
        )
        far_cost = growth_exponent(*(growth.cost(n, n, causal) for n in FAR))  # beyond every window's length
        # outputs grow with N in any case, even if the largest tensor is a buffer of a fixed size
        largest = max(growth_exponent(short.largest, long.largest), 1.0)
        exceeds_buffers = long.largest > MAX_MEMORY * long.input_bytes or memory == 0
        for quantity, measured, name, declared, formula, matters in (
            # a cost that overestimates the work of short sequences may grow more slowly than the work
            ("work", growth_exponent(short.work, long.work), "growth.cost", cost, f"N^{cost:.2f}", excess > MAX_WORK),
            ("growth.cost", far_cost, "growth.time", time, repr(growth.time), True),
            ("the largest tensor", largest, "growth.memory", memory, repr(growth.memory), exceeds_buffers),
        ):
            if declared is None:
                unread.append(f"{name} is {formula}, which has other variables than N")
            elif matters and measured > declared + SLACK:
                raise AssertionError(
                    f"between N={SHORT} and N={LONG}, causal={causal}, {quantity} grows as N^{measured:.2f}, "
                    f"{name} declares {formula}: correct it"
                )
    return "; ".join(dict.fromkeys(unread)) or None


@check(needs="gradient", skip_reason=not_countable)
def training_memory(subject: Subject) -> None:
    """The memory of a call with its backward pass grows no faster than growth.memory, and workspace_bytes, inherited or
    its own, estimates it within a factor of five."""
    growth, causal = subject.attn.growth, subject.causalities[-1]
    heads, declared = subject.attn.kv_heads or 1, _highest_power(growth.memory)
    n, input_bytes, estimate, peaks = 0, 0, 0, list[int]()
    for n in TRAINING:
        sizes = {"batch": 1, "heads": heads, "kv_heads": heads, "head_dim": WIDTH // 2, "value_dim": WIDTH // 2}
        attn, call = subject.prepare(n, mask=Mask(causal=causal), dtype=torch.float32, **sizes)
        with WorkCounter() as counter:
            out, _ = call.gradients(attn)
        peaks.append(counter.peak)
        shape, input_bytes = subject.shape(n, **sizes), sum(x.nbytes for x in call.tensors.values())
        estimate = out.nbytes + attn.workspace_bytes(shape, 4, causal=causal, training=True)
    label = f"N={n}, causal={causal}, heads of {WIDTH // 2}"
    measured = 2 * growth_exponent(*peaks)  # of one length and its double
    assert declared is None or measured <= declared + SLACK or peaks[-1] <= MAX_TRAINING_MEMORY * input_bytes, (
        f"between N={TRAINING[0]} and {label}, the memory of a call and its backward pass grows as N^{measured:.2f} to "
        f"{peaks[-1]} bytes, growth.memory declares {growth.memory!r}: correct it, or split the backward pass in blocks"
    )
    remedy = "write a workspace_bytes of its own, the inherited one is wrong"
    if "workspace_bytes" in vars(type(subject.attn)):
        remedy = "correct workspace_bytes"
    assert 1 / MAX_WORKSPACE_RATIO <= estimate / peaks[-1] <= MAX_WORKSPACE_RATIO, (
        f"{label}: workspace_bytes(training=True) and the output are {estimate} bytes, "
        f"a call and its backward pass take {peaks[-1]}: {remedy}"
    )
