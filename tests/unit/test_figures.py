"""README's figures and picture agree with the published rows."""

from __future__ import annotations

import math
import re
from pathlib import Path

import figures
import pytest
import report_runs

from efficient_attn.results.rows import Record

README = Path(__file__).parents[2] / "README.md"


def test_readme_has_the_published_figures() -> None:
    assert figures.main(check=True) == 0, "run: python suites/trials/figures.py"


def test_a_changed_figure_is_detected(tmp_path: Path, monkeypatch) -> None:
    text = README.read_text(encoding="utf-8")
    table = figures.make_table()
    number = re.search(r"\d+\.\d+x", table)
    assert number
    copy = tmp_path / "README.md"
    copy.write_text(text.replace(number[0], "99.9x"), encoding="utf-8")
    monkeypatch.setattr(figures, "README", copy)
    assert figures.main(check=True) == 1
    assert figures.main(check=False) == 0
    assert copy.read_text(encoding="utf-8") == text


def test_the_picture_has_the_published_perplexities(tmp_path: Path, monkeypatch) -> None:
    labels = []
    real = figures.plt.Axes.annotate
    monkeypatch.setattr(
        figures.plt.Axes, "annotate", lambda *args, **options: labels.append(args[1]) or real(*args, **options)
    )
    figures.draw_picture(tmp_path / "picture.png")
    perplexity, _ = figures.read_model_run(figures.LONG_MODEL_RUN)
    assert len(labels) == len(perplexity) == 5
    assert all(any(f"{value:,.1f}" in label for label in labels) for value in perplexity)


def test_quality_names_model_length_and_direction() -> None:
    lines = figures.make_table().splitlines()[2:]
    cells = [line.split(" | ")[-1] for line in lines]
    conditions = re.compile(r"\(\w[\w-]*, N = 8,192, (causal|bidirectional), mean over \d+ (layers|text segments)")
    exact = "exact attention of models trained with"
    assert all(conditions.search(cell) or "not measured" in cell or cell.startswith(exact) for cell in cells)
    assert any(conditions.search(cell) for cell in cells)


@pytest.mark.parametrize(
    ("variant", "causal", "start"),
    [
        ("sliding_window:window=512", True, "relative error 0.5"),  # no perplexity: the error, measured with 508
        ("linear", True, "90.0x the perplexity (SmolLM2-135M, N = 8,192, causal"),  # before the error
        ("cosformer", True, "not measured"),  # only at 2,048
        ("linear", False, "not measured"),  # only causal
        ("gqa:kv_heads=2", True, "exact attention of models trained with 2 key-value heads"),
    ],
)
def test_quality_is_that_at_8192_or_not_measured(
    variant: str, causal: bool, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"task": "fidelity", "inputs": "smollm2@1", "causal": True, "layer": 5}
    errors = {("sliding_window:window=508", 8192): 0.5, ("linear", 8192): 1.2, ("cosformer", 2048): 1.1}
    rows = [report_runs.row(name, **known, seq_len=n, relative_error=error) for (name, n), error in errors.items()]
    for name, loss in (("full", 2.0), ("linear", 2.0 + math.log(90))):
        swap = {"task": "swap", "inputs": "smollm2:text@2", "causal": True, "seq_len": 8192, "baseline": "full"}
        rows.append(report_runs.row(name, **swap, extra={"swap.loss": loss, "swap.segment": 0}))
    report_runs.write_run(tmp_path / "results" / "fidelity_long", map(Record, rows))
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    figures.read_quality.cache_clear()
    try:
        text = figures.format_quality(figures.Advice("a use", variant, "forward", 8192, causal))
    finally:
        figures.read_quality.cache_clear()
    assert text.startswith(start)
    assert ("measured with sliding_window:window=508" in text) == ("512" in variant)


def test_readme_is_short_and_has_few_figures() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 110
    written = "".join(re.findall(r"<!-- (?:output|figures) -->\n(.*?)<!-- end -->", text, re.DOTALL))
    written = re.sub(r"\([^)]*\bN = [^)]*\)|Zen \d", "", written)  # conditions and processors do not count as figures
    assert 10 <= len(re.findall(r"(?<![\w=])\d[\d.,]*", written)) <= 40
