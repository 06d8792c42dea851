"""Crossover lengths: measured, interpolated, and undecided ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_runs as runs
from hypothesis import given
from hypothesis import strategies as st

from efficient_attn.report import approximation_errors, gather, select
from efficient_attn.report.answers.crossovers import (
    Crossover,
    find_crossover,
    find_last_rise,
    format_crossover,
    format_interpolation,
)
from efficient_attn.report.answers.decision_table import split_tables
from efficient_attn.units import INTERVAL_DASH

NAN = float("nan")


def read(lengths: list[int], lows: list[float], highs: list[float]) -> Crossover | None:
    middle = [math.sqrt(low * high) if low == low else NAN for low, high in zip(lows, highs, strict=True)]
    columns = {"seq_len": lengths, "speedup": middle, "speedup_low": lows, "speedup_high": highs}
    return find_crossover({name: np.array(values, dtype=float) for name, values in columns.items()})


@pytest.mark.parametrize(
    ("lows", "highs", "kind", "said"),
    [
        ([1.1, 2.0, 3.0], [1.2, 2.1, 3.1], "always", "<=512"),
        ([0.5, 1.2, 3.0], [0.6, 1.3, 3.1], "from", f"512{INTERVAL_DASH}1K"),
        ([0.5, 0.9, 3.0], [0.6, 1.1, 3.1], "from", f"512{INTERVAL_DASH}2K"),
        ([0.9, 0.9, 3.0], [1.1, 1.1, 3.1], "from", "by 2K"),
        ([0.5, 0.6, 0.7], [0.6, 0.7, 0.8], "never", "none up to 2K"),
        ([0.5, 0.6, 0.9], [0.6, 0.7, 1.1], "undecided", "unclear up to 2K"),
        ([1.5, 1.6, 0.9], [1.6, 1.7, 0.95], "undecided", "only at 512 and 1K"),
    ],
)
def test_crossovers_as_text(lows: list[float], highs: list[float], kind: str, said: str) -> None:
    found = read([512, 1024, 2048], lows, highs)
    assert found
    assert (found.kind, format_crossover(found)) == (kind, said)


def test_the_crossover_is_interpolated_in_logarithms() -> None:
    found = read([512, 1024, 2048], [0.4, 0.5 / 1.1, 2 / 1.1], [0.5, 0.5 * 1.1, 2 * 1.1])
    assert found
    assert (found.last_slower, found.first_faster) == (1024, 2048)
    assert found.estimate == pytest.approx(1024 * math.sqrt(2))
    assert format_interpolation(found) == f"about 1448 (1381{INTERVAL_DASH}1519)"


def test_open_ends_of_an_interval_are_described() -> None:
    found = read([512, 1024], [0.9, 1.5], [1.05, 1.6])
    assert found
    assert found.low is None
    assert format_interpolation(found).startswith("about 534 (shorter")


@pytest.mark.parametrize("lows", [[], [NAN, NAN]])
def test_speedups_without_intervals_have_no_crossover(lows: list[float]) -> None:
    assert read([512, 1024][: len(lows)], lows, lows) is None


points = st.lists(
    st.tuples(st.floats(0.05, 20), st.floats(1, 3), st.floats(1, 3)), min_size=1, max_size=7
)  # a speedup, and by what its interval's ends are apart from it


@given(points)
def test_a_crossover_lies_in_its_bracket(curve: list[tuple[float, float, float]]) -> None:
    lengths = [256 * 2**i for i in range(len(curve))]
    found = find_crossover({
        "seq_len": np.array(lengths, dtype=float),
        "speedup": np.array([value for value, _, _ in curve]),
        "speedup_low": np.array([value / down for value, down, _ in curve]),
        "speedup_high": np.array([value * up for value, _, up in curve]),
    })  # fmt: skip
    assert found
    ends = [found.last_slower or 0, found.low or 0, found.estimate or 0, found.high or 0]
    if found.first_faster is not None:
        assert ends == sorted(ends)
        assert ends[-1] <= found.first_faster
        shown = [low > 1 for low in (value / down for value, down, _ in curve)]
        assert all(faster for length, faster in zip(lengths, shown, strict=True) if length >= found.first_faster)
        assert (found.kind == "always") == all(shown)
    else:
        assert found.kind in ("never", "undecided")
    assert (found.kind == "never") <= (curve[-1][0] < 1 and not found.faster_lengths)


@given(st.floats(0.2, 5), st.floats(0.2, 3))
def test_the_crossover_of_a_power_law_is_exact(middle: float, slope: float) -> None:
    lengths, at = [128.0 * 2**i for i in range(8)], 1024 * middle
    values = [(length / at) ** slope for length in lengths]
    assert find_last_rise(lengths, values) == pytest.approx(at)


def test_curves_of_different_configurations_are_not_mixed(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run", [*runs.speed(), *runs.speed(causal=True, threads=2), *runs.decode()])
    crossovers: dict[Any, Crossover] = {}
    labeled = approximation_errors.add_errors(select.add_labels(gather.gather([run]).rows))
    for config, baseline, rows, _ in split_tables(labeled):
        assert baseline == "full"
        for label, columns in select.split_variants(rows[~rows["is_baseline"].astype(bool)]).items():
            key = label, config["mode"], config["causal"], config["threads"]
            crossover = find_crossover(columns)
            assert key not in crossovers
            assert crossover is not None
            crossovers[key] = crossover
    assert len(crossovers) == 3 + 3 + 2
    linear = next(crossover for key, crossover in crossovers.items() if key[:2] == ("linear", "forward"))
    assert linear.kind == "always"
