"""publish through the real command."""

from __future__ import annotations

import json
from pathlib import Path

import report_runs as runs
from shell import Command


def test_a_site_is_made_and_foreign_folders_are_left_alone(command: Command, tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "one", [*runs.speed(lengths=(512, 1024)), *runs.fidelity()])
    done = command("publish", run, "--site", tmp_path / "site", "--json")
    assert (done.code, done.err) == (0, "")
    told = json.loads(done.out)
    assert told["runs"] == 1
    assert (tmp_path / "site" / "index.html").is_file()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("mine")
    done = command("publish", run, "--site", tmp_path / "other")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "thesis.tex, not made by efficient-attn" in done.err
    assert command("publish", tmp_path / "nothing").code == 2
