"""The front page's chart: quality in a pretrained model against time, and the mechanisms that are not in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...spec import format_label, list_names
from .. import approximation_errors, formatting
from ..drawing import style
from ..drawing.figures import Plot, PlotContext, render_plot
from ..gather import Frame
from ..sections import swap
from ..sections.model_pareto import make_pareto_plots
from .picker import DEFAULT_LENGTH
from .site_data import MechanismDetails, SiteMechanism


@dataclass(frozen=True)
class FrontChart:
    """The chart; left_out: the mechanisms that are not in it, by reason. run_id: the session that was drawn."""

    plot: Plot
    run_id: str
    left_out: Mapping[str, tuple[str, ...]]


def make_front_chart(rows: Frame, mechanisms: Iterable[SiteMechanism]) -> FrontChart | None:
    """Chart the run with most mechanisms at the longest length up to the picker's; None without two mechanisms."""
    swapped = rows[(rows["task"] == "swap") & (rows["status"] == "ok") & rows["layer"].isna()]
    swapped = swapped[(swapped["seq_len"] <= DEFAULT_LENGTH) & swapped["mode"].notna()]
    groups = [part for _, part in swapped.groupby(["inputs", "seq_len", "run_id"])]
    chosen = max(groups, key=lambda part: (part["seq_len"].iloc[0], part["variant"].nunique()), default=None)
    if chosen is None:
        return None
    labels = [format_label(*pair) for pair in zip(chosen["variant"], chosen["backend"], strict=True)]
    chosen, first = chosen.assign(label=labels), chosen.iloc[0]
    model = formatting.format_inputs(first["inputs"], first["causal"], first["seq_len"])
    context = PlotContext(style.choose_line_styles(chosen["label"]))
    picture = next(make_pareto_plots(swap.summarise_segments(chosen), ("front",), model, context), None)
    if picture is None:
        return None
    plot = render_plot(picture, raster=False)
    drawn = {name for variant in chosen["variant"] for name in list_names(str(variant))}
    not_applicable = approximation_errors.list_not_applicable(rows, "fidelity")
    left_out: dict[str, list[str]] = {}
    for mechanism, reason in _list_reasons(mechanisms, drawn, not_applicable):
        left_out.setdefault(reason, []).append(mechanism)
    reasons = {reason: tuple(names) for reason, names in left_out.items()}
    return FrontChart(plot, str(first["run_id"]), reasons)


def _list_reasons(
    mechanisms: Iterable[SiteMechanism], drawn: set[str], not_applicable: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield each mechanism of the catalogue that is not drawn, and the reason."""
    for mechanism in mechanisms:
        if mechanism.is_listed and mechanism.name not in drawn and mechanism.details:
            needs_weights = bool(approximation_errors.find_refusal(mechanism.name, None, not_applicable))
            yield mechanism.name, _find_reason(mechanism.details, needs_weights)


def _find_reason(details: MechanismDetails, needs_weights: bool) -> str:
    if not details.causal:
        return "not causal"
    if details.parameters or needs_weights:
        return "needs its own trained weights"
    return "not measured in this model" if details.cross else "uses the keys as queries"
