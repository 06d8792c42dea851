"""Small sites for tests, and the links of their pages."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import report_runs as runs


@dataclass
class ParsedPage(HTMLParser):
    """The links, ids, tags and scripts of a page."""

    links: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    scripts: list[dict[str, str | None]] = field(default_factory=list)
    handlers: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        self.ids += [str(values["id"])] if values.get("id") else []
        self.handlers += [name for name in values if name.startswith("on")]
        self.links += [str(values[name]) for name in ("href", "src") if values.get(name) and tag != "use"]
        if tag == "script":
            self.scripts.append(values)


def line_style(text: str) -> ParsedPage:
    page = ParsedPage()
    page.feed(text)
    return page


def follow(files: Mapping[str, bytes], start: str = "index.html") -> tuple[set[str], list[str]]:
    """The pages that can be reached from the first one, and the broken links. An anchor with "=" is a page's state."""
    reached, todo, broken = {start}, [start], []
    while todo:
        name = todo.pop()
        page = line_style(files[name].decode())
        for link in page.links:
            to, _, anchor = link.partition("#")
            if link.startswith(("data:", "https://")):
                continue
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), to)) if to else name
            is_state = "=" in anchor
            if target not in files or (
                anchor and not is_state and anchor not in line_style(files[target].decode()).ids
            ):
                broken.append(f"{name}: {link}")
            elif target not in reached:
                reached.add(target)
                todo += [target] if target.endswith(".html") else []
    return reached, broken


def write_runs(folder: Path) -> list[Path]:
    """Two small runs on different machines, with ranks and approximation errors, and a mechanism that failed."""
    failed = runs.Record(runs.row("taylor", mode="forward", seq_len=512, status="invalid", reason="wrong outputs"))
    records = (*runs.speed(), *runs.decode(), *runs.fidelity((0, 2)), failed)
    first = runs.write_run(folder / "first", _with_rounds(records))
    other: dict[str, Any] = {"machine": "Other-x8", "run_id": "other-1"}
    second = runs.write_run(
        folder / "second",
        _with_rounds(runs.speed(lengths=(512, 1024), **other)),
        runs.about("Other-x8", run_id="other-1"),
    )
    return [first, second]


def _with_rounds(records: Iterable[runs.Record]) -> Iterator[runs.Record]:
    """The records with eight rounds of three samples, and the baseline's speedup of 1."""
    for record in records:
        row = record.row
        row.baseline = "full"
        if row.variant == "full" and row.latency_ms:
            row.speedup = row.speedup_low = row.speedup_high = 1.0
        samples = dict(record.samples)
        if row.latency_ms:
            times = [row.latency_ms * (1 + 0.004 * ((at * 7) % 5 - 2)) for at in range(8)]
            samples |= {"latency_ms": [[t, t, t] for t in times], "process": [0] * 4 + [1] * 4}
        yield runs.Record(row, samples)
