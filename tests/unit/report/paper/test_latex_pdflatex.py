"""Tables and figures in an article, compiled by pdflatex: no error, and nothing wider than its column."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import report_runs as runs
from learned_runs import seeds, swapped, unable

from efficient_attn.cli.plot import FIGURES
from efficient_attn.report.paper.export import FigureRequest, make_figure

PDFLATEX = shutil.which("pdflatex")
RESULTS = Path(__file__).parents[4] / "results"
pytestmark = pytest.mark.skipif(
    PDFLATEX is None, reason="pdflatex is not installed (Debian: texlive-latex-recommended)"
)
NAMES = ("a%b_c&d#e{f}\\g^h~i$j", "<k>|l'm`n[o]--\u4e2d\u00fe\u00e9\u00df\u202e", "\\input{x}\\end{table}", "x" * 300)


def write_run(folder: Path, *, hostile: bool) -> Path:
    records = [*runs.speed(), *runs.speed(causal=True), *runs.decode(), *runs.fidelity(), *runs.fidelity(causal=True)]
    records += list(swapped())
    for task in ("mqar", "copying"):
        records += [*seeds("full", (1.0, 0.99), task=task), *seeds("linear", (0.9, 0.8), task=task)]
        records += list(unable("cosformer", task=task))
    if hostile:
        names: dict[str, str] = dict(
            zip(("linear", "cosformer", "mqa", "sliding_window:window=32"), NAMES, strict=True)
        )
        for record in records:
            record.row.variant = names.get(record.row.variant, record.row.variant)
            record.row.machine = "AMD_Zen&4%-2c-1GiB"
    return runs.write_run(folder / "run", records)


def compile_article(folder: Path, body: str) -> str:
    """The log of a two-column article. Fails unless pdflatex succeeds."""
    packages = r"\usepackage{booktabs,textcomp,graphicx}\usepackage[textwidth=6.9in,columnsep=0.3in]{geometry}"
    text = rf"\documentclass[10pt,twocolumn]{{article}}{packages}\begin{{document}}{body}\end{{document}}"
    (folder / "article.tex").write_text(text, "utf-8")
    command = [str(PDFLATEX), "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "article.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=120, check=False)
    log = done.stdout.decode("utf-8", "replace")
    assert done.returncode == 0, log[-3000:]
    return log


@pytest.mark.sampled(6)
@pytest.mark.parametrize("hostile", [False, True])
def test_tables_compile_and_fit_their_columns(tmp_path: Path, hostile: bool) -> None:
    run = write_run(tmp_path, hostile=hostile)
    requests: list[dict[str, Any]] = [
        {"figure": figure, "width": width, "filters": filters}
        for figure in FIGURES
        for width in (3.3, 6.8)
        for filters in ({}, *([{"causal": (True, False)}] if figure != "ability" else []))
    ]
    requests.append({"figure": "speed", "filters": {"mode": ("forward", "decode"), "causal": (True, False)}})
    requests.append({"figure": "speed", "highlight": (NAMES[0] if hostile else "linear",), "labels": ("full=\\$_",)})
    body = []
    measured = [] if hostile else [("swap_long", "perplexity"), ("linear_xeon", "speed"), ("linear_xeon", "front")]
    many = [(RESULTS / name, {"figure": figure, "width": width}) for name, figure in measured for width in (3.3, 6.8)]
    for folder, request in [*((run, request) for request in requests), *many]:
        for page in make_figure([folder], FigureRequest(file_format="tex", **request)).pages:
            name = f"t{len(body)}.tex"
            (tmp_path / name).write_bytes(page)
            body.append(rf"\input{{{name}}}\clearpage")
    log = compile_article(tmp_path, "\n".join(body))
    assert len(body) >= len(requests)
    assert not re.findall(r"(?:Overfull \\hbox|LaTeX Warning: Float too large).*", log)
    assert not re.findall(r"(?:Missing character|Command \\\w+ unavailable).*", log)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("width", [3.3, 6.8])
def test_figures_compile_and_fit_their_columns(tmp_path: Path, figure: Any, width: float) -> None:
    run = write_run(tmp_path, hostile=True)
    environment = "figure" if width < 4.5 else "figure*"
    body = []
    for number, page in enumerate(make_figure([run], FigureRequest(figure=figure, width=width)).pages):
        (tmp_path / f"f{number}.pdf").write_bytes(page)
        body.append(rf"\begin{{{environment}}}\includegraphics{{f{number}.pdf}}\end{{{environment}}}\clearpage")
    assert "Overfull" not in compile_article(tmp_path, "\n".join(body))
