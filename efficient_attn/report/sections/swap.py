"""What a trained model loses with each mechanism in place of its own attention, beside what the same passes cost.

A row is a segment of text. Intervals are over segments, each paired with the model as it is on the same tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ... import units
from ...results.section import Section
from ...results.stats import Estimate, typical
from .. import select, words
from ..drawing import plots
from ..gather import Frame
from ..tables import Shown, Table, show_number, show_size, trim
from .blocks import Block, Chapter, Material, make_blocks
from .fronts import plan_fronts, plan_layers

INTRO = (
    "The weights are as they were trained; only the attention is another. The loss is in nats a token of real text; "
    "'perplexity' is its exponential over that of the model as it is, on the same tokens. KL is the divergence of the "
    "next token's probabilities from the model's own. 'Time of a pass' is what the model as it is takes over what it "
    "takes swapped, all layers included: 'attention' is the share of a pass that is spent there, so that no mechanism "
    "can gain more. Brackets: 95% intervals over segments, paired."
)
CLOSENESS = "swap.divergence", "swap.hidden_error"  # how far from the model as it is: a decoder, an encoder
LEAST = 1e-12  # what a divergence is at least, lest rounding below zero have no logarithm


def make_chapter(section: Section, material: Material) -> Chapter:
    rows = material.rows
    rows = rows[(rows["task"] == section.task) & (rows["status"] == "ok")]
    return Chapter(section.title, INTRO, make_blocks(rows, material, _fill))


def _fill(block: Block, setting: select.Setting, scene: plots.Scene) -> None:
    for (inputs, length), piece in setting.rows.groupby(["inputs", "seq_len"], sort=True):
        where = f"{inputs}, {int(length):,} tokens"
        single = piece["layer"].notna()
        if single.any():
            _fill_layers(block, piece[single], where, words.slug("layers", inputs, length, scene.suffix), scene)
        piece = piece[~single]
        lines = list(summarise(piece))
        if not lines:
            continue
        block.tables.append(_make_table(lines, where, piece["swap.segment"].nunique()))
        _say(block, lines, where)
        block.panels += plan_fronts(lines, words.slug("swap", inputs, length, scene.suffix), where, scene)


# -- segments taken together ---------------------------------------------------------------------------------------


def summarise(rows: Frame) -> Iterator[dict[str, Any]]:
    """Of each variant what its segments say together; of a budget, the closest to the model as it is first."""
    own = rows[rows["is_baseline"]].set_index("swap.segment")
    budgets, found = select.find_budgets(rows), []
    for label, part in rows.groupby("label", sort=False):
        part = part.set_index("swap.segment").sort_index()
        line: dict[str, Any] = {"label": label, "is_baseline": bool(part["is_baseline"].any())}
        line["budget"] = budgets[str(label)]
        for column in MEANS:
            values = _known(part, column)
            line[column] = sum(values) / len(values) if values else None
        losses, apart = _known(part, "swap.loss"), _known(part, CLOSENESS[0]) or _known(part, CLOSENESS[1])
        line["apart"] = typical([max(x, LEAST) for x in apart]) if apart else None
        line["loss"] = typical(losses) if losses and min(losses) > 0 else None
        both = part.index.intersection(own.index)
        line["perplexity"] = line["speedup"] = None
        if len(both) and len(losses) == len(part):
            apart = part.loc[both, "swap.loss"] - own.loc[both, "swap.loss"]
            line["perplexity"] = typical([math.exp(x) for x in apart])
        if len(both):
            line["speedup"] = typical((own.loc[both, "latency_ms"] / part.loc[both, "latency_ms"]).tolist())
        found.append(line)
    yield from sorted(found, key=lambda line: (line["budget"], _closeness(line)))


MEANS = (
    "swap.divergence",
    "swap.divergence_p99",
    "swap.agreement",
    "swap.loss_early",
    "swap.loss_later",
    "swap.hidden_error",
    "swap.embedding_cosine",
    "swap.similarity_rank",
    "swap.attention_share",
    "swap.step_ms",
    "state_bytes",
    "peak_memory_bytes",
)


def _known(rows: Frame, column: str) -> list[float]:
    return [float(x) for x in rows[column].tolist() if units.there(x)] if column in rows else []


def _closeness(line: dict[str, Any]) -> float:
    for column in CLOSENESS:
        if line[column] is not None:
            return float(line[column])
    return math.inf


# -- the table -----------------------------------------------------------------------------------------------------


def _make_table(lines: Sequence[dict[str, Any]], where: str, segments: int) -> Table:
    head = ("Variant", *(name for name, _ in COLUMNS))
    body = [[_name(line), *(show(line) for _, show in COLUMNS)] for line in lines]
    over = f"mean over {words.count(segments, 'segment')}"
    return trim(Table(f"Swapped into {where}, {over}", head, body))


def _name(line: dict[str, Any]) -> Shown:
    return Shown(line["label"], line["label"], "base" if line["is_baseline"] else "")


def _mean(column: str) -> Callable[[dict[str, Any]], Shown]:
    return lambda line: show_number(line[column])


def _estimate(name: str, write: Callable[..., str]) -> Callable[[dict[str, Any]], Shown]:
    def show(line: dict[str, Any]) -> Shown:
        found: Estimate | None = line[name]
        if found is None:
            return Shown(units.NONE)
        if line["is_baseline"] and name != "loss":
            return Shown("baseline", 1.0, "base")
        return Shown(write(found.value, found.low, found.high), found.value)

    return show


def _number(value: float, low: float | None, high: float | None) -> str:
    return units.number(value) if low is None else f"{units.number(value)} ({units.number(low)}-{units.number(high)})"


def _share(column: str) -> Callable[[dict[str, Any]], Shown]:
    def show(line: dict[str, Any]) -> Shown:
        value = line[column]
        return Shown(units.NONE) if value is None else Shown(units.percent(value), value)

    return show


def _time(line: dict[str, Any]) -> Shown:
    value = line["swap.step_ms"]
    return Shown(units.NONE) if value is None else Shown(units.duration(value), value)


COLUMNS: tuple[tuple[str, Callable[[dict[str, Any]], Shown]], ...] = (
    ("Budget", lambda line: Shown(line["budget"][1], line["budget"][0])),
    ("Loss", _estimate("loss", _number)),
    ("Perplexity, over its own", _estimate("perplexity", units.ratio)),
    ("KL a token", _mean("swap.divergence")),
    ("99% below", _mean("swap.divergence_p99")),
    ("Same first choice", _share("swap.agreement")),
    ("Loss, first 512", _mean("swap.loss_early")),
    ("Loss, later", _mean("swap.loss_later")),
    ("Error of hidden rows", _mean("swap.hidden_error")),
    ("Cosine of embeddings", _mean("swap.embedding_cosine")),
    ("Rank correlation", _mean("swap.similarity_rank")),
    ("Time of a pass", _estimate("speedup", units.ratio)),
    ("Attention", _share("swap.attention_share")),
    ("A step", _time),
    ("States", lambda line: show_size(line["state_bytes"])),
    ("Peak memory", lambda line: show_size(line["peak_memory_bytes"])),
)


def _fill_layers(block: Block, rows: Frame, where: str, name: str, scene: plots.Scene) -> None:
    """What is lost where one layer alone has a mechanism: a row a layer, and the same as a map."""
    rows = rows[~rows["is_baseline"]]
    column = "swap.divergence" if "swap.divergence" in rows and rows["swap.divergence"].notna().any() else "loss"
    means = rows.groupby(["layer", "label"], sort=False)[column].mean().unstack("label").sort_index()
    body = []
    for layer, line in means.iterrows():
        body.append([Shown(f"layer {int(layer)}", float(layer)), *map(show_number, line.tolist())])
    what = "KL a token" if column == "swap.divergence" else "Error of hidden rows"
    segments = words.count(rows["swap.segment"].nunique(), "segment")
    title = f"{what} with one layer swapped, {where}, mean over {segments}"
    block.tables.append(Table(title, ("Layer", *means.columns), body))
    block.panels.append(plan_layers(means, name, what, where, scene))


def _say(block: Block, lines: Sequence[dict[str, Any]], where: str) -> None:
    """The ceiling of any saving, and who loses least."""
    own = next((line for line in lines if line["is_baseline"]), None)
    if own is not None and own["swap.attention_share"]:
        block.sentences.append(
            f"In {where}, attention takes {units.percent(own['swap.attention_share'])} of a pass of the model as it "
            "is: no mechanism can save more than that."
        )
