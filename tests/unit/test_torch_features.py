"""The table of torch features: complete, correct, and with failures of probes shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch_features
from markdown_tables import parse_table

import efficient_attn as ea

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "torch-features.md"


def test_the_page_has_every_mechanism_and_every_column() -> None:
    found = parse_table(PAGE.read_text(encoding="utf-8"))
    assert list(found) == [*ea.names(), *torch_features.OPTION_SPECS], f"run: {torch_features.COMMAND}"
    assert {tuple(row) for row in found.values()} == {tuple(n.replace("_", " ") for n in torch_features.ALL_PROBES)}
    assert not [
        spec for spec, row in found.items() for cell in row.values() if cell.startswith(torch_features.FAILURE_PREFIX)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["full", "performer", "linformer:share=none"])
def test_the_page_agrees_with_the_probes(spec: str) -> None:
    probes = {name: torch_features.ALL_PROBES[name] for name in ("pickle", "dropout")}
    actual, written = (
        parse_table(torch_features.make_table([spec], probes))[spec],
        parse_table(PAGE.read_text(encoding="utf-8"))[spec],
    )
    assert actual == {name: written[name] for name in probes}


def test_a_probe_that_raises_is_shown_and_sets_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    def raises(spec: str) -> str:
        raise ValueError("not\ntoday | or ever")

    probes = {"fine": lambda spec: "yes", "raises": raises}
    assert torch_features.main(["full"], probes) == 1
    output = capsys.readouterr().out
    assert "| spec | fine | raises |" in output
    assert "| `full` | yes | fails: ValueError: not today \\| or ever |" in output
    assert torch_features.main(["full"], {"fine": probes["fine"]}) == 0
