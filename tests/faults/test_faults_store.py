"""Storage failures of a run: a full disk, a second writer, and kills while writing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from shell import TINY, environment, run

import efficient_attn as ea
from efficient_attn.results.rows import Record, Row
from efficient_attn.results.store import RunWriter, StoreError, read

# the command with a limit on the size of its rows file, as with a quota or a full disk
LIMITED = """
import resource, signal, sys
from efficient_attn.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit = int(sys.argv.pop(1))
import efficient_attn.results.durable as durable
really = durable.append
def append(file, data):
    # for rows only, not for plug-ins and caches
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        really(file, data)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
durable.append = append
sys.exit(main())
"""


def _limited(folder: Path, limit: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LIMITED, str(limit), *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.sampled(3)
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no file size limits")
def test_a_full_disk_is_one_line_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    arguments = ("run", "tiny.toml", "--out", "out", "--resume")
    done = _limited(tmp_path, 4500, *arguments)  # a row takes 1.5 to 2 KB, so that one does not fit whole
    assert done.returncode == 2, done.stderr
    message = "File too large; what was written so far is saved; free some space and continue with --resume"
    assert done.stderr.splitlines()[-1] == f"efficient-attn: out: {message}"
    assert "Traceback" not in done.stderr
    path = tmp_path / "out" / "rows.jsonl"
    kept = path.read_text()
    assert kept.endswith("}\n"), "no part of the record that did not fit is left"
    count = len(read(path.parent))
    assert 0 < count < 4
    again = run(*arguments, cwd=tmp_path)
    assert again.code == 0, again.err
    assert path.read_text().startswith(kept)
    assert len(ea.load(path.parent)) == 4
    assert not (path.parent / "quarantine.jsonl").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_device_is_an_error(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, writer._file)
    # a device cannot be truncated either
    with pytest.raises(StoreError, match=rf"^{tmp_path}: .*; what was written so far is saved; free some"):
        writer.write(Record(Row(case_key="x")))
    os.close(full)
    writer.close()
    assert read(tmp_path) == []


def test_a_second_run_into_the_same_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    with RunWriter(tmp_path / "out") as writer:
        writer.write(Record(Row(case_key="x")))
        before = (tmp_path / "out" / "rows.jsonl").read_bytes()
        for resume in ([], ["--resume"]):
            done = run("run", "tiny.toml", "--out", "out", *resume, cwd=tmp_path)
            assert done.code == 2
            assert done.err.startswith(f"efficient-attn: out: in use by process {os.getpid()} on host ")
            assert done.err.endswith("; wait for it, or choose another --out\n")
            assert done.err.count("\n") == 1
        assert (tmp_path / "out" / "rows.jsonl").read_bytes() == before
        assert run("report", "out", "--out", "page", cwd=tmp_path).code == 0, "reading needs no lock"


WRITES = """
import sys
from pathlib import Path
from efficient_attn.results.rows import Record, Row
from efficient_attn.results.store import RunWriter
with RunWriter(Path(sys.argv[1]), resume=True) as writer:
    for i in range(len(writer.statuses), 1000):
        writer.write(Record(Row(case_key=f"case{i}"), {"latency_ms": [[float(j) for j in range(1, 201)]] * 8}))
        print(i, flush=True)
"""


def test_kills_while_writing_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    for _ in range(4):
        with subprocess.Popen([sys.executable, "-c", WRITES, tmp_path], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(25)]
            process.kill()
            lines += process.stdout.readlines()
        with RunWriter(tmp_path, resume=True) as writer:
            assert list(writer.statuses) == [f"case{i}" for i in range(len(writer.statuses))]
            assert len(writer.statuses) > int([line for line in lines if line.endswith("\n")][-1])
