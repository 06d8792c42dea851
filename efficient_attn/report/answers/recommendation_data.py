"""Rows prepared for recommendations: the costs of mechanisms by configuration, and their quality."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import UsageError
from .. import select
from ..gather import Frame
from .cost_curves import CONFIG_COLUMNS, TIMING_COLUMNS, CostCurve, find_timed, is_disturbed, split_by_config
from .quality import Quality
from .requirements import Requirements, filter_uses


@dataclass(frozen=True)
class RecommendationData:
    """Rows prepared for many calls of `recommend`.

    machines: all with timings. disturbed: configurations of the timed rows left out because other programs ran in most
    of their rounds. dtype: if given, backends that do not run in it are left out.
    """

    curves_by_config: tuple[tuple[Mapping[str, Any], tuple[CostCurve, ...]], ...]
    quality: Quality
    disturbed: tuple[Mapping[str, Any], ...] = ()
    dtype: str | None = None
    machines: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        rows: Frame,
        sessions: Iterable[Mapping[str, Any]] = (),
        *,
        requirements: Requirements | None = None,
    ) -> RecommendationData:
        """Prepare rows returned by `gather` or `efficient_attn.load`.

        sessions: those of `gather`, which name runs. requirements: if given, only curves of their mode, direction and
        device are made, which is faster for a single question.
        """
        names = {session.get("run_id"): session["run"] for session in sessions}
        for column in {"baseline_kv_heads", "mean_value_error"} - {*rows.columns}:
            rows = rows.assign(**{column: float("nan")})
        speed_rows = rows.loc[rows["task"] == "speed", TIMING_COLUMNS]
        timed = find_timed(select.add_labels(speed_rows))
        machines = tuple(sorted(map(str, timed["machine"].unique())))
        timed = filter_uses(timed, requirements) if requirements else timed
        curves_by_config = tuple((config, tuple(curves)) for config, curves in split_by_config(timed, names))
        configs = speed_rows.loc[is_disturbed(speed_rows), CONFIG_COLUMNS].astype(object)
        disturbed = configs.where(configs.notna(), None).to_dict("records")
        return cls(curves_by_config, Quality(rows), tuple(disturbed), machines=machines)


def check_rows(data: RecommendationData) -> None:
    """Raise `UsageError` if no row has a usable time."""
    if not data.machines:
        reason = "these runs contain no timings; pass runs of suites such as quickstart, promises or decode"
        if data.disturbed:
            reason = f"all {len(data.disturbed)} timed rows were disturbed by other programs; use an idle machine"
        raise UsageError(f"recommend: {reason}")
