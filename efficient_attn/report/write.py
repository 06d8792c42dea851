"""The report's files: written whole or not at all, over an earlier report's and nothing else's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..instruments.garbage import no_collection
from ..results import durable, file_marks
from . import page
from .gather import gather

PAGE_FILE, MARKDOWN_FILE, TABLE_FILE, PLOTS_FOLDER = "report.html", "report.md", "rows.csv", "plots"


@dataclass(frozen=True)
class ReportPaths:
    """Where a report is. plots: the PNG and SVG files, in the order of the page."""

    page: Path
    markdown: Path
    plots: tuple[Path, ...]
    csv: Path


def write_report(runs: Sequence[Path], out: Path) -> ReportPaths:
    """Write ``report.html``, ``report.md``, ``rows.csv`` and ``plots/`` about these runs into a folder.

    An earlier report there is replaced; a run's own files and other people's never. Raises `UsageError` for a folder
    that holds no run, for one that cannot be written, and for a file in the way that is not ours.
    """
    with no_collection():  # of 10,000 rows nearly all live to the end, and looking through them takes a tenth more
        report_data = gather([Path(run) for run in runs])
        content = page.make_content(report_data)
        texts = {
            PAGE_FILE: page.as_html(content),
            MARKDOWN_FILE: page.as_markdown(content),
            TABLE_FILE: report_data.csv,
        }
    plots = {
        f"{PLOTS_FOLDER}/{p.panel.name}.{kind}": data
        for p in content.plots
        for kind, data in (("png", p.png), ("svg", p.svg))
    }
    replace_report(out, plots | texts)
    return ReportPaths(out / PAGE_FILE, out / MARKDOWN_FILE, tuple(out / name for name in plots), out / TABLE_FILE)


def replace_report(out: Path, files: dict[str, str | bytes]) -> None:
    """Put these files, and no others, in the place of an earlier report. All are checked before one is written."""
    check_report(out, tuple(files))
    try:
        earlier = find_report(out)
        out.mkdir(parents=True, exist_ok=True)
        obsolete = earlier.difference(files)
        for name in obsolete:
            (out / name).unlink()
        for name, data in files.items():
            (out / name).parent.mkdir(exist_ok=True)
            durable.replace(out / name, data.encode() if isinstance(data, str) else data, sync=False)
        if obsolete and (out / PLOTS_FOLDER).is_dir() and not any((out / PLOTS_FOLDER).iterdir()):
            (out / PLOTS_FOLDER).rmdir()
    except OSError as error:
        raise UsageError(f"{out}: cannot be written: {error.strerror or error}; choose another folder") from error


def check_report(out: Path, names: Sequence[str] = (PAGE_FILE, MARKDOWN_FILE, TABLE_FILE)) -> None:
    """`UsageError` where a report's files would lie on, or go through, something that is not ours."""
    file_marks.check_folder(out / PLOTS_FOLDER)
    try:
        earlier = find_report(out)
        for name in names:
            if name not in earlier:
                file_marks.check_free(out / name)
    except OSError as error:
        raise UsageError(f"{out}: cannot be written: {error.strerror or error}; choose another folder") from error


def find_report(out: Path) -> set[str]:
    """The files of the earlier report here: what it shows, where that is ours; nobody else's."""
    markdown_path = out / MARKDOWN_FILE
    if markdown_path.is_symlink() or not markdown_path.is_file() or not file_marks.is_generated(markdown_path):
        return set()
    plot_names = re.findall(rf"\({PLOTS_FOLDER}/([\w.-]+)\.png\)", markdown_path.read_text("utf-8", "replace"))
    names = {f"{PLOTS_FOLDER}/{name}.{kind}" for name in plot_names for kind in ("png", "svg")} | {
        PAGE_FILE,
        MARKDOWN_FILE,
        TABLE_FILE,
    }
    existing = {name for name in names if (out / name).is_file() and not (out / name).is_symlink()}
    # pictures of earlier versions bear no mark, nor do reports that show them
    marked = file_marks.is_marked(markdown_path)
    return {
        name
        for name in existing
        if file_marks.is_generated(out / name) or (name.startswith(PLOTS_FOLDER) and not marked)
    }
