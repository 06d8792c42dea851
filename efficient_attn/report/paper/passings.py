"""From which length on each mechanism is faster, as a line a mechanism along the lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ... import units
from .. import words
from ..answers.crossovers import Passing, tell
from ..answers.decisions import Decision
from ..drawing.figures import Line, Panel
from ..drawing.style import Look
from .choosing import Place

SAID = (
    "From which length on each is faster than {baseline}: where its speedup passes 1, interpolated between measured "
    "lengths in logarithms, with the interval in which its 95% interval does. An open triangle to the left: faster at "
    "all lengths measured; to the right: at none, or not shown at the longest"
)


def draw_passings(place: Place, decisions: Sequence[Decision], looks: Mapping[str, Look]) -> Panel:
    """The earliest above; what never is shown to be faster stands at the longest length."""
    shown = [(one.label, one.passing) for one in decisions if one.passing is not None]
    lengths = sorted({n for one in decisions for n in one.speedups})
    ranked = sorted(shown, key=lambda pair: (-_rank(pair[1], lengths), pair[0]))
    lines = tuple(_draw(label, found, float(y), lengths, looks[label]) for y, (label, found) in enumerate(ranked))
    baseline = place.board.baseline if place.board else place.baseline
    where = words.slice_words(place.key["mode"], None if place.key["mode"] == "decode" else place.key["causal"])
    return Panel(
        name=words.slug("crossover", place.key["mode"]),
        kind="crossover",
        title=f"Faster from: {where}",
        caption=f"{SAID.format(baseline=baseline)} ({where}).",
        place=place.tell(),
        alt=f"From which length on {words.join(label for label, _ in shown)} are faster than {baseline}.",
        xlabel="context length" if place.key["mode"] == "decode" else "sequence length",
        ylabel="",
        unit="count",
        lines=lines,
        ticks={float(n): units.short_length(n) for n in lengths},
        log_y=False,
        drawn="points",
        bounds=(-0.6, len(lines) - 0.4),
    )


def _rank(found: Passing, lengths: Sequence[int]) -> float:
    """Sorts by the length from which on it is faster, those that never are last."""
    if found.kind == "always":
        return 0.0
    if found.above is None:
        return 2.0 * lengths[-1] + (found.kind == "never")
    return found.at or found.high or float(found.above)


def _draw(label: str, found: Passing, y: float, lengths: Sequence[int], look: Look) -> Line:
    note = tell(found)
    if found.above is None:
        return Line(label, look._replace(marker=">", hollow=True), [float(found.longest)], [y], note=note)
    if found.kind == "always":
        return Line(label, look._replace(marker="<", hollow=True), [float(found.above)], [y], note=note)
    left, right = found.low or float(lengths[0]), found.high or float(found.above)
    return Line(label, look._replace(hollow=False), [found.at or right], [y], left=[left], right=[right], note=note)
