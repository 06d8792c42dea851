"""200 hostile texts (scripts, formulas, paths, terminal codes), and rows that have them in every text column."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import report_runs as runs

HURT = "window.hurt=1"
SHAPES = (
    "<script>{0}</script>",
    "</script><script>{0}</script>",
    "<img src=x onerror='{0}'>",
    '"><svg onload="{0}">',
    "' onmouseover='{0}' x='",
    "</title><script>{0}</script>",
    "--><script>{0}</script><!--",
    "{{{{ {0} }}}}{{% raw %}}",
    "</style><link rel=stylesheet href=http://example.org/{0}>",
    "javascript:{0}",
    "=HYPERLINK('http://example.org/{0}')",
    "@SUM(1)*cmd|'{0}'",
    "../../../../etc/{0}",
    "/etc/{0}",
    "..\\..\\{0}",
    "\x00\x1b[31m{0}\u202e",
    "$(touch {0})`{0}`",
    "<base href=http://example.org/><iframe src=//example.org/{0}>",
    "\u2028{0}\u2029</SCRIPT ><ScRiPt>{0}//",
    "a" * 300 + "/{0}\n{0}",
    # Markdown: links, pictures, tables, headings, and ends of code blocks
    "[{0}](javascript:{0})",
    "![{0}](http://example.org/{0}.png)",
    "| {0} | [x][{0}] |\n|---|---|\n\n[{0}]: http://example.org/{0}",
    "```\n# {0}\n<http://example.org/{0}>",
    # formulas of spreadsheets
    "+1+cmd|'{0}'!A0",
    "-2+3+cmd|'{0}'!A0",
    "\t=1+{0}",
    "\r=1+{0}",
    # terminals: links, titles, a cleared screen, reversed text, and the markup of rich
    "\x1b]8;;http://example.org/{0}\x07{0}\x1b]0;{0}\x07\x9b2J\x7f\x08",
    "\u2066\u200f\u061c{0}\u2069\ufeff\u200b",
    "[bold red]{0}[/bold red][link=http://example.org/{0}]x[/]",
    # reserved names of Windows, and other paths
    "CON.{0}",
    "nul:{0}",
    "\\\\example.org\\share\\{0}",
    "file:///etc/passwd#{0}%2e%2e%2f%00%s%n",
    # LaTeX
    "\\input{{/etc/passwd}}{0}",
    "\\immediate\\write18{{touch {0}}}",
    "% {0} $x_1^2$ & # ~ }}{{\\end{{document}}",
    # SVG and entities
    "<svg><animate onbegin='{0}' attributeName=x /><a xlink:href='javascript:{0}'>x</a></svg>",
    "&lt;script&gt;{0}&#60;/script&#62;]]><!ENTITY {0} SYSTEM 'file:///etc/passwd'>",
)
HOSTILE = tuple(shape.format(f"{HURT}{number}") for number in range(5) for shape in SHAPES)
FOLDER = "<img src=x onerror=window.hurt=1>"  # a possible name of a run's folder
FIELDS = ("reason", "part", "inputs", "options", "suite", "backend_used", "stop_reason", "metric", "cache", "task")


def records() -> Iterator[runs.Record]:
    """Each text as a mechanism, timed with exact attention; each shape in each text column; four texts as machines."""
    for number, text in enumerate(HOSTILE):
        copy = number // len(SHAPES)
        texts = {FIELDS[copy]: text, FIELDS[copy + 5]: text}
        known = texts | {"seq_len": 64 + number, "status": "ok", "mode": "forward"}
        timed = {"latency_ms": 1.0, "latency_ms_low": 0.9, "latency_ms_high": 1.1, "peak_memory_bytes": 10**6}
        base = runs.row("full", **(known | timed), speedup=1.0, speedup_low=1.0, speedup_high=1.0)
        own = runs.row(text, **(known | timed), speedup=2.0, speedup_low=1.9, speedup_high=2.1)
        third = runs.row("linear", **(known | timed), speedup=3.0, speedup_low=2.9, speedup_high=3.1)
        for row in (base, own, third):
            row.machine = HOSTILE[number // 50 * 50]
            row.baseline = "full"
            yield runs.Record(row, {"latency_ms": [[1.0 + at / 100] for at in range(6)]})


def write_run(folder: Path) -> Path:
    """A run with all of the records, and hostile texts in its description, in a folder with a hostile name."""
    suite = {"name": HOSTILE[0], "title": HOSTILE[4], "baseline": "full"}
    about = runs.about(HOSTILE[0], suite=suite, command=[*HOSTILE[: len(SHAPES)]])
    return runs.write_run(folder / FOLDER, records(), about)
