"""The tables of a suite's file: what they hold, and what they refuse by themselves."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from efficient_attn.bench.planning.request import DEFAULTS
from efficient_attn.bench.planning.suite_schema import Axes, Design, DimsTable, GridTable, Part, ShapeTable, Variant


def test_every_axis_has_a_default() -> None:
    assert Axes.model_fields.keys() == DEFAULTS.keys()
    assert ShapeTable.model_fields.keys() < DEFAULTS.keys()


def test_axes_that_vary_are_those_of_several_values() -> None:
    assert Axes(seq_len=(8, 16), heads=(2,), causal=(True, True), threads=(1, 2)).varied == ("seq_len", "threads")
    assert Axes().varied == ()


@pytest.mark.parametrize(
    ("table", "given", "where"),
    [
        (Axes, {"seq_len": []}, "seq_len"),
        (Axes, {"seq_len": [0]}, "seq_len"),
        (Axes, {"seq_len": 8}, "seq_len"),
        (Axes, {"heads": [2.5]}, "heads"),
        (Axes, {"cache": ["hot"]}, "cache"),
        (Axes, {"lengths": [8]}, "lengths"),
        (DimsTable, {"seq_len": 8}, "seq_len"),
        (ShapeTable, {"head_dim": "8"}, "head_dim"),
        (Design, {"points": 1}, "points"),
        (Design, {"points": 8, "seed": -1}, "seed"),
        (Variant, {"option": {}}, "option"),
        (GridTable, {"variant": []}, "variant"),
        (GridTable, {"measure": []}, "measure"),
        (Part, {}, "name"),
    ],
)
def test_what_a_table_cannot_hold_is_refused_by_its_place(
    table: type[BaseModel], given: dict[str, Any], where: str
) -> None:
    with pytest.raises(ValidationError) as told:
        table.model_validate(given)
    assert where in {problem["loc"][0] for problem in told.value.errors()}


def test_budgets_are_read_without_the_space_around_them() -> None:
    assert Axes.model_validate({"budget": [" N/16 ", "192KiB"]}).budget == ("N/16", "192KiB")


def test_a_part_is_a_grid_with_a_name() -> None:
    assert Part.model_fields.keys() - GridTable.model_fields.keys() == {"name"}
    part = Part.model_validate({"name": "p", "shapes": [{"seq_len": 8, "heads": 2}], "block": [{"name": "gru"}]})
    assert part.shapes == (ShapeTable(seq_len=8, heads=2),)
    assert part.block == (Variant(name="gru"),)
    assert part.variant is None
