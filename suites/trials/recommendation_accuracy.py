"""Is the first answer of `recommend` the fastest mechanism?

    python suites/trials/recommendation_accuracy.py [RUN ...] [--questions N] [--seed S]

Compares the answers to random questions with an exhaustive search over measured groups: the true answer is the fastest
mechanism of a group that satisfies the constraints. For half of the questions the rows of the group are available. For
the other half all rows at its configuration and length are removed from all runs first, so that all times are
interpolated. Only mechanisms that the group timed are considered. An answer is right if the true one is first or shares
the first rank; a question without an answer counts as wrong. The script also counts shared first ranks, answers that
contain a mechanism that violates a constraint, and measured times outside of the predicted interval.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from efficient_attn import units
from efficient_attn.report.answers.cost_curves import CONFIG_COLUMNS, make_mechanism_key
from efficient_attn.report.answers.recommendation import Recommendation, RecommendationData, recommend
from efficient_attn.report.answers.requirements import SHAPE, Requirements
from efficient_attn.report.gather import gather
from efficient_attn.report.select import add_labels
from efficient_attn.results.differences import MAX_DISTURBED_SHARE
from efficient_attn.spec import parse

ERRORS = (None, 0.3, 0.4, 0.5, 0.75, 0.9)
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


def list_errors(rows: Any) -> dict[tuple[str, bool], dict[tuple[Any, ...], float]]:
    """The mean error over layers at each configuration, by spec and whether heads share keys."""
    fidelity_rows = rows[(rows["status"] == "ok") & rows["relative_error"].notna() & rows["mode"].isna()]
    errors: dict[tuple[str, bool], dict[tuple[Any, ...], list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in fidelity_rows.to_dict("records"):
        spec = str(parse(row["variant"]).without_backend()), row["kv_heads"] != row["heads"]
        errors[spec][row["dtype"], row["causal"], row["seq_len"], row["inputs"]].append(row["relative_error"])
    return {spec: {key: sum(x) / len(x) for key, x in values.items()} for spec, values in errors.items()}


def find_error(errors: Mapping[Any, Mapping[tuple[Any, ...], float]], row: Mapping[str, Any]) -> float | None:
    """The error for a row: of its dtype and direction if available, at the greatest length, as documented."""
    spec = str(parse(row["variant"]).without_backend())
    if spec == "full":
        return 0.0
    spec_errors = errors.get((spec, row["kv_heads"] != row["heads"]), {})
    best = max(spec_errors, key=lambda key: (key[0] == row["dtype"], key[1] == row["causal"], key[2]), default=None)
    return None if best is None else spec_errors[best]


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
    for (label, heads), row in group.rows.items():
        if question.has_quality_bounds and heads not in (None, row["heads"]):
            continue
        error = find_error(errors, row)
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
