"""What models learn with each mechanism inside, trained alike from nothing: scores beside chance, and all attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from ... import units
from ...results.section import Section
from ...spec import label_of
from .. import select, words
from ..drawing import plots
from ..gather import Frame
from ..tables import Shown, Table, show_number, trim
from .alignments import plan_alignments
from .blocks import Block, Chapter, Material, make_blocks
from .curves import AT, NEAR, list_numbers, plan_curves
from .learned import BITS, REACH, Learned, Test, keep_trained, list_tests, order_labels, write

INTRO = (
    "Small models, alike but for the mechanism inside, are trained from nothing and tested on examples that they have "
    "not seen. What stands here holds for models of this size, trained for so many steps with so many seeds; it is "
    "not what larger or longer trained ones could do. And it is another question than what a model loses whose "
    "attention is swapped after training: there the weights are given, here they are found. Each cell is the mean "
    "over seeds at the learning rate that was best on validation, in brackets its 95% interval over seeds. 'chance' "
    "is a guess, 'majority' the one answer that is most often right, 'shortcut' a cheap way that the task allows: all "
    "three are computed. 'not learned' stands where no attempt was surely better than chance and majority: not the "
    "grid of rates, not the two beyond it, not twice the steps."
)
LESS = " Bits are better when there are fewer."


def make_chapter(section: Section, material: Material) -> Chapter:
    rows = keep_trained(material.rows)
    # a place's batch is that of a call that is timed; training has its own, which is told by task
    rows = rows.assign(batch=None)
    fill = partial(_fill, swapped=_find_swapped(material.rows))
    intro = INTRO + (LESS if (rows["metric"] == BITS).any() else "")
    return Chapter(section.title, intro, make_blocks(rows, material, fill))


def _fill(block: Block, setting: select.Setting, scene: plots.Scene, swapped: dict[str, dict[str, float]]) -> None:
    tests = [test for test in list_tests(setting.rows) if test.tried]
    if not tests:
        return
    labels = order_labels(tests)
    block.tables += [_make_table(tests, labels), _tell_training(tests)]
    block.tables += _list_spread(tests, labels)
    block.tables += _compare_with_swapping(tests, labels, swapped)
    block.tables.append(_list_attempts(tests))
    for test in tests:
        block.panels += [*plan_curves(test, scene), *plan_alignments(test, scene)]


# -- scores --------------------------------------------------------------------------------------------------------


def _make_table(tests: Sequence[Test], labels: Sequence[str]) -> Table:
    """A row a mechanism, a column a test, and first what scores stand beside."""
    body = [_show_computed(name, tests, find) for name, find in COMPUTED]
    body = [row for row in body if any(cell.text != units.NONE for cell in row[1:])]
    for label in labels:
        found = [next((one for one in test.found if one.label == label), None) for test in tests]
        base = any(one is not None and one.is_baseline for one in found)
        body.append([Shown(label, label, "base" if base else ""), *map(_show, tests, found)])
    most = [len(one.chosen) for test in tests for one in test.tried]
    seeds = f"mean over {_span(most)} {'seed' if max(most) == 1 else 'seeds'}"
    note = [test.tell() for test in tests] + [_tell_reach(test, one) for test in tests for one in test.tried]
    caption = f"What was learned: {seeds}" + (", with its 95% interval" if max(most) > 1 else "")
    return Table(caption, ("Variant", *(test.head for test in tests)), body, note=" ".join(filter(None, note)))


def _show(test: Test, one: Learned | None) -> Shown:
    if one is None:
        return Shown(units.NONE)
    shown = one.show()
    return shown if test.ranked else Shown(shown.text)  # what nobody is ranked by does not sort


def _first(column: str) -> Callable[[Test], float | None]:
    return lambda test: next((float(x) for x in test.known(column)), None)


def _majority(test: Test) -> float | None:
    """Where it is another than chance."""
    found = _first("train.majority")(test)
    return None if found is None or found == _first("train.chance")(test) else found


def _shortcut(test: Test) -> float | None:
    found = test.shortcut()
    return found[0] if found else None


COMPUTED: tuple[tuple[str, Callable[[Test], float | None]], ...] = (
    ("chance", _first("train.chance")),
    ("majority", _majority),
    ("shortcut", _shortcut),
)


def _show_computed(name: str, tests: Sequence[Test], find: Callable[[Test], float | None]) -> list[Shown]:
    values = [find(test) for test in tests]
    said = [Shown(units.NONE) if x is None else Shown(write(x, t.bits), x) for t, x in zip(tests, values, strict=True)]
    return [Shown(name, name, "null"), *said]


def _tell_reach(test: Test, one: Learned) -> str:
    """How much of a task lies within a mechanism's reach, where that is not all of it."""
    if one.reach is None or one.reach >= 1:
        return ""
    told = ", and it learned all that lies within its reach" if one.reached else ""
    return f"{test.name}: with {one.label} a model can score {units.percent(one.reach)}, by {REACH}{told}."


# -- how they were trained -----------------------------------------------------------------------------------------


def _tell_training(tests: Sequence[Test]) -> Table:
    """What the scores hold for, a row a test."""
    body = []
    for test in tests:
        way = (test.shortcut() or (0.0, ""))[1] or (REACH if REACH in test.known("train.way") else units.NONE)
        rates = sorted({x for one in test.tried for x in one.tried["train.learning_rate"].tolist()})
        texts = (test.name, test.metric, way, ", ".join(f"{rate:g}" for rate in rates))
        counts = ("parameters", "train.budget", "train.batch", "train.examples")
        seeds = [len(one.chosen) for one in test.tried]
        cells = [Shown(_span(known), float(max(known))) for known in (*map(test.known, counts), seeds) if known]
        body.append([*(Shown(text, text) for text in texts), *cells])
    head = ("Task", "Scored by", "Shortcut", "Learning rates tried")
    head += ("Parameters", "Steps", "Examples a step", "Examples of the test", "Seeds")
    return Table("How it was trained", head, body, text_columns=4)


def _span(values: Iterable[Any]) -> str:
    """``3``, or ``1 to 3``."""
    found = sorted(set(values))
    return " to ".join(units.whole(x) for x in dict.fromkeys((found[0], found[-1])))


def _list_attempts(tests: Sequence[Test]) -> Table:
    """Every model that was trained, the chosen ones among them."""
    body = []
    for test in tests:
        for one in test.tried:
            for row in one.tried.sort_values(["seed", "train.learning_rate"], kind="stable").to_dict("records"):
                rate, score, took = (row[f"train.{name}"] for name in ("learning_rate", "score", "train_s"))
                texts = (one.label, test.name, str(row["train.attempt"]), str(row["stop_reason"] or units.NONE))
                cells = [Shown(f"{rate:g}", rate), Shown(units.whole(row["seed"]), row["seed"])]
                cells += [Shown(write(score, test.bits), score), _count(row["steps"]), Shown(units.seconds(took), took)]
                cells += [_count(row.get(f"train.{part}")) for part in ("attention", "mixer", "embeddings")]
                body.append([*(Shown(text, text) for text in texts), *cells])
    head = ("Variant", "Task", "Attempt", "Ended by", "Learning rate", "Seed", "Score", "Steps", "Training")
    head += ("In attention", "In all else", "In embeddings")
    note = (
        "'grid': the rates that all have; 'beyond', 'longer': a rate outside it, and twice the steps, where nothing "
        "was learned; 'best': the other seeds, with what was best. The last three columns count parameters."
    )
    return trim(Table(f"All {len(body)} attempts", head, body, text_columns=4, note=note, folded=True))


def _count(value: Any) -> Shown:
    return Shown(units.whole(value), float(value) if units.there(value) else None)


# -- by length and distance ----------------------------------------------------------------------------------------


def _list_spread(tests: Sequence[Test], labels: Sequence[str]) -> Iterator[Table]:
    """Scores at other lengths than that of training, and by how far back an answer lies, where there are several."""
    for test in tests:
        lengths = list_numbers(test, AT)
        if lengths:
            columns = {n: f"{AT}{n}" for n in lengths} | {test.length: "train.score"}
            heads = {f"length {n}": columns[n] for n in sorted(columns)}
            said = f"{test.head}: by the length of the tests, trained at {test.length}"
            yield _spread(said, test, labels, heads, bits=test.bits)
        edges = list_numbers(test, NEAR)
        if len(edges) > 1:
            heads = {f"{name_edge(edge)} back": f"{NEAR}{edge}" for edge in edges}
            yield _spread(f"{test.name}: right answers by where they lie", test, labels, heads, bits=False)


def _spread(said: str, test: Test, labels: Sequence[str], heads: dict[str, str], *, bits: bool) -> Table:
    body = []
    for one in sorted(test.tried, key=lambda one: labels.index(one.label)):
        means = [one.mean(column) for column in heads.values()]
        cells = [Shown(units.NONE) if x is None else Shown(write(x.value, bits), x.value) for x in means]
        body.append([Shown(one.label, one.label, "base" if one.is_baseline else ""), *cells])
    return Table(f"{said}, mean over seeds", ("Variant", *heads), body)


def name_edge(edge: int) -> str:
    """Which distances a column counts: at most so many, and more than half as many."""
    low = edge // 2 + 1
    return str(edge) if low >= edge else f"{low}{units.TO}{edge}"


# -- beside swapping -----------------------------------------------------------------------------------------------


def _find_swapped(rows: Frame) -> dict[str, dict[str, float]]:
    """What each mechanism loses where a trained model's attention is swapped: by what and where, its spec, the mean."""
    found: dict[str, dict[str, float]] = {}
    swapped = rows[(rows["task"] == "swap") & (rows["status"] == "ok") & rows["layer"].isna() & rows["budget"].isna()]
    for column, what in (("swap.divergence", "KL a token"), ("swap.hidden_error", "error of hidden rows")):
        known = swapped[swapped[column].notna()] if column in swapped else swapped[:0]
        for (inputs, length), own in known.groupby(["inputs", "seq_len"], sort=True):
            specs = [label_of(*pair) for pair in zip(own["variant"], own["backend"], strict=True)]
            means = own[column].groupby(specs).mean()
            found[f"Swapped: {what}, {inputs}, {int(length):,} tokens"] = {str(k): float(v) for k, v in means.items()}
    return found


def _compare_with_swapping(
    tests: Sequence[Test], labels: Sequence[str], swapped: dict[str, dict[str, float]]
) -> Iterator[Table]:
    """Both answers side by side, for mechanisms that have both."""
    specs = {}
    for one in (one for test in tests for one in test.found):
        first = one.rows.iloc[0]
        specs[one.label] = label_of(first["variant"], first["backend"])
    both = [label for label in labels if any(specs[label] in means for means in swapped.values())]
    if not both:
        return
    body = []
    for label in both:
        losses = [show_number(means.get(specs[label])) for means in swapped.values()]
        found = [next((one for one in test.found if one.label == label), None) for test in tests]
        body.append([Shown(label, label), *losses, *map(_show, tests, found)])
    note = "Two questions: what a trained model loses without being trained again, and what is learned from nothing."
    head = ("Variant", *swapped, *(f"Learned: {test.head}" for test in tests))
    yield Table(
        f"Swapped and learned: {words.count(len(both), 'mechanism')} of which both is known", head, body, note=note
    )
