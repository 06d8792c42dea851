"""Every way in which a mechanism can fail, provoked for real: each is a row that names it, and the sweep goes on."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pytest
from shell import Done, run

import efficient_attn as ea

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals and limits as Linux has them")

HERE = Path(__file__).parent
ENDS = {  # status, and what the reason must say
    "zz_threads": ("invalid", "changed the number of threads from 1 to 2"),
    "zz_dtype": ("invalid", "changed the default dtype from torch.float32 to torch.float64"),
    "zz_gradients": ("invalid", "turned gradients on"),
    "zz_random": ("invalid", "used torch's global random number generator"),
    "zz_not_a_number": ("invalid", "not finite"),
    "zz_another_shape": ("invalid", "the output is"),
    "zz_another_type": ("invalid", "the output is"),
    "zz_a_little_off": ("invalid", "the output differs from the reference: relative error 1.00e-02"),
    "zz_fail": ("error", "ValueError: no sense"),
    "zz_too_much_memory": ("oom", "can't allocate memory"),
    "zz_segfault": ("crashed", "killed by SIGSEGV, in _segfault (villains.py:"),
    "zz_kill": ("crashed", "killed by SIGKILL, while its first call ran"),
    "zz_hang_in_c": ("timeout", "_hang_in_c (villains.py:"),
    "zz_sleep": ("timeout", "_sleep (villains.py:"),
    "zz_second": ("error", "RuntimeError: only once"),
    "zz_frees": ("error", "out of bounds for storage of size 0"),
    "zz_growing": ("invalid", "shares its memory with that of an earlier call"),
    "zz_late": ("crashed", "killed by SIGSEGV, in compute (villains.py:"),
}
SUITE = """
title      = "Villains among honest mechanisms"
measure    = ["forward"]
baseline   = "full"
rounds     = 2
max_rounds = 2
processes  = {processes}
budget_s   = 3
plugins    = ["{plugin}"]
axes       = {{ seq_len = [16, 32], threads = [1] }}
dims       = {{ heads = 2, head_dim = 8 }}
variant    = [{variants}]
"""
LENGTHS = [16, 32]


def _folder(path: Path, *names: str, processes: int = 2) -> Path:
    variants = ", ".join(f'{{ name = "{name}" }}' for name in names)
    (path / "villains.toml").write_text(
        SUITE.format(plugin=HERE / "villains.py", variants=variants, processes=processes)
    )
    return path


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, pd.DataFrame]:
    names = list(ENDS)
    folder = _folder(tmp_path_factory.mktemp("villains"), "full", *names[:8], "linear", *names[8:], "mqa")
    done = run("run", "villains.toml", "--out", "out", "--timeout", "20", "--memory-limit", "4GiB", cwd=folder)
    return done, ea.load(folder / "out")


def test_every_planned_case_has_exactly_one_row(ended: tuple[Done, pd.DataFrame]) -> None:
    done, rows = ended
    assert done.code == 1  # done, but cases failed
    assert "Traceback" not in done.err
    assert sorted(zip(rows.variant, rows.seq_len, strict=True)) == sorted(
        (name, n) for name in ("full", "linear", "mqa", *ENDS) for n in LENGTHS
    )


@pytest.mark.parametrize("name", ENDS)
def test_a_villain_is_named_with_its_deed(name: str, ended: tuple[Done, pd.DataFrame]) -> None:
    status, says = ENDS[name]
    for row in ended[1][ended[1].variant == name].itertuples():
        assert (row.status, pd.isna(row.latency_ms)) == (status, True)
        assert says in row.reason
        assert "\n" not in row.reason


@pytest.mark.parametrize("name", ["full", "linear", "mqa"])
def test_honest_mechanisms_beside_them_are_measured(name: str, ended: tuple[Done, pd.DataFrame]) -> None:
    mine = ended[1][ended[1].variant == name]
    assert list(mine.status) == ["ok", "ok"]
    assert (mine.latency_ms > 0).all()
    assert (mine.rounds == 2).all()
    assert (mine.processes == 2).all()
    assert mine.speedup.notna().all()
    assert (mine.threads == 1).all()


def test_spawned_workers_serve_where_there_is_no_fork_server(tmp_path: Path) -> None:
    """And are held to their memory."""
    spawned = ("zz_segfault", "zz_too_much_memory")
    folder = _folder(tmp_path, "full", *spawned, processes=1)
    arguments = ("run", "villains.toml", "--out", "out", "--seq-len", "16", "--start-method", "spawn")
    done = run(*arguments, "--memory-limit", "4GiB", cwd=folder)
    assert done.code == 1
    rows = ea.load(folder / "out").set_index("variant")
    assert dict(rows.status) == {name: ENDS[name][0] for name in spawned} | {"full": "ok"}
    assert "killed by SIGSEGV" in rows.reason["zz_segfault"]


def test_failures_are_measured_again_only_when_asked(tmp_path: Path) -> None:
    folder = _folder(tmp_path, "full", "zz_fail")
    arguments = ("run", "villains.toml", "--out", "out", "--seq-len", "16", "--resume")
    assert run(*arguments, cwd=folder).code == 1
    before = (folder / "out" / "rows.jsonl").read_bytes()
    assert run(*arguments, cwd=folder).code == 1
    assert (folder / "out" / "rows.jsonl").read_bytes() == before
    assert run(*arguments, "--retry-failed", cwd=folder).code == 1
    after = (folder / "out" / "rows.jsonl").read_bytes()
    assert after.startswith(before)
    assert after[len(before) :].count(b"\n") == 1
    assert sorted(ea.load(folder / "out").variant) == ["full", "zz_fail"]
