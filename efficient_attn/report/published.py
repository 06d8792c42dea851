"""Published runs: trim each to the files kept in git, and list them all. The rest can be rebuilt from the rows."""

import io
import warnings
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..results import file_marks, store
from ..results.compression import check_undamaged, compress_rows
from ..results.shards import list_run_folders
from . import markdown, page, select
from .command_line import format_command
from .formatting import interleave
from .gather import ReportData, gather
from .replaced_runs import PublishedRun, find_replaced
from .write import MARKDOWN_FILE, PLOTS_FOLDER, check_report, replace_report

MOST_PICTURES = 3
PNG_COLOURS = 128  # enough for plots with antialiasing
INDEX_FILE = "README.md"
INDEX_COLUMNS = (
    *("run", "suite", "what", "machine", "dtype", "batch", "heads", "head size"),
    *("cases that gave a result", "measured", "torch", "commit", "made with"),
)
INDEX_FOOTER = """
Each folder keeps the rows with their raw samples (`rows.jsonl.gz`), the environment (`run.json`), and a report with at
most {most} pictures. `efficient-attn report {name}/NAME --out page` makes the web page, with every plot;
`efficient_attn.load` and `efficient-attn compare` read the folders as they are. `efficient-attn report --published
{name}` trims new runs to this, writes this list and names the runs that newer ones replace. Runs of protocols before
{first} ("older code") stay until one of the same suite replaces them; README's table and claims leave them out.
Your own runs go to `local/`, which git ignores.
"""


class ChangedSources(UserWarning):
    """A published run was measured with uncommitted changes."""


class ReplacedRun(UserWarning):
    """A published run is replaced by a newer one of its kind."""


def update_published(folder: Path) -> list[Path]:
    """Trim every run in a folder to the files kept in git, and list them all in its ``README.md``.

    Returns the runs, and warns of those that newer ones replace. All are checked before any is changed. Raises
    `UsageError` for a folder without runs, and for a run that has not finished or has damaged rows.
    """
    if not folder.is_dir() or not (runs := list_run_folders(folder)):
        raise UsageError(f"{folder}: holds no runs; name the folder that holds the runs' folders")
    file_marks.check_writable(folder / INDEX_FILE)
    for run in runs:
        _check_finished(run)
        check_undamaged(run)
        check_report(run)
    published = []
    for run in runs:
        compress_rows(run)
        data = gather([run])
        replace_report(run, _make_report(data, f"{folder.resolve().name}/{run.name}"))
        published.append((PublishedRun.of(run.name, data), _describe_run(run.name, data)))
    replaced = find_replaced(run for run, _ in published)
    for name, newer in replaced.items():
        message = f"replaced by {' and '.join(newer)}; remove it: git rm -r {folder / name}"
        warnings.warn(f"{folder / name}: {message}", ReplacedRun, stacklevel=2)
    lines = [[first + _format_notes(run, replaced), *cells] for run, (first, *cells) in published]
    file_marks.write_derived(folder / INDEX_FILE, _make_index(lines, folder.resolve().name).encode())
    return runs


def _check_finished(run: Path) -> None:
    sessions = store.read_sessions(run)
    if not sessions or not sessions[-1].get("finished"):
        raise UsageError(f"{run}: has not finished; go on with it first: run SUITE --resume --out {run}")
    changed_commits = [git for git in map(_get_git_info, sessions) if git.get("digest")]
    if changed_commits:
        message = f"measured from changes that are in no commit (on {str(changed_commits[-1].get('revision'))[:7]})"
        warnings.warn(f"{run}: {message}; measure it again from a clean commit", ChangedSources, stacklevel=3)


def shrink_png(png: bytes) -> bytes:
    """Quantize an image to about a third of its size, preserving its metadata."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    picture, metadata, out = Image.open(io.BytesIO(png)), PngInfo(), io.BytesIO()
    for name, text in picture.info.items():
        if isinstance(text, str):
            metadata.add_text(str(name), text)
    quantized = picture.convert("RGB").quantize(PNG_COLOURS, dither=Image.Dither.NONE)
    quantized.save(out, "PNG", optimize=True, pnginfo=metadata, dpi=picture.info["dpi"])
    return out.getvalue()


def _make_report(data: ReportData, name: str) -> dict[str, str | bytes]:
    """Files of the trimmed report: Markdown and a few images."""
    content = page.make_content(data)
    plots_by_section = ([plot for block in section.blocks for plot in block.plots] for section in content.sections)
    plots = islice(interleave(plots_by_section), MOST_PICTURES)  # the first plot of each section, then the second
    chosen = {plot.panel.name: plot.png for plot in plots}
    for block in (block for section in content.sections for block in section.blocks):
        block.plots, block.note = [plot for plot in block.plots if plot.panel.name in chosen], ""
    pictures = {f"{PLOTS_FOLDER}/{plot_name}.png": shrink_png(png) for plot_name, png in chosen.items()}
    return {**pictures, MARKDOWN_FILE: page.as_markdown(content, published=name)}


# -- the list ------------------------------------------------------------------------------------------------------


def _make_index(lines: Sequence[Sequence[str]], name: str) -> str:
    table = ["| " + " | ".join(cells) + " |" for cells in (INDEX_COLUMNS, ["---"] * len(INDEX_COLUMNS), *lines)]
    footer = INDEX_FOOTER.format(most=MOST_PICTURES, name=name, first=store.OLDEST_COMPARABLE_PROTOCOL)
    return file_marks.add_mark("\n".join(["# Published runs", "", *table, footer]), "markdown")


def _format_notes(run: PublishedRun, replaced: Mapping[str, Sequence[str]]) -> str:
    """Protocol and replacements of a run, to be added to its name in the list."""
    notes = [run.older_protocol] if run.older_protocol else []
    notes += [f"replaced by {' and '.join(replaced[run.name])}"] if run.name in replaced else []
    return f" ({'; '.join(notes)})" if notes else ""


def _describe_run(name: str, data: ReportData) -> list[str]:
    """Cells of a run in the list."""
    rows, last_session = data.loaded, data.sessions[-1]
    environment: Mapping[str, Any] = last_session.get("environment") or {}
    suite: Mapping[str, Any] = last_session.get("suite") or {}
    git = _get_git_info(last_session)
    revision = str(git.get("revision") or "")[:7] or "not known"
    # variables that configured the allocator, without which the command measures something else
    untouched = str((last_session.get("allocator") or {}).get("left alone", ""))
    variables = (environment.get("variables") or {}).items()
    assignments = "".join(f"{name}={value} " for name, value in variables if name in untouched)
    return [
        f"[{name}]({name}/{MARKDOWN_FILE})",
        markdown.escape_markdown(suite.get("name") or "not known"),
        markdown.escape_markdown(suite.get("title") or ""),
        markdown.escape_markdown(" and ".join(sorted(rows["machine"].dropna().unique()))),
        ", ".join(sorted(rows["dtype"].dropna().unique())),
        _format_range(select.find_batches(rows[rows["status"] == "ok"])),
        *(_format_range(sorted(map(int, rows[column].dropna().unique()))) for column in ("heads", "head_dim")),
        f"{(rows['status'] == 'ok').sum()} of {len(rows)}",
        str(last_session.get("started") or "")[:10],
        markdown.escape_markdown(environment.get("torch") or "not known"),
        f"{revision}, changed" if git.get("digest") else revision,
        markdown.format_code(assignments + format_command(last_session.get("command"))),
    ]


def _format_range(values: Sequence[int]) -> str:
    return ", ".join(map(str, values)) if len(values) < 3 else f"{values[0]} to {values[-1]}"


def _get_git_info(session: Mapping[str, Any]) -> Mapping[str, Any]:
    return (session.get("environment") or {}).get("git") or {}
