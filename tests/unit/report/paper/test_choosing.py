"""Which place and which mechanisms a figure shows, and what it is called."""

from __future__ import annotations

from pathlib import Path

import pytest
import report_runs as runs

from efficient_attn.errors import UsageError
from efficient_attn.report import gather, losses, select
from efficient_attn.report.paper import choosing
from efficient_attn.report.paper.choosing import Asked

LABELS = ["full", "linear", "gqa:kv_heads=2", "gqa:kv_heads=4", "sliding_window:window=128", "mqa (kv_heads=1)"]


@pytest.fixture
def rows(tmp_path: Path) -> gather.Frame:
    run = runs.write_run(tmp_path / "run", [*runs.speed(), *runs.speed(causal=True), *runs.decode(), *runs.fidelity()])
    return losses.add_losses(select.add_labels(gather.gather([run]).rows))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("linear", ["linear"]),
        ("gqa", ["gqa:kv_heads=2", "gqa:kv_heads=4"]),
        ("gqa:kv_heads=4", ["gqa:kv_heads=4"]),
        ("mqa", ["mqa (kv_heads=1)"]),
        ("mqa (kv_heads=1)", ["mqa (kv_heads=1)"]),
    ],
)
def test_a_text_means_a_spec_or_all_of_a_name(text: str, found: list[str]) -> None:
    assert choosing.find(text, LABELS) == found


@pytest.mark.parametrize("text", ["liner", "sliding_window:window=64", "", "::", "a|"])
def test_what_means_nothing_is_said(text: str) -> None:
    with pytest.raises(UsageError, match="plot: unknown mechanism"):
        choosing.find(text, LABELS)


def test_without_only_the_first_are_shown_and_the_highlighted() -> None:
    kept, left = choosing.choose_labels(LABELS, Asked(highlight=("mqa",)), most=3)
    assert kept == ["full", "linear", "mqa (kv_heads=1)"]
    assert left == ["gqa:kv_heads=2", "gqa:kv_heads=4", "sliding_window:window=128"]
    kept, left = choosing.choose_labels(LABELS, Asked(only=("gqa", "linear")), most=3)
    assert kept == ["linear", "gqa:kv_heads=2", "gqa:kv_heads=4"], "in their rank"
    with pytest.raises(UsageError, match="at most 2 can be told apart"):
        choosing.choose_labels(LABELS, Asked(only=("gqa", "linear")), most=2)
    with pytest.raises(UsageError, match="unknown mechanism"):
        choosing.choose_labels(LABELS, Asked(only=("gqa",), highlight=("linear",)), most=3)


def test_what_is_always_there_may_be_named() -> None:
    asked = Asked(only=("full", "linear"), highlight=("full",))
    kept, left = choosing.choose_labels(LABELS[1:], asked, most=1, always={"full"})
    assert kept == ["linear"]
    assert len(left) == 4
    with pytest.raises(UsageError, match="and nothing else"):
        choosing.choose_labels(LABELS[1:], Asked(only=("full",)), most=3, always={"full"})


def test_labels_may_hold_what_specs_hold() -> None:
    names = choosing.read_labels(["sliding_window:window=128=Ours (w=128)", "linear = Linear"], LABELS)
    assert names["sliding_window:window=128"] == "Ours (w=128)"
    assert names["linear"] == "Linear"
    assert names["full"] == "full"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("gqa=Ours", "name one of them"),
        ("liner=Ours", "not SPEC=NAME with a mechanism that is shown"),
        ("linear", "not SPEC=NAME"),
        ("linear=", "not SPEC=NAME"),
        ("linear=full", "both be called 'full'"),
    ],
)
def test_labels_that_cannot_be(given: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        choosing.read_labels([given], LABELS)


def test_the_place_with_most_comes_first_and_forward_before_all(rows: gather.Frame) -> None:
    places = choosing.list_timed(rows)
    first, others = choosing.choose_place(
        places, lambda place: len(place.board.decisions) if place.board else 0, "speed"
    )
    assert (first.key["mode"], first.key["causal"]) == ("forward", False)
    assert [(place.key["mode"], place.key["causal"]) for place in others] == [("forward", True), ("decode", True)]
    assert first.tell().startswith(
        "forward, bidirectional, cpu, float32, 1 thread, batch 1, 4 heads of size 64, machine "
    )
    (judged,) = choosing.list_judged(rows)
    assert judged.tell().startswith("minilm, bidirectional, N = 256, cpu")
    with pytest.raises(UsageError, match="hold nothing for --figure memory: peak memory was not measured"):
        choosing.choose_place(places, lambda place: 0, "memory")


def test_rows_are_kept_by_what_they_hold(rows: gather.Frame) -> None:
    kept = choosing.keep_rows(rows, {"mode": "forward", "causal": True, "machine": "Xeon"})
    assert set(kept["causal"]) == {True}
    assert set(kept["mode"]) == {"forward"}
    with pytest.raises(UsageError, match="no row has dtype bfloat16; there is float32"):
        choosing.keep_rows(rows, {"dtype": "bfloat16"})
    with pytest.raises(UsageError, match="no row has mode train"):
        choosing.keep_rows(rows, {"mode": "train"})
