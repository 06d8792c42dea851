"""Do reports of 10,000 rows meet their targets: 10 s, 1 GB of memory, pages of 5 MB, and 100 ms for a click?

    python suites/trials/report_speed.py

For synthetic runs of three shapes, prints the rows, the seconds of ``efficient-attn report`` (wall and CPU) in a new
process, its peak memory, the size of the page, and the slowest sort and filter in Chromium, including layout: each
column of the largest table is sorted, and each value of each filter is selected.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from efficient_attn.results.rows import Record, Row

ROWS, ROUNDS, SAMPLES = 10_000, 8, 3
NAMES = ("full", "sliding_window:window=128", "linear", "gqa:kv_heads=2")
FAMILIES = {"full": "full", "sliding_window": "sparse", "linear": "linear", "gqa": "shared_kv"}
RowFields = dict[str, Any]


def few_lengths() -> Iterator[RowFields]:
    """Four lengths, five modes and directions, 500 variants of a few mechanisms."""
    modes = [("forward", False), ("forward", True), ("prefill", True), ("forward_backward", True), ("train", True)]
    variants = ["full", *(f"sliding_window:window={16 * i}" for i in range(1, 500))]
    for (mode, causal), n, variant in itertools.product(modes, (512, 1024, 2048, 4096), variants):
        yield {"mode": mode, "causal": causal, "seq_len": n, "variant": variant}


def many_lengths() -> Iterator[RowFields]:
    """1250 lengths of four variants, two modes."""
    lengths = range(64, 64 + 1250 * 16, 16)
    for mode, n, variant in itertools.product(("forward", "forward_backward"), lengths, NAMES):
        yield {"mode": mode, "causal": False, "seq_len": n, "variant": variant}


def many_configs() -> Iterator[RowFields]:
    """500 configurations (dtype, heads, batch, threads) of five lengths and four variants."""
    dtypes, heads, batches, threads = ("float32", "bfloat16"), (1, 2, 4, 8, 16), range(1, 11), (1, 2, 4, 8, 16)
    for dtype, h, b, t in itertools.product(dtypes, heads, batches, threads):
        for n, variant in itertools.product((512, 1024, 2048, 4096, 8192), NAMES):
            config = {"dtype": dtype, "heads": h, "batch": b, "threads": t}
            yield {"mode": "forward", "causal": True, "seq_len": n, "variant": variant} | config


SHAPES: dict[str, Callable[[], Iterator[RowFields]]] = {
    "few lengths, many variants": few_lengths,
    "many lengths, few variants": many_lengths,
    "many configurations": many_configs,
}


def make_record(fields: RowFields, noise: random.Random) -> Record:
    """A row and its samples, as a run on a CPU writes them."""
    base: RowFields = {"dtype": "float32", "batch": 1, "heads": 4, "threads": 1} | fields
    n, exact = base["seq_len"], base["variant"] == "full"
    ms = n / 512 * (n / 512 if exact else 1.5) * noise.lognormvariate(0, 0.05)
    samples = [[ms * noise.lognormvariate(0, 0.02) for _ in range(SAMPLES)] for _ in range(ROUNDS)]
    ratio = 1.0 if exact else n / 512 / 1.5 * noise.lognormvariate(0, 0.05)
    row = Row(
        run_id="trial-1", suite="trial", case_key="trial/" + "/".join(map(str, base.values())) + "#0123456789ab",
        family=FAMILIES[base["variant"].partition(":")[0]], options="{}", device="cpu", kv_heads=base["heads"],
        kv_len=n, head_dim=64, compiled=False, machine="Xeon-x2-15GiB", backend_used="sdpa", latency_ms=ms,
        latency_ms_low=ms * 0.98, latency_ms_high=ms * 1.02, speedup=ratio, speedup_low=ratio * 0.97,
        speedup_high=ratio * 1.03, tokens_per_s=n / ms * 1e3, flops=4.0 * n * n * 256, tflops_per_s=n * n / ms * 1e-6,
        pairs=n * n, pairs_computed=n * n, peak_memory_bytes=1024 * n, output_bytes=1024 * n, task="speed",
        inputs="normal", oracle_error=3e-7 * noise.random(), parameters=0, seed=0, stop_reason="rounds", cache="warm",
        rounds=ROUNDS, processes=1, contaminated=0, **base,
    )  # fmt: skip
    return Record(row, {"latency_ms": samples, "calls": 1, "order_seed": 7})


def write_run(folder: Path, configs: Iterator[RowFields]) -> int:
    """The run's files as the store writes them, but without calling fsync for each record."""
    noise = random.Random(7)
    lines = [make_record(config, noise).to_line() for config in configs]
    (folder / "rows.jsonl").write_text("".join(lines))
    session = {"run_id": "trial-1", "suite": {"name": "trial", "title": "Trial", "baseline": "full"}}
    (folder / "run.json").write_text(json.dumps({"sessions": [session]}))
    return len(lines)


CLICKS = """() => {
  const slowest = { sort: 0, filter: 0 };
  const time = (kind, act) => {
    const start = performance.now();
    act();
    document.body.offsetHeight;
    slowest[kind] = Math.max(slowest[kind], performance.now() - start);
  };
  const tables = [...document.querySelectorAll("table.sortable")];
  const largest = tables.sort((a, b) => b.rows.length - a.rows.length)[0];
  for (let it = largest; it; it = it.parentElement) if (it.tagName === "DETAILS") it.open = true;
  document.body.offsetHeight;
  for (const button of largest?.tHead.querySelectorAll("button") ?? []) time("sort", () => button.click());
  for (const list of document.querySelectorAll(".filters select")) {
    for (const { value } of [...list.options].slice(0, 20)) {
      time("filter", () => { list.value = value; list.dispatchEvent(new Event("change")); });
    }
    list.value = ""; list.dispatchEvent(new Event("change")); document.body.offsetHeight;
  }
  return [slowest.sort, slowest.filter, largest?.rows.length ?? 0];
}"""


def measure_clicks(page: Path) -> tuple[float, float, int]:
    """Milliseconds of the slowest sorting and the slowest filter in Chromium, and the rows of the table sorted."""
    from playwright import sync_api

    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        browser_page = browser.new_page(viewport={"width": 1280, "height": 900})
        browser_page.goto(page.as_uri())
        sorting, filtering, rows = browser_page.evaluate(CLICKS)
        browser.close()
    return sorting, filtering, rows


def run_report(folder: Path) -> tuple[float, float, float]:
    """The command in its own process: seconds, CPU seconds, peak MiB."""
    start = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", "efficient_attn", "report", folder], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"report {folder}: exit code {child.returncode}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    head = f"{'shape':28} {'rows':>6} {'seconds':>8} {'CPU s':>6} {'peak MiB':>9} {'page MB':>8}"
    print(f"{head} {'sort ms':>8} {'filter ms':>10} {'table':>6}")
    for name, make_configs in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            count = write_run(Path(folder), make_configs())
            seconds, cpu, peak = run_report(Path(folder))
            page = Path(folder) / "report.html"
            size, (sorting, filtering, lines) = page.stat().st_size / 1e6, measure_clicks(page)
        assert count == ROWS, f"{name}: {count} rows"
        line = f"{name:28} {count:6} {seconds:8.2f} {cpu:6.2f} {peak:9.0f} {size:8.2f}"
        print(f"{line} {sorting:8.0f} {filtering:10.0f} {lines:6}")


if __name__ == "__main__":
    main()
