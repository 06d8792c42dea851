"""What a mechanism loses or learns, as a question asks for it: a figure, and where it was measured, which is never left
out, for it is seldom where one asks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ... import units
from ...errors import unknown
from ...results.stats import Estimate, mean_of, typical
from .. import losses, select, words
from ..gather import Frame
from ..sections.learned import keep_trained, list_tests
from .questions import Question
from .timing import Curve

SHARES = ("accuracy", "share of whole sequences")  # metrics that count right ones
SHARING = ("gqa", "mqa")  # exact attention of a model whose heads share keys
DOUBT = "not surely"  # what a value decides and its interval does not


@dataclass(frozen=True)
class Found:
    """A figure that was measured. on: where; what: the bound's name in words. runs: which hold it. length, causal: of
    the calls that it was measured on. low, high: its 95% interval, over seeds, segments of text or questions, where
    there is one. sure: whether all of that lies on the value's side of a bound; None without an interval or a bound."""

    what: str
    value: float
    on: str
    text: str
    runs: tuple[str, ...] = ()
    length: int | None = None
    causal: bool | None = None
    low: float | None = None
    high: float | None = None
    sure: bool | None = None

    def held_to(self, keeps: Callable[[float], bool]) -> Found:
        """The same, with whether its interval says of a bound what its value does."""
        if self.low is None or self.high is None:
            return self
        return replace(self, sure=keeps(self.low) == keeps(self.value) == keeps(self.high))

    def tell_doubt(self) -> str:
        """``not surely: 82.4%-100%``; empty where it is sure, or not known."""
        if self.sure is not False:
            return ""
        write = units.ratio if self.what == "perplexity" else units.percent
        return f"{DOUBT}: {write(self.low)}{units.TO}{write(self.high)}"

    def tell_apart(self, question: Question) -> str:
        """In what that differs from what is asked: ``not at 16,384, not causal``; empty for nothing."""
        found = [f"not at {question.seq_len:,}"] if self.length not in (None, question.seq_len) else []
        if None not in (self.causal, question.directed) and self.causal != question.directed:
            found.append("not causal" if question.directed else "not bidirectional")
        return ", ".join(found)


@dataclass(frozen=True)
class Quality:
    """All that rows say of quality, by what a question may ask; worked out where it is asked. Errors are told by
    curves' own rows."""

    rows: Frame

    @classmethod
    def of(cls, rows: Frame) -> Quality:
        return cls(rows)

    @cached_property
    def _labelled(self) -> Frame:
        return self.rows if "label" in self.rows else select.add_labels(self.rows)

    @cached_property
    def perplexity(self) -> Mapping[str, Found]:
        """Over the model's own, by spec."""
        return _list_perplexities(self._labelled)

    @cached_property
    def accuracy(self) -> Mapping[str, Mapping[str, Found]]:
        """By task, and spec."""
        return _list_accuracies(self._labelled)

    def check(self, question: Question) -> None:
        """`UsageError` for a task that nobody learned in these rows."""
        for task in question.min_accuracy:
            if task not in self.accuracy:
                raise unknown("task of --min-accuracy", task, sorted(self.accuracy))

    def judge(self, curve: Curve, question: Question) -> tuple[list[Found], str]:
        """What is known of the bounds that a question has; and why it does not keep them, empty where it does."""
        known: list[Found] = []
        for what, found, keeps in self._list_asked(curve, question):
            if found is None:
                return known, f"{what} not measured"
            known.append(found.held_to(keeps))
            if not keeps(found.value):
                return known, _tell(known[-1], question)
        return known, ""

    def _list_asked(
        self, curve: Curve, question: Question
    ) -> Iterator[tuple[str, Found | None, Callable[[float], bool]]]:
        """The bounds that a question has: of what, the figure if it was measured, and what keeps it."""
        spec, worst, ratio = _name(curve), question.max_error, question.max_ppl_ratio
        if worst is not None:
            yield "error", find_error(curve, question), lambda value: value <= worst
        if ratio is not None:
            known = EXACT_RATIO if is_exact(curve, question) else self.perplexity.get(spec)
            yield "perplexity in a model", known, lambda value: value <= ratio
        for task, least in question.min_accuracy.items():
            yield task, self.accuracy[task].get(spec), lambda value, least=least: value >= least


def _tell(found: Found, question: Question) -> str:
    return "; ".join(filter(None, (f"{found.text} on {found.on}", found.tell_apart(question), found.tell_doubt())))


EXACT_RATIO = Found("perplexity", 1.0, "any model", "the model's own perplexity")


def is_exact(curve: Curve, question: Question) -> bool:
    """Whether it is exact attention of the model that is asked about."""
    if losses.is_exact(curve.row):
        return True
    named = _name(curve).partition(":")[0]
    return named in SHARING and question.kv_heads is not None and curve.kv_heads == question.kv_heads


def find_error(curve: Curve, question: Question) -> Found | None:
    """Of the output against exact attention, the mean over layers, on a model's activations."""
    if is_exact(curve, question):
        return Found("error", 0.0, "anything", "exact")
    error = curve.row["error"]
    if not units.there(error):
        return None
    on = f"{curve.row['error_on']}, {curve.row['error_how']}"
    length, causal = curve.row["error_length"], curve.row["error_causal"]
    at = int(length) if units.there(length) else None
    text = f"error {units.number(error)}"
    return Found("error", float(error), on, text, length=at, causal=bool(causal) if units.there(causal) else None)


def _name(curve: Curve) -> str:
    return losses.name_spec(str(curve.row["variant"]))


def _list_perplexities(rows: Frame) -> dict[str, Found]:
    """Over the model's own, of whole models swapped, the mean over segments; at the greatest length of several."""
    if "swap.loss" not in rows:
        return {}
    own = rows[(rows["status"] == "ok") & (rows["task"] == "swap") & rows["layer"].isna() & rows["swap.loss"].notna()]
    found: dict[str, Found] = {}
    for (length, inputs), part in own.groupby(["seq_len", "inputs"], sort=True):
        base = part.loc[part["is_baseline"], "swap.loss"].mean()
        if not math.isfinite(base):
            continue
        for variant, each in part.groupby("variant", sort=False):
            ratio = math.exp(float(each["swap.loss"].mean()) - float(base))
            on = f"{inputs}, {int(length):,} tokens"
            runs = tuple(dict.fromkeys(each["run_id"]))
            causal = each["causal"].iloc[0]
            low, high = _span_segments(each, part[part["is_baseline"]])
            text = f"{units.ratio(ratio)} perplexity"
            told = Found("perplexity", ratio, on, text, runs, int(length), low=low, high=high)
            found[losses.name_spec(str(variant))] = replace(told, causal=bool(causal) if units.there(causal) else None)
    return found


def _span_segments(own: Frame, base: Frame) -> tuple[float | None, float | None]:
    """The interval of a ratio of perplexities over segments of text, each of which both read; a segment that several
    runs read counts once."""
    if "swap.segment" not in own:
        return None, None
    losses = [rows.groupby("swap.segment")["swap.loss"].mean() for rows in (own, base)]
    apart = (losses[0] - losses[1]).dropna()
    return typical([math.exp(x) for x in apart])[1:] if len(apart) else (None, None)


def _list_accuracies(rows: Frame) -> dict[str, dict[str, Found]]:
    """By task, and spec: the mean over seeds at the best learning rate; and of a trained model, by ``retrieval``."""
    found: dict[str, dict[str, Found]] = {}
    for test in sorted(list_tests(keep_trained(rows)), key=lambda test: test.length):
        if test.metric not in SHARES:
            continue
        task = test.name.split(",")[0]
        for one in test.tried:
            score = one.score
            if score is not None:
                text = f"{units.percent(score.value)} of {task}"
                seeds = words.count(len(one.chosen), "seed")
                on = f"small models trained at length {test.length}, {seeds}"
                runs = tuple(dict.fromkeys(one.chosen["run_id"]))
                spec = losses.name_spec(str(one.rows.iloc[0]["variant"]))
                told = Found(task, score.value, on, text, runs, test.length, low=score.low, high=score.high)
                found.setdefault(task, {})[spec] = told
    asked: Any = rows[(rows["status"] == "ok") & (rows["task"] == "retrieval") & rows["accuracy"].notna()]
    for (inputs, length, variant), part in asked.groupby(["inputs", "seq_len", "variant"], sort=True, dropna=False):
        value, low, high = _span_questions(part)
        on = f"{inputs}, {int(length):,} tokens"
        text, runs = f"{units.percent(value)} of retrieval", tuple(dict.fromkeys(part["run_id"]))
        told = Found("retrieval", value, on, text, runs, int(length), low=low, high=high)
        found.setdefault("retrieval", {})[losses.name_spec(str(variant))] = told
    return found


def _span_questions(rows: Frame) -> Estimate:
    """The share of right answers: of one row with its own interval over questions, of several the mean with theirs."""
    mean = mean_of(rows["accuracy"].tolist())
    if len(rows) > 1:
        low, high = mean.interval() or (0.0, 1.0)
        return Estimate(mean.value, max(low, 0.0), min(high, 1.0))
    ends = [rows.iloc[0].get(f"retrieval.accuracy_{end}") for end in ("low", "high")]
    low, high = (float(end) if units.there(end) else None for end in ends)
    return Estimate(mean.value, low, high)
