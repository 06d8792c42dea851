"""The report's files: written whole or not at all, over an earlier report's and nothing else's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..instruments.collection import no_collection
from ..results import durable, marks
from . import page
from .gather import gather

PAGE, MARKDOWN, TABLE, PLOTS = "report.html", "report.md", "rows.csv", "plots"


@dataclass(frozen=True)
class Written:
    """Where a report is. plots: the PNG and SVG files, in the order of the page."""

    page: Path
    markdown: Path
    plots: tuple[Path, ...]
    csv: Path


def write_report(runs: Sequence[Path], out: Path) -> Written:
    """Write ``report.html``, ``report.md``, ``rows.csv`` and ``plots/`` about these runs into a folder.

    An earlier report there is replaced; a run's own files and other people's never. Raises `UsageError` for a folder
    that holds no run, for one that cannot be written, and for a file in the way that is not ours.
    """
    with no_collection():  # of 10,000 rows nearly all live to the end, and looking through them takes a tenth more
        found = gather([Path(run) for run in runs])
        shown = page.make_content(found)
        texts = {PAGE: page.as_html(shown), MARKDOWN: page.as_markdown(shown), TABLE: found.csv}
    plots = {
        f"{PLOTS}/{p.panel.name}.{kind}": data for p in shown.plots for kind, data in (("png", p.png), ("svg", p.svg))
    }
    replace_report(out, plots | texts)
    return Written(out / PAGE, out / MARKDOWN, tuple(out / name for name in plots), out / TABLE)


def replace_report(out: Path, files: dict[str, str | bytes]) -> None:
    """Put these files, and no others, in the place of an earlier report. All are checked before one is written."""
    check_report(out, tuple(files))
    try:
        earlier = find_report(out)
        out.mkdir(parents=True, exist_ok=True)
        left = earlier.difference(files)
        for name in left:
            (out / name).unlink()
        for name, data in files.items():
            (out / name).parent.mkdir(exist_ok=True)
            durable.replace(out / name, data.encode() if isinstance(data, str) else data, sync=False)
        if left and (out / PLOTS).is_dir() and not any((out / PLOTS).iterdir()):
            (out / PLOTS).rmdir()
    except OSError as error:
        raise UsageError(f"{out}: cannot be written: {error.strerror or error}; choose another folder") from error


def check_report(out: Path, names: Sequence[str] = (PAGE, MARKDOWN, TABLE)) -> None:
    """`UsageError` where a report's files would lie on, or go through, something that is not ours."""
    marks.check_folder(out / PLOTS)
    try:
        earlier = find_report(out)
        for name in names:
            if name not in earlier:
                marks.check_free(out / name)
    except OSError as error:
        raise UsageError(f"{out}: cannot be written: {error.strerror or error}; choose another folder") from error


def find_report(out: Path) -> set[str]:
    """The files of the earlier report here: what it shows, where that is ours; nobody else's."""
    told = out / MARKDOWN
    if told.is_symlink() or not told.is_file() or not marks.is_ours(told):
        return set()
    shown = re.findall(rf"\({PLOTS}/([\w.-]+)\.png\)", told.read_text("utf-8", "replace"))
    names = {f"{PLOTS}/{name}.{kind}" for name in shown for kind in ("png", "svg")} | {PAGE, MARKDOWN, TABLE}
    there = {name for name in names if (out / name).is_file() and not (out / name).is_symlink()}
    # pictures of earlier versions bear no mark, nor do reports that show them
    marked = marks.is_marked(told)
    return {name for name in there if marks.is_ours(out / name) or (name.startswith(PLOTS) and not marked)}
