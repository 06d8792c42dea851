"""README's figures are those of the published rows, and few."""

from __future__ import annotations

import re
from pathlib import Path

import figures

README = Path(__file__).parents[2] / "README.md"


def test_readme_has_the_published_figures() -> None:
    assert figures.main(check=True) == 0, "run: python suites/trials/figures.py"


def test_a_figure_that_drifts_is_found(tmp_path: Path, monkeypatch) -> None:
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


def test_they_are_few_and_readme_is_short() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 110
    written = "".join(re.findall(r"<!-- (?:output|figures) -->\n(.*?)<!-- end -->", text, re.DOTALL))
    assert 10 <= len(re.findall(r"(?<![\w=])\d[\d.,]*", written)) <= 40
