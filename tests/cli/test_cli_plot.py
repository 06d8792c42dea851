"""The verb plot: figures and tables, and invalid requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shell import Command

RESULTS = Path(__file__).parents[2] / "results"


def test_a_figure_and_its_table(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "fig" / "speed.pdf"
    arguments = ("--figure", "speed", "--label", "linear=Ours", "--highlight", "linear", "--width", "84mm")
    done = command("plot", RESULTS / "quickstart_zen4", *arguments, "--out", out, "--json")
    assert (done.code, done.err) == (0, "")
    output = json.loads(done.out)
    assert output["file"] == str(out)
    assert out.read_bytes().startswith(b"%PDF")
    assert "machine AMD-Zen4" in output["place"]
    assert "Ours 0.7" in output["caption"]
    done = command("plot", RESULTS / "quickstart_zen4", *arguments, "--out", tmp_path / "speed.tex")
    assert done.code == 0
    assert done.out.startswith("table: ")
    assert r"\textbf{Ours}" in (tmp_path / "speed.tex").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--figure", "sped"], "did you mean 'speed'"),
        (["--figure", "speed", "--width", "3"], "is not a width such as 3.3in"),
        (["--figure", "speed", "--width", "90in"], "the width must be 1.5 to 20 inches"),
        (["--figure", "speed", "--out", "speed.jpg"], "the file name has to end in .pdf"),
        (["--figure", "speed", "--out", "speed.png", "--format", "tex"], "the file name has to end in .tex"),
        (["--figure", "speed", "--only", "liner"], "did you mean 'linear'"),
        (["--figure", "memory", "--label", "linear=full"], "two mechanisms have the name"),
        (["--figure", "speed", "--mode", "prefill"], "no row has mode prefill; the rows have"),
        (["--figure", "speed", "--highlight", "gqa"], "unknown mechanism 'gqa'"),
        (["--figure", "speed", "--highlight", "full"], "drawn as the reference level, not as a line"),
        (["--figure", "speed", "--only", "full"], "--only names only mechanisms that are always shown: full"),
    ],
)
def test_invalid_requests_end_in_one_line(arguments: list[str], message: str, command: Command, tmp_path: Path) -> None:
    before = {*tmp_path.rglob("*")}
    done = command("plot", RESULTS / "quickstart_zen4", *arguments)
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1
    assert {*tmp_path.rglob("*")} == before


def test_foreign_files_are_not_overwritten(command: Command, tmp_path: Path) -> None:
    foreign = tmp_path / "speed.pdf"
    foreign.write_text("mine")
    done = command("plot", RESULTS / "quickstart_zen4", "--figure", "speed", "--out", foreign)
    assert done.code == 2
    assert "not written by efficient-attn" in done.err
    assert foreign.read_text() == "mine"
