"""What attempts at learning came to: of each mechanism and test the rows at its best rate, one a seed, and whether they
show more than what needs no learning. Only pandas: the page and the terminal say the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ... import units
from ...results.stats import Estimate, mean_of
from .. import words
from ..gather import Frame
from ..tables import Shown

BITS = "bits a token"  # the one metric of which less is better
REACH = "all that lies within reach of its keys"  # the cheap way of one mechanism, not of a task
NEEDLESS = "more than chance was learned within the grid"  # no failure: why further attempts were not made
COMPUTED = "computed, not trained"  # why no more attempts were made at what no model of so few keys can do
MADE = "ok", "invalid"  # a loss that is no number any more is an attempt too
LATE = {"beyond", "longer"}  # the attempts without which nothing is called unable
WHOLE = 0.999  # of a reach: what sees as much is not held back by it


@dataclass(frozen=True)
class Learned:
    """One mechanism at one test. rows: all its attempts, those that failed or were not needed too."""

    label: str
    rows: Frame
    bits: bool

    @property
    def is_baseline(self) -> bool:
        return bool(self.rows["is_baseline"].any())

    @cached_property
    def tried(self) -> Frame:
        """The attempts that came to a score."""
        return self.rows[(self.rows["status"] == "ok") & self.rows["train.score"].notna()]

    @cached_property
    def chosen(self) -> Frame:
        """A row a seed, with the learning rate and the steps that the other seeds have; where there are none, with
        those that were best on validation."""
        found = self.tried
        best = found[found["train.attempt"] == "best"]
        if best.empty:
            best = found.sort_values("train.validation", ascending=not self.bits, kind="stable", na_position="first")
        alike = [found[name] == best[name].iloc[-1] for name in ("train.learning_rate", "train.budget")]
        return found[alike[0] & alike[1]].drop_duplicates("seed", keep="last").sort_values("seed")

    @cached_property
    def score(self) -> Estimate | None:
        return None if self.tried.empty else self.mean("train.score", most=None if self.bits else 1.0)

    def mean(self, column: str, most: float | None = None) -> Estimate | None:
        """The mean of a column over seeds, and where there are several its 95% interval. most: of what lies between
        zero and that."""
        known = [float(x) for x in self.chosen[column].tolist() if units.there(x)] if column in self.chosen else []
        if not known:
            return None
        found = mean_of(known)
        low, high = found.interval() or (None, None)
        if low is not None and high is not None and most is not None:
            low, high = max(low, 0.0), min(high, most)
        return Estimate(found.value, low, high)

    @cached_property
    def idle(self) -> bool:
        """Whether no attempt is surely better than what needs no learning."""
        return all(_is_idle(row, self.bits) for row in self.tried.to_dict("records"))

    @property
    def kinds(self) -> list[str]:
        """Of the attempts that were made, with the first seed. A loss that is no number leaves no column, but words."""
        made = self.rows[self.rows["status"].isin(MADE)]
        told = zip(made["train.attempt"], made["inputs"], strict=True)
        found = [str(kind) if units.there(kind) else f"{inputs},,".split(",")[1].strip() for kind, inputs in told]
        return [kind for kind in found if kind != "best"]

    @property
    def hopeless(self) -> bool:
        """Whether it was worked out that a model which sees so few keys is at chance."""
        return bool(self.rows["reason"].astype(object).fillna("").str.contains(COMPUTED, regex=False).any())

    @property
    def settled(self) -> bool:
        """Whether all attempts were made before it may be called unable."""
        return self.hopeless or set(self.kinds) >= LATE

    @property
    def reach(self) -> float | None:
        """Of a task whose answers lie at known distances, the best that a model of its reach could score."""
        own = self.chosen if len(self.tried) else self.tried
        own = own[own["train.way"] == REACH]["train.shortcut"].dropna()
        return float(own.iloc[-1]) if len(own) else None

    @property
    def reached(self) -> bool:
        """Whether all that lies within its reach was learned, as far as the interval tells: over seeds, or of one seed
        over examples."""
        score, reach = self.score, self.reach
        if score is None or reach is None or reach >= WHOLE or self.idle:
            return False
        one: Any = self.chosen.iloc[-1]
        ends: Any = (score.low, score.high) if score.low is not None else (one.get("train.low"), one.get("train.high"))
        return all(map(units.there, ends)) and bool(ends[0] <= reach <= ends[1])

    def show(self) -> Shown:
        """The score, or that there is none to speak of."""
        if self.score is None:
            return Shown(str(self.rows["status"].iloc[-1]))
        if self.idle and self.hopeless:
            return Shown("at chance: no answer within its reach", self.score.value)
        if self.idle and self.settled:
            return Shown(f"not learned ({words.count(len(self.kinds), 'attempt')})", self.score.value)
        if self.idle:
            return Shown("at chance, too early to say", self.score.value)
        said = write(self.score.value, self.bits)
        if self.score.low is None or self.score.high is None:
            return Shown(f"{said} ({words.count(len(self.chosen), 'seed')})", self.score.value)
        ends = (units.number(end if self.bits else 100 * end) for end in (self.score.low, self.score.high))
        return Shown(f"{said} ({units.TO.join(ends)})", self.score.value)


def _is_idle(row: dict[str, Any], bits: bool) -> bool:
    """Whether a score is no surely better than a guess, or than the one answer that is most often right."""
    known = [float(row[f"train.{name}"]) for name in ("chance", "majority") if units.there(row[f"train.{name}"])]
    if not known:
        return False
    if bits:
        return bool(row["train.score"] >= min(known))
    low: Any = row.get("train.low")  # of a score that is no count there is none
    low = low if units.there(low) else row["train.score"]
    return bool(low <= max(known))


def write(score: Any, bits: bool) -> str:
    return units.number(score) if bits else units.percent(score)


@dataclass(frozen=True)
class Test:
    """A task at a length. name: what tells it from the others."""

    name: str
    length: int
    metric: str
    found: tuple[Learned, ...]

    @property
    def bits(self) -> bool:
        return self.metric == BITS

    @property
    def head(self) -> str:
        """The name, and what it is scored by where that is not the share of right answers."""
        return self.name if self.metric in ("accuracy", "") else f"{self.name}, {self.metric}"

    @cached_property
    def tried(self) -> tuple[Learned, ...]:
        """The mechanisms that came to a score."""
        return tuple(one for one in self.found if one.score is not None)

    @property
    def baseline(self) -> Learned | None:
        return next((one for one in self.tried if one.is_baseline), None)

    @property
    def ranked(self) -> bool:
        """Nobody is, where the baseline itself learned nothing, or nobody came to a score."""
        return bool(self.tried) and not (self.baseline is not None and self.baseline.idle)

    def tell(self) -> str:
        """That nobody is ranked, and why."""
        if self.ranked or self.baseline is None:
            return ""
        if all(one.idle and one.settled for one in self.tried):
            return f"{self.name}: not learned by anybody here, so nobody is ranked by it."
        return f"{self.name}: {self.baseline.label} itself is at chance here, so nobody is ranked by it."

    def best_first(self) -> list[Learned]:
        return sorted(self.tried, key=lambda one: one.score.value * (1 if self.bits else -1) if one.score else 0.0)

    def known(self, column: str) -> list[Any]:
        """What the rows that count say of a column, each once."""
        values = [x for one in self.tried for x in one.chosen[column].tolist()]
        return list(dict.fromkeys(x for x in values if units.there(x)))

    def shortcut(self) -> tuple[float, str] | None:
        """The score of the task's own cheap way, and what that is; none where the reach of each mechanism is one."""
        for one in self.tried:
            last = one.chosen.iloc[-1]
            if units.there(last["train.shortcut"]) and last["train.way"] != REACH:
                return float(last["train.shortcut"]), str(last["train.way"]) if units.there(last["train.way"]) else ""
        return None


def keep_trained(rows: Frame) -> Frame:
    """The rows of tasks that train models, whatever they are called: what failed before it began among them."""
    if "train.score" not in rows:
        return rows[:0]
    ours = rows["task"].isin(set(rows.loc[rows["train.score"].notna(), "task"]))
    return rows[ours | ((rows["mode"] == "train") & (rows["status"] != "ok"))]


def drop_needless(rows: Frame) -> Frame:
    """Rows without those of attempts that were not needed: nothing is missing there."""
    return rows[~((rows["status"] == "skipped") & (rows["reason"].astype(object) == NEEDLESS))]


def list_tests(rows: Frame) -> Iterator[Test]:
    """Each task at each length, in the order in which they were run; by part where several have the same."""
    parts = rows.groupby(["task", "seq_len"], dropna=False)["part"].transform("nunique") > 1
    for (task, part, length), own in rows.groupby(["task", "part", "seq_len"], sort=False, dropna=False):
        apart = f" ({part})" if units.there(part) and bool(parts[own.index[0]]) else ""
        metrics = own["metric"].dropna()
        metric = str(metrics.iloc[0]) if len(metrics) else ""
        found = (Learned(str(label), each, metric == BITS) for label, each in own.groupby("label", sort=False))
        yield Test(f"{task}, length {int(length)}{apart}", int(length), metric, tuple(found))


def order_labels(tests: Sequence[Test]) -> list[str]:
    """Who is best over all tests by which anybody is ranked comes first, by the mean of places."""
    places: dict[str, list[float]] = {one.label: [] for test in tests for one in test.found}
    for test in tests:
        for place, one in enumerate(test.best_first()) if test.ranked else ():
            places[one.label].append(place / len(test.tried))
    return sorted(places, key=lambda label: sum(places[label]) / len(places[label]) if places[label] else 1.0)
