"""Select what a figure shows: one configuration and some of its mechanisms."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ... import units
from ...errors import UsageError, make_unknown_error
from ...spec import parse
from .. import formatting, select
from ..answers.decision_table import Decision, DecisionTable, split_tables
from ..answers.requirements import MODES
from ..gather import Frame

FILTERS = ("suite", "machine", "device", "dtype", "threads", "batch", "heads", "head_dim", "fill", "baseline")
FILTERS += ("mode", "causal", "inputs", "task", "seq_len")
MAX_PANELS = 4  # configurations of a figure
HIDDEN_PARTS = ("suite", "part", "baseline")  # of a configuration, named only to distinguish it
MISSING_DATA_HINTS = {
    "speed": "no mechanism was timed together with its baseline; run a suite that has one, such as quickstart",
    "crossover": "no speedup over a baseline has an interval; run a suite that has a baseline, such as quickstart",
    "front": "no two mechanisms have both a speedup and a measured error; run a suite with the task fidelity as well, "
    "or plot perplexities (task swap) with --figure perplexity",
    "perplexity": "no perplexity of a pretrained model was measured; run a suite with the task swap, such as swap_long",
    "memory": "peak memory was not measured; add it to what the suite measures",
    "error": "no output was compared with exact attention; run a suite with the task fidelity",
    "ability": "no model was trained or tested with a mechanism; run a suite such as accuracy, vision or retrieval",
}
Filters: TypeAlias = Mapping[str, Sequence[Any]]  # accepted values by column


@dataclass(frozen=True, eq=False)
class PlotRows:
    """Comparable rows of one configuration, and its decision table, if any.

    config: the columns of a setting and ``causal``, with ``mode`` for timed rows, ``inputs`` and ``seq_len`` for rows
    of fidelity, ``task`` and ``seq_len`` for trained models, and ``seq_len`` for one of several lengths.
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
    def baseline_labels(self) -> frozenset[str]:
        """The labels of the baseline, which figures of time and memory always show; empty for fidelity."""
        is_baseline = self.rows["is_baseline"].astype(bool) & bool(self.baseline)
        return frozenset(self.rows.loc[is_baseline, "label"])

    def rename(self, names: Mapping[str, str]) -> PlotRows:
        """A copy in which mechanisms have these names."""
        table, baseline = self.decision_table, names.get(self.baseline, self.baseline)
        if table is not None:
            decisions = tuple(replace(x, label=names.get(x.label, x.label)) for x in table.decisions)
            table = replace(table, baseline=names.get(table.baseline, table.baseline), decisions=decisions)
        rows = self.rows.assign(label=[names.get(label, label) for label in self.rows["label"]])
        return PlotRows(self.config, rows, baseline, table)

    def format_mode(self) -> str:
        """Mode and direction: ``forward, causal``; decoding is always causal."""
        mode, causal = self.config.get("mode"), self.config.get("causal")
        return formatting.format_slice(mode, None if mode == "decode" else causal)

    def format_parts(self) -> dict[str, str]:
        """The configuration as texts by column: ``forward, causal``, ``cpu``, .., ``AMD Zen 4 (2 cores)``."""
        get, parts = self.config.get, formatting.format_setting_parts(dict(self.config), {})
        texts = {
            "task": get("task"),
            "part": get("part"),
            "model": get("model") or formatting.name_model(get("inputs")),
            "seq_len": f"N = {self.config['seq_len']:,}" if get("seq_len") else "",
            "mode": self.format_mode() if get("mode") else formatting.format_direction(get("causal")),
            **parts,
            "machine": formatting.shorten_machine(get("machine")) if "machine" in parts else "",
            "baseline": f"compared with {self.baseline}" if self.baseline else "",
        }
        return {name: str(text) for name, text in texts.items() if units.is_present(text) and text}

    def format_config(self) -> str:
        """``forward, causal, cpu, float32, 1 thread, batch 1, 4 heads of size 64, machine M2-x8``."""
        parts = self.format_parts()
        parts |= {"machine": f"machine {self.config['machine']}"} if "machine" in parts else {}
        return ", ".join(text for name, text in parts.items() if name not in HIDDEN_PARTS)


def describe_configurations(chosen: Sequence[PlotRows]) -> tuple[str, list[list[str]]]:
    """What all configurations have in common, and for each one the parts that distinguish it."""
    parts, machines = [x.format_parts() for x in chosen], [str(x.config["machine"]) for x in chosen]
    if len({text.get("machine") for text in parts}) < len(set(machines)):
        parts = [texts | {"machine": machine} for texts, machine in zip(parts, machines, strict=True)]
    names = dict.fromkeys(name for texts in parts for name in texts)
    varying = [name for name in names if len({texts.get(name) for texts in parts}) > 1]
    for hidden in HIDDEN_PARTS:
        rest = [name for name in varying if name != hidden]
        varying = rest if len({tuple(map(texts.get, rest)) for texts in parts}) == len(parts) else varying
    titles = [[texts[name] for name in varying if name in texts] for texts in parts]
    return ", ".join(text for name, text in parts[0].items() if name not in (*HIDDEN_PARTS, *varying)), titles


def filter_rows(rows: Frame, filters: Filters) -> Frame:
    """Return the rows with these values. Raises `UsageError` for a value without rows, listing the existing values."""
    for column, values in filters.items():
        cells = [cell for cell in dict.fromkeys(rows[column].tolist()) if units.is_present(cell)]
        accepted = []
        for value in values:
            matching = [cell for cell in cells if _is_value(column, value, cell)]
            accepted += matching
            if not matching:
                existing = formatting.join_words(f"{x:.0f}" if isinstance(x, float) else str(x) for x in sorted(cells))
                option = column.replace("_", "-")
                raise UsageError(f"plot: no row has {option} {value}; the rows have {existing or 'none'}")
        rows = rows[rows[column].isin(accepted)]
    return rows


def _is_value(column: str, value: Any, cell: Any) -> bool:
    """Whether a cell is the value; of machines, a part of the name or of the short name is sufficient."""
    if column != "machine":
        return bool(cell == value)
    return str(value) in str(cell) or str(value) in formatting.shorten_machine(cell)


def list_timed_rows(rows: Frame, filters: Filters) -> list[PlotRows]:
    """Return all timed configurations. rows: with labels and errors."""
    parts = split_tables(filter_rows(rows, filters))
    return [PlotRows(config, part_rows, baseline, table) for config, baseline, part_rows, table in parts]


def list_compared_rows(rows: Frame, filters: Filters) -> list[PlotRows]:
    """Return all configurations at which outputs were compared with exact attention."""
    rows = select.filter_fidelity(select.filter_task(filter_rows(rows, filters), "fidelity"))
    return [
        PlotRows(setting.key | {"inputs": x.inputs, "causal": x.causal, "seq_len": x.length}, x.rows)
        for setting in select.split_settings(rows)
        for x in select.slice_fidelity(setting.rows)
    ]


def choose_plot_rows(
    candidates: Iterable[PlotRows],
    count: Callable[[PlotRows], int],
    figure: str,
    filters: Filters,
    shared: Collection[str] = (),
) -> tuple[list[PlotRows], list[PlotRows], list[str]]:
    """Choose a configuration for each combination of the filters' values, at most `MAX_PANELS`; return these, the
    others, and the combinations without data. shared: columns of which a figure shows all values, as far as there is
    room.

    The first is the one with most mechanisms, preferably of forward calls; each further one agrees with it in most
    columns. Raises `UsageError` without data, and for too many combinations.
    """
    counts = {plot_rows: n for plot_rows in candidates if (n := count(plot_rows))}
    usable = sorted(counts, key=lambda x: _rank(x, counts[x]))
    if not usable:
        raise UsageError(f"plot: no data for --figure {figure}: {MISSING_DATA_HINTS[figure]}")
    listed = {name: values for name, values in filters.items() if len(values) > 1 and name in usable[0].config}
    chosen: list[PlotRows] = []
    missing: list[str] = []
    for values in itertools.product(*listed.values()):
        wanted = dict(zip(listed, values, strict=True))
        matching = [x for x in usable if all(_is_value(name, v, x.config.get(name)) for name, v in wanted.items())]
        nearest = min(matching, key=lambda x: _count_differences(x, chosen[0] if chosen else x), default=None)
        if nearest is None:
            missing.append(", ".join(f"{name.replace('_', '-')} {value}" for name, value in wanted.items()))
        elif nearest not in chosen:
            chosen.append(nearest)
    if shared:
        chosen = [x for x in counts if _count_differences(x, chosen[0], set(FILTERS).difference(shared)) == 0]
        chosen = chosen[:MAX_PANELS]
    if len(chosen) > MAX_PANELS:
        options = formatting.join_words(f"--{name.replace('_', '-')}" for name in listed)
        raise UsageError(
            f"plot: {len(chosen)} configurations; a figure shows at most {MAX_PANELS}: give fewer values of {options}"
        )
    return chosen, [x for x in usable if x not in chosen], missing


def _rank(plot_rows: PlotRows, count: int) -> tuple[int, int, float]:
    mode = plot_rows.config.get("mode")
    return MODES.index(mode) if mode in MODES else 0, -count, -float(plot_rows.rows["seq_len"].max())


def _count_differences(plot_rows: PlotRows, other: PlotRows, columns: Iterable[str] = FILTERS) -> int:
    return sum(str(plot_rows.config.get(name)) != str(other.config.get(name)) for name in columns)


def find_labels(text: str, labels: Iterable[str]) -> list[str]:
    """Return the labels that are equal to a spec, or else those with a mechanism's name."""
    valid_labels = list(labels)
    if matching := _filter_labels(text, valid_labels):
        return matching
    raise make_unknown_error("mechanism", text, valid_labels, where="plot")


def _filter_labels(text: str, labels: Sequence[str]) -> list[str]:
    exact = [label for label in labels if label == text or _is_spec(label, text)]
    return exact or [label for label in labels if _is_spec(label.partition(" (")[0], text, by_name=True)]


def _is_spec(label: str, text: str, *, by_name: bool = False) -> bool:
    with suppress(UsageError):
        return parse(label).matches(text) if by_name else str(parse(label)) == str(parse(text))
    return False


def choose_labels(
    ranked: Sequence[str],
    max_lines: int | None,
    *,
    only: Sequence[str] = (),
    highlight: Sequence[str] = (),
    baseline_labels: Collection[str] = (),
) -> tuple[list[str], list[str]]:
    """Return the labels to show and those left out, both as ranked. only, highlight: specs or names.

    Without ``only``, the highlighted ones are shown, and the first others up to max_lines (None: all).
    baseline_labels are always shown, so that naming them has no effect. Raises `UsageError` for more than max_lines,
    and for none.
    """
    valid_labels = list(dict.fromkeys([*ranked, *baseline_labels]))
    requested = {label for text in only for label in find_labels(text, valid_labels)}
    if only and not requested.intersection(ranked):
        raise UsageError(
            f"plot: --only names only mechanisms that are always shown: {formatting.join_words(sorted(requested))}"
        )
    max_lines = len(ranked) if max_lines is None else max_lines
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
