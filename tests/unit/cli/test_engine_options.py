"""Options of engines, and the commands of Slurm's jobs."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from efficient_attn.cli import engine_options
from efficient_attn.cli.parser import make_parser
from efficient_attn.cli.split import select_arguments
from efficient_attn.errors import UsageError


def _parse(*arguments: str) -> Namespace:
    parser = make_parser()
    return Namespace(**vars(parser.parse_args(["run", *arguments])), arguments=["run", *arguments])


def test_options_that_do_not_belong_to_the_plan_are_left_out() -> None:
    text = "quickstart --seq-len 64 --out x --resume --engine slurm --nodes 3 --slurm partition=a --slurm time=60 "
    text += "--jobs 2 --timeout=5 --variant full --retry-failed --json --memory-limit 1GB --plugin a.py"
    arguments = text.split()
    selected = list(select_arguments(arguments, engine_options.WITH_VALUE, engine_options.FLAGS))
    assert selected == ["quickstart", "--seq-len", "64", "--variant", "full", "--plugin", "a.py"]


def test_limits_plug_ins_and_the_state_of_a_part_go_to_its_command(tmp_path: Path) -> None:
    text = "quickstart --engine slurm --nodes 2 --jobs 2 --timeout 5 --memory-limit 1.5GiB --plugin a.py --resume"
    text += " --retry-failed"
    options = text.split()
    args = _parse(*options, "--out", str(tmp_path / "out"))
    part, run = tmp_path / "1.json", tmp_path / "1"
    command = engine_options._make_command(args, part, run)
    start = ["-m", "efficient_attn", "run", "--plan-part", str(part), "--out", str(run)]
    assert command[1:] == [*start, "--timeout=5.0", f"--memory-limit={1536 * 2**20}", "--jobs=2", "--plugin", "a.py"]
    again = _parse(*command[4:])
    assert (again.timeout, again.memory_limit, again.jobs) == (args.timeout, args.memory_limit, args.jobs)
    run.mkdir()
    assert engine_options._make_command(args, part, run)[-2:] == ["--resume", "--retry-failed"]


@pytest.mark.parametrize("status", ["2", "killed"])
def test_a_failed_part_stops_the_merge_and_keeps_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: str
) -> None:
    from efficient_attn.engines import slurm

    def run_jobs(commands: Any, folder: Path, parameters: Any) -> Any:
        yield 1, 1
        yield 0, int(status) if status.isdigit() else status

    monkeypatch.setattr(slurm, "run_jobs", run_jobs)
    options = ["quickstart", "--quick", "--seq-len", "64", "--variant", "full", "--part", "length"]
    args = _parse(*options, "--engine", "slurm", "--nodes", "2", "--out", str(tmp_path / "out"))
    from efficient_attn.cli.verbs import plan_cases

    with pytest.raises(UsageError, match=rf"out.parts/1 failed: {status}; all rows are kept; continue with --resume"):
        engine_options.run_by_slurm(args, plan_cases(args))
    assert capsys.readouterr().err.splitlines() == [
        f"[1/2] {tmp_path}/out.parts/2: finished",
        f"[2/2] {tmp_path}/out.parts/1: failed: {status}",
    ]
    assert not (tmp_path / "out").exists()
