"""Answers of the front page: bounds, interpolation, and what is said when nothing satisfies a bound."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import report_runs as runs

from efficient_attn.report.answers.recommendation_data import RecommendationData
from efficient_attn.report.gather import gather
from efficient_attn.report.site.picker import BOUNDS, DEFAULT_SHAPE, MAX_ROWS, LengthAnswers, PickerData, make_picker
from efficient_attn.results.rows import Record


def _pick(folder: Path, records: Iterable[Record]) -> PickerData:
    run = runs.write_run(folder / "run", _paired(records))
    return make_picker(
        RecommendationData.of(gather([run]).rows), {"linear": "m/linear.html"}, {"Xeon-x2-15GiB": "Xeon"}
    )


def _paired(records: Iterable[Record]) -> Iterable[Record]:
    """The records with the baseline's speedup of 1."""
    for record in records:
        record.row.baseline = "full"
        if record.row.variant == "full" and record.row.latency_ms:
            record.row.speedup = record.row.speedup_low = record.row.speedup_high = 1.0
        yield record


def _segments(variant: str, losses: Iterable[float], length: int = 8192) -> Iterable[Record]:
    for number, loss in enumerate(losses):
        made = runs.row(
            variant, task="swap", mode="prefill", inputs="smollm2@1", seq_len=length, causal=True, baseline="full",
            latency_ms=10.0,
        )  # fmt: skip
        made.case_key += f"/{number}"
        made.extra = {"swap.loss": loss, "swap.divergence": loss - 2.9, "swap.segment": number}
        yield Record(made)


SWAPPED = {
    "full": (3.0, 3.2),
    "sliding_window:window=128": (3.05, 3.26),
    "linear": (6.0, 6.3),
}


def _swapped(length: int = 8192) -> Iterable[Record]:
    return (record for variant, losses in SWAPPED.items() for record in _segments(variant, losses, length))


def _default(data: PickerData) -> LengthAnswers:
    assert data.default is not None
    return data.default[2]


def test_the_first_screen_asks_for_a_causal_pass_at_8k_with_little_loss_of_perplexity(tmp_path: Path) -> None:
    records = [*runs.speed(causal=True), *runs.speed(), *_swapped()]
    data = _pick(tmp_path, records)
    assert data.default is not None
    machine, use, answers = data.default
    assert (data.machines[machine], use, answers.length, data.default_bound) == ("Xeon", "prompt", 8192, "ppl-1.1")
    answer = answers.answers["ppl-1.1"]
    window, full = answer.rows
    assert (window.name, window.options, window.conditions) == ("sliding_window", "window=128", "SmolLM2-135M, 8K")
    assert re.fullmatch(r"1\.06x the perplexity", window.quality)
    assert re.fullmatch(r"\d+\.\dx \(\d+\.\d\u2013\d+\.\d\)", window.speedup)
    assert (full.name, full.speedup, full.quality, full.link) == ("full", "1.00x", "exact", "")
    assert answer.sentence.startswith("1 of 4 mechanisms timed here satisfy this and are faster than exact attention.")
    assert "1 have no verified quality at this length." in answer.sentence


def test_the_nearest_is_named_if_only_exact_attention_satisfies_a_bound(tmp_path: Path) -> None:
    swapped = [record for record in _swapped() if record.row.variant != "sliding_window:window=128"]
    answer = _default(_pick(tmp_path, [*runs.speed(causal=True), *swapped])).answers["ppl-1.5"]
    assert [row.name for row in answer.rows] == ["full"]
    assert answer.sentence.startswith("Only exact attention is known to satisfy this. The nearest is linear at ")
    assert "21.1x the perplexity (SmolLM2-135M, 8K)." in answer.sentence


@pytest.mark.parametrize(("length", "verified"), [(4096, True), (2048, False)])
def test_bounds_count_qualities_at_half_the_length_or_more(length: int, verified: bool, tmp_path: Path) -> None:
    answer = _default(_pick(tmp_path, [*runs.speed(causal=True), *_swapped(length)])).answers["ppl-1.1"]
    assert [row.name for row in answer.rows] == (["sliding_window", "full"] if verified else ["full"])
    assert ("No quality (perplexity, causal) was measured beyond 2,048 tokens" in answer.sentence) == (not verified)


def test_errors_are_the_first_bound_without_perplexities_and_none_without_errors(tmp_path: Path) -> None:
    with_errors = _pick(tmp_path / "errors", [*runs.speed(), *runs.fidelity(length=8192)])
    assert with_errors.default_bound == "error-0.1"
    answers = _default(with_errors).answers
    assert [row.name for row in answers["error-0.5"].rows] == ["sliding_window", "full"]
    assert "The nearest is sliding_window:window=128" in answers["error-0.1"].sentence
    assert [row.name for row in answers["exact"].rows] == ["full"]
    without = _pick(tmp_path / "none", runs.speed())
    assert without.default_bound == "any"
    assert "No quality (perplexity, bidirectional) was measured" in _default(without).answers["ppl-1.1"].sentence


def test_powers_of_two_between_measured_lengths_are_interpolated_and_marked(tmp_path: Path) -> None:
    data = _pick(tmp_path, runs.speed(lengths=(512, 2048)))
    answers = {found.length: found.answers["any"].rows for found in data.answers["m0"]["encode"][DEFAULT_SHAPE]}
    assert list(answers) == [512, 1024, 2048]
    for length, rows in answers.items():
        notes = {row.note for row in rows}
        assert notes == ({"interpolated between 512 and 2K"} if length == 1024 else {""})
        others = [row.speedup for row in rows if row.name != "full"]
        assert all(speedup.startswith("\u2248 ") == (length == 1024) for speedup in others)


def test_one_mechanism_gives_no_answer_and_one_length_does(tmp_path: Path) -> None:
    alone = [record for record in runs.speed() if record.row.variant == "full"]
    assert _pick(tmp_path / "alone", alone).default is None
    one = _default(_pick(tmp_path / "one", runs.speed(lengths=(1000,))))
    assert (one.length, len(one.answers["any"].rows)) == (1000, 4)
    assert one.answers["any"].sentence == (
        "3 of 4 mechanisms timed here are faster than exact attention. 3 have no verified quality at this length."
    )


def test_mechanisms_with_a_clearly_better_neighbour_are_left_out(tmp_path: Path) -> None:
    """A mechanism of about the same cost and a clearly worse perplexity is named with its neighbour."""

    def make(variant: str, ms: float) -> Record:
        known = {"latency_ms_low": ms * 0.99, "latency_ms_high": ms * 1.01, "speedup_low": 99 / ms}
        row = runs.row(variant, mode="forward", seq_len=8192, causal=True, latency_ms=ms, speedup=100 / ms, **known)
        row.speedup_high = 101 / ms
        return Record(row)

    timed = [make("full", 100.0), make("linear", 10.0), make("cosformer", 10.2)]
    losses = {"full": (3.0, 3.2, 3.1), "linear": (3.3, 3.51, 3.4), "cosformer": (3.05, 3.26, 3.15)}
    swapped = [record for variant, values in losses.items() for record in _segments(variant, values)]
    answer = _default(_pick(tmp_path, [*timed, *swapped])).answers["ppl-1.5"]
    assert [row.name for row in answer.rows] == ["cosformer", "full"]
    counts = "1 of 3 mechanisms timed here satisfy this and are faster than exact attention; 1 left out."
    assert answer.sentence.startswith(counts), "as many as are shown"
    assert answer.left_out.startswith("linear is left out: cosformer has 1.02x its time and 1.05x instead of 1.35x the")


def test_at_most_eight_rows_and_none_slower_than_exact_attention(tmp_path: Path) -> None:
    def make(window: int, ms: float) -> Record:
        row = runs.row(
            f"sliding_window:window={window}" if window else "full", mode="forward", seq_len=8192, causal=True,
            latency_ms=ms, latency_ms_low=ms * 0.99, latency_ms_high=ms * 1.01, speedup=100 / ms,
            speedup_low=99 / ms, speedup_high=101 / ms,
        )  # fmt: skip
        return Record(row)

    records = [make(0, 100.0), *(make(window, float(window)) for window in range(10, 130, 10))]
    answer = _default(_pick(tmp_path, records)).answers["any"]
    assert len(answer.rows) == MAX_ROWS
    assert answer.rows[0].options == "window=10"
    windows = [int(row.options.partition("=")[2]) for row in answer.rows if row.options]
    assert windows == sorted(windows)
    assert max(windows) < 100


def test_scripts_hold_all_answers_with_each_text_stored_once(tmp_path: Path) -> None:
    data = _pick(tmp_path, [*runs.speed(causal=True), *runs.decode(), *_swapped()])
    ((name, script),) = data.format_scripts({"run": "r/1/index.html"})
    assert name == "answers-m0.js"
    arguments = script.removeprefix("addAnswers(").removesuffix(");\n")
    machine, texts, rows, uses, run_pages = json.loads(f"[{arguments}]")
    assert (machine, list(uses), run_pages) == ("m0", ["prompt", "decode"], {"run": "r/1/index.html"})
    assert len(set(texts)) == len(texts)
    assert len(set(map(str, rows))) == len(rows)
    assert [texts[shape] for shape, _ in uses["prompt"]] == list(data.answers["m0"]["prompt"])
    length, config, answers = next(entry for entry in uses["prompt"][0][1] if entry[0] == 8192)
    assert list(answers) == [bound.key for bound in BOUNDS]
    sentence, indices, left_out = answers["ppl-1.1"]
    shown = _default(data).answers["ppl-1.1"]
    assert (texts[sentence], texts[left_out]) == (shown.sentence, shown.left_out)
    assert (texts[config], length) == (_default(data).config_text, 8192)
    assert [texts[rows[index][0]] for index in indices] == [row.name for row in shown.rows]
    assert [[texts[run] for run in rows[index][-1]] for index in indices] == [["quickstart-1"]] * len(shown.rows)


def _grouped(**known: Any) -> Iterable[Record]:
    """Decode steps of exact attention, and of two mechanisms with two key-value heads."""
    for variant, ms, kv_heads in (("full", 8.0, 8), ("gqa:kv_heads=2", 2.0, 2), ("sdpa_gqa", 4.0, 2)):
        ends = {"speedup_low": 7.9 / ms, "speedup_high": 8.1 / ms}
        fixed = {"mode": "decode", "causal": True, "seq_len": 4096, "heads": 8, "kv_heads": kv_heads}
        yield Record(runs.row(variant, **fixed, latency_ms=ms, speedup=8 / ms, **ends, **known))


def test_each_shape_with_two_mechanisms_has_answers_after_those_of_the_most_measured(tmp_path: Path) -> None:
    lone = runs.row("full", mode="decode", causal=True, seq_len=4096, heads=16, kv_heads=16, latency_ms=1.0)
    half = runs.decode(contexts=(4096,), dtype="bfloat16", batch=2)
    answers = _pick(tmp_path, [*runs.decode(), *half, *_grouped(), Record(lone)]).answers["m0"]["decode"]
    grouped = "float32, 8 heads of size 64, 2 key-value heads, batch 1, 1 thread"
    own = "float32, 8 heads of size 64, batch 1, 1 thread"
    assert list(answers) == [DEFAULT_SHAPE, own, "bfloat16, 8 heads of size 64, batch 2, 1 thread", grouped]
    assert [found.length for found in answers[own]] == [1024, 2048, 4096, 8192, 16384]
    assert answers[own] == answers[DEFAULT_SHAPE]
    (found,) = answers[grouped]
    assert (found.length, found.config_text) == (4096, grouped)
    rows = found.answers["exact"].rows
    assert [(row.name, row.options, row.quality) for row in rows] == [
        ("gqa", "kv_heads=2", "exact"),
        ("sdpa_gqa", "", "exact"),
    ]
    assert found.answers["exact"].sentence == (
        "2 of 2 mechanisms timed here satisfy this and are faster than exact attention without shared heads."
    )


def test_a_missing_machine_is_unknown(tmp_path: Path) -> None:
    data = _pick(tmp_path, runs.speed(lengths=(512,), machine=None))
    assert list(data.machines.values()) == ["unknown machine"]


def test_rows_name_their_runs_and_how_far_these_differ(tmp_path: Path) -> None:
    slower = [record for record in _grouped(run_id="quickstart-2") if record.row.variant != "sdpa_gqa"]
    slower[1].row.speedup, slower[1].row.speedup_low, slower[1].row.speedup_high = 3.0, 2.9, 3.1
    folders = [
        runs.write_run(tmp_path / name, _paired(records), runs.about() | {"run_id": run_id})
        for name, run_id, records in (("one", "quickstart-1", _grouped()), ("two", "quickstart-2", slower))
    ]
    gathered = gather(folders)
    data = make_picker(RecommendationData.of(gathered.rows, gathered.sessions), {}, {})
    shapes = data.answers["m0"]["decode"]
    rows = shapes["float32, 8 heads of size 64, 2 key-value heads, batch 1, 1 thread"][0].answers["exact"].rows
    assert [(row.name, row.note, row.runs) for row in rows] == [
        ("gqa", "2 measurements: 3.00x to 4.00x", ("one", "two")), ("sdpa_gqa", "", ("one",)),
    ]  # fmt: skip
