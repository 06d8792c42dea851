"""Files of a report: contents for any part of a suite, and identical bytes for identical rows."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import report_runs as runs

from efficient_attn import units
from efficient_attn.errors import UsageError
from efficient_attn.report.sections import section_blocks
from efficient_attn.report.write import ReportPaths, write_report
from efficient_attn.results import frames
from efficient_attn.results.gathered import load
from efficient_attn.results.rows import Record

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
EVIL = "<script>alert('x')</script> | `b` [c](d)"


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> ReportPaths:
    run = runs.write_run(tmp_path_factory.mktemp("runs") / "quickstart", runs.everything())
    return write_report([run], run)


def report(tmp_path: Path, records: list[Record], **about: object) -> tuple[str, str]:
    run = runs.write_run(tmp_path / "run", records, runs.about(**about) if about else None)
    written = write_report([run], tmp_path / "out")
    return written.page.read_text(), written.markdown.read_text()


@pytest.mark.sampled(6)
def test_quickstart_report_has_results_and_plots(quickstart: ReportPaths) -> None:
    page, text = quickstart.page.read_text(), quickstart.markdown.read_text()
    for shown in (page, text):
        assert runs.TITLE in shown
        assert "85 cases of 9 variants on 1 machine (cpu): 77 gave a result, 8 did not" in shown
        assert re.search(r"At 8192, forward, causal: linear is \d\d\.\dx \(\d\d\.\d.\d\d\.\d\) faster than full", shown)
        assert "Forward, bidirectional at length 8192" in shown
        assert "Decoding after a context of 16384" in shown
        assert "null: mean of v" in shown
        assert "efficient-attn run quickstart --out 'my results'" in shown.replace("&#39;", "'")
        assert runs.NO_CUDA in shown
        assert "pairs_computed" in shown
        assert "stop_reason" in shown
    names = [path.name for path in quickstart.plots]
    assert {"time-forward-causal.svg", "time-forward-causal.png", "decode-decode-causal.png"} <= set(names)
    assert all(path.stat().st_size > 2000 for path in quickstart.plots)
    assert all(f"plots/{name}" in text for name in names if name.endswith(".png"))


def test_a_noisy_machine_is_reported_first(tmp_path: Path) -> None:
    warning = {"warning": "other programs used <b> cores"}
    page, text = report(tmp_path, [*runs.speed(lengths=(512,), rounds=8, contaminated=7)], readiness=warning)
    message = (
        "Measured on a noisy machine (other processes disturbed 88% of the rounds; at the start: other programs used "
    )
    assert f'<p class="noisy"><strong>{message}&lt;b&gt; cores)' in page
    assert f"**{message}&lt;b> cores)" in text
    assert text.index(message) < text.index("## ")


def test_exponents_and_speedups_match_the_rows(quickstart: ReportPaths) -> None:
    cells = table(quickstart.markdown.read_text(), "Forward, bidirectional at length 8192")["full"]
    assert list(cells)[:2] == ["Variant", "Speedup over full"], "the speedup comes first, for narrow screens"
    assert cells["Backend"] == "sdpa"
    assert cells["Speedup over full"] == "baseline"
    assert float(cells["Error"]) < 1e-6, "the baseline's error"
    assert float(cells["Time exponent"].split()[0]) == pytest.approx(1.96, abs=0.02)
    assert cells["Peak memory"] == "5.04 MiB"
    assert cells["Memory exponent"].startswith("1.00")


def table(markdown: str, caption: str) -> dict[str, dict[str, str]]:
    """A table's cells by variant and column."""
    head, _, *rows = markdown.partition(f"**{caption}**")[2].strip().partition("\n\n")[0].splitlines()
    names, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in (head, *rows))
    return {line[0]: dict(zip(names, line, strict=True)) for line in lines}


def test_tables_show_backends_and_pairs(quickstart: ReportPaths) -> None:
    text = quickstart.markdown.read_text()
    rows = table(text, "Forward, causal at length 8192")
    window, full, linear = (rows[name] for name in ("sliding_window:window=128", "full", "linear"))
    assert [v["Backend"] for v in (window, full, linear)] == ["windows", "sdpa", "chunked"]
    assert [v["Pairs kept"] for v in (window, full, linear)] == ["3.12%", "all", units.EMPTY]
    assert [v["Computed for each"] for v in (window, full, linear)] == ["1.10", "1", units.EMPTY]
    assert table(text, "Forward, bidirectional at length 8192")["sliding_window:window=128"]["Pairs kept"] == "3.11%"
    for shown in (text, quickstart.page.read_text().replace("&#39;", "'")):
        assert shown.count("'Pairs kept' is the share of query-key pairs") == 1, "decoding has no sparse variant here"
    assert "Pairs kept" not in text.partition("## Decoding")[2].partition("\n## ")[0], "no sparse variant decodes here"


def test_pairs_of_a_decode_step_are_relative_to_its_context(tmp_path: Path) -> None:
    steps = [replace(r, row=replace(r.row)) for r in runs.decode()]
    for record in steps:
        if record.row.variant == "mqa":
            record.row.pairs, record.row.pairs_computed, record.row.backend_used = 128, 192, "blocks"
    _, text = report(tmp_path, steps)
    rows = table(text, "Decoding after a context of 16384")
    assert (rows["mqa"]["Pairs kept"], rows["mqa"]["Computed for each"]) == ("0.781%", "1.50")
    assert (rows["mqa"]["Backend"], rows["full"]["Backend"]) == ("blocks", "folded")
    assert (rows["full"]["Pairs kept"], rows["full"]["Computed for each"]) == ("all", "1")


def test_pairs_are_not_shown_without_sparse_variants(tmp_path: Path) -> None:
    page, text = report(tmp_path, [r for r in runs.speed() if "window" not in r.row.variant])
    assert "Pairs kept" not in text + page


def test_computed_pairs_of_a_dense_backend_include_the_future(tmp_path: Path) -> None:
    records = list(runs.speed(causal=True, lengths=(512,)))
    for record in records:
        if record.row.variant.startswith("sliding"):
            record.row.pairs_computed, record.row.backend_used = 512 * 512, "dense"
    _, text = report(tmp_path, records)
    window = table(text, "Forward, causal at length 512")["sliding_window:window=128"]
    assert (window["Backend"], window["Pairs kept"], window["Computed for each"]) == ("dense", "44.0%", "4.54")


def test_another_backend_at_other_lengths_is_named(tmp_path: Path) -> None:
    records = list(runs.speed(lengths=(512, 1024)))
    for record in records:
        if record.row.variant == "linear" and record.row.seq_len == 512:
            record.row.backend_used = "dense"
        if record.row.variant == "sliding_window:window=128" and record.row.seq_len == 1024:
            record.row.choices = "half=float32 tiles=cpp"
    _, text = report(tmp_path, records)
    rows = table(text, "Forward, bidirectional at length 1024")
    assert rows["linear"]["Backend"] == "chunked (elsewhere dense)"
    assert rows["sliding_window:window=128"]["Backend"] == "windows, tiles in C++ (elsewhere windows)"
    assert rows["full"]["Backend"] == "sdpa"


def test_no_backend_column_without_backends(tmp_path: Path) -> None:
    records = list(runs.speed(lengths=(512,)))
    for record in records:
        record.row.backend_used = None
    page, text = report(tmp_path, records)
    assert "Backend" not in text + page
    assert re.search(r'<th scope="col">Speedup over full</th><th scope="col">Time</th>', page)


def test_the_csv_equals_the_loaded_frame(quickstart: ReportPaths) -> None:
    loaded = load(quickstart.page.parent)
    read = pd.read_csv(quickstart.csv, dtype=frames.COLUMN_DTYPES, keep_default_na=False, na_values=[""])
    pd.testing.assert_frame_equal(read, loaded)


def test_reports_are_reproducible_and_do_not_change_the_run(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run", [*runs.speed(lengths=(512, 1024)), *runs.fidelity(), *runs.failures()])
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    first = write_report([run], run)
    files = (first.page, first.markdown, first.csv, *first.plots)
    bytes_of = [path.read_bytes() for path in files]
    assert write_report([run], run) == first
    assert [path.read_bytes() for path in files] == bytes_of
    assert {name: (run / name).read_bytes() for name in before} == before


def test_plots_of_an_earlier_report_are_removed_and_others_kept(tmp_path: Path) -> None:
    large = runs.write_run(tmp_path / "large", [*runs.speed(lengths=(512, 1024)), *runs.fidelity()])
    small = runs.write_run(tmp_path / "small", [*runs.speed(lengths=(512, 1024))])
    first = write_report([large], tmp_path / "out")
    (tmp_path / "out" / "plots" / "mine.png").write_bytes(b"a picture of the user's own")
    second = write_report([small], tmp_path / "out")
    assert set(second.plots) < set(first.plots)
    assert {p.name for p in (tmp_path / "out" / "plots").iterdir()} == {"mine.png", *(p.name for p in second.plots)}


PARTS = {
    "speed": list(runs.speed()),
    "decode": list(runs.decode()),
    "fidelity": list(runs.fidelity()),
    "fidelity without layers": list(runs.fidelity(layers=(None,))),
    "failures": list(runs.failures()),
    "one length": list(runs.speed(lengths=(1024,))),
    "one row": [*runs.speed(lengths=(1024,))][:1],
    "only status": [Record(runs.row("full", task=None))],
    "only memory": [Record(runs.row("full", mode="forward", seq_len=n, peak_memory_bytes=n)) for n in (256, 512)],
    "empty row": [Record(runs.Row(variant="full", case_key="x"))],
    "zero and exact": [Record(runs.row("full", task="fidelity", relative_error=0.0, seq_len=8))],
    "nothing": [],
}


@pytest.mark.sampled
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("about", [{}, {"suite": {}, "environment": {}, "command": ["run"], "suite_text": None}])
def test_any_part_of_a_suite_makes_a_report(tmp_path: Path, part: str, about: dict[str, object]) -> None:
    page, text = report(tmp_path, PARTS[part], **about)
    for title in ("Speed and memory", "Fidelity", "Decoding", "What did not run"):
        assert (f">{title}</h2>" in page) == (f"## {title}" in text)
    assert (">Fidelity</h2>" in page) == (part.startswith("fidelity") or part == "zero and exact")
    assert (">Decoding</h2>" in page) == (part == "decode")
    assert (">Speed and memory</h2>" in page) == (part in ("speed", "one length", "one row", "only memory"))
    assert not re.search(r"\bnan\b|&lt;NA&gt;|\bNone\b", text)


def test_a_run_without_metadata_makes_a_report(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run", runs.speed())
    (run / "run.json").unlink()
    page = write_report([run / "rows.jsonl"], tmp_path / "out").page.read_text()
    assert "<h1>quickstart</h1>" in page
    assert "is 55." in page
    assert "faster than the baseline" in page


def test_every_case_that_did_not_run_is_listed_with_its_reason(tmp_path: Path) -> None:
    _, text = report(tmp_path, list(runs.failures()))
    lines = [line for line in text.partition("## What did not run")[2].splitlines() if line.startswith("| ")]
    assert "| skipped | full, linear | forward, bidirectional | 512, 1024, 2048 | 6 |" in text
    assert any("linformer:rank=128" in line and "not causal" in line for line in lines)
    assert any("full:backend=dense" in line and "34.4 GB" in line for line in lines)


def test_text_of_rows_is_escaped(tmp_path: Path) -> None:
    failed = Record(runs.row(EVIL, status="error", reason=EVIL, mode="forward", seq_len=64))
    shown = [*runs.speed(lengths=(512, 1024)), Record(runs.row(EVIL, mode="forward", seq_len=512, latency_ms=1.0))]
    page, text = report(tmp_path, [failed, *shown], suite={"title": EVIL}, suite_text=EVIL + "\n````", command=[EVIL])
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    outside = re.sub(r"(`{3,}).*?\1", "", text, flags=re.DOTALL)
    assert "<script>" not in outside
    assert "`````toml" in text
    row = next(line for line in text.splitlines() if line.startswith("| error |"))
    assert len(re.findall(r"(?<!\\)\|", row)) == 8


def test_machines_are_never_mixed(tmp_path: Path) -> None:
    first = runs.write_run(tmp_path / "a", runs.speed())
    second = runs.write_run(tmp_path / "b", runs.speed(machine="M2-x8-16GiB"), runs.about("M2-x8-16GiB"))
    written = write_report([first, second, first], tmp_path / "out")
    text = written.markdown.read_text()
    assert "40 cases of 4 variants on 2 machines" in text
    details = text.partition("\n## All lengths")[2].partition("\n## ")[0]
    assert details.count("\n### cpu · float32") == 2
    for part in details.split("\n### cpu · float32")[1:]:
        table = part.partition("**Forward")[2].partition("**Speedup")[0]
        assert len(re.findall(r"^\| linear ", table, re.MULTILINE)) == 1
    names = {path.stem for path in written.plots}
    assert {"time-forward-bidirectional-1-cpu", "time-forward-bidirectional-2-cpu"} <= names


def test_variants_that_differ_in_heads_get_distinct_labels(tmp_path: Path) -> None:
    records = [*runs.speed(), *runs.speed(kv_heads=2)]
    _, text = report(tmp_path, records)
    assert "linear (kv_heads=2)" in text
    assert "linear (kv_heads=4)" in text


def test_tables_use_the_length_with_most_comparisons(tmp_path: Path) -> None:
    """Repeated rows without a comparison, and lengths without comparisons, do not change the length."""
    again = [record.row for record in runs.speed(lengths=(512, 8192, 16384)) if record.row.family != "full"]
    unpaired = [Record(replace(row, case_key=f"{row.case_key}/growth", speedup=None)) for row in again]
    _, text = report(tmp_path, [*runs.speed(lengths=(512, 8192)), *unpaired])
    assert "At 8192, forward, bidirectional: linear is" in text
    assert "Forward, bidirectional at length 8192" in text


def test_long_findings_are_repeated_in_full_below_the_tables(tmp_path: Path) -> None:
    records = list(runs.speed(lengths=(512, 8192)))
    fifth = next(record.row for record in records if record.row.variant == "linear" and record.row.seq_len == 8192)
    more = [Record(replace(fifth, variant=name, case_key=name)) for name in ("relu_linear", "taylor")]
    page, text = report(tmp_path, [*records, *more])
    top, whole = (line for line in text.splitlines() if line.startswith("- At 8192, forward, bidirectional"))
    assert "more differ (cpu, float32" in top
    assert all(name in whole for name in ("sliding_window:window=128", "performer", "relu_linear", "taylor"))
    assert text.index(whole) > text.index("| full |")
    folded = page.partition("<summary>All comparisons as text</summary>")[2].partition("</details>")[0]
    assert whole.removeprefix("- ").partition(" is ")[0] in folded
    few, _ = report(tmp_path / "few", [r for r in records if not r.row.variant.startswith("performer")])
    assert "All comparisons as text" not in few


def test_plots_beyond_the_limit_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [record for threads in range(1, 4) for record in runs.speed(lengths=(512, 1024), threads=threads)]
    run = runs.write_run(tmp_path / "run", records)
    assert len(write_report([run], run).plots) == 2 * 9
    monkeypatch.setattr(section_blocks, "MOST_PLOTS", 7)
    written = write_report([run], run)
    assert len(written.plots) == 2 * 7
    assert "Not drawn, because a report has at most 7 plots: Peak memory" in written.page.read_text()
    assert sum("time" in path.name for path in written.plots) == 2 * 3


def test_bad_input_raises_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least one"):
        write_report([], tmp_path)
    with pytest.raises(UsageError, match="no run here"):
        write_report([tmp_path], tmp_path)
    run = runs.write_run(tmp_path / "run", runs.speed(lengths=(512,)))
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        write_report([run], tmp_path / "file")


@pytest.mark.sampled(6)
def test_reports_do_not_import_torch_or_pyplot(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run", runs.everything())
    code = (
        "import sys; from pathlib import Path; import efficient_attn.report\n"
        "assert not {'pandas', 'matplotlib', 'jinja2'} & set(sys.modules), 'not lazy'\n"
        "from efficient_attn.report.write import write_report\n"
        f"write_report([Path({str(run)!r})], Path({str(tmp_path / 'out')!r}))\n"
        "assert not {'torch', 'matplotlib.pyplot'} & set(sys.modules), 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)
