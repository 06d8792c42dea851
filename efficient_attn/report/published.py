"""Published runs: what git keeps of each, and the list of all of them. Everything else is made from the rows again."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..results import marks, store
from ..results.packing import check_whole, pack
from ..results.shards import shards
from . import markdown, page
from .command import tell_command
from .drawing.figures import Plot
from .gather import Frame, Gathered, gather
from .write import MARKDOWN, PLOTS, check_report, replace_report

MOST_PICTURES = 3
COLOURS = 128  # of a kept picture, whose lines and letters have a few and shades between them
INDEX = "README.md"
HEAD = (
    *("run", "suite", "what", "machine", "dtype", "batch", "heads", "head size"),
    *("cases that gave a result", "measured", "torch", "commit", "made with"),
)
FOLLOWS = """
Each folder keeps the rows with their raw samples (`rows.jsonl.gz`), the environment (`run.json`), and a report with at
most {most} pictures. `efficient-attn report {name}/NAME --out page` makes the web page, with every plot;
`efficient_attn.load` and `efficient-attn compare` read the folders as they are. `efficient-attn report --published
{name}` trims new runs to this and writes this list. Your own runs go to `local/`, which git ignores.
"""


class ChangedSources(UserWarning):
    """A published run that was not measured from a commit as it is."""


def keep_published(folder: Path) -> list[Path]:
    """Trim every run that stands in a folder to what git keeps, and list them all in its ``README.md``.

    Returns the runs. All are looked at before one is touched. Raises `UsageError` for a folder without runs, and for a
    run that has not finished or whose rows are damaged.
    """
    runs = sorted(path for path in folder.glob("*") if path.is_dir() and not path.is_symlink() and shards(path))
    if not runs:
        raise UsageError(f"{folder}: holds no runs; name the folder that holds the runs' folders")
    marks.check_free(folder / INDEX)
    for run in runs:
        _check_finished(run)
        check_whole(run)
        check_report(run)
    lines = []
    for run in runs:
        pack(run)
        found = gather([run])
        replace_report(run, _make_report(found, f"{folder.resolve().name}/{run.name}"))
        lines.append(_describe(run.name, found))
    marks.write(folder / INDEX, _make_index(lines, folder.resolve().name).encode())
    return runs


def _check_finished(run: Path) -> None:
    sessions = store.about(run)
    if not sessions or not sessions[-1].get("finished"):
        raise UsageError(f"{run}: has not finished; go on with it first: run SUITE --resume --out {run}")
    changed = [git for git in map(_git, sessions) if git.get("digest")]
    if changed:
        told = f"measured from changes that are in no commit (on {str(changed[-1].get('revision'))[:7]})"
        warnings.warn(f"{run}: {told}; measure it again from a clean commit", ChangedSources, stacklevel=3)


def shrink(png: bytes) -> bytes:
    """A picture of few colours in about a third of its bytes, with what it says of itself."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    picture, said, out = Image.open(io.BytesIO(png)), PngInfo(), io.BytesIO()
    for name, text in picture.info.items():
        if isinstance(text, str):
            said.add_text(str(name), text)
    few = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(out, "PNG", optimize=True, pnginfo=said, dpi=picture.info["dpi"])
    return out.getvalue()


def _make_report(found: Gathered, name: str) -> dict[str, str | bytes]:
    """The Markdown with few pictures, and these."""
    shown = page.make_content(found)
    chosen = {plot.panel.name: plot.png for plot in choose_pictures(shown)}
    for block in (block for section in shown.sections for block in section.blocks):
        block.plots, block.note = [plot for plot in block.plots if plot.panel.name in chosen], ""
    pictures: dict[str, str | bytes] = {f"{PLOTS}/{each}.png": shrink(png) for each, png in chosen.items()}
    return pictures | {MARKDOWN: page.as_markdown(shown, published=name)}


def choose_pictures(shown: page.Content) -> list[Plot]:
    """The first picture of each section, then the second of each, as far as there is room."""
    sections = [[plot for block in section.blocks for plot in block.plots] for section in shown.sections]
    in_turn = [plot for turn in zip_longest(*sections) for plot in turn if plot is not None]
    return in_turn[:MOST_PICTURES]


# -- the list ------------------------------------------------------------------------------------------------------


def _make_index(lines: Sequence[Sequence[str]], name: str) -> str:
    table = ["| " + " | ".join(cells) + " |" for cells in (HEAD, ["---"] * len(HEAD), *lines)]
    text = "\n".join(["# Published runs", "", *table]) + "\n" + FOLLOWS.format(most=MOST_PICTURES, name=name)
    return f"{text}\n<!-- {marks.MARK} -->\n"


def _describe(name: str, found: Gathered) -> list[str]:
    """A run's line."""
    rows, last = found.loaded, found.sessions[-1]
    environment: Mapping[str, Any] = last.get("environment") or {}
    suite: Mapping[str, Any] = last.get("suite") or {}
    made_with = f"{_tell_variables(last, environment)}{tell_command(last.get('command'))}".replace("|", "\\|")
    sizes = [_tell_range(rows, column) for column in ("batch", "heads", "head_dim")]
    return [
        f"[{name}]({name}/{MARKDOWN})",
        markdown.plain(suite.get("name") or "not known"),
        markdown.plain(suite.get("title") or ""),
        markdown.plain(" and ".join(sorted(rows["machine"].dropna().unique()))),
        ", ".join(sorted(rows["dtype"].dropna().unique())),
        *sizes,
        f"{(rows['status'] == 'ok').sum()} of {len(rows)}",
        str(last.get("started") or "")[:10],
        markdown.plain(environment.get("torch") or "not known"),
        _tell_commit(last),
        f"`{made_with}`",
    ]


def _tell_range(rows: Frame, column: str) -> str:
    values = sorted(int(value) for value in rows[column].dropna().unique())
    return ", ".join(map(str, values)) if len(values) < 3 else f"{values[0]} to {values[-1]}"


def _tell_variables(session: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    """What was set so that the allocator was left alone: without it the command measures something else."""
    left = str((session.get("allocator") or {}).get("left alone", ""))
    said = (environment.get("variables") or {}).items()
    return "".join(f"{name}={value} " for name, value in said if name in left)


def _tell_commit(session: Mapping[str, Any]) -> str:
    git = _git(session)
    revision = str(git.get("revision") or "")[:7] or "not known"
    return f"{revision}, changed" if git.get("digest") else revision


def _git(session: Mapping[str, Any]) -> Mapping[str, Any]:
    return (session.get("environment") or {}).get("git") or {}
