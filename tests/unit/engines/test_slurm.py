"""Commands as jobs, by submitit's local executor: exit statuses, failures, and what is refused."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from efficient_attn.engines.slurm import run_jobs
from efficient_attn.errors import UsageError

pytest.importorskip("submitit")
LOCAL = {"cluster": "local"}


def _python(text: str) -> Sequence[str]:
    return sys.executable, "-c", text


@pytest.mark.slow
def test_jobs_run_at_the_same_time_and_return_their_exit_status(tmp_path: Path) -> None:
    other = "import pathlib, time\nwhile not pathlib.Path({!r}).exists(): time.sleep(.01)"
    path = str(tmp_path / "x")
    commands = [_python(other.format(path)), _python(f"open({path!r}, 'w'); raise SystemExit(1)"), _python("exit(7)")]
    assert sorted(run_jobs(commands, tmp_path / "logs", LOCAL)) == [(0, 0), (1, 1), (2, 7)]


@pytest.mark.slow
@pytest.mark.sampled(3)
def test_a_job_that_is_killed_has_a_reason_and_the_others_go_on(tmp_path: Path) -> None:
    kill = f"import os; os.kill(os.getppid(), {int(signal.SIGKILL)})"
    ended = dict(run_jobs([_python(kill), _python("")], tmp_path / "logs", LOCAL))
    assert ended[1] == 0
    assert isinstance(ended[0], str)
    assert "; log: " in ended[0]


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN], ids=["interruptible", "background"])
def test_jobs_are_cancelled_when_nobody_waits_any_more(tmp_path: Path, handler: Any) -> None:
    wait = f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(300)"
    before = signal.signal(signal.SIGINT, handler)
    try:
        jobs = run_jobs([_python("import time; time.sleep(2)"), _python(wait)], tmp_path / "logs", LOCAL)
        assert next(iter(jobs)) == (0, 0)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    pid = int((tmp_path / "pid").read_text())
    jobs.close()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"cluster": "pbs"}, "--slurm cluster=pbs: must be slurm or local"),
        (LOCAL | {"partition": "gpu"}, "--slurm partition=gpu: the local executor does not know it; remove it"),
        ({}, "--engine slurm: .*srun"),
    ],
)
def test_wrong_parameters_and_no_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parameters: dict[str, str], text: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=text):
        next(iter(run_jobs([_python("")], tmp_path / "logs", parameters)))


def test_options_of_sbatch_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import submitit
    from submitit.slurm.slurm import SlurmExecutor

    scripts: list[str] = []

    def submit(self: SlurmExecutor, command: str) -> object:
        scripts.append(self._make_submission_file_text(command, "1"))
        raise OSError("sbatch: no partition")

    monkeypatch.setattr(SlurmExecutor, "affinity", classmethod(lambda cls: 1))
    monkeypatch.setattr(SlurmExecutor, "_submit_command", submit)
    options = {"partition": "gpu", "--cpus-per-task": "8", "time": "60", "exclusive": "true"}
    assert submitit.__version__
    with pytest.raises(UsageError, match="--engine slurm: sbatch: no partition"):
        next(iter(run_jobs([_python("")], tmp_path / "logs", options)))
    lines = [line.removeprefix("#SBATCH ") for line in scripts[0].splitlines() if line.startswith("#SBATCH")]
    assert {"--partition=gpu", "--cpus-per-task=8", "--time=60", "--exclusive"} <= set(lines)
