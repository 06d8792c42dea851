"""Plots of a mechanism's page: speedup, time and memory over length, where it was measured at most lengths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from ...spec import list_names
from .. import formatting, select
from ..drawing import style
from ..drawing.figures import Plot, PlotContext, render_plot
from ..drawing.length_plots import SPEEDUP, make_length_plots
from ..gather import Frame
from ..sections.decode_cost import STATE_PLOT
from ..sections.speed import MEMORY_PLOT, TIME_PLOT
from .picker import EXACT

CONFIG_COLUMNS = ["machine", "device", "dtype", "threads", "batch", "heads", "head_dim", "fill", "mode", "causal"]
SPEEDUP_COLUMNS = ["speedup", "speedup_low", "speedup_high"]


@dataclass(frozen=True)
class MechanismPlots:
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
    groups = (group for _, group in rows.groupby(CONFIG_COLUMNS, dropna=False, sort=True))
    chosen = max(groups, key=_count_lengths)
    if chosen["seq_len"].nunique() < 2:
        return None
    exact = all_rows[all_rows["label"] == EXACT]
    for column in CONFIG_COLUMNS:
        value = chosen[column].iloc[0]
        exact = exact[exact[column].isna() if pd.isna(value) else exact[column] == value]
    (setting,) = select.split_settings(_prepare(pd.concat([exact, chosen])))
    config = setting.key | {"machine": None}
    mode = str(chosen["mode"].iloc[0])
    note = ", ".join(
        filter(None, (machines.get(str(setting.key["machine"]), ""), formatting.format_config(config, {})))
    )
    context = PlotContext(style.choose_line_styles(setting.rows["label"], _read_families(setting.rows)), config_text="")
    kinds = (SPEEDUP, TIME_PLOT, STATE_PLOT if mode == "decode" else MEMORY_PLOT)
    plots = [render_plot(picture, raster=False) for picture in make_length_plots(setting, kinds, context)]
    return MechanismPlots(note, tuple(plots))


def _read_families(rows: Frame) -> dict[str, str]:
    return dict(zip(rows["label"].astype(str), rows["family"].astype(str), strict=True))


def _prepare(rows: Frame) -> Frame:
    """One row a label and length, of all suites, with speedups over exact attention only."""
    rows = rows.assign(suite=None, is_baseline=rows["label"] == EXACT)
    over_others = rows["baseline"] != EXACT
    rows.loc[over_others, SPEEDUP_COLUMNS] = float("nan")
    last = rows.assign(baseline=EXACT).iloc[rows["speedup"].notna().to_numpy().argsort(kind="stable")]
    return last.drop_duplicates(["label", "seq_len"], keep="last").sort_index()


def _count_lengths(rows: Frame) -> tuple[int, int, int]:
    """The number of lengths with a speedup over exact attention, of all lengths, and of rows."""
    paired = rows[rows["speedup"].notna() & (rows["baseline"] == EXACT)]
    return paired["seq_len"].nunique(), rows["seq_len"].nunique(), len(rows)
