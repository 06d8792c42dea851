"""Plots for print: size, fonts and emphasis."""

from __future__ import annotations

import re
from typing import Any

import pytest

from efficient_attn.report.drawing import print_figure
from efficient_attn.report.drawing.figures import Line, Panel
from efficient_attn.report.drawing.style import choose_line_styles

LONG = "sliding_window:window=128:causal=true:sinks=4"


def panel(*labels: str, **changes: Any) -> Panel:
    line_styles = choose_line_styles(labels)
    lines = tuple(Line(n, line_styles[n], [1.0, 2.0, 4.0], [i + 1.0, i + 2.0, i + 3.0]) for i, n in enumerate(labels))
    defaults: dict[str, Any] = {
        "name": "p", "kind": "k", "title": "Speed", "caption": "c", "xlabel": "length", "ylabel": "speedup",
        "unit": "ratio", "lines": lines, "ticks": {1.0: "1K", 2.0: "2K", 4.0: "4K"}, "config_text": "cpu, machine M2",
    }  # fmt: skip
    return Panel(**(defaults | changes))


def test_pdf_has_the_requested_width_and_embedded_fonts() -> None:
    data = print_figure.render_print_figure(panel("full", "linear"), "pdf", width=3.3)
    box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ", data)
    assert box
    assert float(box[1]) == pytest.approx(3.3 * 72, abs=0.1)
    assert b"/Subtype /Type3" not in data
    assert b"/FontFile2" in data, "TrueType, embedded"
    assert b"CreationDate" not in data


def test_svg_keeps_text_and_the_configuration_is_optional() -> None:
    svg = print_figure.render_print_figure(panel("full", "a$b$"), "svg", width=3.3).decode()
    assert "machine M2" in svg
    assert "a$b$" in svg
    plain = print_figure.render_print_figure(panel("full"), "svg", width=3.3, with_config=False).decode()
    assert "machine M2" not in "".join(re.findall(r"<text.*?</text>", plain))


def test_highlighted_lines_are_thicker_with_bold_names() -> None:
    shown = panel("full", LONG)
    plain = print_figure.render_print_figure(shown, "svg", width=3.3).decode()
    bold = print_figure.render_print_figure(shown, "svg", width=3.3, bold={LONG}).decode()
    assert 'stroke-width="2.4"' in bold
    assert 'stroke-width="2.4"' not in plain
    assert 'font-weight="700">sliding_window</text>' in bold
    assert 'font-weight="700"' not in plain


@pytest.mark.parametrize("width", [print_figure.MIN_WIDTH, 20.0])
@pytest.mark.parametrize("form", ["pdf", "svg", "png"])
def test_any_width_and_format_can_be_drawn(width: float, form: Any) -> None:
    start = {"pdf": b"%PDF", "svg": b"<svg", "png": b"\x89PNG"}[form]
    assert print_figure.render_print_figure(panel("full", LONG), form, width=width).startswith(start)
