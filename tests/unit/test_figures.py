"""README's figures and picture agree with the published rows."""

from __future__ import annotations

import re
from pathlib import Path

import figures

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
    assert all(
        re.search(r"\(\w[\w-]*, N = [\d,]+, (causal|bidirectional)", cell) or "not measured" in cell for cell in cells
    )
    assert sum("N = " in cell for cell in cells) >= 4


def test_readme_is_short_and_has_few_figures() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 110
    written = "".join(re.findall(r"<!-- (?:output|figures) -->\n(.*?)<!-- end -->", text, re.DOTALL))
    written = re.sub(r"\([^)]*\bN = [^)]*\)|Zen \d", "", written)  # conditions and processors do not count as figures
    assert 10 <= len(re.findall(r"(?<![\w=])\d[\d.,]*", written)) <= 40
