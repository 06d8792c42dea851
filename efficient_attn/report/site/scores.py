"""What was measured of a task, as leaderboards: of each run and place a table, the best first, the baseline marked.

The same figures as on the runs' own pages, from the same functions, a score a line.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ... import units
from ...results.section import Section
from ...results.stats import Estimate, mean_of
from .. import losses, page, select, words
from ..gather import Frame
from ..sections import ability, complexity, learned, plain, swap
from ..sections.blocks import Material
from ..tables import Shown, Table, trim
from .material import Run

TIMED = ("speed", "decoding", "effects")  # layouts of sections whose rows are times: leaderboards of suites rank them
LESS = " (less is better)"


@dataclass(frozen=True)
class Scoreboard:
    """A table of scores. place: what they hold for. order: how its lines follow each other, in words."""

    run: Run
    place: str
    table: Table
    order: str = "the best first"


def list_scoreboards(run: Run, task: str, cpus: Mapping[str, str]) -> Iterator[Scoreboard]:
    """All of a task in a run; none where its rows are times."""
    rows = run.found.rows[run.found.rows["task"] == task]
    sections = {section.name: section for section in (*page.BUILT_IN, *run.found.sections)}
    own = next((one for one in sections.values() if one.task == task), None)
    if not len(rows) or (own is not None and own.layout in TIMED):
        return
    rows = select.add_labels(rows)
    material = Material(rows, dict(cpus), {}, frozenset(run.found.trials))
    trained = learned.keep_trained(rows)
    if len(trained):
        # a place's batch is that of a call that is timed; training has its own
        yield from _split(run, material, trained.assign(batch=None), _list_learned)
    elif own is not None and own.layout in MAKERS:
        yield from _split(run, material, rows[rows["status"] == "ok"], MAKERS[own.layout])
    elif own is not None:
        yield from _take_tables(run, own, material)


_Make: TypeAlias = Callable[[Frame], Iterable[Table]]


def _split(run: Run, material: Material, rows: Frame, make: _Make) -> Iterator[Scoreboard]:
    """A board a table; what would have the same name says beside which baseline it was measured."""
    made = [(setting, trim(table)) for setting in select.split_settings(rows) for table in make(setting.rows)]
    names = Counter(table.caption for _, table in made)
    for setting, table in made:
        against = f", beside {setting.baseline}" if names[table.caption] > 1 else ""
        table = replace(table, caption=f"{table.caption}{against}")
        yield Scoreboard(run, material.name_place(setting), table)


def _make_table(where: str, head: Sequence[str], lines: Sequence[tuple[float, Sequence[Shown]]], note: str) -> Table:
    """The least of the lines' values first."""
    body = [line for _, line in sorted(lines, key=lambda line: line[0])]
    return Table(where, ("Mechanism", *head), body, note=note)


def _tell_budget(budget: tuple[int, str]) -> Shown:
    """To what a mechanism was fitted, where it was."""
    return Shown(budget[1], budget[0])


def _name(label: str, *, base: bool) -> Shown:
    return Shown(label, label, "base" if base else "")


# -- what is learned -----------------------------------------------------------------------------------------------


def _list_learned(rows: Frame) -> Iterator[Table]:
    for test in learned.list_tests(rows):
        if test.tried:
            yield _tell_test(test)


def _tell_test(test: learned.Test) -> Table:
    lines = [_tell_learned(test, one) for one in test.tried]
    for name, find in ability.COMPUTED:
        value = find(test)
        if value is not None:
            null = [Shown(name, name, "null"), Shown(learned.write(value, test.bits), value), Shown("computed")]
            lines.append((value if test.bits else -value, [*null, Shown(units.NONE)]))
    silent = [one.label for one in test.found if one.score is None]
    untold = f"Without a score: {words.join(silent)}." if silent else ""
    head = (_name_metric(test.metric, less=test.bits), "Mean over", "Parameters")
    return _make_table(test.name, head, lines, " ".join(filter(None, (test.tell(), untold))))


def _tell_learned(test: learned.Test, one: learned.Learned) -> tuple[float, Sequence[Shown]]:
    value = one.score.value if one.score else 0.0
    size = one.chosen["parameters"].dropna()
    cells = (
        one.show(),
        Shown(words.count(len(one.chosen), "seed")),
        Shown(units.whole(size.max()) if len(size) else ""),
    )
    return value if test.bits else -value, [_name(one.label, base=one.is_baseline), *cells]


def _name_metric(metric: str, *, less: bool) -> str:
    return f"{metric[:1].upper()}{metric[1:]}" + (LESS if less else "")


# -- what is lost --------------------------------------------------------------------------------------------------


def _list_errors(rows: Frame) -> Iterator[Table]:
    for piece in select.slice_fidelity(select.keep_faithful(rows)):
        own, budgets = piece.rows, select.find_budgets(piece.rows)
        lines = []
        for label, part in own.groupby("label", sort=False):
            errors = part["relative_error"].tolist()
            mean, (low, high) = sum(errors) / len(errors), losses.find_ends(errors)
            cells = [_show(Estimate(mean, low, high)), _tell_budget(budgets[str(label)])]
            cells.append(Shown(words.count(part["layer"].nunique(), "layer")))
            lines.append((mean, [_name(str(label), base=bool(part["is_baseline"].any())), *cells]))
        nulls = (("null: mean of v", own["mean_value_error"].mean()), ("null: zero", 1.0))
        for name, value in nulls:
            if units.there(value):
                lines.append(
                    (value, [Shown(name, name, "null"), _show(Estimate(value)), Shown(units.NONE), Shown(units.NONE)])
                )
        where = words.inputs_words(piece.inputs, piece.causal, piece.length)
        yield _make_table(where, (f"Relative error{LESS}", "Budget", "Mean over"), lines, "")


def _show(found: Estimate, write: Callable[[float], str] = units.number) -> Shown:
    ends = [write(end) for end in (found.low, found.high) if units.there(end) and end is not None]
    return Shown(write(found.value) + (f" ({units.TO.join(ends)})" if len(ends) > 1 else ""), found.value)


# -- in a trained model --------------------------------------------------------------------------------------------


def _list_swapped(rows: Frame) -> Iterator[Table]:
    for (inputs, length), piece in rows.groupby(["inputs", "seq_len"], sort=True):
        where = f"{inputs}, {int(length):,} tokens"
        whole, single = piece[piece["layer"].isna()], piece[piece["layer"].notna()]
        if len(whole):
            yield _tell_swapped(whole, where)
        if len(single):
            yield _tell_layers(single, f"{where}, one layer at a time")


def _tell_swapped(rows: Frame, where: str) -> Table:
    """By perplexity; an encoder has none, but outputs that are further away or less."""
    found = list(swap.summarise(rows))
    column, what = _choose_closeness(rows)
    asked = "perplexity" if any(line["perplexity"] for line in found) else "apart"
    over = Shown(words.count(rows["swap.segment"].nunique(), "segment"))
    lines = []
    for line in found:
        score = line[asked]
        cells = [Shown(units.ratio(*line["perplexity"]) if line["perplexity"] else units.NONE)]
        cells += [Shown(units.number(line[column])), Shown(units.ratio(*line["speedup"] or (None,)))]
        value = score.value if score else float("inf")
        lines.append(
            (value, [_name(line["label"], base=line["is_baseline"]), *cells, _tell_budget(line["budget"]), over])
        )
    head = (
        f"Perplexity, over its own{LESS}",
        f"{what}{LESS}",
        "Time of a pass, its own over this",
        "Budget",
        "Mean over",
    )
    return _make_table(where, head, lines, "")


def _choose_closeness(rows: Frame) -> tuple[str, str]:
    first, second = swap.CLOSENESS
    decoder = first in rows and rows[first].notna().any()
    return (first, "KL a token") if decoder else (second, "Error of hidden rows")


def _tell_layers(rows: Frame, where: str) -> Table:
    column, what = _choose_closeness(rows)
    lines = []
    for label, part in rows.groupby("label", sort=False):
        layers = part.groupby("layer")[column].mean().dropna().tolist()
        if layers:
            mean = mean_of(layers)
            ends = mean.interval() or (None, None)
            cells = [_show(Estimate(mean.value, *ends)), Shown(words.count(len(layers), "layer"))]
            lines.append((mean.value, [_name(str(label), base=bool(part["is_baseline"].any())), *cells]))
    return _make_table(where, (f"{what}{LESS}", "Mean over"), lines, "")


def _list_found(rows: Frame) -> Iterator[Table]:
    for (inputs, length), piece in rows.groupby(["inputs", "seq_len"], sort=False):
        last = piece[piece["accuracy"].notna()].drop_duplicates("label", keep="last")
        lines = []
        for row in last.to_dict("records"):
            ends = (row.get(f"retrieval.accuracy_{end}") for end in ("low", "high"))
            cells = [_show(Estimate(row["accuracy"], *ends), units.percent)]
            asked = row.get("retrieval.questions")
            cells.append(Shown(words.count(int(asked), "question") if units.there(asked) else units.NONE))
            lines.append((-row["accuracy"], [_name(row["label"], base=row["is_baseline"]), *cells]))
        if "retrieval.chance" in last and len(chance := last["retrieval.chance"].dropna()):
            null = [
                Shown("chance", "chance", "null"),
                _show(Estimate(chance.iloc[0]), units.percent),
                Shown("computed"),
            ]
            lines.append((-chance.iloc[0], null))
        if len(last):
            metric = last["metric"].dropna()
            head = (_name_metric(str(metric.iloc[0]) if len(metric) else "accuracy", less=False), "Mean over")
            yield _make_table(f"{inputs}, {int(length):,} tokens", head, lines, "")


MAKERS: Mapping[str, _Make] = {"fidelity": _list_errors, "swap": _list_swapped, "retrieval": _list_found}


# -- all else ------------------------------------------------------------------------------------------------------


def _take_tables(run: Run, section: Section, material: Material) -> Iterator[Scoreboard]:
    """The tables of the report's own section. Those of growth by the exponent; which way others are better nobody says,
    so they stay in their order."""
    if section.layout == "complexity":
        for block in complexity.make_chapter(section, material).blocks:
            tables = (_order_by_growth(table) for table in block.tables)
            yield from (Scoreboard(run, block.place, table, "the slowest growth first") for table in tables)
        return
    layout = page.LAYOUTS.get(section.layout, plain)
    for said, rows in _divide(material.rows, section.x):
        for block in layout.make_chapter(section, replace(material, rows=rows)).blocks:
            for table in block.tables:
                caption = f"{table.caption}: {said}" if said else table.caption
                yield Scoreboard(run, block.place, replace(table, caption=caption), "as its section has it")


def _divide(rows: Frame, x: str | None) -> Iterator[tuple[str, Frame]]:
    """Rows by what tells those of one mechanism apart, and that in words: the suite's part, what was put in."""
    same = ["label", x] if x in rows else ["label"]
    apart: list[str] = []
    for name in ("part", "inputs"):
        if rows.duplicated([*same, *apart]).any() and rows[name].nunique() > 1:
            apart.append(name)
    if not apart:
        yield "", rows
        return
    for values, own in rows.groupby(apart, sort=False, dropna=False):
        yield ", ".join(str(value) for value in values if units.there(value)), own


def _order_by_growth(table: Table) -> Table:
    if "Time" not in table.head:
        return table
    at = table.head.index("Time")

    def place(row: Sequence[Shown]) -> tuple[str, float]:
        value = row[at].sort
        return row[1].text, float(value) if isinstance(value, int | float) else math.inf

    return replace(table, rows=sorted(table.rows, key=place))
