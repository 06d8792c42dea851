"""What the published runs contain about a mechanism: timings, approximation errors, and verdicts on claims."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import pandas as pd
from links import ROOT
from markdown_text import make_table

from efficient_attn.report.claims.evidence import read_evidence
from efficient_attn.report.claims.ledger import load_ledger
from efficient_attn.report.claims.verdicts import LedgerVerdicts, evaluate_claims
from efficient_attn.report.gather import Frame
from efficient_attn.results.gathered import load
from efficient_attn.units import integer

RUNS = sorted(path.parent for path in ROOT.glob("results/*/run.json"))
MOST_ROWS = 24
SETTING = ["variant", "mode", "causal", "machine"]


@cache
def _load_rows() -> Frame:
    """The rows of all published runs, with the run's folder and the mechanism's name."""
    frames = [load(run).assign(run=run.name) for run in RUNS]
    rows = pd.concat([frame[frame["status"] == "ok"] for frame in frames], ignore_index=True)
    return rows.assign(name=[str(variant).partition("|")[0].partition(":")[0] for variant in rows["variant"]])


def render_measurements(name: str) -> list[str]:
    """The longest length of each option, mode, direction and machine, and the errors in trained models."""
    rows = _load_rows()
    rows = rows[rows["name"] == name]
    timed = rows[
        (rows["speedup_low"] < rows["speedup_high"]) & (rows["task"] == "speed") & (rows["dtype"] == "float32")
    ]
    timed = timed[(timed["batch"] == 1) & (timed["threads"] == 1) & timed["budget"].isna()]
    longest = timed.sort_values("seq_len").groupby(SETTING, dropna=False).tail(1).sort_values(["mode", *SETTING])
    errors = rows[rows["relative_error"].notna() & (rows["task"] == "fidelity") & rows["budget"].isna()]
    tables = [*_render_timings(longest), *_render_errors(errors)]
    return ["## Measured\n", *(tables or ["The published runs do not contain it.\n"])]


def _render_timings(longest: Frame) -> list[str]:
    if longest.empty:
        return []
    shown = longest.head(MOST_ROWS)
    more = f" {len(longest) - MOST_ROWS} more are in the runs." if len(longest) > MOST_ROWS else ""
    lines = [
        [
            f"`{row.variant}`",
            f"{str(row.mode).replace('_', ' and ')}, {'causal' if row.causal else 'bidirectional'}",
            integer(row.seq_len),
            f"{row.heads} x {row.head_dim}",
            f"{row.speedup:.3g}x ({row.speedup_low:.3g}-{row.speedup_high:.3g})",
            f"`{row.baseline}`",
            str(row.machine).partition("#")[0],
            f"[{row.run}](../../results/{row.run}/report.md)",
        ]
        for row in _iterate(shown)
    ]
    head = ("Variant", "Call", "N", "Heads", "Speedup (95%)", "Over", "Machine", "Run")
    text = f"Speedup at the longest length of each published run: float32, batch 1, one thread.{more}\n"
    return [text, make_table(head, lines)]


def _render_errors(errors: Frame) -> list[str]:
    if errors.empty:
        return []
    keys = ["variant", "inputs", "seq_len", "causal"]
    means = errors.groupby(keys)["relative_error"].agg(["mean", "count"]).reset_index()
    lines = [
        [
            f"`{row.variant}`",
            str(row.inputs).partition(":")[0],
            integer(row.seq_len),
            "causal" if row.causal else "bidirectional",
            f"{row.mean:.3g}",
        ]
        for row in _iterate(means)
    ]
    text = "Relative error against exact attention in trained models, mean over the measured layers.\n"
    return [text, make_table(("Variant", "Model", "N", "Direction", "Relative error"), lines[:MOST_ROWS])]


def _iterate(rows: Frame) -> Iterable[Any]:
    return rows.itertuples(index=False)


@cache
def _evaluate_claims() -> LedgerVerdicts:
    return evaluate_claims(load_ledger(), read_evidence(RUNS))


def render_claims(name: str) -> list[str]:
    """The claims about a mechanism with their verdicts."""
    verdicts = [it for it in _evaluate_claims().claims if it.entry.claim.mechanism == name]
    lines = [[it.entry.claim.claim, it.entry.source.cite, it.verdict] for it in verdicts]
    if not lines:
        return []
    text = "Verdicts of the published runs; [claims](../../concepts/claims.md) explains the rules.\n"
    return ["## Published claims\n", text, make_table(("Claim", "Source", "Verdict"), lines)]
