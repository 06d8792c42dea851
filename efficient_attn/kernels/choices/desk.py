"""Where choices are made, once a process and a shape: from a table of timings, which a first use fills, or by rule.

``EFFICIENT_ATTN_CALIBRATION=off`` leaves everything to the rules.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from math import log2
from threading import RLock

import torch

from . import cache
from .calibration import calibrate
from .contest import Contest, Point, Table

VARIABLE = "EFFICIENT_ATTN_CALIBRATION"
CLOSE = 1.1  # forms nearer than this are as good as each other: the rule decides, so that noise does not
MOST = 10_000  # choices remembered: a growing cache asks at every length

CHOSEN: dict[tuple[str, int, str, tuple[int, ...]], str] = {}  # by contest, threads, kind and sizes
_TABLES: dict[tuple[str, int], Table] = {}  # by contest and threads
_LOCK = RLock()


def choose(contest: Contest, kind: str, *sizes: int) -> str:
    """The form for such a call, on as many threads as torch has now. Code that torch compiles takes the first form."""
    if torch.compiler.is_compiling():
        return contest.forms[0]
    key = contest.name, torch.get_num_threads(), kind, sizes
    found = CHOSEN.get(key)
    if found is None:
        if len(CHOSEN) >= MOST:
            CHOSEN.clear()
        found = CHOSEN[key] = decide(contest, key[1], Point(kind, sizes))
    return found


def decide(contest: Contest, threads: int, point: Point) -> str:
    """The form that was fastest at the nearest point that was timed; the rule's where none was, or where it is as good.

    Sizes are near each other where their ratios are small.
    """
    by_rule = contest.rule(point)
    timed = [(p, t) for p, t in find_table(contest, threads).timings if p.kind == point.kind]
    if not timed:
        return by_rule
    _, times = min(timed, key=lambda found: _distance(found[0].sizes, point.sizes))
    best = min(times, key=times.__getitem__)
    return by_rule if times.get(by_rule, float("inf")) <= CLOSE * times[best] else best


def find_table(contest: Contest, threads: int) -> Table:
    """The timings of a contest: those that are in use, else those kept for this machine, else new ones."""
    key = contest.name, threads
    with _LOCK:
        if key not in _TABLES:
            _TABLES[key] = _load(contest, threads)
        return _TABLES[key]


def _load(contest: Contest, threads: int) -> Table:
    if os.environ.get(VARIABLE, "").lower() in ("off", "0", "no"):
        return Table(source=f"by rule: {VARIABLE} is off")
    kept = cache.read(contest, threads)
    if kept.timings:
        return kept
    return cache.write(contest, threads, calibrate(contest, threads), before=kept)


def settle(contests: Iterable[Contest], threads: int) -> dict[str, Table]:
    """The tables of these contests, made where there are none, by name."""
    return {contest.name: find_table(contest, threads) for contest in contests}


def use(tables: Mapping[str, Table], threads: int) -> None:
    """Decide by these tables from here on, whatever this process or the cache has."""
    with _LOCK:
        _TABLES.update({(name, threads): table for name, table in tables.items()})
        CHOSEN.clear()


def forget() -> None:
    """Begin anew: what was chosen so far is chosen again when it is asked for."""
    CHOSEN.clear()


def list_choices() -> str:
    """What was chosen since `forget`, as a row tells it: ``half=float32 products=batched,by_head``."""
    found: dict[str, set[str]] = {}
    for (name, *_), form in CHOSEN.items():
        found.setdefault(name, set()).add(form)
    return " ".join(f"{name}={','.join(sorted(forms))}" for name, forms in sorted(found.items()))


def _distance(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    return sum(abs(log2(max(x, 1) / max(y, 1))) for x, y in zip(a, b, strict=True))
