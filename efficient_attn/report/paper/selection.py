"""Select what a figure shows: one configuration and some of its mechanisms."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ... import units
from ...errors import UsageError, make_unknown_error
from ...spec import parse
from .. import formatting, select
from ..answers.crossovers import split_curves
from ..answers.decision_table import Decision, DecisionTable, make_decision_tables
from ..answers.requirements import MODES
from ..gather import Frame

FILTERS = ("suite", "machine", "device", "dtype", "threads", "batch", "heads", "head_dim", "fill", "baseline")
FILTERS += ("mode", "causal", "inputs")


@dataclass(frozen=True)
class PlotRows:
    """Comparable rows of one configuration, and its decision table, if any.

    config: the columns of a setting and ``causal``, with ``mode`` for timed rows, and ``inputs`` and ``seq_len`` for
    rows of fidelity.
    """

    config: Mapping[str, Any]
    rows: Frame
    baseline: str = ""
    decision_table: DecisionTable | None = None

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The decisions of its table."""
        return self.decision_table.decisions if self.decision_table else ()

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of its table."""
        return self.decision_table.lengths if self.decision_table else ()

    @property
    def baseline_labels(self) -> frozenset[str]:
        """The labels of the baseline, which figures of time and memory always show; empty for fidelity."""
        is_baseline = self.rows["is_baseline"].astype(bool) & bool(self.baseline)
        return frozenset(self.rows.loc[is_baseline, "label"])

    def format_mode(self) -> str:
        """Mode and direction: ``forward, causal``; decoding is always causal."""
        mode, causal = self.config.get("mode"), self.config.get("causal")
        return formatting.format_slice(mode, None if mode == "decode" else causal)

    def format_config(self) -> str:
        """``forward, causal, cpu, float32, 1 thread, batch 1, 4 heads of size 64, machine M2-x8``."""
        get, inputs_text = self.config.get, ""
        if "inputs" in self.config:
            inputs_text = formatting.format_inputs(get("inputs"), get("causal"), get("seq_len"))
        parts = (inputs_text or self.format_mode(), formatting.format_config(dict(self.config), {}))
        return ", ".join(filter(None, parts))


def filter_rows(rows: Frame, filters: Mapping[str, Any]) -> Frame:
    """Return the rows with these values. Raises `UsageError` if there are none, listing the existing values."""
    for column, value in filters.items():
        values = [cell for cell in dict.fromkeys(rows[column].tolist()) if units.is_present(cell)]
        matching = [cell for cell in values if (str(value) in str(cell) if column == "machine" else cell == value)]
        if not matching:
            valid_values = formatting.join_words(map(str, values)) or "none"
            raise UsageError(f"plot: no row has {column.replace('_', '-')} {value}; the rows have {valid_values}")
        rows = rows[rows[column].isin(matching)]
    return rows


def list_timed_rows(rows: Frame) -> list[PlotRows]:
    """Return all timed configurations. rows: with labels and errors."""
    tables = {select.make_config_key(table.config): table for table in make_decision_tables(rows)}
    return [
        PlotRows(config, curve_rows, baseline, tables.get(select.make_config_key(config)))
        for config, baseline, curve_rows in split_curves(rows)
    ]


def list_compared_rows(rows: Frame) -> list[PlotRows]:
    """Return all configurations at which outputs were compared with exact attention."""
    plot_rows = []
    for setting in select.split_settings(select.filter_fidelity(select.filter_task(rows, "fidelity"))):
        for piece in select.slice_fidelity(setting.rows):
            inputs_config = {"inputs": piece.inputs, "causal": piece.causal, "seq_len": piece.length}
            plot_rows.append(PlotRows(setting.key | inputs_config, piece.rows))
    return plot_rows


def choose_plot_rows(
    candidates: Iterable[PlotRows], count: Callable[[PlotRows], int], figure: str
) -> tuple[PlotRows, list[PlotRows]]:
    """Choose the configuration with most mechanisms, preferably of forward calls; return it and the others."""
    usable = [plot_rows for plot_rows in candidates if count(plot_rows)]
    if not usable:
        raise UsageError(f"plot: no data for --figure {figure}: {MISSING_DATA_HINTS[figure]}")

    def rank(plot_rows: PlotRows) -> tuple[int, int, float]:
        mode = plot_rows.config.get("mode")
        return MODES.index(mode) if mode in MODES else 0, -count(plot_rows), -float(plot_rows.rows["seq_len"].max())

    first, *alternatives = sorted(usable, key=rank)
    return first, alternatives


MISSING_DATA_HINTS = {
    "speed": "no mechanism was timed together with its baseline; run a suite that has one, such as quickstart",
    "crossover": "no mechanism was timed together with its baseline; run a suite that has one, such as quickstart",
    "front": "no two mechanisms have both a speedup and a measured error; run a suite with the task fidelity as well",
    "memory": "peak memory was not measured; add it to what the suite measures",
    "loss": "no output was compared with exact attention; run a suite with the task fidelity",
}


def find_labels(text: str, labels: Iterable[str]) -> list[str]:
    """Return the labels that are equal to a spec, or else those with a mechanism's name."""
    valid_labels = list(labels)
    matching = _filter_labels(text, valid_labels)
    if not matching:
        raise make_unknown_error("mechanism", text, valid_labels, where="plot")
    return matching


def _filter_labels(text: str, labels: Sequence[str]) -> list[str]:
    exact = [label for label in labels if label == text or _is_spec(label, text)]
    return exact or [label for label in labels if _matches_name(label, text)]


def _is_spec(label: str, text: str) -> bool:
    with suppress(UsageError):
        return str(parse(label)) == str(parse(text))
    return False


def _matches_name(label: str, text: str) -> bool:
    with suppress(UsageError):
        return parse(label.partition(" (")[0]).matches(text)
    return False


def choose_labels(
    ranked: Sequence[str],
    max_lines: int,
    *,
    only: Sequence[str] = (),
    highlight: Sequence[str] = (),
    baseline_labels: Collection[str] = (),
) -> tuple[list[str], list[str]]:
    """Return the labels to show and those left out, both as ranked. only, highlight: specs or names.

    Without ``only``, the highlighted ones are shown, and the first others up to max_lines. baseline_labels are always
    shown, so that naming them has no effect. Raises `UsageError` for more than max_lines, and for none.
    """
    valid_labels = [*ranked, *(label for label in baseline_labels if label not in ranked)]
    requested = {label for text in only for label in find_labels(text, valid_labels)}
    if only and not requested.intersection(ranked):
        raise UsageError(
            f"plot: --only names only mechanisms that are always shown: {formatting.join_words(sorted(requested))}"
        )
    if len(requested.intersection(ranked)) > max_lines:
        raise UsageError(f"plot: --only names {len(requested)} mechanisms; one figure shows at most {max_lines}")
    highlightable = requested.union(baseline_labels) if requested else valid_labels
    highlighted = {label for text in highlight for label in find_labels(text, highlightable)}
    chosen = highlighted.intersection(ranked)
    others = [label for label in ranked if label not in chosen]
    selected = requested or chosen.union(others[: max(0, max_lines - len(chosen))])
    return [label for label in ranked if label in selected], [label for label in ranked if label not in selected]


def read_labels(options: Iterable[str], labels: Sequence[str]) -> dict[str, str]:
    """Return the name of each label from options ``SPEC=Ours``, where the spec may contain ``=``."""
    names = {label: label for label in labels} | dict(_split_label_option(text, labels) for text in options)
    if repeated := [name for name in names.values() if list(names.values()).count(name) > 1]:
        raise UsageError(f"plot: two mechanisms have the name {repeated[0]!r}; choose another name with --label")
    return names


def _split_label_option(text: str, labels: Sequence[str]) -> tuple[str, str]:
    for cut in reversed([i for i, letter in enumerate(text) if letter == "="]):
        spec, name = text[:cut], " ".join(text[cut + 1 :].split())
        matching = _filter_labels(spec, labels)
        if name and len(matching) == 1:
            return matching[0], name
        if name and matching:
            raise UsageError(f"plot: --label {text}: {spec} is {formatting.join_words(matching)}; name one of them")
    valid_labels = formatting.join_words(labels)
    raise UsageError(f"plot: --label {text}: not SPEC=NAME of a mechanism in the figure: {valid_labels}")
