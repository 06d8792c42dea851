"""Plug-ins that interfere when they are imported: their mechanisms are invalid, and others are measured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
import shell
from shell import run
from tiny_suites import write_faulty_suite

import efficient_attn as ea

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists threads")

PLUGIN = """
import multiprocessing, threading, time
import torch
import torch.nn.functional as F
import efficient_attn as ea
from efficient_attn.results import stats

original = F.scaled_dot_product_attention

def slow(*arguments, **options):
    original(*arguments, **options)
    return original(*arguments, **options)

{statement}
"""
MECHANISM = """
@ea.register("{name}", family="full")
class Own(ea.SoftmaxAttention):
    "Exact attention."
"""
IN_PARENT = "if multiprocessing.parent_process() is None: "
STATEMENTS = {  # with a pattern in the reason
    "F.scaled_dot_product_attention = slow": "it replaced torch.nn.functional.scaled_dot_product_attention by its own",
    "ea.SoftmaxAttention.compute = slow": "it replaced efficient_attn.variants.full.softmax_attention.SoftmaxAttention",
    "torch.backends.cuda.enable_flash_sdp(False)": "it turned the flash kernel of scaled_dot_product_attention off",
    f"{IN_PARENT}stats.median = slow": "it replaced efficient_attn.results.stats.median by its own (zz_0.py:",
}


def _write_suite(folder: Path, plugins: Sequence[str], names: Sequence[str] = ()) -> None:
    write_faulty_suite(folder / "plugins.toml", ["full", "linear", *names], plugins=plugins, lengths=[64])


def _run(folder: Path, statements: Sequence[str], names: Sequence[str]) -> pd.DataFrame:
    """The rows of a suite with a plug-in for each statement; ``names`` are those of their mechanisms."""
    for number, (statement, name) in enumerate(zip(statements, names, strict=True)):
        text = PLUGIN.format(statement=statement) + MECHANISM.format(name=name)
        (folder / f"zz_{number}.py").write_text(text)
    plugins = [f"zz_{number}.py" for number in range(len(statements))]
    _write_suite(folder, plugins, names)
    run("run", "plugins.toml", "--out", "out", cwd=folder)
    return ea.load(folder / "out").set_index("variant")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_replacement_at_import_is_undone_and_named(statement: str, tmp_path: Path) -> None:
    rows = _run(tmp_path, [statement, "pass"], ["zz_first", "zz_second"])
    assert rows.status.to_dict() == {"full": "ok", "linear": "ok", "zz_first": "invalid", "zz_second": "ok"}
    assert rows.reason["zz_first"].startswith(f"when its plug-in was imported, {STATEMENTS[statement]}")
    assert "flash" in rows.kernels["full"]


def test_a_replacement_by_a_plugin_without_mechanisms_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "zz_0.py").write_text(PLUGIN.format(statement="F.scaled_dot_product_attention = slow"))
    _write_suite(tmp_path, ["zz_0.py"])
    done = run("run", "plugins.toml", "--out", "out", cwd=tmp_path)
    assert done.code == 2
    assert "zz_0.py: when it was imported, it replaced torch.nn.functional.scaled_dot_product_attention" in done.err


@pytest.mark.sampled(4)
def test_a_thread_that_a_plugin_starts_makes_all_cases_invalid(tmp_path: Path) -> None:
    burn = "threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()"
    rows = _run(tmp_path, [burn], ["zz_first"])
    assert set(rows.status) == {"invalid"}
    assert rows.reason.str.startswith("a thread from before all cases worked for").all()
    assert rows.speedup.isna().all()


SCRIPT = """
import torch.nn.functional as F
import efficient_attn as ea

def slow(*arguments, **options):
    raise ValueError("called")

{outside}
if __name__ == "__main__":
    {inside}
    print(ea.run("plugins.toml", out="out").frame.status.tolist())
"""
REPLACE = "F.scaled_dot_product_attention = slow"


@pytest.mark.sampled(8)
@pytest.mark.parametrize("replaces_in_workers", [False, True])
def test_replacements_in_a_script(replaces_in_workers: bool, tmp_path: Path) -> None:
    _write_suite(tmp_path, [])
    outside, inside = ("" if where is not replaces_in_workers else REPLACE for where in (True, False))
    (tmp_path / "script.py").write_text(SCRIPT.format(outside=outside, inside=inside))
    environment = shell.environment(PYTHONPATH=str(Path(ea.__file__).parents[1]))
    command = [sys.executable, "script.py"]  # in a new interpreter, whose workers import the main module
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    rows = ea.load(tmp_path / "out").set_index("variant")
    if replaces_in_workers:  # which import the main module
        assert set(rows.status) == {"error"}
        assert rows.reason.str.contains("the program's main module cannot be measured: it replaced torch.nn.fun").all()
    else:
        assert set(rows.status) == {"ok"}
        assert "flash" in rows.kernels["full"]
