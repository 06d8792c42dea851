"""plot through the real command: files for a paper, and what cannot be drawn in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shell import Command

RESULTS = Path(__file__).parents[2] / "results"


def test_a_figure_and_its_table(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "fig" / "speed.pdf"
    asked = ("--figure", "speed", "--label", "linear=Ours", "--highlight", "linear", "--width", "84mm")
    done = command("plot", RESULTS / "quickstart_zen4", *asked, "--out", out, "--json")
    assert (done.code, done.err) == (0, "")
    told = json.loads(done.out)
    assert told["file"] == str(out)
    assert out.read_bytes().startswith(b"%PDF")
    assert "machine AMD-Zen4" in told["place"]
    assert "Ours 0.7" in told["caption"]
    done = command("plot", RESULTS / "quickstart_zen4", *asked, "--out", tmp_path / "speed.tex")
    assert done.code == 0
    assert done.out.startswith("table: ")
    assert r"\textbf{Ours}" in (tmp_path / "speed.tex").read_text()


@pytest.mark.parametrize(
    ("asked", "says"),
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
def test_what_cannot_be_drawn_is_one_line(asked: list[str], says: str, command: Command, tmp_path: Path) -> None:
    before = {*tmp_path.rglob("*")}
    done = command("plot", RESULTS / "quickstart_zen4", *asked)
    assert done.code == 2
    assert says in done.err
    assert done.err.count("\n") == 1
    assert {*tmp_path.rglob("*")} == before


def test_nobody_elses_file_is_written_over(command: Command, tmp_path: Path) -> None:
    theirs = tmp_path / "speed.pdf"
    theirs.write_text("mine")
    done = command("plot", RESULTS / "quickstart_zen4", "--figure", "speed", "--out", theirs)
    assert done.code == 2
    assert "not written by efficient-attn" in done.err
    assert theirs.read_text() == "mine"
