"""Alignments: attention weights of source tokens for each target token, one heatmap per mechanism."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from .. import formatting
from ..drawing.heatmap import MAX_COLUMNS, Heatmap, HeatmapGrid
from ..drawing.plot_plans import MAX_TITLE_LETTERS, PlotContext, PlotPlan
from .trained_scores import LearningTest, MechanismResult

TICK_INTERVAL = 4  # positions per tick label


def plan_alignments(test: LearningTest, context: PlotContext) -> Iterator[PlotPlan]:
    """Plan plots for mechanisms with a stored alignment."""
    results = [result for result in test.scored_results if result.get_first_samples("alignment")]
    for batch_text, batch in formatting.split_batches(results, MAX_COLUMNS):
        title = ", ".join(filter(None, (f"Alignment: {test.name}", batch_text)))
        name = formatting.make_slug("alignment", test.name, batch_text, context.suffix)
        yield context.plan(name, "alignment", title, len(batch), partial(_make_heatmap, batch, title), draw_order=2)


def _make_heatmap(results: Sequence[MechanismResult], title: str) -> Heatmap:
    shares_by_label = {result.label: result.get_first_samples("alignment") for result in results}
    # empty texts, as there are too many cells for numbers
    grids = [
        HeatmapGrid(label, shares, [[""] * len(row) for row in shares]) for label, shares in shares_by_label.items()
    ]
    row_count = max(len(grid.shares) for grid in grids)
    column_count = max(len(grid.shares[0]) for grid in grids)
    return Heatmap(
        title=title[:MAX_TITLE_LETTERS],
        caption=f"{title}: one test example. Rows are target tokens, columns are source tokens, shades are attention "
        "weights, averaged over the heads of the last layer; one model per mechanism, with the first seed at its best "
        "learning rate.",
        alt=f"{title}, for {formatting.join_words(result.label for result in results)}.",
        grids=tuple(grids),
        column_labels=_make_tick_labels(column_count),
        row_labels=_make_tick_labels(row_count),
        xlabel="source",
        ylabel="written",
    )


def _make_tick_labels(count: int) -> tuple[str, ...]:
    return tuple("" if n % TICK_INTERVAL else str(n) for n in range(1, count + 1))
