"""Measure two revisions of a repository interleaved on this machine, and compare them.

    python compare_revisions.py [--base HEAD^] [--head HEAD] [--suite ci] [--run-options=...] [--compare-options=...]

Run it in the repository. Each revision is checked out into a worktree, in which `efficient-attn run` measures the suite
with the modules and plug-ins of that revision. The two runs take turns, so that each
process run of one is next to the same one of the other.
Exit status: that of `efficient-attn compare`; 2 if a revision cannot be measured; 128 plus the signal's number after
SIGINT, SIGTERM and SIGHUP.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

COMMAND = (sys.executable, "-m", "efficient_attn")
LOG_LINES = 20  # of a run that failed, to show
MEASURED = (0, 1)  # exit statuses of runs; 1: some cases failed, which the comparison reports
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
END_S = 5.0  # in which a run ends after SIGTERM


def main() -> int:
    """Run the comparison that the command line asks for; returns its exit status."""
    args = parse_arguments()
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, stop)
    working_folder = Path.cwd().relative_to(git("rev-parse", "--show-toplevel"))
    commits = {"base": resolve(args.base), "head": resolve(args.head)}
    out = args.out.resolve()
    for name in commits:
        if (out / name).exists():
            fail(f"{out / name} exists; remove it, or choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    print(f"base {commits['base'][:12]}, head {commits['head'][:12]}; their process runs alternate", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="efficient-attn-revisions-")))
        runs, by_socket = {}, {}
        for name, commit in commits.items():
            checkout = folder / name
            with delayed_signals():
                git("worktree", "add", "--quiet", "--detach", str(checkout), commit)
                stack.callback(remove_worktree, checkout)
            if not (checkout / working_folder).is_dir():
                fail(f"{name} ({commit[:12]}) has no folder {working_folder}; work in one that both revisions have")
            environment = prepare(checkout, folder / f"{name}-site", args.install)
            ours, theirs = socket.socketpair()
            options = [args.suite, "--out", str(out / name), "--turns", str(theirs.fileno()), *args.run_options]
            log = stack.enter_context((out / f"{name}.log").open("w"))
            with delayed_signals():
                runs[name] = subprocess.Popen(
                    [*COMMAND, "run", *options],
                    cwd=checkout / working_folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=[theirs.fileno()],
                    preexec_fn=accept_signals,
                )
                stack.callback(end, runs[name])
            theirs.close()
            by_socket[stack.enter_context(ours)] = runs[name]
        take_turns(by_socket)
        statuses = {name: run.poll() for name, run in runs.items()}
    logs = {name: (out / f"{name}.log").read_text(errors="replace").splitlines() for name in runs}
    for name, status in statuses.items():
        if status not in (*MEASURED, None):  # None: it was still running when the other one failed
            print(*logs[name][-LOG_LINES:], sep="\n", file=sys.stderr)
            fail(f"{name} ({commits[name][:12]}) could not be measured: efficient-attn run exited with {status}")
    for line in dict.fromkeys(line for log in logs.values() for line in log if line.startswith("efficient-attn: ")):
        print(line, file=sys.stderr)  # a warning
    paths = [str(out / name) for name in commits]
    options = ["--github", "--junit", str(out / "junit.xml"), "--fail-on-regression", *args.compare_options]
    return subprocess.run([*COMMAND, "compare", *paths, *options], check=False).returncode


def parse_arguments() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="HEAD^", help="revision to compare with (default: HEAD^)")
    parser.add_argument("--head", default="HEAD", help="revision to test (default: HEAD)")
    parser.add_argument("--suite", default="ci", help="a built-in suite, or a .toml file of the repository")
    parser.add_argument(
        "--run-options", type=shlex.split, default=[], help="such as '--plugin my_attn.py --variant full,my_attn'"
    )
    parser.add_argument("--compare-options", type=shlex.split, default=[], help="such as '--tolerance 5%%'")
    parser.add_argument("--install", type=shlex.split, default=[], help="for pip install --no-deps: such as '.'")
    parser.add_argument("--out", type=Path, default=Path("benchmark"), help="folder of both runs and junit.xml")
    return parser.parse_args()


def prepare(checkout: Path, site: Path, install: Sequence[str]) -> dict[str, str]:
    """The environment in which a checkout's modules are imported; what it installs goes to a folder of its own."""
    paths = [str(checkout)]
    if install:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), *install]
        if subprocess.run(command, cwd=checkout, check=False).returncode:
            fail(f"{shlex.join(command)} failed in {checkout.name}")
        paths.insert(0, str(site))
    return os.environ | {"PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])}


def take_turns(processes: Mapping[socket.socket, subprocess.Popen[bytes]]) -> None:
    """Let the runs go on one at a time until all have ended, or one could not be measured: first the one that is
    behind; of two at the same position a random one, so that load which lasts longer than a process run favours
    neither."""
    waiting: dict[socket.socket, tuple[int, ...]] = {}
    running = list(processes)
    while running:
        for run in [run for run in running if run not in waiting]:
            position = b""
            with suppress(ConnectionResetError):  # it ended before it read the answer
                position = run.recv(64)
            if position:
                waiting[run] = tuple(map(int, position.split()))
            elif processes[run].wait() in MEASURED:
                running.remove(run)
            else:
                return
        if waiting:
            run = min(waiting, key=lambda run: (waiting[run], random.random()))
            del waiting[run]
            with suppress(BrokenPipeError):  # it ended while it waited
                run.sendall(b"\n")


def stop(number: int, _: Any) -> NoReturn:
    """Exit on a signal. Later signals are ignored, so that both runs end and the worktrees are removed."""
    for later in SIGNALS:
        signal.signal(later, signal.SIG_IGN)
    with suppress(OSError):  # the terminal may be closed
        os.write(sys.stderr.fileno(), f"compare_revisions: ended by {signal.Signals(number).name}\n".encode())
    raise SystemExit(128 + number)


@contextmanager
def delayed_signals() -> Iterator[None]:
    """Signals during this context take effect after it, and do not reach git, which would leave half a worktree."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def accept_signals() -> None:
    """Accept signals in a new process, which inherits that they are delayed."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def remove_worktree(checkout: Path) -> None:
    """Remove the worktree of a revision."""
    with delayed_signals():
        git("worktree", "remove", "--force", str(checkout))


def end(run: subprocess.Popen[bytes]) -> None:
    """End a run, if it has not ended."""
    run.terminate()
    try:
        run.wait(END_S)
    except subprocess.TimeoutExpired:
        run.kill()
        run.wait()


def resolve(revision: str) -> str:
    """The commit of a revision."""
    remedy = "if the clone is shallow, give actions/checkout `fetch-depth: 0`"
    return git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", problem=f"unknown revision: {remedy}")


def git(*arguments: str, problem: str = "") -> str:
    """The output of a git command."""
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        fail(f"git {shlex.join(arguments)}: {problem or done.stderr.strip()}")
    return done.stdout.strip()


def fail(message: str) -> NoReturn:
    """Exit with 2; on GitHub, the message is also an annotation."""
    if os.environ.get("GITHUB_ACTIONS") == "true":
        print(f"::error title=Comparison of revisions::{' '.join(message.split()).replace('%', '%25')}", flush=True)
    print(f"compare_revisions: {message}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    sys.exit(main())
