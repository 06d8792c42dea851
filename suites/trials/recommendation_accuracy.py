"""Is the first answer of `recommend` the fastest mechanism?

    python suites/trials/recommendation_accuracy.py [RUN ...] [--questions N] [--seed S]

Compares the answers to random questions with an exhaustive search over measured groups: the true answer is the fastest
mechanism of a group that satisfies the constraints. For half of the questions the rows of the group are available. For
the other half all rows at its configuration and length are removed from all runs first, so that all times are
interpolated. A bound on the error is satisfied by exact mechanisms and by errors of one model and length, measured in
the same direction at half the length or more. Only mechanisms that the group timed are considered. An answer is right
if the true one is first or shares the first rank; a question without an answer counts as wrong. The script also counts
shared first ranks, answers that contain a mechanism that violates a constraint, and measured times outside of the
predicted interval.
"""

from __future__ import annotations

import argparse
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from efficient_attn import units
from efficient_attn.report.answers.cost_curves import CONFIG_COLUMNS, make_mechanism_key
from efficient_attn.report.answers.recommendation import Recommendation, recommend
from efficient_attn.report.answers.recommendation_data import RecommendationData
from efficient_attn.report.answers.requirements import SHAPE, Requirements
from efficient_attn.report.gather import gather
from efficient_attn.report.select import add_labels
from efficient_attn.results.differences import MAX_DISTURBED_SHARE
from efficient_attn.spec import parse

ERRORS = (0.3, 0.5, 0.9, 1.08, 1.15)
MIN_MECHANISMS = 3  # in a group with questions


@dataclass
class Score:
    """Counts for one kind of question. unanswered: no answer, though a mechanism satisfies the constraints. broken:
    answers with a violation. times, outside: predicted times, and those whose interval lacks the measured value."""

    questions: int = 0
    right: int = 0
    tied: int = 0
    unanswered: int = 0
    broken: int = 0
    times: int = 0
    outside: int = 0
    mistakes: Counter[str] = field(default_factory=Counter)

    def format(self) -> str:
        return (
            f"{self.questions} questions, {self.right / self.questions:.1%} right, {self.unanswered} unanswered; "
            f"{self.tied / max(1, self.questions - self.unanswered):.1%} of the answers share the first rank; "
            f"{self.broken} violate a constraint; {self.outside} of {self.times} times outside of the interval"
        )


@dataclass(frozen=True)
class TimedGroup:
    """What one session timed interleaved. config_index: of the known configurations; rows: by mechanism."""

    config_index: int
    length: int
    rows: Mapping[tuple[str, int | None], Mapping[str, Any]]

    @property
    def causal(self) -> bool:
        """The direction, which all rows share."""
        return bool(next(iter(self.rows.values()))["causal"])


def list_groups(rows: Any, data: RecommendationData) -> list[TimedGroup]:
    """The measured groups, from the rows, independently of the code of `recommend`."""
    timed = rows[(rows["status"] == "ok") & (rows["task"] == "speed") & rows["latency_ms"].notna()]
    index_by_config = {
        tuple(config[name] for name in CONFIG_COLUMNS): index for index, (config, _) in enumerate(data.curves_by_config)
    }
    rows_by_group: dict[tuple[Any, ...], dict[tuple[str, int | None], Mapping[str, Any]]] = defaultdict(dict)
    for record in timed.to_dict("records"):
        row = {name: value if units.is_present(value) else None for name, value in record.items()}
        index = index_by_config.get(tuple(row[name] for name in CONFIG_COLUMNS))
        undisturbed = (row["contaminated"] or 0) <= MAX_DISTURBED_SHARE * (row["rounds"] or 1)
        if index is not None and undisturbed and row["fill"] in (None, "full"):
            rows_by_group[index, int(row["seq_len"]), row["run_id"], row["part"]][make_mechanism_key(row)] = row
    return [
        TimedGroup(index, length, group_rows)
        for (index, length, *_), group_rows in rows_by_group.items()
        if len(group_rows) >= MIN_MECHANISMS
    ]


def list_errors(rows: Any) -> dict[tuple[Any, ...], dict[str, float]]:
    """The mean error over layers of each spec, by dtype, direction, length, inputs and layers."""
    fidelity_rows = rows[(rows["status"] == "ok") & rows["relative_error"].notna() & rows["mode"].isna()]
    errors: dict[tuple[Any, ...], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in fidelity_rows.to_dict("records"):
        key = row["dtype"], row["causal"], row["seq_len"], row["inputs"], str(parse(row["variant"]).without_backend())
        errors[key][row["layer"]].append(row["relative_error"])
    sets: dict[tuple[Any, ...], dict[str, float]] = defaultdict(dict)
    for (*conditions, spec), by_layer in errors.items():
        means = [sum(values) / len(values) for values in by_layer.values()]
        sets[*conditions, tuple(sorted(by_layer))][spec] = sum(means) / len(means)
    return sets


def find_errors(errors: Mapping[tuple[Any, ...], Mapping[str, float]], group: TimedGroup) -> dict[str, float]:
    """The errors of a group's specs: all of one set, measured in the group's direction at half its length or more, that
    has most of them; of several, of its dtype, then the nearest in length, then the longest."""
    rows = [row for (_, heads), row in group.rows.items() if heads in (None, row["heads"])]
    specs = {str(parse(row["variant"]).without_backend()) for row in rows} - {"full"}
    best: tuple[Any, ...] = (0,)
    chosen: dict[str, float] = {}
    for (dtype, causal, length, inputs, _), measured in errors.items():
        near = {spec: measured[name] for spec in specs if (name := find_near(spec, measured)) is not None}
        distance = round(abs(math.log(length / group.length)), 9)
        order = len(near), dtype == rows[0]["dtype"] if rows else False, -distance, length, inputs
        if near and causal == group.causal and 2 * length >= group.length and order > best:
            best, chosen = order, near
    return chosen


def find_near(spec: str, measured: Mapping[str, float]) -> str | None:
    """The spec itself, or the nearest one whose numbers all differ by at most 2%; None if there is none."""
    pattern, numbers = re.sub(r"(?<==)[\d.]+", "#", spec), [float(x) for x in re.findall(r"(?<==)[\d.]+", spec)]
    distances = {spec: 0.0} if spec in measured else {}
    for other in measured:
        if re.sub(r"(?<==)[\d.]+", "#", other) == pattern:
            others = (float(x) for x in re.findall(r"(?<==)[\d.]+", other))
            distances[other] = max((abs(a - b) / max(a, b) for a, b in zip(numbers, others, strict=True)), default=0.0)
    nearest = min(distances, key=lambda name: (distances[name], name), default=None)
    return nearest if nearest is not None and distances[nearest] <= 0.02 else None


def draw_question(group: TimedGroup, draw: random.Random, config: Mapping[str, Any]) -> Requirements:
    """A question about a group, with random constraints."""
    row = draw.choice(list(group.rows.values()))
    memory = row["peak_memory_bytes"] or row["state_bytes"]
    shape = {name: config[name] if name == "dtype" else _whole(config[name]) for name in SHAPE}
    exact_fields = {"mode": config["mode"], "causal": config["causal"], "device": config["device"], **shape}
    return Requirements(
        seq_len=group.length,
        machine=str(config["machine"]),
        max_error=draw.choice(ERRORS),
        memory=int(memory * draw.uniform(0.8, 2)) if memory and draw.random() < 0.4 else None,
        latency_ms=row["latency_ms"] * draw.uniform(0.8, 2) if draw.random() < 0.3 else None,
        **exact_fields,
    )


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def find_admissible(
    group: TimedGroup, question: Requirements, errors: Mapping[Any, Any]
) -> dict[str, Mapping[str, Any]]:
    """Every mechanism of the group that satisfies the constraints, by exhaustive search."""
    admissible = {}
    group_errors = find_errors(errors, group)
    for (label, heads), row in group.rows.items():
        if question.has_quality_bounds and heads not in (None, row["heads"]):
            continue
        spec = str(parse(row["variant"]).without_backend())
        exact = spec == "full" or (spec.partition(":")[0] in ("gqa", "mqa") and heads == row["heads"])
        error = 0.0 if exact else group_errors.get(spec)
        if question.max_error is not None and (error is None or error > question.max_error):
            continue
        memory = row["state_bytes"] if row["mode"] == "decode" else row["peak_memory_bytes"]
        if question.memory is not None and (memory is None or memory > question.memory):
            continue
        if question.latency_ms is not None and row["latency_ms"] > question.latency_ms:
            continue
        admissible[label] = row
    return admissible


def restrict(data: RecommendationData, group: TimedGroup, *, left_out: bool) -> RecommendationData:
    """The data about the group's mechanisms at its configuration, without those at its length."""
    config, curves = data.curves_by_config[group.config_index]
    group_curves = [curve for curve in curves if (curve.label, curve.kv_heads) in group.rows]
    if left_out:
        group_curves = [replace(c, points=tuple(p for p in c.points if p.length != group.length)) for c in group_curves]
    return replace(data, curves_by_config=((config, tuple(group_curves)),))


def has_neighbours(data: RecommendationData, group: TimedGroup) -> bool:
    """Whether all mechanisms of the group were timed at shorter and at longer lengths too."""
    group_curves = restrict(data, group, left_out=True).curves_by_config[0][1]
    return all(c.points and c.points[0].length < group.length < c.points[-1].length for c in group_curves)


def main(runs: Sequence[Path], questions: int, seed: int) -> dict[str, Score]:
    rows = gather(runs).rows
    data, errors = RecommendationData.of(rows), list_errors(rows)
    groups = list_groups(add_labels(rows), data)
    interior_groups = [group for group in groups if has_neighbours(data, group)]
    draw = random.Random(seed)
    scores = {"measured": Score(), "left out": Score()}
    for kind, score in scores.items():
        while score.questions < questions // 2:
            group = draw.choice(groups if kind == "measured" else interior_groups)
            question = draw_question(group, draw, data.curves_by_config[group.config_index][0])
            if admissible := find_admissible(group, question, errors):
                answer = recommend(restrict(data, group, left_out=kind == "left out"), question)
                add_answer(score, group, question, answer, admissible)
    return scores


def add_answer(
    score: Score,
    group: TimedGroup,
    question: Requirements,
    answer: Recommendation,
    admissible: Mapping[str, Mapping[str, Any]],
) -> None:
    paired = all(row["speedup"] is not None for row in admissible.values())
    best = min(admissible, key=lambda name: _speed_key(admissible[name], paired))
    first = [choice.label for choice in answer.best]
    first += [better.competitor.label for better in answer.neighbours if better.neighbour.label in first]
    score.questions += 1
    score.unanswered += not first
    score.right += best in first
    score.tied += len(first) > 1
    broken = [choice.label for choice in answer.choices if choice.label not in admissible]
    score.broken += bool(broken)
    rows = {label: row for (label, _), row in group.rows.items()}
    for choice in answer.choices:
        time = choice.cost.latency
        score.times += 1
        score.outside += not (time.low or 0) <= rows[choice.label]["latency_ms"] <= (time.high or 0)
    if broken:
        score.mistakes[f"{broken} violate a constraint: {question.describe()}"] += 1
    if best not in first:
        before = first[0] if first else "nothing"
        score.mistakes[f"{before} instead of {best} at {group.length}, {question.mode}, {question.machine}"] += 1


def _speed_key(row: Mapping[str, Any], paired: bool) -> float:
    """The value to rank by: the inverse of the paired speedup if all rows have one, else the time."""
    return 1 / row["speedup"] if paired else row["latency_ms"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    published = sorted(path.parent for path in Path("results").glob("*/rows.*"))
    parser.add_argument("runs", nargs="*", type=Path, default=published)
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    for name, kind_score in main(**vars(parser.parse_args())).items():
        print(f"{name}: {kind_score.format()}")
        for mistake, count in kind_score.mistakes.most_common(8):
            print(f"    {count}x {mistake}")
