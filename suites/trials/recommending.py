"""Is what `recommend` puts first the fastest? Questions are drawn, and answered by brute force over all measured cells.

    python suites/trials/recommending.py [RUN ...] [--questions N] [--seed S]

Half of the questions are about cells that were measured. For the other half the rows at the length that is asked about
are taken away first, so that all times are interpolated; the truth is what was measured there. An answer is right where
the truly fastest mechanism that keeps the bounds is first, or shares the first rank. Counted besides: shared first
ranks, answers that hold a mechanism that breaks a bound, and questions that were not answered.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from efficient_attn.report.answers.quality import find_error
from efficient_attn.report.answers.questions import SHAPE, Question
from efficient_attn.report.answers.recommending import Known, recommend
from efficient_attn.report.answers.timing import Curve, Point
from efficient_attn.report.gather import gather

ERRORS = (None, 0.3, 0.4, 0.5, 0.75, 0.9)
FEWEST = 3  # mechanisms of a cell that is asked about


@dataclass
class Score:
    """What came of one kind of question."""

    asked: int = 0
    right: int = 0
    tied: int = 0
    silent: int = 0  # no answer, though one mechanism keeps the bounds
    broken: int = 0  # answers that hold what breaks a bound
    missed: Counter[str] = field(default_factory=Counter)

    def tell(self) -> str:
        answered = max(1, self.asked - self.silent)
        return (
            f"{self.asked} asked, {self.silent} not answered; {self.right / max(1, self.asked):.1%} of all and "
            f"{self.right / answered:.1%} of the answers right, "
            f"{self.tied / answered:.1%} with a shared first rank; {self.broken} hold what breaks a bound"
        )


def list_cells(known: Known) -> list[tuple[int, int, bool]]:
    """Place, length, and whether all mechanisms that were timed there have neighbours on both sides."""
    found = []
    for place, (_, curves) in enumerate(known.places):
        for length in sorted({point.length for curve in curves for point in curve.points}):
            here = [curve for curve in curves if any(point.length == length for point in curve.points)]
            ends = [(curve.points[0].length, curve.points[-1].length) for curve in here]
            if len(here) >= FEWEST:
                found.append((place, length, all(low < length < high for low, high in ends)))
    return found


def ask(known: Known, place: Mapping[str, Any], length: int, draw: random.Random, curves: Sequence[Curve]) -> Question:
    """A question about a cell, with bounds that some keep."""
    here = [point for curve in curves for point in curve.points if point.length == length and point.latency]
    one = draw.choice(here)
    memory = int(one.memory * draw.uniform(0.8, 2)) if one.memory and draw.random() < 0.4 else None
    latency = one.latency.value * draw.uniform(0.8, 2) if one.latency and draw.random() < 0.3 else None
    shape = {name: place[name] if name == "dtype" else _whole(place[name]) for name in SHAPE}
    given = {"mode": place["mode"], "causal": place["causal"], "device": place["device"], **shape}
    return Question(
        seq_len=length,
        machine=str(place["machine"]),
        max_error=draw.choice(ERRORS),
        memory=memory,
        latency_ms=latency,
        **given,
    )


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def find_admissible(known: Known, place: int, question: Question) -> dict[str, Point]:
    """By brute force: every mechanism that was timed in this very cell and surely keeps the bounds there."""
    found = {}
    setting, curves = known.places[place]
    for curve in curves:
        point = next((p for p in curve.points if p.length == question.seq_len and p.latency), None)
        if point is None or (question.judged and curve.kv_heads not in (None, setting["heads"])):
            continue
        error = find_error(curve, question)
        if question.max_error is not None and (error is None or error.value > question.max_error):
            continue
        assert point.latency is not None
        if question.memory is not None and (point.memory is None or point.memory > question.memory):
            continue
        slowest = point.latency.high if point.latency.high is not None else point.latency.value
        if question.latency_ms is not None and slowest > question.latency_ms:
            continue
        found[curve.label] = point
    return found


def take_away(known: Known, place: int, length: int) -> Known:
    """The same without what was measured in that cell."""
    setting, curves = known.places[place]
    kept = tuple(replace(c, points=tuple(p for p in c.points if p.length != length)) for c in curves)
    return replace(known, places=((setting, tuple(c for c in kept if c.points)),))


def main(runs: Sequence[Path], questions: int, seed: int) -> dict[str, Score]:
    known = Known.of(gather(runs).rows)
    cells = list_cells(known)
    draw = random.Random(seed)
    scores = {"measured": Score(), "left out": Score()}
    tries = 0
    while sum(score.asked for score in scores.values()) < questions and tries < 100 * questions:
        tries += 1
        kind = min(scores, key=lambda name: scores[name].asked)
        place, length, _ = draw.choice([cell for cell in cells if cell[2] or kind == "measured"])
        setting, curves = known.places[place]
        question = ask(known, setting, length, draw, curves)
        admissible = find_admissible(known, place, question)
        if not admissible:
            continue
        asked = replace(known, places=(known.places[place],)) if kind == "measured" else take_away(known, place, length)
        score, answer = scores[kind], recommend(asked, question)
        score.asked += 1
        paired = all(point.speedup is not None for point in admissible.values())
        best = min(admissible, key=lambda label: _pace(admissible[label], paired))
        first = [choice.label for choice in answer.best]
        score.silent += not first
        score.right += best in first
        score.tied += len(first) > 1
        measured = {curve.label for curve in curves if any(p.length == length for p in curve.points)}
        broken = [c.label for c in answer.choices if c.label in measured - admissible.keys()]
        score.broken += bool(broken)
        if broken:
            score.missed[f"{broken} break a bound: {question.tell()}"] += 1
        if first and best not in first:
            score.missed[f"{best} before {first[0]} at {length}, {setting['mode']}, {setting['machine']}"] += 1
    return scores


def _pace(point: Point, paired: bool) -> float:
    """What decides which is the fastest: the paired speedup where all have one, else the time."""
    if paired and point.speedup is not None:
        return 1 / point.speedup.value
    assert point.latency is not None
    return point.latency.value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "runs", nargs="*", type=Path, default=sorted(p.parent for p in Path("results").glob("*/rows.*"))
    )
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    for name, found in main(**vars(parser.parse_args())).items():
        print(f"{name}: {found.tell()}")
        for what, count in found.missed.most_common(8):
            print(f"    {count}x {what}")
