"""Conditions on columns: matching rows, and unknown columns."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import TypeAdapter

from efficient_attn.errors import UsageError
from efficient_attn.report.claims.row_query import Query, check_columns, check_conditions, find_bounds, matches

CELLS = {"variant": "performer:n_features=256", "seq_len": 1024, "causal": True, "threads": 1, "layer": None}


def _query(**conditions: Any) -> Query:
    return TypeAdapter(Query).validate_python(conditions)


@pytest.mark.parametrize(
    ("query", "meets"),
    [
        ({"seq_len": 1024}, True),
        ({"seq_len": 1025}, False),
        ({"seq_len": {"at_least": 1024}}, True),
        ({"seq_len": {"at_most": 1023}}, False),
        ({"seq_len": [512, {"at_least": 4}.get("at_least", 0), 1024]}, True),
        ({"variant": "performer:*"}, True),
        ({"variant": "performer"}, False),
        ({"variant": "*=25?"}, False),  # only a star stands for anything
        ({"variant": ["linear", "performer:*"]}, True),
        ({"causal": True}, True),
        ({"threads": True}, False),  # a number is no truth
        ({"layer": 0}, False),
        ({"layer": {"at_least": 0}}, False),  # an empty cell meets nothing
        ({"seq_len": 1024, "causal": False}, False),
        ({}, True),
    ],
)
def test_rows_match_conditions(query: dict[str, Any], meets: bool) -> None:
    assert matches(CELLS, _query(**query)) is meets


def test_unknown_columns_are_reported_with_the_nearest_one() -> None:
    check_columns(["variant", "swap.loss"])
    with pytest.raises(UsageError, match=r"unknown column 'varient'; did you mean 'variant'\?"):
        check_columns(["varient"])


@pytest.mark.parametrize("query", [{"variant": 3}, {"seq_len": "1K"}, {"causal": 1}, {"variant": {"at_least": 1}}])
def test_a_condition_of_another_type_is_an_error(query: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="holds"):
        check_conditions(_query(**query))


def test_bounds_depend_on_the_column() -> None:
    assert find_bounds("latency_ms") == (0, math.inf)
    assert find_bounds("accuracy") == find_bounds("swap.agreement") == (0, 1)
    assert find_bounds("cosine_similarity") == (-1, 1)
    assert find_bounds("complexity.time_exponent") == (-math.inf, math.inf)
    with pytest.raises(UsageError, match="variant holds strings"):
        find_bounds("variant")
