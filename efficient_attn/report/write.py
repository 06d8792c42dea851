"""The report's files: written whole or not at all, never over a run's own."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..instruments.collection import no_collection
from . import page
from .gather import gather


@dataclass(frozen=True)
class Written:
    """Where a report is. plots: the PNG and SVG files, in the order of the page."""

    page: Path
    markdown: Path
    plots: tuple[Path, ...]
    csv: Path


def write_report(runs: Sequence[Path], out: Path) -> Written:
    """Write ``report.html``, ``report.md``, ``rows.csv`` and ``plots/`` about these runs into a folder.

    An earlier report there is replaced, a run's own files never. Raises `UsageError` for a folder that holds no run,
    and for one that cannot be written.
    """
    with no_collection():  # of 10,000 rows nearly all live to the end, and looking through them takes a tenth more
        found = gather([Path(run) for run in runs])
        shown = page.make_content(found)
        texts = {"report.html": page.as_html(shown), "report.md": page.as_markdown(shown), "rows.csv": found.csv}
    images = {f"{p.panel.name}.{kind}": data for p in shown.plots for kind, data in (("png", p.png), ("svg", p.svg))}
    try:
        out.mkdir(parents=True, exist_ok=True)
        _remove_earlier_plots(out)
        plots = _write_plots(out / "plots", {n: d if isinstance(d, bytes) else d.encode() for n, d in images.items()})
        for name, text in texts.items():
            _write(out / name, text.encode())
    except OSError as error:
        raise UsageError(f"{out}: cannot be written: {error.strerror or error}; choose another folder") from error
    return Written(out / "report.html", out / "report.md", plots, out / "rows.csv")


def _remove_earlier_plots(out: Path) -> None:
    """The pictures that an earlier report shows, for they belong to other rows; nobody else's."""
    earlier = out / "report.md"
    shown = re.findall(r"\(plots/([\w.-]+)\.png\)", earlier.read_text("utf-8")) if earlier.is_file() else []
    for name in shown:
        for kind in ("png", "svg"):
            (out / "plots" / f"{name}.{kind}").unlink(missing_ok=True)


def _write_plots(folder: Path, images: dict[str, bytes]) -> tuple[Path, ...]:
    if images:
        folder.mkdir(exist_ok=True)
    for name, data in images.items():
        _write(folder / name, data)
    return tuple(folder / name for name in images)


def _write(path: Path, data: bytes) -> None:
    """Beside its place first, then into it, so that nobody reads half a file."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)
