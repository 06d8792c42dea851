"""What pydantic finds, in one line."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from efficient_attn.complaints import in_one_line


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid")

    length: int
    how: Literal["every", "typical"] = "every"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"lenght": 3}, "top level: unknown key 'lenght'; did you mean 'length'? (choices: how, length)"),
        ({}, "length is missing"),
        ({"length": []}, "length: Input should be a valid integer, got []"),
        ({"length": 1, "how": "evry"}, "how: unknown value 'evry'; did you mean 'every'? (choices: every, typical)"),
    ],
)
def test_a_problem_names_its_place_and_the_nearest_choice(said: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        _Table.model_validate(said)
    assert str(in_one_line("a.toml", caught.value, lambda table: _Table.model_fields)) == f"a.toml: {told}"
