"""From where on each mechanism is faster, as strips: a bar a mechanism, hatched where nothing was measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ... import units
from ...results.stats import Estimate
from .. import words
from ..answers.crossovers import tell
from ..answers.decisions import Board, Decision
from .cells import USES
from .picking import USE_WORDS

State = Literal["faster", "slower", "unclear", "unmeasured"]
MOST_TICKS = 7
WIDTH, HEIGHT = 600, 16  # of a bar, in its own units: the page stretches it


@dataclass(frozen=True)
class Piece:
    """A stretch of a bar, in its own units, and what was measured there."""

    left: float
    width: float
    state: State


@dataclass(frozen=True)
class Strip:
    """A mechanism's bar. told: from where on it is faster; words: the bar in words, for those who do not see it."""

    label: str
    variant: str
    loss: str
    pieces: tuple[Piece, ...]
    told: str
    words: str


@dataclass(frozen=True)
class Strips:
    """A place's bars on one scale. ticks: lengths, evenly apart."""

    title: str
    place: str
    baseline: str
    ticks: tuple[str, ...]
    strips: tuple[Strip, ...]
    run_ids: frozenset[str]


def list_strips(boards: Iterable[Board], cpus: Mapping[str, str]) -> list[Strips]:
    """For each use the place where most mechanisms were measured at most lengths beside exact attention."""
    chosen: dict[str, Board] = {}
    for board in boards:
        use = USES.get(str(board.place["mode"]), "")
        if use and board.baseline == "full" and (use not in chosen or _weigh(board) > _weigh(chosen[use])):
            chosen[use] = board
    found = [_make(use, chosen[use], cpus) for use in USE_WORDS if use in chosen]
    return [one for one in found if one.ticks]


def _weigh(board: Board) -> tuple[int, str]:
    return sum(len(d.speedups) - 1 for d in board.decisions), str(sorted(map(str, board.place.items())))


def _make(use: str, board: Board, cpus: Mapping[str, str]) -> Strips:
    lengths = sorted({n for decision in board.decisions for n in decision.speedups})
    low, high = (math.floor(math.log2(lengths[0])), math.ceil(math.log2(lengths[-1])))
    low, high = (low - 1, high + 1) if low == high else (low, high)
    step = math.ceil((high - low) / (MOST_TICKS - 1))
    high = low + step * math.ceil((high - low) / step)
    place = dict(board.place)
    return Strips(
        title=f"{USE_WORDS[use]}: {words.slice_words(place['mode'], None if use == 'decode' else place['causal'])}",
        place=words.place_words(place, dict(cpus)),
        baseline=board.baseline,
        ticks=tuple(units.short_length(2**at) if at >= 0 else "" for at in range(low, high + 1, step)),
        strips=tuple(_make_strip(decision, low, high) for decision in board.decisions),
        run_ids=board.run_ids,
    )


def _make_strip(decision: Decision, low: float, high: float) -> Strip:
    known = sorted(decision.speedups.items())
    pieces = tuple(_cut(known, low, high))
    said = (f"{judge(speedup)} at {units.short_length(length)}" for length, speedup in known)
    told = tell(decision.passing) if decision.passing else "no interval"
    return Strip(decision.label, decision.variant, decision.loss, pieces, told, words.join(said))


def judge(speedup: Estimate) -> State:
    found = words.verdict(speedup.low, speedup.high)
    return "faster" if found == "faster" else "slower" if found == "slower" else "unclear"


def _cut(known: Sequence[tuple[int, Estimate]], low: float, high: float) -> Iterable[Piece]:
    """Each measured length takes the room up to half way to its neighbours; what lies outside of them is hatched."""
    at = [math.log2(length) for length, _ in known]
    half = 0.25 if len(at) < 2 else min(b - a for a, b in itertools.pairwise(at)) / 2
    edges = [max(low, at[0] - half), *((a + b) / 2 for a, b in itertools.pairwise(at)), min(high, at[-1] + half)]
    scale = WIDTH / (high - low)
    cuts = [low, *edges, high]
    states: list[State] = ["unmeasured", *(judge(speedup) for _, speedup in known), "unmeasured"]
    for (left, right), state in zip(itertools.pairwise(cuts), states, strict=True):
        if right > left:
            yield Piece(round((left - low) * scale, 1), round((right - left) * scale, 1), state)
