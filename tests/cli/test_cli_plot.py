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
    assert output["files"] == [str(out)]
    assert "machine AMD-Zen4" in output["place"]
    assert "AMD Zen 4 (2 cores)" in output["caption"]
    assert any("Ours 0.7" in note for note in output["notes"])
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
        (["--figure", "speed", "--heads", "4,5"], "no row has heads 5; the rows have 4"),
        (["--figure", "speed", "--seq-len", "7K"], "no row has seq-len 7168; the rows have"),
        (["--figure", "speed", "--mode", "forwards"], "did you mean 'forward'"),
        (["--figure", "ability"], "no data for --figure ability: no model was trained"),
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


def test_several_values_are_shown_side_by_side(command: Command, tmp_path: Path) -> None:
    runs = (RESULTS / "promises_zen4", RESULTS / "promises_xeon")
    out = tmp_path / "t.tex"
    done = command("plot", *runs, "--figure", "speed", "--machine", "Zen 4", "--machine", "Emerald", "--out", out)
    assert done.code == 0
    assert "AMD Zen 4 (2 cores)" in out.read_text()
    assert "Intel Emerald Rapids (2 cores)" in out.read_text()
    modes = ("--mode", "forward,decode", "--causal", "--no-causal")
    done = command("plot", runs[0], "--figure", "speed", *modes, "--out", out)
    assert done.code == 0
    assert "no data: mode decode, causal False" in done.out


def test_a_picture_of_many_rows_has_several_files(command: Command, tmp_path: Path) -> None:
    arguments = ("--figure", "error", "--causal", "--seq-len", "2K", "--out", tmp_path / "e.svg")
    done = command("plot", RESULTS / "fidelity_long", *arguments)
    assert done.code == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"e-{number}.svg" for number in range(1, len(names) + 1)]
    assert len(names) > 1
    assert f"figure: {tmp_path / 'e-1.svg'}" in done.out


def test_mechanisms_without_room_are_listed_once(command: Command, tmp_path: Path) -> None:
    arguments = ("plot", RESULTS / "linear_xeon", "--figure", "speed", "--out")
    done = command(*arguments, tmp_path / "s.svg")
    assert done.code == 0
    (note, hint) = [line for line in done.out.splitlines() if line.startswith(("note: Not shown", "choose"))]
    assert hint == "choose the mechanisms to show with --only"
    assert all(done.out.count(name) == 1 for name in note.removeprefix("note: Not shown: ").rstrip(".").split(", "))
    for more in (["--only", "linear"], ["--format", "tex"]):
        done = command(*arguments, tmp_path / f"t.{more[-1].replace('linear', 'svg')}", *more)
        assert done.code == 0
        assert "with --only" not in done.out


def test_the_former_name_of_the_error_figure(command: Command, tmp_path: Path) -> None:
    done = command("plot", RESULTS / "linear_xeon", "--figure", "loss", "--out", tmp_path / "e.tex")
    assert done.code == 0
    assert "--figure loss is now --figure error" in done.err
    assert (tmp_path / "e.tex").exists()
