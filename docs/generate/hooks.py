"""Hooks of mkdocs: pages made from the code, pages from outside docs/, and the marks of code blocks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences torch's profiler

import columns
import command_line
import mechanisms
import notebook_page
import python_api
import suite_files
from links import DOCS, ROOT, list_outside_pages, rewrite_links
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel

NEEDS = {
    "gpu": "needs a GPU",
    "cluster": "needs a cluster",
    "internet": "needs the internet",
    "hours": "takes minutes to hours",
}
MARKED_NEED = re.compile(rf"^<!-- needs: ({'|'.join(NEEDS)}) -->$", re.MULTILINE)
MARKED_FILE = re.compile(r"^<!-- file: (\S+) -->\n```(\w+)$", re.MULTILINE)
CHANGELOG = "project/changelog.md"
STYLE_SHEET = ROOT / "efficient_attn/report/templates/style.css"
VERBATIM = re.compile(r"(<(?:pre|script|textarea)\b.*?</(?:pre|script|textarea)>)", re.DOTALL)
INDENTED_LINES = re.compile(r"\s*\n\s*")
ALIGNED_CELL = re.compile(r'<(t[dh]) style="text-align: (left|right);">')  # the theme aligns cells on the left
ROOT_RULE = re.compile(r":root \{(.*?)\}", re.DOTALL)


def on_config(config: Any) -> Any:
    """Add the pages of mechanisms to the navigation."""
    (section,) = [item["Mechanisms"] for item in _find_tab(config.nav, "Reference") if "Mechanisms" in item]
    section[:] = mechanisms.list_navigation()
    return config


def _find_tab(nav: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    (tab,) = [item[name] for item in nav if name in item]
    return tab


def on_files(files: Files, config: Any) -> Files:
    """Add generated pages, pages from outside docs/ with their pictures, and the colours of reports."""
    try:
        generated = list(_generate_files())
    except ValueError as error:  # something without a description
        raise PluginError(str(error)) from error
    for uri, content in generated:
        files.append(File.generated(config, uri, content=content))
    for source, uri in list_outside_pages().items():
        text = rewrite_links(source.read_text(encoding="utf-8"), source=source, uri=uri)
        is_report = uri.endswith("/report.md")  # reachable by links only
        is_searched = not is_report and uri != CHANGELOG  # which names again what other pages explain
        head = "" if is_searched else "---\nsearch:\n  exclude: true\n---\n\n"
        inclusion = InclusionLevel.NOT_IN_NAV if is_report else InclusionLevel.UNDEFINED
        files.append(File.generated(config, uri, content=head + text, inclusion=inclusion))
    for picture in sorted(ROOT.glob("results/*/plots/*.png")):
        files.append(File.generated(config, picture.relative_to(ROOT).as_posix(), abs_src_path=str(picture)))
    return files


def _generate_files() -> Iterator[tuple[str, str | bytes]]:
    yield from mechanisms.render_pages()
    yield from notebook_page.render_files(DOCS / "tutorial/first-run.ipynb", "tutorial/first-run.md")
    yield "reference/command-line.md", command_line.render_page()
    yield "reference/suite-files.md", suite_files.render_page()
    yield "reference/columns.md", columns.render_page()
    yield "reference/python-api.md", python_api.render_page()
    yield "assets/colours.css", convert_colours(STYLE_SHEET.read_text(encoding="utf-8"))


def on_post_build(config: Any) -> None:
    """Remove what the site does not use: maps of minified files, and the search in other languages."""
    assets = Path(config.site_dir) / "assets"
    for path in [*assets.rglob("*.map"), *assets.glob("javascripts/lunr/**/*.js")]:
        path.unlink()


def on_post_page(output: str, **_: Any) -> str:
    """Name the theme's search dialog, for screen readers, and leave out indentation, an eighth of a page, and the style
    of each cell, a twentieth."""
    dialog = 'data-md-component="search" role="dialog"'
    output = output.replace(dialog, f'{dialog} aria-label="Search"')
    output = ALIGNED_CELL.sub(lambda cell: f'<{cell[1]} class="r">' if cell[2] == "right" else f"<{cell[1]}>", output)
    parts = VERBATIM.split(output)  # every second one is verbatim
    return "".join(part if n % 2 else INDENTED_LINES.sub("\n", part) for n, part in enumerate(parts))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links at pages, and show what a block needs and the name of its file."""
    source = DOCS / page.file.src_uri
    if source.is_file():
        markdown = rewrite_links(markdown, source=source, uri=page.file.src_uri)
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]
    markdown = MARKED_NEED.sub(lambda mark: f'<p class="needs">Not run in tests: {NEEDS[mark[1]]}</p>\n', markdown)
    markdown = MARKED_FILE.sub(r'```\2 title="\1"', markdown)
    return re.sub(r"^( *)```console", r"\1```bash", markdown, flags=re.MULTILINE)


def convert_colours(style: str) -> str:
    """The colours of reports and of the published site, by mkdocs-material's colour schemes."""
    light, dark = (body.strip() for body in ROOT_RULE.findall(style)[:2])
    return f'[data-md-color-scheme="default"] {{\n  {light}\n}}\n[data-md-color-scheme="slate"] {{\n  {dark}\n}}\n'
