"""Tables of suite files: accepted and refused values."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from efficient_attn.bench.planning.request import DEFAULTS
from efficient_attn.bench.planning.suite_schema import (
    AxesTable,
    DesignTable,
    DimsTable,
    GridTable,
    ShapeTable,
    SuitePart,
    VariantTable,
)


def test_every_axis_has_a_default() -> None:
    assert AxesTable.model_fields.keys() == DEFAULTS.keys()
    assert ShapeTable.model_fields.keys() < DEFAULTS.keys()


@pytest.mark.parametrize(
    ("table", "values", "key"),
    [
        (AxesTable, {"seq_len": []}, "seq_len"),
        (AxesTable, {"seq_len": [0]}, "seq_len"),
        (AxesTable, {"seq_len": 8}, "seq_len"),
        (AxesTable, {"heads": [2.5]}, "heads"),
        (AxesTable, {"cache": ["hot"]}, "cache"),
        (AxesTable, {"lengths": [8]}, "lengths"),
        (DimsTable, {"seq_len": 8}, "seq_len"),
        (ShapeTable, {"head_dim": "8"}, "head_dim"),
        (DesignTable, {"points": 1}, "points"),
        (DesignTable, {"points": 8, "seed": -1}, "seed"),
        (VariantTable, {"option": {}}, "option"),
        (GridTable, {"variant": []}, "variant"),
        (GridTable, {"measure": []}, "measure"),
        (SuitePart, {}, "name"),
    ],
)
def test_invalid_values_are_refused_with_their_key(table: type[BaseModel], values: dict[str, Any], key: str) -> None:
    with pytest.raises(ValidationError) as error:
        table.model_validate(values)
    assert key in {problem["loc"][0] for problem in error.value.errors()}


def test_budgets_are_stripped_of_whitespace() -> None:
    assert AxesTable.model_validate({"budget": [" N/16 ", "192KiB"]}).budget == ("N/16", "192KiB")


def test_a_part_is_a_grid_with_a_name() -> None:
    assert SuitePart.model_fields.keys() - GridTable.model_fields.keys() == {"name"}
    part = SuitePart.model_validate({"name": "p", "shapes": [{"seq_len": 8, "heads": 2}], "block": [{"name": "gru"}]})
    assert part.shapes == (ShapeTable(seq_len=8, heads=2),)
    assert part.block == (VariantTable(name="gru"),)
    assert part.variant is None
