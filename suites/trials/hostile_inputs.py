"""Does any verb fail without one clear line on input of a stranger? Rows, run.json, pytest-benchmark files, suites,
plug-ins and flags are damaged at random (`hostile_files.py`), with correct checksums.

Prints one line for each input that a verb did not survive, with the number that repeats it, and a table. Exits with 1
if there is one: a traceback, an unexpected error, more than 10 s, an exit code that is not documented, or a changed
file of results.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import random
import resource
import signal
import sys
import time
import traceback
import zlib
from collections import Counter
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from command_modules import import_modules
from hostile_files import make_input

from efficient_attn.cli import UNEXPECTED

os.environ.setdefault("KINETO_LOG_LEVEL", "99")
LIMIT_S = 10.0
CODES = (0, 1, 2, 3, 129, 130, 143)
MEMORY_BYTES = 8 * 2**30


def main() -> int:
    """Try the inputs; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of an input, whose output is shown")
    args = parser.parse_args()
    import_modules()
    counts, faults, slowest = Counter[str](), 0, 0.0
    numbers = range(args.count) if args.only is None else [args.only]
    for number in numbers:
        with TemporaryDirectory(prefix="hostile-") as scratch:
            folder = Path(scratch) / "inside"
            folder.mkdir()
            (Path(scratch) / "outside").write_text("unchanged")
            given = make_input(random.Random(f"{args.seed}-{number}"), folder)
            before = _digest_results(folder)
            start = time.perf_counter()
            code, output, errors = _run(given.command, folder)
            seconds = time.perf_counter() - start
            problem = _find_problem(code, errors, seconds)
            if _digest_results(folder) != before or sorted(os.listdir(scratch)) != ["inside", "outside"]:
                problem = problem or "files were changed"
        slowest = max(slowest, seconds)
        counts[f"{given.command[0][:10]}, exit {code}"] += 1
        if args.only is not None:
            print(given, output[-2000:], errors[-6000:], sep="\n")
        if problem:
            faults += 1
            last = errors.strip().splitlines()[-1:] or [""]
            print(f"{number}: {given.name}: {' '.join(given.command)[:150]}: {problem}: {last[0][:300]}", flush=True)
    for name, count in sorted(counts.items()):
        print(f"{name:24} {count}")
    print(f"{len(numbers)} inputs, {faults} faults, the slowest {slowest:.1f} s")
    return 1 if faults else 0


def _run(command: list[str], folder: Path) -> tuple[int, str, str]:
    """Exit code, output and errors of a command in a process of its own."""
    out, err = folder.parent / "inside" / ".out", folder.parent / "inside" / ".err"
    process = os.fork()
    if process == 0:
        code = 70
        try:
            os.setsid()
            os.chdir(folder)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            for number, path in ((1, out), (2, err)):
                os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY), number)
            sys.argv = ["efficient-attn", *command]
            from efficient_attn.cli import main as run

            code = run(command)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code)
    deadline = time.monotonic() + LIMIT_S + 2
    while True:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            os.killpg(process, signal.SIGKILL)
            _, status = os.waitpid(process, 0)
            break
        time.sleep(0.005)
    texts = [path.read_text(errors="replace") if path.exists() else "" for path in (out, err)]
    return os.waitstatus_to_exitcode(status), *texts


def _find_problem(code: int, errors: str, seconds: float) -> str | None:
    if seconds > LIMIT_S:
        return f"{seconds:.0f} s"
    if "Traceback (most recent call last)" in errors:
        return "a traceback"
    if UNEXPECTED in errors:
        return "an unexpected error"
    if code not in CODES:
        return f"exit code {code}"
    if code == 2 and len(errors.strip().splitlines()) > 12:
        return f"{len(errors.splitlines())} lines of errors"
    return None


def _digest_results(folder: Path) -> dict[str, str]:
    """Digests of rows, which publishing compresses, and of run.json."""
    digests = {}
    for path in folder.glob("results/*/*"):
        if path.name in ("rows.jsonl", "rows.jsonl.gz", "run.json"):
            data = path.read_bytes()
            with suppress(OSError, EOFError, zlib.error):
                data = gzip.decompress(data)
            digests[str(path).removesuffix(".gz")] = hashlib.sha256(data).hexdigest()
    return digests


if __name__ == "__main__":
    sys.exit(main())
