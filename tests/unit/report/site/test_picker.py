"""Data of the picker: measured answers, and interpolated ones, which are marked."""

from __future__ import annotations

import math
from typing import Any

import pytest
import report_runs as runs

from efficient_attn.report.answers.cost_curves import CostAtLength, CostCurve, RowReference
from efficient_attn.report.comparable_quality import MeasuredQuality, QualityConditions, QualityFigure, QualitySet
from efficient_attn.report.site.group_results import GroupResult, TimedMechanism
from efficient_attn.report.site.picker import make_picker
from efficient_attn.results.stats import Estimate

CONFIG = {
    "machine": "m", "device": "cpu", "dtype": "float32", "threads": 1, "batch": 1, "heads": 4, "head_dim": 64,
    "inputs": None, "cache": "warm", "compiled": False, "cuda_graph": False, "mode": "forward", "causal": False,
    "baseline": "full", "baseline_kv_heads": 4,
}  # fmt: skip
ERRORS = {"full": None, "linear": 0.6, "window": 0.05, "late": 0.05, "hashed": 0.06, "lost": None}
KEPT, UNKNOWN, CASES = 5, 6, 7


def _make_errors(length: int = 4096, *, causal: bool = False) -> MeasuredQuality:
    figures = {
        name: QualityFigure("error", error, "", layer_errors=(error,))
        for name, error in ERRORS.items()
        if error is not None
    }
    return MeasuredQuality((QualitySet(QualityConditions("minilm@1", length, causal, (0, 2)), figures),))


def _make_group(length: int) -> GroupResult:
    rows = [
        runs.row(name, mode="forward", machine="m", seq_len=length, latency_ms=0.001 * length * at,
                 latency_ms_low=0.00099 * length * at, latency_ms_high=0.00101 * length * at)
        for at, name in enumerate(ERRORS, 1)
    ]  # fmt: skip
    cases = [TimedMechanism(row.variant, row, "an error", None) for row in rows]
    return GroupResult((), length, "there", tuple(cases))


def _curve(name: str, at: int, lengths: tuple[int, ...], length_ms: float = 0.001) -> CostCurve:
    points = []
    for n in lengths:
        ms = length_ms * n * at
        sources = (RowReference("run", f"{name}/{n}", n),)
        speedup, latency = Estimate(1 / at, 0.9 / at, 1.1 / at), Estimate(ms, ms / 1.05, ms * 1.05)
        points.append(CostAtLength(n, speedup, latency, Estimate(4.0 * n), None, sources))
    return CostCurve(name, 4, {"variant": name}, tuple(points))


def _pick(
    lengths: tuple[int, ...],
    curves: list[CostCurve],
    errors: MeasuredQuality | None = None,
    **config: Any,
) -> tuple[dict[int, list[Any]], list[str]]:
    groups, links = [_make_group(n) for n in lengths], {"full": "m/full.html"}
    made = make_picker(groups, [(CONFIG | config, curves)], errors or _make_errors(), links, {})
    return {cell[3]: cell for cell in made["answers"]}, made["texts"]


def test_powers_of_two_between_measured_lengths_are_interpolated() -> None:
    curves = [_curve(name, at, (512, 4096)) for at, name in enumerate(ERRORS, 1)]
    cells, texts = _pick((512, 4096), curves)
    assert list(cells) == [512, 1024, 2048, 4096]
    for length, cell in cells.items():
        between = {texts[case[9]] for case in cell[CASES]}
        times = {texts[case[4]].startswith("\u2248 ") for case in cell[CASES]}
        interpolated = length in (1024, 2048)
        assert (between, times) == (({"512 and 4K"}, {True}) if interpolated else ({""}, {False}))


def test_interpolated_times_are_those_of_recommend() -> None:
    curves = [_curve(name, at, (512, 4096)) for at, name in enumerate(ERRORS, 1)]
    cells, texts = _pick((512, 4096), curves)
    first = cells[1024][CASES][0]
    taken = curves[0].estimate(1024)
    assert not isinstance(taken, str)
    assert (texts[first[0]], first[2], first[3]) == (
        "full",
        float(f"{taken.latency.value:.6g}"),
        round(taken.half_width, 4),
    )
    assert first[3] > cells[512][CASES][0][3]
    assert cells[512][CASES][0][3] == round(math.log(1.01 / 0.99) / 2, 4)
    assert texts[first[5]] == "1.00x"
    assert texts[first[8]] == "\u2248 4.00 KiB (3.20 KiB\u20135.00 KiB)"


def test_measured_cases_in_interpolated_answers_are_marked() -> None:
    curves = [
        _curve(name, at, (512, 1024, 4096) if name == "linear" else (512, 4096)) for at, name in enumerate(ERRORS, 1)
    ]
    cells, texts = _pick((512, 4096), curves)
    between = {texts[case[0]]: texts[case[9]] for case in cells[1024][CASES]}
    assert between == {name: "" if name == "linear" else "512 and 4K" for name in ("full", "linear", "window", "late")}


def test_counts_cover_all_mechanisms_but_few_are_stored() -> None:
    cells, texts = _pick((512,), [])
    (cell,) = cells.values()
    assert (cell[KEPT], cell[UNKNOWN]) == ([6, 1, 4, 4], 1)
    # full, linear and window whatever they lose; full, window and late with an error of at most 0.1
    assert [texts[case[0]] for case in cell[CASES]] == ["full", "linear", "window", "late"]
    assert texts[cell[CASES][0][1]] == "m/full.html"


def test_unusual_configurations_and_few_mechanisms_give_no_answer() -> None:
    curves = [_curve(name, at, (512, 4096)) for at, name in enumerate(ERRORS, 1)]
    assert list(_pick((512, 4096), curves, compiled=True)[0]) == [512, 4096]
    assert list(_pick((512, 4096), curves, machine="another")[0]) == [512, 4096]
    assert list(_pick((512, 4096), curves[:2])[0]) == [512, 4096]
    assert list(_pick((512, 4096), [_curve(n, 1, (512,)) for n in ERRORS])[0]) == [512, 4096]


@pytest.mark.parametrize(
    ("measured_length", "causal", "verified"),
    [(4096, False, True), (256, False, True), (255, False, False), (4096, True, False)],
)
def test_bounds_count_errors_of_the_direction_at_half_the_length_or_more(
    measured_length: int, causal: bool, verified: bool
) -> None:
    cells, texts = _pick((512,), [], _make_errors(measured_length, causal=causal))
    direction = "causal" if causal else "bidirectional"
    text = f"relative error 0.600 (MiniLM, N = {measured_length:,}, {direction}, mean over 2 layers)"
    linear = next(case for case in cells[512][CASES] if texts[case[0]] == "linear")
    assert cells[512][KEPT] == ([6, 1, 4, 4] if verified else [6, 1, 1, 1])  # any, exact, at most 0.1, at most 0.5
    assert cells[512][UNKNOWN] == (1 if verified else 5)
    assert linear[6] == (0.6 if verified else None)
    assert texts[linear[7]] == (text if verified else f"{text}; not verified at 512")


def test_interpolated_answers_verify_errors_at_their_own_length() -> None:
    curves = [_curve(name, at, (512, 4096)) for at, name in enumerate(ERRORS, 1)]
    cells, _ = _pick((512, 4096), curves, _make_errors(512))
    assert {length: cell[KEPT][-1] for length, cell in cells.items()} == {512: 4, 1024: 4, 2048: 1, 4096: 1}
