"""Commands as jobs of Slurm, through submitit, or as processes of this machine by its local executor."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ..errors import UsageError
from .worker import end_with_parent

POLL_S = 2.0
DEFAULT_MINUTES = 24 * 60  # of a job, unless ``time`` is given
CLUSTER = "cluster"  # a parameter of submitit itself: "slurm" or "local"


def run_command(command: Sequence[str]) -> int:
    """In a job: run a command, which is terminated if the job ends, and return its exit status."""
    terminate = partial(end_with_parent, signal.SIGTERM)
    return subprocess.run(list(command), check=False, preexec_fn=terminate).returncode


@contextmanager
def _take_interrupts() -> Iterator[None]:
    """Processes that start meanwhile can be interrupted, by which submitit cancels local ones, even if this one ignores
    interrupts, as programs in the background of a shell do."""
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if not is_ignored or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_jobs(
    commands: Sequence[Sequence[str]], folder: Path, parameters: Mapping[str, str]
) -> Generator[tuple[int, int | str], None, None]:
    """Run each command in a job, and yield its number and exit status, or why it has none, as they end. Jobs are
    cancelled when the iterator is closed.

    folder: of submitit's logs, on a disk that all machines share. parameters: of ``sbatch``, without dashes, "true" for
    those without a value, and ``cluster``, "slurm" (default) or "local". Raises `UsageError` without submitit or Slurm,
    or for wrong parameters.
    """
    try:
        import submitit
    except ImportError:
        raise UsageError('--engine slurm: needs submitit: python -m pip install "efficient-attn[slurm]"') from None
    options = {name.lstrip("-").replace("-", "_"): value for name, value in parameters.items()}
    cluster = options.pop(CLUSTER, "slurm")
    if cluster not in ("slurm", "local"):
        raise UsageError(f"--slurm {CLUSTER}={cluster}: must be slurm or local")
    if options and cluster == "local":
        raise UsageError(
            f"--slurm {min(options)}={options[min(options)]}: the local executor does not know it; remove it"
        )
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        executor.update_parameters(timeout_min=DEFAULT_MINUTES)
        if cluster == "slurm":
            flags: dict[str, str | bool] = {name: value == "true" or value for name, value in options.items()}
            executor.update_parameters(slurm_additional_parameters=flags)
        with _take_interrupts():
            jobs = [executor.submit(run_command, command) for command in commands]
    except (RuntimeError, ValueError, OSError) as error:
        raise UsageError(f"--engine slurm: {' '.join(str(error).split())[:300]}") from error
    pending = dict(enumerate(jobs))
    try:
        while pending:
            for number, job in list(pending.items()):
                if job.done():
                    del pending[number]
                    try:
                        yield number, job.result()
                    except Exception as error:  # of the job's process: killed, out of time, or cancelled
                        yield number, f"{' '.join(str(error).split())[:200]}; log: {job.paths.stderr}"
            time.sleep(POLL_S if cluster == "slurm" else 0.1)
    finally:
        for job in pending.values():
            job.cancel()
