"""Output of the verb recommend: it fits the terminal and names the nearest answer."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import report_runs as runs
from shell import Command

from efficient_attn.cli.recommend import show_answer
from efficient_attn.report.answers.recommendation import Recommendation, recommend
from efficient_attn.report.answers.recommendation_data import RecommendationData
from efficient_attn.report.answers.requirements import Requirements
from efficient_attn.report.gather import gather
from efficient_attn.results.rows import Record

UNION = "sliding_window:window=128|global_tokens:n_global=64|random_blocks:block_size=64:n_random=3"
HOSTILE = "x\x1b[31m\n" + "y" * 300


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> RecommendationData:
    records = [*runs.speed(lengths=(512, 4096)), *runs.decode(), *runs.fidelity()]
    folder = tmp_path_factory.mktemp("run")
    return RecommendationData.of(gather([runs.write_run(folder, records)]).rows)


def _show(answer: Recommendation, capsys: pytest.CaptureFixture[str], width: int | None) -> list[str]:
    capsys.readouterr()
    show_answer(answer, lambda command: f"about {len(command)} s on this machine", width=width)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize(
    "given",
    [
        {"seq_len": 512},
        {"seq_len": 2048, "max_error": 0.5},
        {"seq_len": 2**20, "mode": "decode", "heads": 32, "kv_heads": 8, "dtype": "bfloat16", "max_error": 0.1},
    ],
)
def test_lines_fit_the_width(
    given: dict[str, object], width: int, prepared: RecommendationData, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = recommend(prepared, Requirements(**given))  # type: ignore[arg-type]
    for name in (UNION, HOSTILE):
        entries = [replace(entry, label=name) for entry in (*answer.choices, *answer.not_verified)]
        changed = replace(answer, not_verified=tuple(entries), left_out={name: f"like {name}"})
        lines = _show(changed, capsys, width)
        assert max(map(len, lines)) <= width
        assert "\x1b" not in "".join(lines)


def test_a_mechanism_takes_few_lines(prepared: RecommendationData, capsys: pytest.CaptureFixture[str]) -> None:
    answer = recommend(prepared, Requirements(seq_len=512))
    lines = _show(answer, capsys, 80)
    start = next(i for i, line in enumerate(lines) if line.startswith("rank  mechanism"))
    assert [line.split()[:2] for line in lines[start + 1 : start + 8]] == [
        ["1", "linear"],
        ["relative", "error"],
        ["2", "sliding_window"],
        ["window=128"],
        ["relative", "error"],
        ["3", "full"],
        ["exact"],
    ]


def test_a_pipe_is_80_columns_wide(
    prepared: RecommendationData, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = recommend(prepared, Requirements(seq_len=512, max_error=0.5))
    monkeypatch.delenv("COLUMNS", raising=False)
    piped = _show(answer, capsys, None)
    assert piped == _show(answer, capsys, 80)
    monkeypatch.setenv("COLUMNS", "60")
    assert _show(answer, capsys, None) == _show(answer, capsys, 60) != piped


def test_commands_can_be_pasted(prepared: RecommendationData, capsys: pytest.CaptureFixture[str]) -> None:
    asked = Requirements(seq_len=2**20, mode="decode", heads=32, kv_heads=8, head_dim=128, dtype="bfloat16")
    lines = _show(recommend(prepared, asked), capsys, 60)
    start = next(i for i, line in enumerate(lines) if "efficient-attn run" in line)
    end = next(i for i, line in enumerate(lines) if i >= start and not line.endswith("\\"))
    words = shlex.split("\n".join(lines[start : end + 1]))
    assert words[words.index("--part") + 1] == "key-value heads"
    assert lines[end + 1].strip().startswith("about ")


def test_the_nearest_measured_shape_is_no_answer(command: Command, tmp_path: Path) -> None:
    flex = [record for record in runs.decode() if record.row.variant == "full"]
    for record in flex:
        record.row.variant, record.row.backend, record.row.latency_ms = "bigbird:backend=flex", "flex", 0.01
        record.row.latency_ms_low = record.row.latency_ms_high = None
        record.row.case_key += "/flex"
    folder = runs.write_run(tmp_path / "run", [*runs.speed(lengths=(512, 4096)), *runs.decode(), *flex])
    asked = ("recommend", folder, "--seq-len", "32K", "--mode", "decode", "--dtype", "float64")
    done = command(*asked)
    assert (done.code, done.err) == (1, "")
    before, _, after = done.out.partition("Nearest measured, not an answer to your question:")
    assert "efficient-attn run decode --seq-len 32768 --device cpu --dtype float64" in before
    assert "on this machine (" in before
    assert "rank  mechanism" not in before
    assert " ".join(after.split("\n\n")[0].split()) == (
        "length 16,384 instead of 32,768, dtype float32 instead of float64. "
        "All rows below are of float32; what does not run in float64 is left out."
    )
    left_out = "left out: bigbird:backend=flex: runs in float32, bfloat16 and float16 only, not in float64"
    assert left_out in " ".join(after.split())
    assert "Timed in run: all." in after
    assert "   1  full" in after
    data = json.loads(command(*asked, "--json").out)
    assert data["choices"] == []
    assert data["nearest"]["question"]["seq_len"] == 16384
    assert data["nearest"]["choices"][0]["mechanism"] == "full"


@pytest.mark.parametrize("lengths", [(512,), (512, 4096)])
def test_one_mechanism_and_no_quality(lengths: tuple[int, ...], command: Command, tmp_path: Path) -> None:
    made = [runs.row(HOSTILE.replace(":", ""), mode="forward", seq_len=n, latency_ms=1.0 + n) for n in lengths]
    folder = runs.write_run(tmp_path / "run", map(Record, made))
    done = command("recommend", folder, "--seq-len", "512")
    assert (done.code, done.err) == (1, "")
    assert "No measured mechanism is known to satisfy the requirements." in done.out
    assert "not verified at 512: of unknown quality, so not ranked" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_a_place_without_the_required_heads_is_no_answer_either(tmp_path: Path) -> None:
    """Only grouped heads were timed, which a pretrained model with as many key-value heads cannot use."""
    grouped = runs.row("gqa:kv_heads=2", mode="decode", seq_len=64, causal=True, heads=8, kv_heads=2, latency_ms=1.0)
    data = RecommendationData.of(gather([runs.write_run(tmp_path, [Record(grouped)])]).rows)
    answer = recommend(data, Requirements(seq_len=64, mode="decode", heads=16, max_error=0.1))
    assert (answer.choices, answer.nearest) == ((), None)
