"""What a figure shows: one place, and of the mechanisms that were measured there those that were asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ... import units
from ...errors import UsageError, unknown
from ...spec import parse
from .. import select, words
from ..answers.decisions import Board, make_decisions
from ..answers.questions import MODES
from ..gather import Frame

FILTERS = ("suite", "machine", "device", "dtype", "threads", "batch", "heads", "head_dim", "fill", "baseline")
FILTERS += ("mode", "causal", "inputs")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """only: specs or names; none for all that fit. highlight: those that keep their colour. labels: ``SPEC=Ours``.

    where: values that rows must have, by column; of ``machine`` a part of its name.
    """

    only: tuple[str, ...] = ()
    highlight: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    where: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Rows that may be compared with each other, of one mode and direction, and what was decided there, if anything.

    key: the setting's columns with ``mode`` and ``causal``; of fidelity with ``inputs`` and ``seq_len``.
    """

    key: Mapping[str, Any]
    rows: Frame
    baseline: str = ""
    board: Board | None = None

    @property
    def always(self) -> frozenset[str]:
        """The baseline's labels: it is a line or a level of every figure of times and memory."""
        return (
            frozenset(self.rows.loc[self.rows["is_baseline"].astype(bool), "label"]) if self.baseline else frozenset()
        )

    def tell(self) -> str:
        """``forward, causal, cpu, float32, 1 thread, batch 1, 4 heads of size 64, machine M2-x8``."""
        get = self.key.get
        where = words.inputs_words(get("inputs"), get("causal"), get("seq_len")) if "inputs" in self.key else ""
        where = where or words.slice_words(get("mode"), None if get("mode") == "decode" else get("causal"))
        return ", ".join(filter(None, (where, words.place_words(dict(self.key), {}))))


def keep_rows(rows: Frame, where: Mapping[str, Any]) -> Frame:
    """The rows that have these values. `UsageError` where none has, with the values that there are."""
    for column, value in where.items():
        known = [each for each in dict.fromkeys(rows[column].tolist()) if units.there(each)]
        kept = [each for each in known if (str(value) in str(each) if column == "machine" else each == value)]
        if not kept:
            option = column.replace("_", "-")
            raise UsageError(f"plot: no row has {option} {value}; there is {words.join(map(str, known)) or 'none'}")
        rows = rows[rows[column].isin(kept)]
    return rows


def list_timed(rows: Frame) -> list[Place]:
    """Every place at which something was timed. rows: with labels and losses."""
    boards = {select.name_place(board.place): board for board in make_decisions(rows)}
    places = []
    for setting in select.split_settings(select.keep_timed(select.keep_task(rows, "speed"))):
        for piece in setting.slices:
            key = setting.key | {"mode": piece.mode, "causal": piece.causal}
            places.append(Place(key, piece.rows, setting.baseline, boards.get(select.name_place(key))))
    return places


def list_judged(rows: Frame) -> list[Place]:
    """Every place at which outputs were compared with exact attention."""
    places = []
    for setting in select.split_settings(select.keep_faithful(select.keep_task(rows, "fidelity"))):
        for piece in select.slice_fidelity(setting.rows):
            key = {"inputs": piece.inputs, "causal": piece.causal, "seq_len": piece.length}
            places.append(Place(setting.key | key, piece.rows))
    return places


def choose_place(places: Iterable[Place], count: Callable[[Place], int], what: str) -> tuple[Place, list[Place]]:
    """The place at which most can be shown, of forward calls if there are any; and the others that have something."""
    found = [place for place in places if count(place)]
    if not found:
        raise UsageError(f"plot: these rows hold nothing for --figure {what}: {NEEDS[what]}")

    def rank(place: Place) -> tuple[int, int, float]:
        mode = place.key.get("mode")
        return MODES.index(mode) if mode in MODES else 0, -count(place), -float(place.rows["seq_len"].max())

    first, *others = sorted(found, key=rank)
    return first, others


NEEDS = {
    "speed": "no mechanism was timed beside its baseline; run a suite that has one, such as quickstart",
    "crossover": "no mechanism was timed beside its baseline; run a suite that has one, such as quickstart",
    "front": "no two mechanisms have a speedup and a measured loss; run a suite with the task fidelity as well",
    "memory": "peak memory was not measured; add it to what the suite measures",
    "loss": "no output was compared with exact attention; run a suite with the task fidelity",
}


def find(text: str, labels: Iterable[str]) -> list[str]:
    """The labels that a text means: the very spec, or else all with this mechanism's name."""
    known = list(labels)
    exact = [label for label in known if label == text or _is_spec(label, text)]
    found = exact or [label for label in known if _answers(label, text)]
    if not found:
        raise unknown("mechanism", text, known, where="plot")
    return found


def _is_spec(label: str, text: str) -> bool:
    try:
        return str(parse(label)) == str(parse(text))
    except UsageError:
        return False


def _answers(label: str, text: str) -> bool:
    try:
        return parse(label.partition(" (")[0]).answers_to(text)
    except UsageError:
        return False


def choose_labels(
    ranked: Sequence[str], asked: Asked, most: int, always: Collection[str] = ()
) -> tuple[list[str], list[str]]:
    """Of labels, those to show, in their order, and those that are left out. Without ``only`` the first so many, and
    all that are highlighted. always: labels that are shown in any case, so that naming them changes nothing.
    `UsageError` for more than can be told apart, and for none.
    """
    known = [*ranked, *(label for label in always if label not in ranked)]
    named = {label for text in asked.only for label in find(text, known)}
    if asked.only and not named.intersection(ranked):
        raise UsageError(
            f"plot: --only names what is shown in any case ({words.join(sorted(named))}), and nothing else"
        )
    if len(named.intersection(ranked)) > most:
        raise UsageError(f"plot: --only names {len(named)} mechanisms; at most {most} can be told apart in one figure")
    marked = {label for text in asked.highlight for label in find(text, named.union(always) if named else known)}
    chosen = marked.intersection(ranked)
    wanted = named or chosen.union([label for label in ranked if label not in chosen][: max(0, most - len(chosen))])
    return [label for label in ranked if label in wanted], [label for label in ranked if label not in wanted]


def read_labels(given: Iterable[str], labels: Sequence[str]) -> dict[str, str]:
    """What each label is to be called: ``SPEC=Ours``, where the spec itself may hold ``=``."""
    found = {label: label for label in labels}
    for text in given:
        (own, name) = _split(text, labels)
        found[own] = name
    if twice := [name for name in found.values() if list(found.values()).count(name) > 1]:
        raise UsageError(f"plot: two mechanisms would both be called {twice[0]!r}; give --label another name")
    return found


def _split(text: str, labels: Sequence[str]) -> tuple[str, str]:
    cuts = [i for i, letter in enumerate(text) if letter == "="]
    for cut in reversed(cuts):
        spec, name = text[:cut], " ".join(text[cut + 1 :].split())
        means = [label for label in labels if label == spec or _is_spec(label, spec)]
        means = means or [label for label in labels if _answers(label, spec)]
        if name and len(means) == 1:
            return means[0], name
        if name and means:
            raise UsageError(f"plot: --label {text}: {spec} is {words.join(means)}; name one of them")
    raise UsageError(f"plot: --label {text}: not SPEC=NAME with a mechanism that is shown: {words.join(labels)}")
