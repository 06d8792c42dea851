"""Alignments: attention weights of source tokens for each target token, one heatmap per mechanism."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from .. import formatting
from ..drawing import length_plots
from ..drawing.heatmap import MAX_COLUMNS, Heatmap, HeatmapGrid
from .trained_scores import LearningTest, MechanismResult

TICK_INTERVAL = 4  # positions per tick label


def plan_alignments(test: LearningTest, scene: length_plots.Scene) -> Iterator[length_plots.PlotPlan]:
    """Plan plots for mechanisms with a stored alignment."""
    results = [result for result in test.scored_results if _get_alignment(result)]
    groups = [results[i : i + MAX_COLUMNS] for i in range(0, len(results), MAX_COLUMNS)]
    for number, group in enumerate(groups, 1):
        group_text = f"{number} of {len(groups)}" if len(groups) > 1 else ""
        title = ", ".join(filter(None, (f"Alignment: {test.name}", group_text)))
        name = formatting.make_slug("alignment", test.name, group_text, scene.suffix)
        yield length_plots.PlotPlan(
            name, "alignment", title, len(group), partial(_make_heatmap, group, name, title, scene), 2
        )


def _get_alignment(result: MechanismResult) -> tuple[tuple[float, ...], ...] | None:
    """Alignment of the first seed at the best learning rate."""
    alignment: Any = result.best_attempts["alignment"].iloc[0] if "alignment" in result.best_attempts else None
    return alignment if isinstance(alignment, tuple) else None


def _make_heatmap(results: Sequence[MechanismResult], name: str, title: str, scene: length_plots.Scene) -> Heatmap:
    grids = [
        HeatmapGrid(result.label, shares, _make_empty_texts(shares))
        for result in results
        if (shares := _get_alignment(result))
    ]
    row_count, column_count = (
        max(counts) for counts in zip(*((len(g.shares), len(g.shares[0])) for g in grids), strict=True)
    )
    return Heatmap(
        name=name,
        kind="alignment",
        title=title[:60],
        caption=f"{title}: one test example. Rows are target tokens, columns are source tokens, shades are attention "
        "weights, averaged over the heads of the last layer; one model per mechanism, with the first seed at its best "
        "learning rate.",
        config_text=scene.config_text,
        alt=f"{title}, for {formatting.join_words(result.label for result in results)}.",
        grids=tuple(grids),
        column_labels=_make_tick_labels(column_count),
        row_labels=_make_tick_labels(row_count),
        xlabel="source",
        ylabel="written",
    )


def _make_empty_texts(shares: Sequence[Sequence[float]]) -> list[list[str]]:
    """Empty texts, as there are too many cells for numbers."""
    return [[""] * len(row) for row in shares]


def _make_tick_labels(count: int) -> tuple[str, ...]:
    return tuple("" if n % TICK_INTERVAL else str(n) for n in range(1, count + 1))
