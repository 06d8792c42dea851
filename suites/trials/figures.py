"""Write tables and the picture of README, of measured-results.md, devices.md and of the guide to `recommend`:
``python suites/trials/figures.py [--check]``

The text between marks such as ``<!-- figures -->`` and ``<!-- end -->``, and docs/perplexity.png, are generated from
results/. With ``--check`` nothing is written, and the exit status is 1 if a text differs.
"""

from __future__ import annotations

import io
import math
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import pandas as pd
from published_tables import (
    HEAD_DIM,
    ROOT,
    TABLES,
    Column,
    choose_row,
    format_markdown,
    format_timing,
    load_timings,
    make_crossover_table,
    make_device_table,
    make_peer_table,
    make_timing_table,
)

from efficient_attn.cli import summary
from efficient_attn.cli.recommend import show_answer
from efficient_attn.report import page
from efficient_attn.report.answers.better_neighbours import BetterNeighbour, Competitor, find_better_neighbours
from efficient_attn.report.answers.quality import Quality
from efficient_attn.report.answers.recommendation import recommend
from efficient_attn.report.answers.recommendation_data import RecommendationData
from efficient_attn.report.answers.requirements import Requirements
from efficient_attn.report.approximation_errors import find_refusal
from efficient_attn.report.comparable_quality import canonicalise_spec
from efficient_attn.report.drawing.figures import render_plot
from efficient_attn.report.drawing.panel_data import Picture
from efficient_attn.report.gather import gather
from efficient_attn.report.published import shrink_png
from efficient_attn.report.sections.section_blocks import SectionBlock
from efficient_attn.results.gathered import load

README = ROOT / "README.md"
MEASURED = ROOT / "docs" / "reference" / "measured-results.md"
DEVICES = ROOT / "docs" / "devices.md"
GUIDE = ROOT / "docs" / "how-to" / "choose-a-mechanism.md"
GUIDE_WIDTH = 80
GUIDE_QUESTION = Requirements(seq_len=8192, causal=True, max_error=0.4)
BEGIN, END = "<!-- {} -->\n", "<!-- end -->"
OUTPUT_RUN = "quickstart_zen4"
SUITES = (
    "quickstart",
    "promises",
    "decode",
    "linear",
    "breadth",
    "pretrained",
)  # whose current runs README's table uses
LONG_MODEL_RUN = "swap_long"  # perplexity at 8,192 tokens: the picture
QUALITY_RUNS = (LONG_MODEL_RUN, "fidelity_long", "fidelity_8192")  # as far as they are published
QUALITY_LENGTH = 8192
PICTURE = ROOT / "docs" / "perplexity.png"
TABLE_HEAD = ("Use case", "Mechanism", "Faster from", "Speedup at", "Quality")  # processors precede the last
MODES = {"forward": "forward", "forward_backward": "forward and backward", "decode": "a decode step"}


@dataclass(frozen=True)
class Advice:
    """One row of the table: a use case, the mechanism unless a neighbour is better, and the configuration."""

    situation: str
    variant: str
    mode: str
    seq_len: int
    causal: bool = True


SINKS = "attention_sinks:n_sink=4:window=128"
ADVICE = (
    Advice("reading a long prompt, local context", "sliding_window:window=128", "forward", 8192),
    Advice("reading a long prompt, local context and the first tokens", SINKS, "forward", 8192),
    Advice(
        "reading a long prompt, nearly the quality of full attention",
        "attention_sinks:n_sink=4:window=508",
        "forward",
        8192,
    ),
    Advice("training on thousands of tokens", "sliding_window:window=128", "forward_backward", 8192),
    Advice("decoding after a long context", "gqa:kv_heads=2", "decode", 16384),
    Advice("decoding an endless stream", SINKS, "decode", 16384),
)


def main(check: bool) -> int:
    made = {README: {"output": make_output, "figures": make_table}, GUIDE: {"answer": make_answer}}
    made[MEASURED] = {name: partial(make_timing_table, table) for name, table in TABLES.items()}
    made[MEASURED] |= {"libraries": make_peer_table, "crossovers": make_crossover_table}
    made[DEVICES] = {"devices": make_device_table}
    different = False
    for document, makers in made.items():
        text_before = document.read_text(encoding="utf-8")
        after = text_before
        for name, make in makers.items():
            head, begin, rest = after.partition(BEGIN.format(name))
            _, end, tail = rest.partition(END)
            if not end:
                print(f"{document}: no {BEGIN.format(name).strip()} with {END} after it", file=sys.stderr)
                return 2
            after = head + begin + make() + end + tail
        different |= text_before != after
        if not check and text_before != after:
            document.write_text(after, encoding="utf-8")
    if not check:
        draw_picture(PICTURE)
    return int(check and different)


def make_answer() -> str:
    """The answer of `recommend` in the guide, in a code block, on a machine without rows of its own."""
    runs = sorted(path.parent for path in (ROOT / "results").glob("*/rows.jsonl*"))
    gathered = gather(runs)
    answer = recommend(RecommendationData.of(gathered.rows, gathered.sessions), GUIDE_QUESTION)
    with redirect_stdout(io.StringIO()) as output:
        show_answer(answer, str, width=GUIDE_WIDTH)
    lines = (line.rstrip() for line in output.getvalue().strip().splitlines())
    return "```text\n{}\n```\n".format("\n".join(lines))


def make_output() -> str:
    """One of the tables that the quickstart prints, in a code block."""
    rows = load(ROOT / "results" / OUTPUT_RUN)
    rows = rows[(rows["mode"] == "forward") & (rows["seq_len"] == 8192) & ~rows["causal"]]
    with redirect_stdout(io.StringIO()) as output:
        summary.show_results(rows)
    return f"```text\n{output.getvalue().strip()}\n```\n"


def make_table() -> str:
    """A line for each use case, with a column of speedups for each processor that has current rows at its
    configuration. Use cases for which better neighbours leave the same mechanism share a line."""
    timings = load_timings()
    timings = timings[timings["suite"].isin(SUITES) & (timings["baseline"] == "full") & (timings["note"] == "")]
    timings = timings[timings["heads"] == timings["mode"].map(lambda mode: 8 if mode == "decode" else 4)]
    timings = timings[timings["head_dim"] == HEAD_DIM]
    situations: dict[Advice, list[str]] = {}
    replaced: dict[Advice, dict[str, str]] = {}
    for advice in ADVICE:
        better = find_better(advice, timings)
        key = replace(advice, situation="", variant=better.neighbour.label if better else advice.variant)
        situations.setdefault(key, []).append(advice.situation)
        text = f" instead of {better.competitor.figures[better.metric].text} of `{advice.variant}`" if better else ""
        replaced.setdefault(key, {})[text] = ""
    by_advice = {replace(a, situation="; ".join(x)): _select_timings(timings, a) for a, x in situations.items()}
    measured = pd.concat(own[own["seq_len"] == advice.seq_len] for advice, own in by_advice.items())
    processors = sorted(measured["processor"].unique())
    lines = [[*TABLE_HEAD[:-1], *processors, TABLE_HEAD[-1]]]
    lines.append(["---"] * len(lines[0]))
    for (advice, own), texts in zip(by_advice.items(), replaced.values(), strict=True):
        lines.append([*format_timings(advice, own, processors), f"{format_quality(advice)}{''.join(texts)}"])
    return format_markdown(lines)


def find_better(advice: Advice, timings: pd.DataFrame) -> BetterNeighbour | None:
    """Of the mechanisms timed in the same runs at the advice's configuration, the better neighbour of best quality;
    None if there is none."""
    choice = read_quality().perplexity_ratios.choose(
        timings["variant"].unique(), length=advice.seq_len, causal=advice.causal
    )
    found: list[BetterNeighbour] = []
    for variant in timings["variant"].unique():
        costs = _list_costs(timings, advice, variant)
        figures = {name: choice.find_near(canonicalise_spec(name)) for name in costs}
        pair = [Competitor(x, costs[x], {"perplexity": figure} if figure else {}) for x, figure in figures.items()]
        found += filter(None, find_better_neighbours(pair))
    own = [better for better in found if better.competitor.label == advice.variant]
    return min(own, key=lambda better: better.neighbour.figures["perplexity"].value, default=None)


def _list_costs(timings: pd.DataFrame, advice: Advice, variant: str) -> dict[str, dict[str, float]]:
    """The costs of the advice's mechanism and of another one: time, as the geometric mean of ratios in the latest run
    of each processor that timed both, and the state when decoding."""
    rows = _select_timings(timings, replace(advice, variant=variant)).merge(
        _select_timings(timings, advice), on=["processor", "run", "seq_len"], suffixes=("", "_own")
    )
    rows = rows[rows["seq_len"] == advice.seq_len].drop_duplicates("processor", keep="last")
    if rows.empty or variant == advice.variant:
        return {}
    ratio = math.exp((rows["speedup_own"] / rows["speedup"]).map(math.log).mean())
    own, costs = {"time": 1.0}, {"time": ratio}
    if advice.mode == "decode":
        own, costs = own | {"state": rows["state_bytes_own"].iloc[0]}, costs | {"state": rows["state_bytes"].iloc[0]}
    return {advice.variant: own, variant: costs}


def _select_timings(rows: pd.DataFrame, advice: Advice) -> pd.DataFrame:
    chosen = (rows["variant"] == advice.variant) & (rows["mode"] == advice.mode) & (rows["causal"] == advice.causal)
    return rows[chosen]


def format_timings(advice: Advice, timings: pd.DataFrame, processors: Sequence[str]) -> list[str]:
    """The cells of a use case except quality. timings: of the mechanism, all lengths and processors."""
    column = Column("", advice.mode, advice.seq_len, advice.causal)
    rows = {processor: choose_row(timings[timings["processor"] == processor], column) for processor in processors}
    if not any(rows.values()):
        raise SystemExit(f"no published row of {advice.variant}, {advice.mode}, {advice.seq_len}")
    direction = ", causal" if advice.causal and advice.mode != "decode" else ""
    measured_at = f"{advice.seq_len:,}, {MODES[advice.mode]}{direction}"
    speedups = [format_timing(row) for row in rows.values()]
    return [advice.situation, f"`{advice.variant}`", find_start(timings), measured_at, *speedups]


def format_quality(advice: Advice) -> str:
    """Quality measured at ``QUALITY_LENGTH`` tokens in the row's direction: perplexity in a model, else the error."""
    if exact := find_refusal(advice.variant, parse_kv_heads(advice.variant), {}):
        return exact
    quality = read_quality()
    for measured in (quality.perplexity_ratios, quality.errors):
        sets = (s for s in measured.sets if s.conditions.length == QUALITY_LENGTH)
        figures = [s.find(advice.variant) for s in sets if s.conditions.causal == advice.causal]
        for measured_spec, figure in filter(None, figures):
            return replace(figure, measured_spec=measured_spec).describe(advice.variant)
    return "not measured"


def parse_kv_heads(variant: str) -> int | None:
    """The key-value heads that a spec names."""
    heads = re.search(r"kv_heads=(\d+)", variant)
    return int(heads[1]) if heads else None


@cache
def read_quality() -> Quality:
    """Errors and perplexities of the published runs that measured them at ``QUALITY_LENGTH`` tokens."""
    return Quality(gather([path for path in sorted((ROOT / "results").glob("*")) if path.name in QUALITY_RUNS]).rows)


def draw_picture(path: Path) -> None:
    path.write_bytes(shrink_png(render_plot(make_picture()).png))


def make_picture() -> Picture:
    """Perplexity against the time of a forward pass of a pretrained model, with a labeled point for each mechanism."""
    pictures: list[Picture] = []

    def collect(blocks: Sequence[SectionBlock]) -> None:
        pictures.extend(picture for block in blocks for picture in block.pictures if picture.kind == "swap")

    page.make_content(gather([ROOT / "results" / LONG_MODEL_RUN]), draw=collect)
    return pictures[0]


def find_start(timings: pd.DataFrame) -> str:
    """The shortest measured length from which the mechanism is faster at all lengths, on each processor that was
    measured at three lengths or more; once if it is the same on all."""
    starts: dict[str, list[str]] = {}
    for processor, own in timings.groupby("processor"):
        slow = own[~(own["speedup_low"] > 1)]["seq_len"]
        faster = own[own["seq_len"] > (0 if slow.empty else slow.max())]["seq_len"]
        if own["seq_len"].nunique() > 2:
            starts.setdefault("not shown" if faster.empty else f"{int(faster.min()):,}", []).append(str(processor))
    if len(starts) == 1 and len(*starts.values()) == timings["processor"].nunique():
        return next(iter(starts))
    return ", ".join(f"{start} ({' and '.join(names)})" for start, names in starts.items())


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
