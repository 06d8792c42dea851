"""Synthetic rows of trained models, and the sections that show them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import report_runs as runs

from efficient_attn.report import gather, page
from efficient_attn.report.drawing.panel_data import Panel
from efficient_attn.results.rows import Record
from efficient_attn.tasks.problems.problem_table import COPYING

RATED = "grid", "above", "below", "beyond"  # kinds of attempts that are named by their rate
WINDOW = "sliding_window:window=16"
NOT_NEEDED = "the best learning rate lies within the grid"


def attempt(variant: str, score: float, kind: str = "grid", seed: int = 0, rate: float = 0.002, **known: Any) -> Record:
    """The row of one trained model. known: columns of the row, or of its task as ``train_...``."""
    own = {name.removeprefix("train_"): known.pop(name) for name in list(known) if name.startswith("train_")}
    task, length = known.pop("task", "recall"), known.pop("seq_len", 64)
    words = f"seed {seed}, {kind}" + (f", rate {rate:g}" if kind in RATED else "")
    fields = {"mode": "train", "task": task, "seq_len": length, "causal": True, "head_dim": 16, "baseline": "full"}
    fields |= {"metric": "accuracy", "accuracy": score, "steps": 100, "parameters": 3000, "part": "one"}
    made = runs.row(variant, **(fields | {"inputs": words, "seed": seed, "stop_reason": "levelled off"} | known))
    made.case_key = f"{task}/{made.part}/{words}/{made.case_key}"
    extra: dict[str, Any] = {
        "attempt": kind, "learning_rate": rate, "budget": 100, "score": score, "validation": score, "chance": 0.1,
        "majority": 0.1, "shortcut": None, "way": None, "low": score - 0.03, "high": score + 0.03, "examples": 512,
        "batch": 32, "test_len": length, "train_s": 2.0, "step_ms": 20.0, "attention": 1000, "mixer": 1500,
        "embeddings": 500, "validation_error": 0.01, "steps_to_90": 50, "s_to_90": 1.0, "flops": 2e9,
    }  # fmt: skip
    made.extra = {f"train.{name}": value for name, value in (extra | own).items()}
    return Record(made, {"steps": [50, 100], "loss": [2.0, 1.0], "validation": [score / 2, score]})


def skipped(variant: str, kind: str, reason: str = NOT_NEEDED, **known: Any) -> Record:
    record = attempt(variant, 0.0, kind, rate=0.008, status="skipped", reason=reason, **known)
    return Record(replace(record.row, extra={}, metric=None, accuracy=None))


def seeds(variant: str, scores: Sequence[float], **known: Any) -> Iterator[Record]:
    """A grid of three learning rates, of which the middle is the best, and the other seeds at that rate."""
    yield attempt(variant, scores[0] / 2, rate=0.001, **known)
    yield attempt(variant, scores[0], **known)
    yield attempt(variant, scores[0] / 2, rate=0.004, **known)
    yield skipped(variant, "above", **{k: v for k, v in known.items() if not k.startswith("train_")})
    for index, score in enumerate(scores[1:], 1):
        yield attempt(variant, score, "best", index, **known)


def uptrained(variant: str, conversion: str, share: float, scores: Sequence[float], **known: Any) -> Iterator[Record]:
    """Models of several seeds that were made from trained ones with a score of .9."""
    for seed, score in enumerate(scores):
        columns = {"train_conversion": conversion, "train_share": share, "train_original": 0.9} | known
        record = attempt(variant, score, "uptrain", seed, **columns)
        record.row.inputs = f"seed {seed}, uptrain, {conversion}, share {share:g}"
        record.row.case_key += record.row.inputs
        yield record


def unable(variant: str, **known: Any) -> Iterator[Record]:
    """The attempts of a model that stays at chance."""
    for kind, rate in (("grid", 0.001), ("grid", 0.002), ("grid", 0.004), ("above", 0.008), ("below", 0.0005)):
        yield attempt(variant, 0.11, kind, rate=rate, **known)


def chapters(folder: Path, records: Iterable[Record]) -> dict[str, Any]:
    about = runs.about() | {"sections": [section.as_json() for section in COPYING.sections]}
    run = runs.write_run(folder / "run", records, about)
    return {chapter.title: chapter for chapter in page.make_content(gather.gather([run])).sections}


def block(folder: Path, *records: Record) -> Any:
    (found,) = chapters(folder, records)["Ability"].blocks
    return found


def cells(folder: Path, *records: Record) -> dict[str, list[str]]:
    """The texts of the first table, by the first column."""
    return {row[0].text: [cell.text for cell in row[1:]] for row in block(folder, *records).tables[0].rows}


def panels(made: Any) -> dict[str, Panel]:
    return {plot.panel.kind: plot.panel for plot in made.plots}


# KL per token, time of a forward pass in ms, state bytes
SWAPPED = {
    "full": (1e-9, 100.0, 4_000_000),
    "sliding_window:window=128": (0.5, 80.0, 500_000),
    "linear": (4.0, 90.0, 300_000),
    "strided:stride=8": (0.7, 95.0, 4_000_000),
}


def swapped(segments: int = 4, layers: tuple[int | None, ...] = (None,)) -> Iterator[Record]:
    """Rows of a model in which each mechanism replaces the attention of all layers, or of one at a time."""
    for segment in range(segments):
        for layer in layers:
            for variant, (base, time, state) in SWAPPED.items():
                config = {"task": "swap", "seq_len": 2048, "inputs": "tiny:mine@1", "causal": True, "layer": layer}
                row = runs.row(variant, **config, baseline="full")
                row.case_key = f"swap/{layer}/{segment}/{row.case_key}"
                divergence = base * (1 + 0.1 * segment) * (1 if layer is None else 10.0**-layer)
                row.extra = {"segment": segment, "loss": 3.0 + divergence, "divergence": divergence, "agreement": 0.5}
                row.loss = 3.0 + divergence
                if layer is None:
                    row.latency_ms, row.state_bytes = time * (1 + 0.01 * segment), state
                yield Record(row)
