"""The code blocks of the documentation, and a folder in which a page's blocks can run."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
PAGES = sorted(ROOT.glob("docs/**/*.md"))
NEEDS = ("gpu", "cluster", "internet", "hours")
EXECUTED = ("python", "console")
VALIDATED = ("toml", "yaml", "json")
OUTPUT = "text"

FENCE = re.compile(
    r"^((?: *<!-- \w+: \S+ -->\n)*)( *)(?:```|~~~)(\w*)[^\n]*\n(.*?)^\2(?:```|~~~)$", re.MULTILINE | re.DOTALL
)
MARK = re.compile(r"<!-- (\w+): (\S+) -->")
INPUTS = ("before", "after", "mine")  # runs in results/local that pages read
MODEL_RUN = "quickstart_zen4"


@dataclass(frozen=True)
class Block:
    """A code block. needs: why it is not executed. file: the name that the page saves it under."""

    page: Path
    language: str
    text: str
    needs: str = ""
    file: str = ""

    @property
    def commands(self) -> list[list[str]]:
        """The words of each line of a console block."""
        return [words for line in self.text.splitlines() if (words := shlex.split(line, comments=True))]


def read_blocks(page: Path) -> list[Block]:
    return list(find_blocks(page.read_text(), page))


def find_blocks(text: str, page: Path) -> Iterator[Block]:
    for marks, _, language, code in FENCE.findall(text):
        yield Block(page, language, dedent(code), **dict(MARK.findall(marks)))


def list_blocks() -> list[Block]:
    return [block for page in PAGES for block in read_blocks(page)]


def make_workspace(page: Path, folder: Path) -> Path:
    """A folder with the files and copies of the published runs that the page's blocks name."""
    blocks = read_blocks(page)
    code = "\n".join(block.text for block in blocks if not block.needs and block.language != OUTPUT)
    named = set(re.findall(r"results/(\w+)", code)) | ({MODEL_RUN} if "results/local" in code else set())
    if "results/*" in code or re.search(r"recommend --", code):
        named = {path.parent.name for path in ROOT.glob("results/*/run.json")}
    for name in sorted(named - {"local"}):
        shutil.copytree(ROOT / "results" / name, folder / "results" / name, ignore=shutil.ignore_patterns("*.png"))
    for name in INPUTS:
        if f"results/local/{name}" in code:
            shutil.copytree(ROOT / "results" / MODEL_RUN, folder / "results/local" / name)
    saved = {block.file: block.text for block in blocks if block.file}
    if "my_attn.py" in code and "my_attn.py" not in saved:
        saved |= {block.file: block.text for block in read_blocks(ROOT / "docs/how-to/add-a-pattern.md") if block.file}
    for name, text in saved.items():
        (folder / name).write_text(text)
    return folder
