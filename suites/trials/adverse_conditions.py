"""What do verbs do on a full disk, with little memory, in a folder that the user cannot write, and with a wrong clock?

    python suites/trials/adverse_conditions.py [--only TEXT] [--user nobody]

Needs Linux, root (which mounts a small tmpfs and becomes an ordinary user) and faketime; the user must be able to read
the interpreter. Each verb runs in each condition, and then without it. A fault is a traceback, an unexpected error, an
exit code that is not documented, more than two minutes, or rows that are altered or lost. Prints a table, and exits
with 1 if there is a fault.
"""

from __future__ import annotations

import argparse
import gzip
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import efficient_attn as ea
from efficient_attn.cli import UNEXPECTED

SUITE = """
title      = "A small run"
baseline   = "full"
rounds     = 4
max_rounds = 4
processes  = 2
dims       = { heads = 2, head_dim = 8 }
variant    = [{ name = "full" }, { name = "linear" }]
measure    = ["forward"]
axes       = { seq_len = [16, 32], threads = [1] }
"""
FINISHED = Path(__file__).parents[2] / "results" / "quickstart_zen4"
VERBS = (
    ("run", "suite.toml", "--out", "new", "--resume"),
    ("report", "results/one"),
    ("report", "results/one", "--export", "asv=history"),
    ("plot", "results/one", "--figure", "speed", "--out", "figure.pdf"),
    ("publish", "results/one", "--site", "site"),
    ("compare", "results/one", "results/one"),
    ("compare", "results/one", "results/one", "--junit", "junit.xml"),
    ("recommend", "results/one", "--seq-len", "1024"),
    ("claims", "results/one"),
    ("runs", "results"),
    ("clean", "results"),
    ("new", "mine.py"),
    ("plan", "suite.toml"),
    ("info", "linear"),
    ("list",),
)
FREE_KB = (0, 8, 64, 512)  # on the full disk
MEMORY_MB = (256, 512, 1024, 2048, 4096)  # of address space
CLOCKS = ("-1d", "-40y", "+20y")
CODES = (0, 1, 2, 3)
LIMIT_S = 120.0
SIZE_MB = 48  # of the small disk


@dataclass
class Condition:
    """How a verb is started: a prefix of its command, its user, and the address space that it may use."""

    name: str
    prefix: tuple[str, ...] = ()
    user: str | None = None
    memory_mb: int | None = None
    free_kb: int | None = None
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ending:
    code: int
    message: str
    problem: str | None


def run_verb(arguments: tuple[str, ...], folder: Path, condition: Condition) -> Ending:
    """Run a verb in a condition; its temporary files and caches lie in the folder too."""

    def limit_memory() -> None:
        if condition.memory_mb is not None:
            resource.setrlimit(resource.RLIMIT_AS, (condition.memory_mb * 2**20,) * 2)

    places = {"HOME": str(folder), "TMPDIR": str(folder / "tmp"), "XDG_CACHE_HOME": str(folder / "cache")}
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"} | places | condition.variables
    try:
        done = subprocess.run(
            [*condition.prefix, sys.executable, "-m", "efficient_attn", *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            user=condition.user,
            preexec_fn=limit_memory,
        )
    except subprocess.TimeoutExpired:
        return Ending(-1, "", f"more than {LIMIT_S:.0f} s")
    errors = done.stderr.strip().splitlines()
    problem = None
    if "Traceback (most recent call last)" in done.stderr:
        problem = "a traceback"
    elif UNEXPECTED in done.stderr:
        problem = "an unexpected error"
    elif done.returncode == -signal.SIGABRT and "std::bad_alloc" in done.stderr:
        pass  # torch ends the process where its libraries find no memory; no handler in Python is asked
    elif done.returncode not in CODES:
        problem = f"exit code {done.returncode}"
    elif done.returncode == 2 and not errors:
        problem = "no message"
    return Ending(done.returncode, errors[-1] if errors else "", problem)


@contextmanager
def make_folder(condition: Condition) -> Iterator[Path]:
    """A folder with a finished run: on a small disk of its own, if it is to be full, and read-only for another user."""
    with TemporaryDirectory(prefix="adverse-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        if condition.free_kb is not None:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "tmpfs", name], check=True)
        try:
            for subfolder in ("tmp", "cache", "results"):
                (folder / subfolder).mkdir()
            (folder / "suite.toml").write_text(SUITE)
            yield folder
        finally:
            if condition.free_kb is not None:
                subprocess.run(["umount", "--lazy", name], check=True)


def fill_disk(folder: Path, free_kb: int) -> Path:
    """Fill a disk except for some kilobytes."""
    path = folder / "filler"
    free = os.statvfs(folder)
    with path.open("wb") as file:
        file.write(bytes(free.f_bavail * free.f_frsize - free_kb * 1024))
    return path


def read_rows(folder: Path) -> bytes:
    """The rows of the finished run; `publish` may compress them."""
    path = folder / "results" / "one" / "rows.jsonl"
    return path.read_bytes() if path.exists() else gzip.decompress(path.with_suffix(".jsonl.gz").read_bytes())


def try_verb(arguments: tuple[str, ...], condition: Condition) -> Ending:
    """A verb in a condition, and then without it, in a folder with a copy of a finished run."""
    with make_folder(condition) as folder:
        shutil.copytree(FINISHED, folder / "results" / "one")
        rows = read_rows(folder)
        filler = fill_disk(folder, condition.free_kb) if condition.free_kb is not None else None
        ending = run_verb(arguments, folder, condition)
        if filler is not None:
            filler.unlink()
        if ending.problem is None and read_rows(folder) != rows:
            return Ending(ending.code, ending.message, "rows were altered")
        if arguments[0] == "new" and (folder / "mine.py").exists():
            (folder / "mine.py").unlink()
        again = run_verb(arguments, folder, Condition("none"))
        problem = ending.problem
        if problem is None and again.code != 0:
            problem = f"afterwards: {again.problem or again.message}"
        if problem is None and arguments[0] == "run" and sorted(ea.load(folder / "new").status) != ["ok"] * 4:
            problem = "afterwards: not every case has a row"
        return Ending(ending.code, ending.message, problem)


def main() -> int:
    """Print a line for each verb and condition; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="conditions whose name contains this text")
    parser.add_argument("--user", default="nobody", help="an ordinary user")
    args = parser.parse_args()
    conditions = [
        *(Condition(f"disk full but for {kilobytes} kB", free_kb=kilobytes) for kilobytes in FREE_KB),
        *(Condition(f"{size} MB of address space", memory_mb=size) for size in MEMORY_MB),
        Condition(f"read-only folder, {args.user}", user=args.user),
        *(Condition(f"clock {shift}", prefix=("faketime", "-f", shift)) for shift in CLOCKS),
    ]
    faults = 0
    for condition in (condition for condition in conditions if args.only in condition.name):
        for arguments in VERBS:
            ending = try_verb(arguments, condition)
            faults += ending.problem is not None
            verb = " ".join((arguments[0], *(word for word in arguments if word.startswith("--"))))
            cells = (condition.name, verb, str(ending.code), ending.problem or "", ending.message[:160])
            print(f"| {' | '.join(cells)} |", flush=True)
    print(f"{faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
