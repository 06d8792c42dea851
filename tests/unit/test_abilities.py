"""The table of abilities: every mechanism is in it, what it says is so, and what fails is not hidden."""

from __future__ import annotations

from pathlib import Path

import abilities
import pytest

import efficient_attn as ea

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "torch-features.md"


def rows(text: str) -> dict[str, dict[str, str]]:
    """By spec, what each column says."""
    cells = [[c.strip(" `") for c in line.strip("|").split(" | ")] for line in text.splitlines() if line[:1] == "|"]
    head, _, *body = cells
    return {spec.replace("\\|", "|"): dict(zip(head[1:], row, strict=True)) for spec, *row in body}


def test_the_page_has_every_mechanism_and_every_column() -> None:
    found = rows(PAGE.read_text(encoding="utf-8"))
    assert list(found) == [*ea.names(), *abilities.OPTION_SPECS], f"run: {abilities.COMMAND}"
    assert {tuple(row) for row in found.values()} == {tuple(n.replace("_", " ") for n in abilities.ALL_PROBES)}
    assert not [
        spec for spec, row in found.items() for cell in row.values() if cell.startswith(abilities.FAILURE_PREFIX)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["full", "performer", "linformer:share=none"])
def test_the_page_says_what_is_so(spec: str) -> None:
    own = {name: abilities.ALL_PROBES[name] for name in ("pickle", "dropout")}
    got, told = rows(abilities.make_table([spec], own))[spec], rows(PAGE.read_text(encoding="utf-8"))[spec]
    assert got == {name: told[name] for name in own}


def test_a_probe_that_raises_is_shown_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    def breaks(spec: str) -> str:
        raise ValueError("not\ntoday | or ever")

    probes = {"fine": lambda spec: "yes", "breaks": breaks}
    assert abilities.main(["full"], probes) == 1
    told = capsys.readouterr().out
    assert "| spec | fine | breaks |" in told
    assert "| `full` | yes | fails: ValueError: not today \\| or ever |" in told
    assert abilities.main(["full"], {"fine": probes["fine"]}) == 0
