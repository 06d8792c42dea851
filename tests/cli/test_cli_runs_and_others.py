"""Every verb that takes runs skips what is no run with one line, and ends with 2 if no run is left."""

from __future__ import annotations

from pathlib import Path

import pytest
import sites
from compare_runs import failed, record, steady
from compare_runs import write as write_run
from ledgers import write as write_claims
from shell import Command

VERBS = {
    "claims": ("claims", "{}", "--claims", "mine.toml"),
    "report": ("report", "{}", "--out", "page"),
    "export": ("report", "{}", "--export", "github-action=out.json"),
    "plot": ("plot", "{}", "--figure", "speed", "--out", "speed.svg"),
    "publish": ("publish", "{}", "--site", "site"),
    "recommend": ("recommend", "{}", "--seq-len", "1024", "--no-causal"),
}
OTHERS = ("results/README.md", "results/empty", "results/gone")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Two runs, a text and an empty folder below results/, as a fresh clone has them; and a claim of one's own."""
    sites.write_runs(tmp_path / "results")
    (tmp_path / "results" / "README.md").write_text("# Published runs\n")
    (tmp_path / "results" / "empty").mkdir()
    write_claims(tmp_path / "mine.toml")
    return tmp_path


def _fill(verb: str, paths: list[str]) -> list[str]:
    return [word for part in VERBS[verb] for word in (paths if part == "{}" else [part])]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("verb", sorted({*VERBS} - {"export"}))
def test_what_is_no_run_is_skipped_with_one_line_each(verb: str, here: Path, command: Command) -> None:
    runs = sorted(f"results/{path.parent.name}" for path in (here / "results").glob("*/rows*"))
    assert len(runs) == 2
    done = command(*_fill(verb, sorted([*OTHERS, *runs])))
    assert done.code == 0, done.err
    reason = "skipped, no run here (no rows.jsonl)"
    assert done.err.splitlines() == [f"efficient-attn: {path}: {reason}" for path in sorted(OTHERS)]
    assert command(*_fill(verb, runs)).err == ""


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_without_a_run_left_it_ends_with_2_and_one_line(verb: str, here: Path, command: Command) -> None:
    others = OTHERS[:1] if verb == "export" else OTHERS
    before = sorted(here.rglob("*"))
    done = command(*_fill(verb, [*others]))
    assert (done.code, done.out) == (2, "")
    assert done.err == f"efficient-attn: {', '.join(others)}: no run here (no rows.jsonl)\n"
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize("others", [["a.txt", "base", "new"], ["base", "a.txt", "gone", "new", "--all"]])
def test_compare_skips_what_is_no_run_and_needs_two_runs(others: list[str], tmp_path: Path, command: Command) -> None:
    (tmp_path / "a.txt").write_text("no run")
    write_run(tmp_path / "base", [record("full", 64, steady(10)), record("linear", 64, steady(2))])
    write_run(tmp_path / "new", [record("full", 64, steady(10)), failed("linear", 64)])
    done = command("compare", *others)
    assert done.code == 0, done.err
    skipped = [path for path in others if path in ("a.txt", "gone")]
    assert [line.split(": ")[1] for line in done.err.splitlines()] == skipped
    assert done.out.splitlines()[0].startswith("base (base) and new (new), by speedup")
    one = command("compare", "a.txt", "base", "gone")
    assert (one.code, one.out) == (2, "")
    assert one.err.splitlines()[-1] == "efficient-attn: compare: takes two runs, BASE and NEW, not 1"
    none = command("compare", "a.txt", "gone", "gone2")
    assert (none.code, none.err) == (2, "efficient-attn: a.txt, gone, gone2: no run here (no rows.jsonl)\n")
    many = command("compare", "base", "new", "base")
    assert (many.code, many.err) == (2, "efficient-attn: compare: takes two runs, BASE and NEW, not 3\n")


def test_compare_takes_benchmark_files_among_others(tmp_path: Path, command: Command) -> None:
    write_run(tmp_path / "base", [record("full", 64, steady(10)), record("linear", 64, steady(2))])
    assert command("report", "base", "--export", "pytest-benchmark=new.json").code == 0
    (tmp_path / "a.txt").write_text("no run")
    done = command("compare", "a.txt", "base", "new.json")
    assert (done.code, done.err) == (0, "efficient-attn: a.txt: skipped, no run here (no rows.jsonl)\n")
