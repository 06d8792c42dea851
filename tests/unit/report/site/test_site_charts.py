"""The front page's chart, and why a mechanism is not in it; plots over length on a mechanism's page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import pandas as pd
import report_runs as runs

from efficient_attn.report import select
from efficient_attn.report.gather import Frame
from efficient_attn.report.site.site_charts import MechanismPlots, draw_plots, make_front_chart, split_by_mechanism
from efficient_attn.report.site.site_data import MechanismDetails, SiteMechanism

LOSSES = {"full": 3.0, "linear": 6.0, "sliding_window:window=128": 3.1}


def _swapped(losses: dict[str, float], length: int = 8192, run_id: str = "swap-1") -> Iterable[dict[str, object]]:
    for variant, loss in losses.items():
        for segment in range(2):
            row = runs.row(
                variant, task="swap", mode="prefill", inputs="smollm2@1", seq_len=length, causal=True, baseline="full",
                latency_ms=10.0 - loss, run_id=run_id,
            )  # fmt: skip
            values = {"swap.loss": loss + segment, "swap.divergence": loss - 3.0, "swap.segment": segment}
            yield asdict(row) | values | {"swap.attention_share": 0.5, "baseline_kv_heads": 4}


def _frame(rows: Iterable[dict[str, object]]) -> Frame:
    frame = pd.DataFrame(list(rows))
    return select.add_labels(frame.assign(started=frame["run_id"].str.removesuffix(" resumed")))


def _mechanism(name: str, **details: object) -> SiteMechanism:
    return SiteMechanism(name, "sparse", "", MechanismDetails(**details))  # type: ignore[arg-type]


def test_the_run_with_most_mechanisms_at_the_longest_length_is_drawn() -> None:
    few = {name: LOSSES[name] for name in ("full", "linear")}
    rows = [
        *_swapped(few, run_id="few"),
        *_swapped(LOSSES),
        *_swapped(LOSSES, 2048, "short"),
        *_swapped(LOSSES, 16384, "long"),
    ]
    chart = make_front_chart(_frame(rows), [])
    assert chart is not None
    assert chart.run_id == "swap-1"
    assert "SmolLM2-135M, N = 8,192, causal" in chart.plots[0].panel.title
    assert {"linear", "sliding_window:window=128"} <= {line.label for line in chart.plots[0].panel.lines}


def test_many_mechanisms_are_drawn_in_parts() -> None:
    losses = LOSSES | {f"sliding_window:window={2 * i}": 3.2 + i / 100 for i in range(20)}
    chart = make_front_chart(_frame(_swapped(losses)), [])
    assert chart is not None
    assert [plot.panel.title.rpartition(", ")[2] for plot in chart.plots] == ["1 of 2", "2 of 2"]
    labels = [line.label for plot in chart.plots for line in plot.panel.lines if line.label]
    assert sorted(labels) == sorted(losses)


def test_a_resumed_run_is_one() -> None:
    rows = list(_swapped(LOSSES))
    rows[-1] |= {"run_id": "swap-1 resumed"}
    rows[1] |= {"run_id": "swap-1 resumed"}
    chart = make_front_chart(_frame(rows), [])
    assert chart is not None
    assert sorted(line.label for line in chart.plots[0].panel.lines) == sorted(LOSSES)


def test_the_reasons_come_from_traits_and_rows() -> None:
    mechanisms = [
        _mechanism("linear"), _mechanism("linformer", causal=False, parameters=9), _mechanism("additive", parameters=9),
        _mechanism("gqa"), _mechanism("reformer", cross=False), _mechanism("taylor"), _mechanism("peer_x"),
        SiteMechanism("unknown", "sparse", ""),
    ]  # fmt: skip
    chart = make_front_chart(_frame(_swapped(LOSSES)), mechanisms)
    assert chart is not None
    assert chart.left_out == {
        "not causal": ["linformer"],
        "needs its own trained weights": ["additive", "gqa"],
        "uses the keys as queries": ["reformer"],
        "not measured in this model": ["taylor"],
    }


def test_without_two_mechanisms_in_a_model_there_is_no_chart() -> None:
    assert make_front_chart(_frame(_swapped({"full": 3.0})), []) is None
    assert (
        make_front_chart(_frame(asdict(record.row) | {"baseline_kv_heads": 4} for record in runs.speed()), []) is None
    )


MACHINES = {"Xeon-x2-15GiB": "Xeon", "B": "B"}


def _timed(records: Iterable[runs.Record]) -> Frame:
    rows = pd.DataFrame([asdict(record.row) | {"baseline": record.row.baseline or "full"} for record in records])
    return select.add_labels(rows.assign(baseline_kv_heads=4))


def _draw(records: Iterable[runs.Record], name: str = "linear") -> MechanismPlots | None:
    rows = _timed(records)
    return draw_plots(split_by_mechanism(rows)[name], rows, MACHINES)


def _list_titles(found: MechanismPlots | None) -> list[str]:
    return [plot.panel.title for plot in found.plots] if found else []


def test_speedup_time_and_memory_are_drawn_over_length() -> None:
    found = _draw([*runs.speed(), *runs.speed(lengths=(64,), machine="B"), *runs.speed(causal=True, lengths=(64, 128))])
    assert found is not None
    assert found.note == "Xeon, cpu, float32, 1 thread, batch 1, 4 heads of size 64"
    slices = [f"{kind}: forward, bidirectional" for kind in ("Speedup", "Time", "Peak memory")]
    assert _list_titles(found) == slices
    labels = [[line.label for line in plot.panel.lines] for plot in found.plots]
    assert labels == [["linear"], ["full", "linear"], ["full", "linear"]]


def test_mechanisms_timed_with_another_baseline_only_are_not_drawn_next_to_those_with_a_speedup() -> None:
    others = [record for record in runs.speed() if record.row.variant == "linear"]
    for record in others:
        record.row.variant, record.row.baseline = "linear:eps=0.1", "peer_x"
    found = _draw([*runs.speed(), *others])
    assert found is not None
    assert [line.label for line in found.plots[1].panel.lines] == ["full", "linear"]


def test_decoding_has_its_state() -> None:
    assert _list_titles(_draw(runs.decode(), "mqa")) == ["Speedup: decode", "Time: decode", "State: decode"]


def test_one_length_has_no_plots_and_exact_attention_no_speedup() -> None:
    assert _draw(runs.speed(lengths=(64,))) is None
    assert _list_titles(_draw(runs.speed(), "full")) == [
        "Time: forward, bidirectional",
        "Peak memory: forward, bidirectional",
    ]


def test_speedups_over_other_mechanisms_are_left_out() -> None:
    records = list(runs.speed())
    for record in records:
        record.row.baseline = "peer_x"
    assert _list_titles(_draw(records)) == ["Time: forward, bidirectional", "Peak memory: forward, bidirectional"]
