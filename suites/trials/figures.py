"""Write README's figures from the published rows: python suites/trials/figures.py [--check]

What stands between the marks `<!-- output -->` or `<!-- figures -->` and `<!-- end -->` comes from results/. With
--check nothing is written, and the exit code is 1 where README says something else.
"""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from efficient_attn import units
from efficient_attn.cli import summary
from efficient_attn.report import select
from efficient_attn.report.approximation_errors import add_errors, describe_error
from efficient_attn.report.gather import gather
from efficient_attn.results.frames import load

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
BEGIN, END = "<!-- {} -->\n", "<!-- end -->"
SHOWN = "quickstart_zen4"
RUNS = (SHOWN, "quickstart")
HEAD = ("You have", "Take", "Faster at least from", "How much, on {processors}", "It loses")


@dataclass(frozen=True)
class Advice:
    """One row: a situation, the mechanism, and where its figures are measured."""

    situation: str
    variant: str
    mode: str
    seq_len: int
    causal: bool = True
    needs: str = ""


ADVICE = (
    Advice("a long text, what matters is near", "sliding_window:window=128", "forward", 8192, False),
    Advice("a long text, and any answer will do", "linear", "forward", 8192, False),
    Advice("training on texts of some thousand tokens", "sliding_window:window=128", "forward_backward", 4096),
    Advice(
        "decoding after a long context",
        "gqa:kv_heads=2",
        "decode",
        16384,
        needs="not measured: a model is trained with it",
    ),
    Advice("a stream that does not end", "sliding_window:window=128", "decode", 16384),
)


def main(check: bool) -> int:
    before = after = README.read_text(encoding="utf-8")
    for name, text in (("output", make_output()), ("figures", make_table())):
        head, begin, rest = after.partition(BEGIN.format(name))
        _, end, tail = rest.partition(END)
        if not end:
            print(f"{README}: no {BEGIN.format(name).strip()} with {END} after it", file=sys.stderr)
            return 2
        after = head + begin + text + end + tail
    if not check:
        README.write_text(after, encoding="utf-8")
    return int(check and before != after)


def make_output() -> str:
    """One of the tables with which the quickstart ends."""
    rows = load(ROOT / "results" / SHOWN)
    rows = rows[(rows["mode"] == "forward") & (rows["seq_len"] == 8192) & ~rows["causal"]]
    with redirect_stdout(io.StringIO()) as told:
        summary.show_results(rows)
    return f"```text\n{told.getvalue().strip()}\n```\n"


def make_table() -> str:
    found = gather([ROOT / "results" / name for name in RUNS])
    rows = add_errors(select.add_labels(found.rows))
    processors = " and ".join(sorted({name_processor(m) for m in rows["machine"].dropna().unique()}))
    head = [cell.format(processors=processors) for cell in HEAD]
    lines = [head, ["---"] * len(head), *(tell_advice(rows, advice) for advice in ADVICE)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def tell_advice(rows: pd.DataFrame, advice: Advice) -> list[str]:
    kind = (rows["mode"] == advice.mode) & (rows["causal"] == advice.causal) & (rows["status"] == "ok")
    kind &= (rows["variant"] == advice.variant) & rows["backend"].isna() & (rows["batch"] == 1)
    mine = rows[kind & (rows["part"] != "key-value heads")]
    here = mine[mine["seq_len"] == advice.seq_len]
    if here.empty:
        raise SystemExit(f"no published row of {advice.variant}, {advice.mode}, {advice.seq_len}")
    ratios = sorted(here["speedup"])
    much = f"{units.ratio(ratios[0])} to {units.ratio(ratios[-1])} at {advice.seq_len:,}"
    loss = advice.needs or describe_error(here.iloc[-1].to_dict())
    way = {"forward": "", "forward_backward": ", forward and backward", "decode": ", a step"}[advice.mode]
    return [advice.situation, f"`{advice.variant}`", find_start(mine), much + way, loss]


def find_start(mine: pd.DataFrame) -> str:
    """The shortest measured length from which on it is faster at every one, on every machine."""
    slow = mine[~(mine["speedup_low"] > 1)]["seq_len"]
    faster = mine[mine["seq_len"] > (0 if slow.empty else slow.max())]["seq_len"]
    if faster.empty:
        return "not shown"
    return f"{int(faster.min()):,}"


def name_processor(machine: str) -> str:
    return machine.partition("-2c")[0].replace("-", " ").replace("Zen", "Zen ")


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
