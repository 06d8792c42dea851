"""The report's content, and both its forms: one web page that needs nothing else, and its Markdown twin."""

from __future__ import annotations

import base64
import hashlib
import html
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup, escape

from . import select, tables, words
from .drawing import figures, plots, style
from .gather import Frame, Gathered
from .sections import appendix, decoding

# nobody looks at hundreds of plots, and each costs a tenth of a second: half for its lines and their names
MOST_PLOTS, MOST_LINES = 24, 240
MOST_SENTENCES = 6  # in the summary; all of them stand beside their tables
MOST_NAMED = 6  # damaged lines
MOST_MARKDOWN_ROWS = 200  # more than these belong into rows.csv: code hosts stop rendering long Markdown


@dataclass
class Block:
    """What is said of one setting: sentences, tables, plots. apart: what tells it from the others of its section."""

    setting: str
    apart: str = ""
    sentences: list[str] = field(default_factory=list)
    tables: list[tables.Table] = field(default_factory=list)
    panels: list[plots.Planned] = field(default_factory=list)
    plots: list[figures.Plot] = field(default_factory=list)
    note: str = ""
    highlights: list[str] = field(default_factory=list)

    @property
    def aligned(self) -> bool:
        """Whether each kind of plot starts a line of its own: not where every kind has but one."""
        return len({plot.panel.kind for plot in self.plots}) < len(self.plots)

    def say(self, setting: select.Setting, cell: select.Cell, top: Frame) -> None:
        """What a cell's speedups show at its headline length, whole and in short; nothing where there are none."""
        told = [row for row in tables.records(top) if not row["is_baseline"] and row["speedup"] > 0]
        if told:
            decode = cell.mode == "decode"
            place = [f"{'context ' if decode else ''}{int(top['seq_len'].iloc[0])}", self.apart]
            place.append(words.cell_words(cell.mode, None if decode else cell.causal))
            start = f"At {', '.join(filter(None, place))}: "
            for texts, most in ((self.sentences, None), (self.highlights, 3)):
                texts.append(f"{start}{words.claims(told, setting.baseline, most=most)}.")

    def draw(self, chosen: set[str], limit: str) -> None:
        """Draw the chosen panels and say which were left out, and for which limit."""
        self.plots = [figures.draw(panel.make()) for panel in self.panels if panel.name in chosen]
        left = [panel.title for panel in self.panels if panel.name not in chosen]
        if left:
            few = words.listed(left[:4] + ([f"{len(left) - 4} more"] if len(left) > 4 else []))
            self.note = f"Not drawn, because a report draws at most {limit}: {few}. Report fewer runs at once."


@dataclass
class Section:
    anchor: str
    title: str
    intro: str
    blocks: list[Block]


@dataclass
class Content:
    """Everything that both pages show, in order."""

    title: str
    summary: str
    damaged: str
    sentences: list[str]
    sections: list[Section]
    missing: tables.Table | None
    rows: tuple[list[str], list[list[str]], list[tuple[str, str]]]
    environment: tables.Table | None
    sessions: list[dict[str, Any]]

    @property
    def plots(self) -> Iterator[figures.Plot]:
        return (plot for section in self.sections for block in section.blocks for plot in block.plots)


def content(found: Gathered) -> Content:
    """The report of these rows: sections only for what was measured, so that any part of a suite makes one."""
    rows = select.labelled(found.rows)
    scene = style.looks(rows["label"])
    timed, faithful = select.timed(rows), select.faithful(rows)
    steps = timed["mode"] == "decode"
    sections = [
        Section("speed", "Speed and memory", _SPEED, _blocks(timed[~steps], found, scene, _speed)),
        Section("fidelity", "Fidelity", _FIDELITY, _blocks(faithful, found, scene, _fidelity)),
        Section("decoding", "Decoding", _DECODING, _blocks(timed[steps], found, scene, _decoding)),
    ]
    batches = [Block(title, tables=[table]) for title, table in decoding.by_batch(timed[steps], found.cpus)]
    sections[-1].blocks += batches
    sections = [section for section in sections if section.blocks]
    for section in sections:
        heads = {name for block in section.blocks for table in block.tables for name in table.head}
        section.intro += "".join(f" {said}" for names, said in _SAID if heads.intersection(names))
    blocks = [block for section in sections for block in section.blocks]
    _draw(blocks)
    sentences = [text for block in blocks for text in block.highlights][:MOST_SENTENCES]
    for block in blocks:
        block.sentences = [text for text in block.sentences if text not in sentences]
    return Content(
        title=_title(found),
        summary=_summary(rows),
        damaged=_damaged(found.damaged),
        sentences=sentences,
        sections=sections,
        missing=appendix.not_ok(rows, found.cpus),
        rows=appendix.everything(found.rows.drop(columns=["baseline", "baseline_kv_heads"])),
        environment=appendix.environments((s["run"], s.get("environment") or {}) for s in found.sessions),
        sessions=[_session(session) for session in found.sessions],
    )


_SPEED = (
    "Times are medians over rounds in which all variants of a cell take turns; brackets hold 95% intervals. A speedup "
    "is the paired ratio of the baseline's time over the variant's: \u25b2 its interval lies above 1, \u25bc below, "
    "\u2248 it holds 1; 'faster from' is the shortest length from which on every interval lies above. An exponent is "
    "that of the growth with length N, fitted over all measured lengths by least squares on logarithms: 1 is linear, "
    "2 quadratic."
)
_FIDELITY = (
    "The relative error is the norm of the difference from exact softmax attention over the norm of the exact output, "
    "on the same queries, keys and values. Two predictors that know nothing give it a scale: the mean of v, and zero, "
    "whose error is 1 by definition."
)
_SAID = ((tables.PAIRS, tables.PAIRS_SAID), (decoding.TRAFFIC, decoding.TRAFFIC_SAID))  # of columns, where they are
_DECODING = "One step adds a position behind a context; the state is what a mechanism keeps between steps."


def _blocks(rows: Frame, found: Gathered, looks: dict[str, style.Look], fill: Any) -> list[Block]:
    """A block a setting; files' names tell settings apart only where there are several."""
    blocks = []
    every = list(select.settings(rows))
    titles = [words.setting_words(setting.key, found.cpus) for setting in every]
    apart = [name for name in select.SETTING if len({str(setting.key[name]) for setting in every}) > 1]
    for number, (setting, title) in enumerate(zip(every, titles, strict=True), 1):
        device = "" if pd.isna(setting.key["device"]) else f"-{setting.key['device']}"
        title = title if titles.count(title) == 1 else f"{title} \u00b7 against {setting.baseline}"
        block = Block(title, words.setting_words({name: setting.key[name] for name in apart}, found.cpus))
        fill(block, setting, plots.Scene(looks, f"{number}{device}" if len(every) > 1 else ""))
        blocks += [block] if block.tables or block.panels else []
    return blocks


def _draw(blocks: Sequence[Block]) -> None:
    """The plots: all of them where they are few, else what tells most of each setting before the rest of any."""
    chosen: set[str] = set()
    lines, limit = 0, ""
    for panel in sorted((panel for block in blocks for panel in block.panels), key=plots.rank):
        lines += panel.lines
        limit = f"{MOST_PLOTS} plots" if len(chosen) == MOST_PLOTS else f"{MOST_LINES} lines"
        if len(chosen) == MOST_PLOTS or lines > MOST_LINES:
            break
        chosen.add(panel.name)
    for block in blocks:
        block.draw(chosen, limit)


def _speed(block: Block, setting: select.Setting, scene: plots.Scene) -> None:
    for cell, top in _tops(setting):
        block.say(setting, cell, top)
        block.tables.append(tables.headline(setting, cell, top))
    block.panels += plots.over_length(setting, (plots.TIME, plots.SPEEDUP, plots.MEMORY), scene)


def _decoding(block: Block, setting: select.Setting, scene: plots.Scene) -> None:
    for cell, top in _tops(setting):
        block.say(setting, cell, top)
        block.tables += decoding.tables_of(setting, cell, top)
    block.panels += plots.over_length(setting, (plots.STEP, plots.SPEEDUP, plots.STATE), scene)


def _fidelity(block: Block, setting: select.Setting, scene: plots.Scene) -> None:
    for cell in select.fidelity_cells(setting.rows):
        found = [tables.fidelity(cell), tables.layers(cell)]
        block.tables += [table for table in found if table]
        panel = plots.fidelity(cell, scene)
        block.panels += [panel] if panel else []


def _tops(setting: select.Setting) -> Iterator[tuple[select.Cell, Frame]]:
    """Each cell with its rows at the length that its table is about."""
    for cell in setting.cells:
        for column in ("latency_ms", "peak_memory_bytes", "state_bytes"):
            top = select.headline(cell.rows, column)
            if len(top):
                yield cell, top
                break


def _title(found: Gathered) -> str:
    titles = dict.fromkeys(str((s.get("suite") or {}).get("title") or "") for s in found.sessions)
    named = [title for title in titles if title] or [str(s) for s in found.rows["suite"].dropna().unique()]
    return "; ".join(named[:3]) + (" and more" if len(named) > 3 else "") or "Attention mechanisms compared"


def _summary(rows: Frame) -> str:
    """How much was measured, of what and where, and how much was not."""
    count, lost = rows["status"].value_counts(), rows[rows["status"] != "ok"]
    if rows.empty:
        return "The run holds no rows yet."
    machines, ok = rows["machine"].nunique(), rows[rows["status"] == "ok"]
    devices = sorted(ok["device"].dropna().unique())
    text = f"{words.counted(len(rows), 'case')} of {words.counted(rows['variant'].nunique(), 'variant')}"
    text += f" on {words.counted(machines, 'machine')}" if machines else ""
    text += f" ({', '.join(devices)})" if devices else ""
    text += f": {len(ok)} gave a result"
    others = [f"{count[s]} {s}" for s in lost["status"].unique()]
    text += f", {len(lost)} did not ({', '.join(others)}); the reasons are below." if others else "."
    return text + _disturbed(ok)


def _disturbed(rows: Frame) -> str:
    """How many rounds something else on the machine disturbed; empty where that is not known, or none."""
    rounds, disturbed = rows["rounds"].sum(), rows["contaminated"].sum()
    if not disturbed:
        return ""
    return f" Something else disturbed {disturbed / rounds:.0%} of the rounds; the intervals include that."


def _damaged(places: Sequence[str]) -> str:
    """How many records are missing from the report because their lines are damaged, and where; empty for none."""
    if not places:
        return ""
    named = [*places[:MOST_NAMED], *([f"{len(places) - MOST_NAMED} more"] if len(places) > MOST_NAMED else [])]
    were = "line was" if len(places) == 1 else "lines were"
    return f"{len(places)} damaged {were} left out of this report: {words.listed(named)}."


def _session(session: dict[str, Any]) -> dict[str, Any]:
    command = session.get("command") or ""
    return {
        "run": session["run"],
        "command": command if isinstance(command, str) else shlex.join(map(str, command)),
        "suite_text": str(session.get("suite_text") or "").strip("\n"),
        "version": session.get("version"),
        "started": session.get("started"),
        "finished": session.get("finished"),
    }


def as_html(shown: Content) -> str:
    """One page, from which no request leaves: its policy lets it load nothing and run no script but its own."""
    env = _environment(autoescape=True)
    env.filters["breakable"] = breakable
    script, sheet = (_source(env, name) for name in ("sort.js", "style.css"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    body = table_body(shown.rows[1])
    return env.get_template("report.html.j2").render(report=shown, body=body, script=script, sheet=sheet, digest=digest)


def table_body(rows: Sequence[Sequence[str]]) -> Markup:
    """Escaped table rows. In one piece and each text once: a template would take a second for 10,000 rows."""
    safe = {text: str(escape(text)) for text in {text for row in rows for text in row}}
    return Markup("".join(f"<tr><td>{'</td><td>'.join(safe[text] for text in row)}</td></tr>\n" for row in rows))


def as_markdown(shown: Content) -> str:
    """The same tables in GitHub's Markdown, with the plots as images beside it."""
    env = _environment(autoescape=False)
    env.filters |= {"md": markdown_text, "fence": fence}
    text = env.get_template("report.md.j2").render(report=shown, most_rows=MOST_MARKDOWN_ROWS)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def breakable(text: object) -> Markup:
    """Escaped text that may break where an option begins, so that long names fit narrow screens."""
    return Markup(re.sub(r"([:|])(?=\w)", r"\1<wbr>", str(escape(text))))


def markdown_text(text: object) -> str:
    """Text that Markdown shows as it is, in a table's cell as well: no markup, no line breaks."""
    plain = html.escape(" ".join(str(text).split()), quote=False)
    return re.sub(r"([\\`*\[\]|~])", r"\\\1", plain)


def fence(text: str) -> str:
    """A code fence longer than any run of backticks in the text."""
    longest: Sequence[str] = sorted(re.findall(r"`+", text), key=len)
    return "`" * max(3, len(longest[-1]) + 1 if longest else 0)


def _environment(*, autoescape: bool) -> jinja2.Environment:
    loader = jinja2.PackageLoader("efficient_attn.report", "templates")
    return jinja2.Environment(
        loader=loader, autoescape=autoescape, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )


def _source(env: jinja2.Environment, name: str) -> str:
    assert env.loader is not None
    return env.loader.get_source(env, name)[0]
