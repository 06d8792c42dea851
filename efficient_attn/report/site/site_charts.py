"""Charts of the front page, quality in a pretrained model against time, and of mechanisms' pages, cost over length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pandas as pd

from ...spec import format_label, list_names
from .. import approximation_errors, formatting, select
from ..drawing import style
from ..drawing.figures import Plot, PlotContext, render_plot
from ..drawing.length_plots import SPEEDUP, make_length_plots
from ..gather import Frame
from ..sections.decode_cost import STATE_PLOT
from ..sections.model_pareto import make_pareto_plots
from ..sections.speed import MEMORY_PLOT, TIME_PLOT
from ..sections.swap import summarise_segments
from .picker import DEFAULT_LENGTH, EXACT
from .site_data import MechanismDetails, SiteMechanism
from .site_names import format_machine_config

CONFIG_COLUMNS = ["machine", "device", "dtype", "threads", "batch", "heads", "head_dim", "fill", "mode", "causal"]


class FrontChart(NamedTuple):
    """The chart in parts; left_out: the mechanisms that are not in it, by reason. run_id: a session of its run."""

    plots: tuple[Plot, ...]
    run_id: str
    left_out: Mapping[str, list[str]]


def make_front_chart(rows: Frame, mechanisms: Iterable[SiteMechanism]) -> FrontChart | None:
    """Chart the run with most mechanisms at the longest length up to the picker's; None without two mechanisms."""
    swapped = rows[(rows["task"] == "swap") & (rows["status"] == "ok") & rows["layer"].isna()]
    swapped = swapped[(swapped["seq_len"] <= DEFAULT_LENGTH) & swapped["mode"].notna()]
    groups = [part for _, part in swapped.groupby(["inputs", "seq_len", "machine", "started"])]
    chosen = max(groups, key=lambda part: (part["seq_len"].iloc[0], part["variant"].nunique()), default=swapped)
    labels = [format_label(*pair) for pair in zip(chosen["variant"], chosen["backend"], strict=True)]
    if chosen.empty:
        return None
    setting_text = formatting.format_inputs(*(chosen[name].iloc[0] for name in ("inputs", "causal", "seq_len")))
    lines = list(summarise_segments(chosen.assign(label=labels)))
    context = PlotContext(style.choose_line_styles(labels))
    pictures = list(make_pareto_plots(lines, ("front",), setting_text, context))
    if not pictures:
        return None
    drawn = {name for variant in chosen["variant"] for name in list_names(str(variant))}
    not_applicable = approximation_errors.list_not_applicable(rows, "fidelity")
    left_out: dict[str, list[str]] = {}
    for mechanism in mechanisms:
        if mechanism.card and mechanism.name not in drawn and mechanism.details:
            needs_weights = bool(approximation_errors.find_refusal(mechanism.name, None, not_applicable))
            left_out.setdefault(_find_reason(mechanism.details, needs_weights), []).append(mechanism.name)
    parts = (picture for picture in pictures if picture.caption == pictures[0].caption)  # of the first cost
    plots = tuple(render_plot(picture, raster=False) for picture in parts)
    return FrontChart(plots, str(chosen["run_id"].iloc[0]), left_out)


def _find_reason(details: MechanismDetails, needs_weights: bool) -> str:
    """Why a mechanism of the catalogue is not drawn."""
    if not details.causal:
        return "not causal"
    if details.parameters or needs_weights:
        return "needs its own trained weights"
    return "not measured in this model" if details.cross else "uses the keys as queries"


class MechanismPlots(NamedTuple):
    """The plots of one configuration. note: its description."""

    note: str
    plots: tuple[Plot, ...]


def split_by_mechanism(rows: Frame) -> Mapping[str, Frame]:
    """The rows of each mechanism, in unions that of its first part. rows: from `leaderboard.filter_newest`."""
    names = [(list_names(str(variant)) or ("",))[0] for variant in rows["variant"]]
    return {str(name): part for name, part in rows.groupby(pd.Series(names, index=rows.index), sort=True)}


def draw_plots(rows: Frame, all_rows: Frame, machines: Mapping[str, str]) -> MechanismPlots | None:
    """Draw the configuration with most lengths with a speedup, then with most lengths and rows; None for one length.

    rows: of the mechanism; all_rows: of all mechanisms, for the baseline.
    """
    chosen = max((part for _, part in rows.groupby(CONFIG_COLUMNS, dropna=False, sort=True)), key=_count_lengths)
    if chosen["seq_len"].nunique() < 2:
        return None
    exact = all_rows[all_rows["label"] == EXACT]
    for column in CONFIG_COLUMNS:
        value = chosen[column].iloc[0]
        exact = exact[exact[column].isna() if pd.isna(value) else exact[column] == value]
    prepared = _prepare(pd.concat([exact, chosen]))
    paired = {EXACT, *prepared.loc[prepared["speedup"].notna(), "label"]}  # all plots have the lines of speedups
    (setting,) = select.split_settings(prepared[prepared["label"].isin(paired)] if len(paired) > 1 else prepared)
    families = dict(zip(setting.rows["label"].astype(str), setting.rows["family"].astype(str), strict=True))
    context = PlotContext(style.choose_line_styles(setting.rows["label"], families))
    kinds = (SPEEDUP, TIME_PLOT, STATE_PLOT if chosen["mode"].iloc[0] == "decode" else MEMORY_PLOT)
    plots = tuple(render_plot(picture, raster=False) for picture in make_length_plots(setting, kinds, context))
    return MechanismPlots(format_machine_config(setting.key, machines), plots)


def _prepare(rows: Frame) -> Frame:
    """One row a label and length, of all suites, with speedups over exact attention only."""
    rows = rows.assign(suite=None, is_baseline=rows["label"] == EXACT)
    rows.loc[rows["baseline"] != EXACT, ["speedup", "speedup_low", "speedup_high"]] = float("nan")
    last = rows.assign(baseline=EXACT).iloc[rows["speedup"].notna().to_numpy().argsort(kind="stable")]
    return last.drop_duplicates(["label", "seq_len"], keep="last").sort_index()


def _count_lengths(rows: Frame) -> tuple[int, int, int]:
    """The number of lengths with a speedup over exact attention, of all lengths, and of rows."""
    paired = rows[rows["speedup"].notna() & (rows["baseline"] == EXACT)]
    return paired["seq_len"].nunique(), rows["seq_len"].nunique(), len(rows)
