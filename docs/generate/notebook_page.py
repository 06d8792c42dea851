"""The notebook as a page: its text, its code, and with EXECUTE_NOTEBOOK=1 its outputs."""

from __future__ import annotations

import base64
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from links import rewrite_links

EXECUTE = "EXECUTE_NOTEBOOK"
STYLE, TABLE_TAG = re.compile(r"<style.*?</style>", re.DOTALL), re.compile(r"<table[^>]*>")
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def render_files(source: Path, uri: str) -> Iterator[tuple[str, str | bytes]]:
    """The page and its pictures."""
    book = nbformat.read(source, as_version=4)
    if os.environ.get(EXECUTE) == "1":
        _execute(book)
    parts, pictures = [], {}
    for cell in book.cells:
        if cell.cell_type == "markdown":
            parts.append(rewrite_links(cell.source, source=source, uri=uri))
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for number, output in enumerate(cell.get("outputs", [])):
            name = f"{cell.id}-{number}.png"
            parts.append(_render_output(output, name))
            if picture := output.get("data", {}).get("image/png"):
                pictures[name] = base64.b64decode(picture)
    download = "Download this page as a [notebook](first-run.ipynb). It runs in less than a minute."
    title, *rest = parts
    yield uri, "\n\n".join([title, download, *rest]) + "\n"
    for name, picture in pictures.items():
        yield f"{uri.rpartition('/')[0]}/{name}", picture


def _execute(book: Any) -> None:
    from nbclient import NotebookClient

    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()


def _render_output(output: Any, picture: str) -> str:
    data = output.get("data", {})
    if output.get("name") == "stderr":  # warnings of this machine
        return ""
    if "image/png" in data:
        return f"![Output of the cell above]({picture})"
    if html := data.get("text/html"):
        return TABLE_TAG.sub("<table>", STYLE.sub("", html)).replace("\n\n", "\n") + "\n"
    text = ANSI.sub("", output.get("text") or data.get("text/plain", "")).rstrip()
    return f'```text title="Output"\n{text}\n```' if text else ""
