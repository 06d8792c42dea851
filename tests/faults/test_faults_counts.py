"""Pair counts that JSON cannot store, and unprintable error messages: each becomes a row, and the run continues."""

from __future__ import annotations

from pathlib import Path

from shell import TINY, run

import efficient_attn as ea

COUNTS = """
import numpy as np
import efficient_attn as ea

class Counts(ea.SoftmaxAttention):
    def pairs(self, n, m, causal):
        return self.count(n * m)

    pairs_computed = pairs

@ea.register("zz_int64", family="full")
class Int64(Counts):
    "Exact attention whose pair count is a NumPy integer."
    count = np.int64

@ea.register("zz_nan", family="full")
class Nan(Counts):
    "Exact attention whose pair count is NaN."
    def count(self, pairs):
        return float("nan")

@ea.register("zz_array", family="full")
class Array(Counts):
    "Exact attention whose pair count is an array."
    def count(self, pairs):
        return np.array([pairs, pairs])

@ea.register("zz_garbled", family="full")
class Garbled(ea.SoftmaxAttention):
    "Exact attention that raises an error with unprintable characters."
    def compute(self, q, k, v, mask, **inputs):
        raise RuntimeError("red \\x1b[31m\\x00 and half \\ud800\\nof a character")
"""


def test_a_value_that_json_refuses_fails_only_its_case(tmp_path: Path) -> None:
    (tmp_path / "counts.py").write_text(COUNTS)
    (tmp_path / "tiny.toml").write_text(TINY)
    names = "full,zz_int64,zz_nan,zz_array,zz_garbled,linear"
    flags = ("--seq-len", "8", "--variant", names, "--plugin", "counts.py", "--out", "out")
    done = run("run", "tiny.toml", *flags, cwd=tmp_path)
    assert done.code == 1, done.err
    assert "Traceback" not in done.err
    rows = ea.load(tmp_path / "out").set_index("variant")
    assert rows.status.to_dict() == dict.fromkeys(["full", "zz_int64", "linear"], "ok") | dict.fromkeys(
        ["zz_nan", "zz_array", "zz_garbled"], "error"
    )
    assert (rows.pairs["zz_int64"], rows.pairs["full"]) == (64, 64)
    assert "red [31m and half  of a character" in rows.reason["zz_garbled"]
    for page in ("report.html", "report.md"):
        assert "red" in (tmp_path / "out" / page).read_text()
