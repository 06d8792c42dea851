"""Write README's tables and picture, and the guide's answer of `recommend`, from the published rows:
``python suites/trials/figures.py [--check]``

The text between marks such as ``<!-- figures -->`` and ``<!-- end -->``, and docs/perplexity.png, are generated from
results/. With ``--check`` nothing is written, and the exit status is 1 if a text differs.
"""

from __future__ import annotations

import io
import math
import re
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import pandas as pd

from efficient_attn import units
from efficient_attn.cli import summary
from efficient_attn.cli.recommend import show_answer
from efficient_attn.report import select
from efficient_attn.report.answers.quality import Quality
from efficient_attn.report.answers.recommendation import RecommendationData, recommend
from efficient_attn.report.answers.requirements import Requirements
from efficient_attn.report.approximation_errors import find_refusal
from efficient_attn.report.gather import gather
from efficient_attn.results.frames import load

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
GUIDE = ROOT / "docs" / "how-to" / "choose-a-mechanism.md"
GUIDE_QUESTION = Requirements(seq_len=8192, causal=True, max_error=0.4)
BEGIN, END = "<!-- {} -->\n", "<!-- end -->"
OUTPUT_RUN = "quickstart_zen4"
RUNS = (OUTPUT_RUN, "quickstart")
LONG_MODEL_RUN = "swap_long"  # perplexity at 8,192 tokens: the picture
QUALITY_RUNS = (LONG_MODEL_RUN, "fidelity_long", "fidelity_8192")  # as far as they are published
QUALITY_LENGTH = 8192
PICTURE = ROOT / "docs" / "perplexity.png"
LABEL_SIDES = {"attention_sinks": "right", "bigbird": "left"}  # below their points, as others are above
TABLE_HEAD = ("Use case", "Mechanism", "Faster from", "Speedup on {processors}", "Quality")


@dataclass(frozen=True)
class Advice:
    """One row of the table: a use case, the mechanism, and the configuration of its figures."""

    situation: str
    variant: str
    mode: str
    seq_len: int
    causal: bool = True


ADVICE = (
    Advice("reading a long prompt, local context", "sliding_window:window=128", "forward", 8192),
    Advice("reading a long prompt, lowest cost", "linear", "forward", 8192),
    Advice("training on thousands of tokens", "sliding_window:window=128", "forward_backward", 4096),
    Advice("decoding after a long context", "gqa:kv_heads=2", "decode", 16384),
    Advice("decoding an endless stream", "sliding_window:window=128", "decode", 16384),
)


def main(check: bool) -> int:
    made = {README: {"output": make_output, "figures": make_table}, GUIDE: {"answer": make_answer}}
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
    answer = recommend(RecommendationData.of(gather(runs).rows), GUIDE_QUESTION)
    with redirect_stdout(io.StringIO()) as output:
        show_answer(answer)
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
    runs = gather([ROOT / "results" / name for name in RUNS])
    rows = select.add_labels(runs.rows)
    processors = " and ".join(sorted({name_processor(m) for m in rows["machine"].dropna().unique()}))
    head = [cell.format(processors=processors) for cell in TABLE_HEAD]
    lines = [head, ["---"] * len(head), *(format_advice(rows, advice) for advice in ADVICE)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def format_advice(rows: pd.DataFrame, advice: Advice) -> list[str]:
    chosen = (rows["mode"] == advice.mode) & (rows["causal"] == advice.causal) & (rows["status"] == "ok")
    chosen &= (rows["variant"] == advice.variant) & rows["backend"].isna() & (rows["batch"] == 1)
    timed = rows[chosen & (rows["part"] != "key-value heads")]
    longest = timed[timed["seq_len"] == advice.seq_len]
    if longest.empty:
        raise SystemExit(f"no published row of {advice.variant}, {advice.mode}, {advice.seq_len}")
    ratios = sorted(longest["speedup"])
    speedup = f"{units.ratio(ratios[0])} to {units.ratio(ratios[-1])} at {advice.seq_len:,}"
    mode = {"forward": "", "forward_backward": ", forward and backward", "decode": ", per step"}[advice.mode]
    quality = format_quality(advice)
    return [advice.situation, f"`{advice.variant}`", find_start(timed), speedup + mode, quality]


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


def read_model_run(name: str) -> tuple[pd.Series, pd.DataFrame]:
    """For each mechanism in SmolLM2, the perplexity (of the mean loss over texts), and the median, minimum and maximum
    over texts of the seconds of a forward pass."""
    rows = load(ROOT / "results" / name)
    rows = rows[(rows["status"] == "ok") & (rows["task"] == "swap") & rows["layer"].isna()]
    seconds = (rows.groupby("variant")["latency_ms"].agg(["median", "min", "max"])) / 1e3
    first = rows.iloc[0]
    seconds.attrs |= {name: first[name] for name in ("seq_len", "threads", "heads", "head_dim", "dtype", "batch")}
    seconds.attrs |= {"texts": rows["swap.segment"].nunique(), "processor": name_processor(first["machine"])}
    return rows.groupby("variant")["loss"].mean().map(math.exp), seconds


def draw_picture(path: Path) -> None:
    """Perplexity against time of one forward pass of SmolLM2-135M, with a labelled point for each mechanism."""
    perplexity, seconds = read_model_run(LONG_MODEL_RUN)
    conditions = seconds.attrs
    figure, axes = plt.subplots(figsize=(7.2, 4.0), dpi=150, layout="constrained")
    for variant, y in perplexity.items():
        x, low, high = seconds.loc[variant]
        exact = variant == "full"
        marker = {"fmt": "D" if exact else "o", "color": "black" if exact else "#0072B2", "capsize": 3}
        axes.errorbar(x, y, xerr=[[x - low], [high - x]], **marker)
        name, _, options = str(variant).partition(":")
        text = f"perplexity {y:,.1f}, {x:.1f} s"
        lines = ["exact attention (full)" if exact else name, options.replace(":", ", "), text]
        side = LABEL_SIDES.get(name, "center")
        below = name in LABEL_SIDES
        offset = {"xytext": (0, -9 if below else 9), "textcoords": "offset points", "va": "top" if below else "bottom"}
        axes.annotate("\n".join(filter(None, lines)), (x, y), ha=side, fontsize=8, **offset)
    axes.set(xlim=(6, 28), yscale="log", ylim=(4, 12000), xlabel="seconds per forward pass (less is better)")
    axes.set_ylabel("perplexity (less is better)")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_title(
        f"SmolLM2-135M on {conditions['seq_len']:,} tokens, attention replaced, weights unchanged\n",
        fontsize=10,
        loc="left",
        fontweight="bold",
    )
    config = (
        f"{conditions['dtype']}, batch {conditions['batch']}, {conditions['heads']} heads of {conditions['head_dim']}"
    )
    machine = f"{conditions['threads']} threads of {conditions['processor']}"
    note = f"{config}, {machine}; median time and range of {conditions['texts']} texts"
    axes.text(0, 1.02, note, transform=axes.transAxes, fontsize=8, color="#555555")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)


def find_start(timed: pd.DataFrame) -> str:
    """The shortest measured length from which the mechanism is faster at all lengths and on all machines."""
    slow = timed[~(timed["speedup_low"] > 1)]["seq_len"]
    faster = timed[timed["seq_len"] > (0 if slow.empty else slow.max())]["seq_len"]
    if faster.empty:
        return "not shown"
    return f"{int(faster.min()):,}"


def name_processor(machine: str) -> str:
    return (
        machine.partition("-2c")[0].replace("-", " ").replace("Zen", "Zen ").replace("EmeraldRapids", "Emerald Rapids")
    )


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
