"""Which file of the repository is which page of the site, and links between them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PROJECT_PAGES = {
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "suites/data/README.md": "project/activations.md",
    "suites/trials/README.md": "project/trials.md",
    "results/README.md": "results/README.md",
}
# Sources that GitHub shows, where the site has a page made from them.
GENERATED_PAGES = {
    "efficient_attn/__init__.py": "reference/python-api.md",
    "efficient_attn/bench/planning/suite.py": "reference/suite-files.md",
    "efficient_attn/cli/parser.py": "reference/command-line.md",
    "efficient_attn/results/rows.py": "reference/columns.md",
    "efficient_attn/variants/__init__.py": "reference/mechanisms/README.md",
}
FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?P<image>!?)\[(?P<label>[^\]\[]*(?:\[[^\]]*\][^\]\[]*)*)\]\((?P<target>[^)\s]+)\)")


def list_outside_pages() -> dict[Path, str]:
    """The pages whose sources are not in docs/, by source: documents of the project, and reports of published runs."""
    reports = {f"results/{path.parent.name}/report.md" for path in ROOT.glob("results/*/report.md")}
    pages = PROJECT_PAGES | {path: path for path in sorted(reports)}
    return {ROOT / source: uri for source, uri in pages.items()}


def find_uri(path: Path) -> str | None:
    """The page or picture of a file in the repository; None if the site does not have it."""
    if path == ROOT / "README.md":
        return "README.md"
    if path.suffix == ".ipynb":
        return path.relative_to(DOCS).with_suffix(".md").as_posix()
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    if path.parent.name == "plots" and path.suffix == ".png":
        return path.relative_to(ROOT).as_posix()
    page = GENERATED_PAGES.get(path.relative_to(ROOT).as_posix()) if path.is_relative_to(ROOT) else None
    return page or list_outside_pages().get(path)


def outside_fences(change: Callable[[str], str], text: str) -> str:
    """Change all of a page but its code blocks."""
    parts, end = [], 0
    for block in FENCED.finditer(text):
        parts += [change(text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, change(text[end:])])


def rewrite_links(text: str, *, source: Path, uri: str) -> str:
    """Point links to files of the repository at their pages. Files that the site does not have are not linked."""

    def rewrite(link: re.Match[str]) -> str:
        path, _, anchor = link["target"].partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return link[0]
        file = Path(os.path.normpath(source.parent / path))
        page = find_uri(file)
        if page is None and file.exists():
            return link["label"]
        target = os.path.relpath(page, Path(uri).parent) if page else path
        return f"{link['image']}[{link['label']}]({target}{'#' + anchor if anchor else ''})"

    return outside_fences(lambda part: LINK.sub(rewrite, part), text)
