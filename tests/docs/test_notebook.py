"""The notebook runs in a new kernel, and is a page of the site."""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat
import pytest
from doc_blocks import ROOT
from nbclient import NotebookClient

import efficient_attn as ea

NOTEBOOK = ROOT / "docs/tutorial/first-run.ipynb"


@pytest.mark.sampled(6)
@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    """All cells run in a new kernel, and the notebook in git has no outputs, which could be outdated."""
    book = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(book)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert not [cell for cell in code if cell.outputs or cell.execution_count]
    NotebookClient(book, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = {
        cell.id: "".join(str(output.get("text", output.get("data"))) for output in cell.outputs) for cell in code
    }
    assert "retention" in outputs["registry"]
    assert float(ast.literal_eval(outputs["own"])["text/plain"]) < 1e-5
    assert "<table" in outputs["run"]
    assert "image/png" in outputs["plot"]
    assert "reproduced" in outputs["claims"]
    assert "linear" in outputs["recommend"] or "disturbed by other programs" in outputs["recommend"]
    assert (tmp_path / "first_run/report.html").is_file()
    rows = ea.load(tmp_path / "first_run")
    assert set(rows["status"]) <= {"ok", "skipped", "unsupported"}
