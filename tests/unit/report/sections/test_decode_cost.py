"""Reports of decoding: traffic and state of a step, key-value heads, batch sizes; and prefill."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import report_runs as runs

from efficient_attn import units
from efficient_attn.report import select
from efficient_attn.report.drawing import length_plots, style
from efficient_attn.report.drawing.figures import PlotContext
from efficient_attn.report.gather import gather
from efficient_attn.report.sections.decode_cost import STATE_PLOT, STEP_PLOT
from efficient_attn.report.write import write_report
from efficient_attn.results.rows import Record, Row

pytestmark = pytest.mark.slow

FULL, ONE = {8: 1.0, 2: 0.4, 1: 0.25}, {"speedup": 1.0, "speedup_low": 1.0, "speedup_high": 1.0}
BUDGET = 16 * 10**9
Cells = dict[str, dict[str, str]]


def steps(
    contexts: Iterable[int] = (1024, 4096),
    heads: Sequence[int] = (8, 2, 1),
    *,
    batch: int = 1,
    base: int | None = 8,
    budget: int | None = BUDGET,
) -> Iterator[Record]:
    """Exact attention and a recurrent state with several numbers of key-value heads, paired with ``full`` with 8."""
    for n in contexts:
        for kv in heads:
            for variant, ms in (("full", n / 1024 * FULL[kv] * batch**0.5), ("linear", 0.5)):
                state = batch * kv * 64 * 4 * (2 * n if variant == "full" else 65)
                ratio = n / 1024 * batch**0.5 / ms if base else None
                paired = dict(zip(ONE, (ratio and ratio * x for x in (1, 0.95, 1.05)), strict=True))
                row = runs.row(
                    variant, mode="decode", causal=True, seq_len=n, kv_len=n, heads=8, kv_heads=kv, batch=batch,
                    latency_ms=ms, latency_ms_low=ms * 0.9, latency_ms_high=ms * 1.1, tokens_per_s=batch / ms * 1e3,
                    state_bytes=state, bytes_moved=state, bandwidth_share=kv / 4, memory_budget_bytes=budget,
                    longest_context=BUDGET // (state // n) if budget and variant == "full" else None,
                    **(ONE if (variant, kv) == ("full", base) else paired),
                )  # fmt: skip
                yield Record(row)


def report(tmp_path: Path, records: Iterable[Record]) -> tuple[str, str]:
    run = runs.write_run(tmp_path / "run", records)
    written = write_report([run], tmp_path / "out")
    return written.page.read_text(), written.markdown.read_text()


def table(markdown: str, caption: str) -> Cells:
    """A table's cells by variant and column."""
    rows = markdown.partition(f"**{caption}")[2].partition("**\n\n")[2].partition("\n\n")[0].splitlines()
    names, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in rows)
    return {line[0]: dict(zip(names, line, strict=True)) for line in lines}


# -- one baseline per group -------------------------------------------------------------------------------------------


def test_the_baseline_has_the_most_key_value_heads(tmp_path: Path) -> None:
    page, text = report(tmp_path, steps())
    rows = table(text, "Decoding after a context of 4096")
    speedup = "Speedup over full (kv_heads=8)"
    assert rows["full (kv_heads=8)"][speedup] == "baseline"
    assert [name for name, cells in rows.items() if cells[speedup] == "baseline"] == ["full (kv_heads=8)"]
    assert rows["full (kv_heads=2)"][speedup].startswith("2.50x (")
    assert rows["linear (kv_heads=8)"][speedup].startswith("8.00x (")
    assert page.count('<tr class="base" ') == 1
    for shown in (page, text):
        assert re.search(r"full \(kv_heads=1\) is 4\.00x \(.*?\)", shown)
        assert "faster than full (kv_heads=8)" in shown
    (drawn,) = re.findall(r"^!.Speedup: decode, for (.*?)\.\\?\]", text, re.MULTILINE)
    assert "full (kv_heads=2)" in drawn
    assert "full (kv_heads=8)" not in drawn  # the baseline's own speedup is 1 everywhere


def test_the_variant_paired_with_itself_is_the_baseline(tmp_path: Path) -> None:
    _, text = report(tmp_path, steps(base=1))
    rows = table(text, "Decoding after a context of 4096")
    speedup = "Speedup over full (kv_heads=1)"
    assert [name for name, cells in rows.items() if cells[speedup] == "baseline"] == ["full (kv_heads=1)"]


def test_a_failed_baseline_is_not_replaced(tmp_path: Path) -> None:
    records = list(steps(base=None))
    for record in records:
        if (record.row.variant, record.row.kv_heads) == ("full", 8):
            failed = Row(**{n: getattr(record.row, n) for n in ("case_key", "variant", "mode", "seq_len", "kv_heads")})
            record.row = replace(failed, status="oom", suite="quickstart", heads=8)
    page, text = report(tmp_path, records)
    assert "baseline |" not in text
    assert '<tr class="base">' not in page


def test_each_part_has_its_own_baseline(tmp_path: Path) -> None:
    """One part has 8 key-value heads and the other 2; each is compared with its own baseline."""
    records = []
    for part, heads in (("one", [8]), ("two", [2, 1])):
        rows = (record.row for record in steps(contexts=[1024], heads=heads, base=heads[0]))
        records += [Record(replace(row, case_key=f"mine/{part}/{row.case_key}")) for row in rows]
    _, text = report(tmp_path, records)
    lines = table(text, "Decoding after a context of 1024")
    baselines = [name for name, cells in lines.items() if "baseline" in cells.values()]
    assert sorted(baselines) == ["full (kv_heads=2)", "full (kv_heads=8)"]


# -- traffic and state of a step -------------------------------------------------------------------------------------


def test_decode_tables_show_traffic_state_and_longest_context(tmp_path: Path) -> None:
    page, text = report(tmp_path, steps(heads=[8], batch=4))
    rows = table(text, "Decoding after a context of 4096")
    full, linear = rows["full"], rows["linear"]
    assert (full["State"], full["Bytes a token"], full["Of the bandwidth"]) == ("64.0 MiB", "16.0 MiB", "200%")
    assert linear["Bytes a token"] == "130 KiB"
    assert full["Longest context in 16 GB"] == f"{BUDGET // (4 * 2 * 8 * 64 * 4):,}" == "976,562"
    assert linear["Longest context in 16 GB"] == "any"
    for shown in (page, text):
        assert "Longest context in 16 GB" in shown
        assert shown.replace("&#39;", "'").count("'Bytes a token' is what") == 1
    assert f'data-sort="{BUDGET // (4 * 2 * 8 * 64 * 4)}"' in page
    assert 'data-sort="inf"' in page


def test_bandwidth_shares_name_the_cache(tmp_path: Path) -> None:
    records = [Record(replace(record.row, read_from="L3")) for record in steps(heads=[8], batch=4)]
    _, text = report(tmp_path, records)
    assert table(text, "Decoding after a context of 4096")["full"]["Of the bandwidth"] == "200% of L3"


def test_unmeasured_columns_are_omitted(tmp_path: Path) -> None:
    page, text = report(tmp_path, runs.decode())
    for heading in ("Bytes a token", "Of the bandwidth", "Longest context", "by batch size", "key-value head"):
        assert heading not in text + page


def test_differing_memory_budgets_are_shown_with_the_contexts(tmp_path: Path) -> None:
    records = list(steps(contexts=[1024], heads=[8]))
    records[1].row.memory_budget_bytes = 10**9
    _, text = report(tmp_path, records)
    rows = table(text, "Decoding after a context of 1024")
    longest = [rows[name]["Longest context"] for name in ("full", "linear")]
    assert longest == ["3,906,250 in 16 GB", "any in 1 GB"]


def test_a_longest_context_of_zero_is_shown(tmp_path: Path) -> None:
    records = list(steps(contexts=[1024], heads=[8]))
    records[0].row.longest_context = 0
    _, text = report(tmp_path, records)
    assert table(text, "Decoding after")["full"]["Longest context in 16 GB"] == "0"


# -- by key-value heads, by batch size -------------------------------------------------------------------------------


def test_step_times_are_tabulated_by_key_value_heads(tmp_path: Path) -> None:
    page, text = report(tmp_path, [r for r in steps() if (r.row.variant, r.row.kv_heads) != ("linear", 2)])
    caption = "A step by key-value heads, after a context of 4096, with its speedup over full"
    rows = table(text, caption)
    assert list(rows["full"])[1:] == ["8 key-value heads", "2 key-value heads", "1 key-value head"]
    assert rows["full"]["8 key-value heads"] == "4.00 ms, baseline"
    assert rows["full"]["2 key-value heads"].replace(units.INTERVAL_DASH, "-") == "1.60 ms, 2.50x (2.38-2.62) ▲"
    assert rows["linear"]["2 key-value heads"] == units.EMPTY
    assert caption in page


def test_variants_with_one_number_of_kv_heads_are_omitted(tmp_path: Path) -> None:
    records = [r for r in steps() if r.row.variant == "full" or r.row.kv_heads == 8]
    _, text = report(tmp_path, records)
    assert list(table(text, "A step by key-value heads")) == ["full"]


def test_tokens_per_second_are_tabulated_by_batch_size(tmp_path: Path) -> None:
    """The table is of the context that most batch sizes have, 1024, although longer ones were measured."""
    records = [*steps(heads=[8], batch=1), *steps([1024], [8], batch=4), *steps([1024, 4096], [8], batch=16)]
    records = [r for r in records if (r.row.variant, r.row.batch) != ("linear", 4)]
    page, text = report(tmp_path, records)
    rows = table(text, "Tokens a second by batch size, after a context of 1024")
    assert rows == {
        "linear": {"Variant": "linear", "Batch 1": "2.00 k", "Batch 4": units.EMPTY, "Batch 16": "32.0 k"},
        "full": {"Variant": "full", "Batch 1": "1.00 k", "Batch 4": "2.00 k", "Batch 16": "4.00 k"},
    }
    assert "Tokens a second by batch size" in page
    title = text.partition("**Tokens a second by batch")[0].rpartition("### ")[2]
    assert "batch" not in title
    assert "8 heads of size 64" in title
    for batch in (1, 16):  # with several settings, sentences name theirs
        assert f", batch {batch}, decode: linear is" in text


def test_batch_sizes_of_different_settings_are_not_compared(tmp_path: Path) -> None:
    other = [Record(replace(r.row, threads=2, case_key=f"two/{r.row.case_key}")) for r in steps(heads=[8], batch=4)]
    _, text = report(tmp_path, [*steps(heads=[8]), *other])
    assert "by batch size" not in text


# -- prefill ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "shown"), [("prefill", True), ("forward", False)])
def test_only_prefill_shows_tokens_per_second(mode: str, shown: bool, tmp_path: Path) -> None:
    records = list(runs.speed(mode, causal=True, lengths=(512, 1024)))
    _, text = report(tmp_path, records)
    rows = table(text, f"{mode.capitalize()}, causal at length 1024")
    rate = units.rate(next(r.row.tokens_per_s for r in records if r.row.seq_len == 1024))
    assert rows["full"].get("Tokens a second") == (rate if shown else None)
    assert ("Prefill processes a whole prompt" in text) == shown


def test_variants_with_one_batch_size_are_omitted(tmp_path: Path) -> None:
    records = [*steps([1024], [8], batch=1), *steps([1024], [8], batch=4)]
    single = [r for r in records if (r.row.variant, r.row.batch) != ("linear", 4)]
    assert list(table(report(tmp_path, single)[1], "Tokens a second by batch size")) == ["full"]
    disjoint = [r for r in single if (r.row.variant, r.row.batch) != ("full", 1)]
    assert "by batch size" not in report(tmp_path / "disjoint", disjoint)[1]


@pytest.mark.parametrize("lengths", [[1024], [1024, 4096]])
def test_plots_of_a_single_length_are_marked(tmp_path: Path, lengths: list[int]) -> None:
    rows = gather([runs.write_run(tmp_path / "run", steps(lengths, [8]))]).rows
    (setting,) = select.split_settings(select.filter_timed(select.add_labels(rows)))
    context = PlotContext(style.choose_line_styles(setting.rows["label"]))
    ranks = [picture.rank for picture in length_plots.make_length_plots(setting, (STEP_PLOT, STATE_PLOT), context)]
    assert ranks == [rank + 3 * (len(lengths) == 1) for rank in (0, 2)]
