"""Select candidates, once for each process and shape: from a table of timings of this machine, or by rule. Runs and
``efficient-attn doctor`` measure and store tables; a call of a library's user never does, so that it need not wait,
but for the first one of a geometry on a GPU (`choose_timed`).
``EFFICIENT_ATTN_CALIBRATION=off`` leaves everything to the rules."""

import os
from collections.abc import Callable, Iterable, Mapping
from math import log2
from threading import RLock

import torch

from . import cache
from .candidates import TimingTable, Tunable, TuningPoint, calibrate

VARIABLE = "EFFICIENT_ATTN_CALIBRATION"
TIE_RATIO = 1.1  # candidates closer than this count as equal: the rule decides, so that noise does not
MAX_CHOICES = 10_000  # cached choices: a growing decode cache needs one for every length

CHOICES: dict[tuple[str, int, str, tuple[int, ...]], str] = {}  # by operation, threads, kind and sizes
_TABLES: dict[tuple[str, int], TimingTable] = {}  # by operation and threads
_LOCK = RLock()
ANY_POINT = TuningPoint("", ())  # of operations whose choice does not depend on sizes


def choose(tunable: Tunable, kind: str, *sizes: int) -> str:
    """The candidate for a call, with torch's present number of threads; in code compiled by torch the first."""
    if torch.compiler.is_compiling():
        return tunable.implementations[0]
    key = tunable.name, torch.get_num_threads(), kind, sizes
    choice = CHOICES.get(key)
    if choice is None:
        point = TuningPoint(kind, sizes)
        choice = select_implementation(tunable, key[1], point)
        record(tunable.name, choice, point)
    return choice


def choose_timed(
    tunable: Tunable, point: TuningPoint, time_candidates: Callable[[], Mapping[str, float]] | None
) -> str:
    """The candidate for a call of an operation whose points are timed where they first occur. None in place of
    ``time_candidates`` forbids that, and so does `VARIABLE`: the choice is then that of the nearest timed point."""
    key = tunable.name, torch.get_num_threads(), point.kind, point.sizes
    if key in CHOICES:
        return CHOICES[key]
    table = _TABLES.get(key[:2], TimingTable())
    if all(timed != point for timed, _ in table.timings) and not is_off(VARIABLE):
        if time_candidates is None:
            return select_implementation(tunable, key[1], point)
        entry = point, time_candidates()
        with _LOCK:
            timings = *_TABLES.get(key[:2], TimingTable()).timings, entry
            _TABLES[key[:2]] = TimingTable(timings, "measured in first calls")
    return choose(tunable, point.kind, *point.sizes)


def record(name: str, implementation: str, point: TuningPoint = ANY_POINT) -> None:
    """Count an implementation that was selected by rule among the choices of an operation."""
    if len(CHOICES) >= MAX_CHOICES:
        CHOICES.clear()
    CHOICES[name, torch.get_num_threads(), point.kind, point.sizes] = implementation


def list_timed(tunable: Tunable) -> TimingTable:
    """The timings of an operation that this process uses, with its present number of threads."""
    return _TABLES.get((tunable.name, torch.get_num_threads()), TimingTable())


def select_implementation(tunable: Tunable, threads: int, point: TuningPoint) -> str:
    """The available candidate that was fastest at the nearest timed point; the rule's choice if no point was timed, or
    if it is within `TIE_RATIO` of the fastest. The distance of sizes is that of their logarithms."""
    rule_choice = tunable.rule(point)
    same_kind = [(p, t) for p, t in _load_table(tunable, threads).timings if p.kind == point.kind]
    if not same_kind:
        return rule_choice

    def measure_distance(sizes: tuple[int, ...]) -> float:
        return sum(abs(log2(max(x, 1) / max(y, 1))) for x, y in zip(sizes, point.sizes, strict=True))

    _, timed = min(same_kind, key=lambda entry: measure_distance(entry[0].sizes))
    times = {name: seconds for name, seconds in timed.items() if tunable.is_available(name)}
    if not times:
        return rule_choice
    best = min(times, key=times.__getitem__)
    return rule_choice if times.get(rule_choice, float("inf")) <= TIE_RATIO * times[best] else best


def find_table(tunable: Tunable, threads: int) -> TimingTable:
    """The timings of an operation: those in use, else those stored for this machine, else new ones, then stored too."""
    table = _load_table(tunable, threads)
    if not table.timings and not is_off(VARIABLE):
        table = cache.read(tunable, threads)  # another process may have stored one meanwhile
        if not table.timings:  # without the lock, because the timed calls select kernels too, in another thread
            table = cache.write(tunable, threads, calibrate(tunable, threads), previous=table)
        use_tables({tunable.name: table}, threads)
    return table


def _load_table(tunable: Tunable, threads: int) -> TimingTable:
    """The timings in use, else those stored for this machine; none if there are none."""
    key = tunable.name, threads
    with _LOCK:
        if key not in _TABLES:
            off = TimingTable(source=f"by rule: {VARIABLE} is off")
            _TABLES[key] = off if is_off(VARIABLE) else cache.read(tunable, threads)
        return _TABLES[key]


def is_off(variable: str) -> bool:
    """Whether an environment variable switches something off."""
    return os.environ.get(variable, "").lower() in ("off", "0", "no")


def find_tables(tunables: Iterable[Tunable], threads: int) -> dict[str, TimingTable]:
    """The tables of these operations by name, measured if there are none."""
    return {tunable.name: find_table(tunable, threads) for tunable in tunables}


def use_tables(tables: Mapping[str, TimingTable], threads: int) -> None:
    """Use these tables from now on, instead of those of this process or the cache."""
    with _LOCK:
        _TABLES.update({(name, threads): table for name, table in tables.items()})
        CHOICES.clear()


def clear_choices() -> None:
    """Clear the cached choices."""
    CHOICES.clear()


def list_choices() -> str:
    """The choices since `clear_choices`, as in a row: ``half=float32 products=batched,by_head``."""
    by_tunable: dict[str, set[str]] = {}
    for (name, *_), implementation in CHOICES.items():
        by_tunable.setdefault(name, set()).add(implementation)
    return " ".join(f"{name}={','.join(sorted(choices))}" for name, choices in sorted(by_tunable.items()))
