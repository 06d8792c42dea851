"""The summary of a run: tables with headings, and no empty columns."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from efficient_attn.cli import summary
from efficient_attn.errors import UsageError
from efficient_attn.results.compare import Change
from efficient_attn.results.frames import make_frame
from efficient_attn.results.rows import OVER_BUDGET, Row

Capture = pytest.CaptureFixture[str]


def _printed(capsys: Capture) -> str:
    text = capsys.readouterr().out
    assert "\x1b" not in text
    return text


def _rows(*rows: Row) -> pd.DataFrame:
    return make_frame(rows)


def _timed(variant: str, seq_len: int, ms: float, mode: str = "forward", **more: object) -> Row:
    return Row(variant=variant, seq_len=seq_len, latency_ms=ms, mode=mode, causal=False, task="speed", **more)  # type: ignore[arg-type]


def test_results_show_the_longest_length_with_speedups_and_memory(capsys: Capture) -> None:
    summary.show_results(
        _rows(
            _timed("full", 64, 1.0),
            _timed("full", 128, 4.0, speedup=1.0, speedup_low=1.0, speedup_high=1.0, peak_memory_bytes=2**20),
            _timed("linear", 128, 2.0, speedup=2.0, speedup_low=1.9, speedup_high=2.1, peak_memory_bytes=2**21),
        )
    )
    text = _printed(capsys)
    assert "forward, length 128" in text
    lines = {x.split()[0]: x.split() for x in text.splitlines() if x.startswith(("full", "linear"))}
    assert lines["full"] == ["full", "4.00", "ms", "1.00x", "1.00", "MiB"]
    assert lines["linear"] == ["linear", "2.00", "ms", "2.00x", "(1.90\u20132.10)", "2.00", "MiB"]


def test_missing_speedups_are_explained_in_one_line(capsys: Capture) -> None:
    reason = f"{OVER_BUDGET} of 1 s: stopped, while its first call ran"
    late = replace(_timed("full", 8192, 1.0), latency_ms=None, status="timeout", reason=reason)
    quick = _timed("full", 512, 1.0, speedup=1.0), replace(late, variant="taylor", seq_len=512)
    summary.show_results(_rows(late, _timed("linear", 8192, 2.0), *quick))
    lines = [line for line in _printed(capsys).splitlines() if "no speedups" in line]
    remedy = "leave out --quick, shorten --seq-len, or raise budget_s in the suite"
    assert lines == [f"no speedups for forward, length 8192: full: {OVER_BUDGET} of 1 s; {remedy}"]


def test_reasons_of_successful_rows_are_printed(capsys: Capture) -> None:
    reason = "it keeps 64.0 MiB between calls, which its peak includes"
    rows = [
        _timed("full", 128, 4.0, peak_memory_bytes=2**20),
        _timed("linear", 128, 2.0, peak_memory_bytes=2**26, reason=reason),
        _timed("mqa", 128, 2.0, reason="failed", status="invalid"),
    ]
    summary.show_results(_rows(*rows))
    text = _printed(capsys)
    assert "peak memory (with output)" in text
    assert text.endswith(f"\nlinear: {reason}\n")
    assert "full: " not in text
    assert "failed" not in text


def test_results_of_one_variant_show_what_differs(capsys: Capture) -> None:
    rows = [
        _timed("full", 128, 4.0, batch=batch, kv_heads=heads, threads=1) for batch, heads in ((1, 8), (1, 2), (4, 2))
    ]
    summary.show_results(_rows(*rows, _timed("linear", 128, 2.0, batch=1, kv_heads=8, threads=1)))
    names = [line.partition("  ")[0].rstrip() for line in _printed(capsys).splitlines()[2:] if line.strip()]
    said = ["batch=1, kv_heads=8", "batch=1, kv_heads=2", "batch=4, kv_heads=2"]
    assert names == [*(f"full ({each})" for each in said), "linear"]


def test_overrides_are_named_in_every_table(capsys: Capture) -> None:
    fidelity = Row(variant="linear", task="fidelity", inputs="mine@1", layer=0, relative_error=0.5)
    rows = _rows(_timed("linear", 128, 2.0), fidelity)
    summary.show_results(rows, overrides=["--quick", "--seq-len 128"])
    text = _printed(capsys)
    assert "forward, length 128 (with overrides)\n" in text
    assert "(predicting zero has error 1) (with overrides)\n" in text
    assert text.endswith("overridden suite, not its standard settings: --quick, --seq-len 128\n")
    summary.show_results(rows)
    assert "trial" not in _printed(capsys)


def test_results_without_speedups_or_memory_show_no_empty_columns(capsys: Capture) -> None:
    summary.show_results(_rows(_timed("linear", 128, 2.0)))
    text = _printed(capsys)
    assert "speedup" not in text
    assert "memory" not in text


def test_fidelity_is_a_mean_over_layers(capsys: Capture) -> None:
    def row(layer: int, error: float) -> Row:
        return Row(
            variant="linear",
            task="fidelity",
            inputs="mine@1",
            layer=layer,
            relative_error=error,
            cosine_similarity=0.5,
            missed_mass=0.0,
        )

    summary.show_results(_rows(row(0, 0.2), row(1, 0.4)))
    text = _printed(capsys)
    assert "fidelity: mine, mean over 2 layers (predicting zero has error 1)" in text
    assert next(x.split() for x in text.splitlines() if x.startswith("linear")) == ["linear", "0.300", "0.500", "0"]


def test_nothing_that_ran_is_no_error(capsys: Capture) -> None:
    summary.show_results(_rows(Row(variant="full", mode="forward", status="skipped", reason="no CUDA")))
    summary.show_results(_rows())
    assert _printed(capsys).strip() == ""


def test_statuses_are_counted(capsys: Capture) -> None:
    summary.show_statuses(Counter(ok=3, skipped=1))
    assert _printed(capsys) == "cases: 3 ok, 1 skipped\n"


@pytest.mark.parametrize(
    ("contaminated", "message"),
    [
        (0, "rounds: 40, none disturbed\n"),
        (3, "rounds: 40, 8% disturbed by other activity on the machine\n"),
        (30, "rounds: 40, 75% disturbed by other activity on the machine; too many to trust small differences"),
    ],
)
def test_disturbed_rounds_are_reported(contaminated: int, message: str, capsys: Capture) -> None:
    lost = Row(variant="linear", mode="forward", status="timeout", rounds=9, contaminated=9)
    timed = [replace(_timed("full", n, 1.0), rounds=20, contaminated=c) for n, c in ((64, contaminated), (128, 0))]
    summary.show_rounds(_rows(*timed, lost))
    assert _printed(capsys).startswith(message)


def test_unknown_rounds_are_not_reported(capsys: Capture) -> None:
    summary.show_rounds(_rows(_timed("full", 64, 1.0)))
    summary.show_rounds(_rows())
    assert _printed(capsys) == ""


def _trained(variant: str, score: float, task: str = "recall", seed: int = 0, **known: Any) -> Row:
    """A model that was trained; known: columns of the row."""
    kind, place = "best" if seed else "given", {"mode": "train", "seq_len": 64, "causal": True, "metric": "accuracy"}
    own = {"score": score, "low": score - 0.01, "high": score + 0.01, "chance": 0.1, "majority": 0.1, "attempt": kind}
    own |= {"learning_rate": 0.002, "budget": 100, "validation": score, "shortcut": None, "way": None}
    row = Row(variant=variant, task=task, seed=seed, inputs=f"seed {seed}, {kind}", baseline="full", **place)  # type: ignore[arg-type]
    return replace(row, extra={f"train.{name}": value for name, value in own.items()}, **known)


def test_trained_scores_are_shown_by_task(capsys: Capture) -> None:
    lost = replace(_trained("linear", 0.0, "text"), status="skipped", reason="not needed", extra={})
    summary.show_results(
        _rows(
            *(_trained("full", 0.9 + seed / 100, seed=seed) for seed in range(2)),
            _trained("linear", 0.105),
            _trained("full", 2.5, "text", metric="bits a token"),
            lost,
        ),
        overrides=["--quick"],
    )
    title, head, *lines = _printed(capsys).splitlines()
    assert title == "learned, mean over seeds with its 95% interval (with overrides)"
    assert [word.strip() for word in head.split("  ") if word] == [
        "variant",
        "recall, length 64",
        "text, length 64, bits a token",
    ]
    shown = {line.split()[0]: [word.strip() for word in line.split("  ") if word][1:] for line in lines if line}
    assert shown["full"][0] == "90.5% (84.1\u201396.9)"
    assert shown["full"][1:] == ["at chance, too early to say"]  # 2.5 bits are not fewer than a chance of 0.1
    assert shown["linear"] == ["at chance, too early to say", "skipped"]
    assert "text, length 64: full itself is at chance, so there is no ranking." in lines


def test_mechanisms_that_a_shortcut_explains_are_named(capsys: Capture) -> None:
    row = _trained("full", 0.9)
    row.extra |= {"train.shortcut": 0.95, "train.way": "the nearest image", "train.caveat": "Pixels are enough."}
    summary.show_results(_rows(row))
    sentence = "recall, length 64: full is not significantly better than the shortcut, the nearest image (95.0%)."
    assert f"{sentence} Pixels are enough." in _printed(capsys).splitlines()


def test_notes_on_examples_are_printed(capsys: Capture) -> None:
    row = _trained("full", 0.9)
    row.extra["train.note"] = "Tests are short."
    summary.show_results(_rows(row))
    assert "recall, length 64: Tests are short." in _printed(capsys).splitlines()


def test_trained_models_are_not_shown_as_timed(capsys: Capture) -> None:
    summary.show_results(_rows(_trained("full", 0.9), _timed("full", 64, 1.0)))
    text = _printed(capsys)
    assert "train, " not in text
    assert "forward, length 64" in text
    assert "90.0% (1 seed)" in text


def test_errors_of_different_models_lengths_and_directions_have_separate_tables(capsys: Capture) -> None:
    conditions = [("minilm@1", 384, False), ("minilm@1", 384, True), ("smollm2@2", 2048, True)]
    rows = [
        Row(variant="linear", task="fidelity", inputs=inputs, seq_len=n, causal=causal, layer=0, relative_error=error)
        for error, (inputs, n, causal) in enumerate(conditions, 1)
    ]
    summary.show_results(_rows(*rows))
    titles = [line.partition(" (")[0] for line in _printed(capsys).splitlines() if line.startswith("fidelity")]
    models = ["MiniLM, N = 384, bidirectional", "MiniLM, N = 384, causal", "SmolLM2-135M, N = 2,048, causal"]
    assert titles == [f"fidelity: {model}, 1 layer" for model in models]


def test_swapped_models_are_a_mean_over_segments(capsys: Capture) -> None:
    def row(segment: int, divergence: float) -> Row:
        extra = {"divergence": divergence, "agreement": 0.5, "segment": segment}
        place = {"task": "swap", "inputs": "tiny:mine@1", "seq_len": 64, "mode": "prefill", "causal": True}
        return Row(variant="linear", latency_ms=1.0, loss=2.0, extra=extra, **place)  # type: ignore[arg-type]

    summary.show_results(_rows(row(0, 0.2), row(1, 0.4)))
    text = _printed(capsys)
    assert "swapped into tiny, N = 64, causal, mean over 2 text segments" in text
    assert "prefill" not in text
    assert next(x.split() for x in text.splitlines() if x.startswith("linear")) == ["linear", "2.00", "0.300", "0.500"]


def test_retrieval_is_shown_by_needles_and_length(capsys: Capture) -> None:
    def row(variant: str, needles: str, accuracy: float, **known: Any) -> Row:
        extra = {"needles": needles, "accuracy_low": accuracy / 2, "accuracy_high": 2 * accuracy}
        place = {"task": "retrieval", "inputs": f"tiny:mine@1:{needles}", "seq_len": 1024, "causal": True}
        return Row(variant=variant, accuracy=accuracy, extra=extra, **place, **known)  # type: ignore[arg-type]

    skipped = row("linear", "multi_key", 0.0, status="skipped")
    rows = [row("full", "single", 0.4), row("full", "multi_key", 0.1), row("linear", "single", 0.2), skipped]
    summary.show_results(_rows(*rows))
    title, head, *lines = [line for line in _printed(capsys).splitlines() if line.strip("- ")]
    assert title == "correct answers, tiny:mine@1 (chance is 10%)"
    assert head.split("  ")[0] == "variant"
    assert "single 1024" in head
    shown = {line.split()[0]: line.split()[1:] for line in lines}
    assert shown["full"] == ["40%", "(20\u201380)", "10%", "(5\u201320)"]
    assert shown["linear"] == ["20%", "(10\u201340)", "\u2013"]


def test_reproducibility_counts_what_a_second_node_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repeated = tmp_path / "repeated"
    assert summary.describe_reproducibility(tmp_path, repeated) is None
    repeated.mkdir()
    ratios = [("same", 1.01), ("slower", 0.8), ("inconclusive", 1.1), ("broken", None)]
    changes = [Change(name="x", kind=kind, ratio=ratio) for kind, ratio in ratios]  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(summary, "read_run", lambda path: path)
    monkeypatch.setattr(summary, "compare", lambda base, new: SimpleNamespace(changes=changes))
    text = summary.describe_reproducibility(tmp_path, repeated)
    assert text is not None
    assert text.startswith("reproducibility: of 3 results that a second node measured too, 1 differ significantly; ")
    assert "the median difference is 10.0%, the largest 25.0%" in text

    def refuse(base: object, new: object) -> None:
        raise UsageError("share no case")

    monkeypatch.setattr(summary, "compare", refuse)
    assert summary.describe_reproducibility(tmp_path, repeated) == "reproducibility: not compared: share no case"
