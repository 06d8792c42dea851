"""Synthetic runs for the report's tests, similar to the quickstart on two cores."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from efficient_attn.results.rows import Record, Row
from efficient_attn.results.section import Column, Section
from efficient_attn.results.store import RunWriter

# time in us at length 512, growth exponent, peak bytes at 512, growth of memory
COSTS = {
    "full": (1200.0, 1.96, 3.3e5, 1.0),
    "sliding_window:window=128": (540.0, 1.01, 8.1e5, 1.0),
    "linear": (310.0, 0.99, 4.2e5, 1.0),
    "performer:kind=positive:n_features=256": (900.0, 1.02, 9.0e5, 1.0),
}
FAMILY = {"full": "full", "linear": "linear", "performer": "linear", "gqa": "shared_kv", "mqa": "shared_kv"}
STEPS = {"full": (20.0, 1.0, 8), "gqa:kv_heads=2": (8.0, 0.95, 2), "mqa": (6.0, 0.9, 1)}
ERRORS = {"full": 2.1e-7, "sliding_window:window=32": 0.33, "sliding_window:window=128": 0.08, "linear": 0.62}
NO_CUDA = "no CUDA device on this machine"
TITLE = "Quickstart: exact, windowed and linear attention"
SUITE = f'title    = "{TITLE}"\nbaseline = "full"\n\n[axes]\nseq_len = [512, 1024]\n'


def row(variant: str, **known: Any) -> Row:
    """A row with the common fields of synthetic rows, and a key from those that identify it."""
    base: dict[str, Any] = {
        "run_id": "quickstart-1", "suite": "quickstart", "family": FAMILY.get(variant.partition(":")[0], "sparse"),
        "device": "cpu", "dtype": "float32", "batch": 1, "heads": 4, "head_dim": 64, "threads": 1, "causal": False,
        "machine": "Xeon-x2-15GiB", "compiled": False, "task": "speed", "kv_heads": 4, "options": "{}",
    }  # fmt: skip
    made = Row(variant=variant, **(base | known))
    key = (made.machine, variant, made.mode, made.device, made.seq_len, made.causal, made.layer)
    key += (f"b{made.batch}-h{made.heads}-kv{made.kv_heads}-d{made.head_dim}", made.threads)
    made.case_key = "/".join(map(str, key))
    return made


def speed(
    mode: str = "forward", causal: bool = False, lengths: Iterable[int] = (512, 1024, 2048, 4096, 8192), **known: Any
) -> Iterator[Record]:
    """Rows of one mode: quadratic exact attention and linear mechanisms, with noise of a percent."""
    noise = random.Random(7)
    for n in lengths:
        base = None
        for variant, (us, power, memory, grown) in COSTS.items():
            scale = n / 512
            ms = us / 1e3 * scale**power * (3.1 if mode == "forward_backward" else 1.0) * (0.6 if causal else 1.0)
            ms *= noise.lognormvariate(0, 0.01)
            base = base or ms
            ratio = None if variant == "full" else base / ms
            made = row(
                variant, mode=mode, causal=causal, seq_len=n, kv_len=n, latency_ms=ms, latency_ms_low=ms * 0.985,
                latency_ms_high=ms * 1.015, speedup=ratio, speedup_low=ratio and ratio * 0.97,
                speedup_high=ratio and ratio * 1.04, tokens_per_s=n / ms * 1e3,
                peak_memory_bytes=int(memory * scale**grown), stop_reason="rounds", **work(variant, n, causal), **known,
            )  # fmt: skip
            yield Record(made, {"latency_ms": [[ms, ms * 1.01]]})


def work(variant: str, n: int, causal: bool) -> dict[str, Any]:
    """Backend and counted pairs: the window's tiles have a tenth more pairs than the window."""
    if variant == "full":
        pairs = n * (n + 1) // 2 if causal else n * n
        return {"backend_used": "sdpa", "pairs": pairs, "pairs_computed": pairs}
    if not variant.startswith("sliding_window"):
        return {"backend_used": "chunked"}
    pairs = sum(min(i, 128) + 1 + (0 if causal else min(n - 1 - i, 128)) for i in range(n))
    return {"backend_used": "windows", "pairs": pairs, "pairs_computed": pairs + pairs // 10}


def decode(contexts: Iterable[int] = (1024, 4096, 16384), **known: Any) -> Iterator[Record]:
    for n in contexts:
        for variant, (us, power, kv_heads) in STEPS.items():
            ms = (15 + us * (n / 1024) ** power) / 1e3
            ratio = None if variant == "full" else (15 + 20 * n / 1024) / 1e3 / ms
            made = row(
                variant, mode="decode", causal=True, seq_len=n, kv_len=n, kv_heads=kv_heads, heads=8, latency_ms=ms,
                latency_ms_low=ms * 0.97, latency_ms_high=ms * 1.03, speedup=ratio, speedup_low=ratio and ratio * 0.95,
                speedup_high=ratio and ratio * 1.05, tokens_per_s=1e3 / ms, state_bytes=2 * kv_heads * 64 * 4 * n,
                backend_used="folded", stop_reason="rounds", pairs=n, pairs_computed=n, **known,
            )  # fmt: skip
            yield Record(made, {})


def fidelity(layers: Iterable[int | None] = (0, 2, 5), length: int = 256, **known: Any) -> Iterator[Record]:
    for place, layer in enumerate(layers):
        for variant, error in ERRORS.items():
            loss = error * (1 + 0.35 * place)
            made = row(
                variant, task="fidelity", inputs="minilm", layer=layer, seq_len=length, kv_len=length, heads=12,
                kv_heads=12, head_dim=32, relative_error=loss, oracle_error=2e-7, cosine_similarity=1 - loss**2 / 2,
                total_variation=loss / 2, missed_mass=loss / 3 if "window" in variant else 0.0, effective_keys=41.2,
                **known,
            )  # fmt: skip
            yield Record(made, {"mean_value_error": 0.71 + 0.05 * place})


SORT = Section(
    name="sorting",
    task="sort",
    title="Sorting",
    sentences=("Seconds that a sort takes.", "The median of its rounds."),
    columns=(
        Column(name="sort.seconds", heading="Time", unit="seconds"),
        Column(name="sort.rounds", heading="Rounds", unit="count"),
    ),
    x="seq_len",
    y="sort.seconds",
)


def sort(lengths: Iterable[int] = (1024, 4096, 65536), **extra: Any) -> Iterator[Record]:
    """Rows of a task that the package does not define."""
    for n in lengths:
        for place, variant in enumerate(("linear", "full"), 1):
            own: dict[str, Any] = {"seconds": place * n * 1e-8, "rounds": 8}
            made = row(variant, task="sort", seq_len=n, part="sorting", baseline="full", extra=own | extra)
            made.case_key = f"sort/{'-'.join(map(str, extra.values()))}/{made.case_key}"
            yield Record(made, {"seconds": [own["seconds"]]})


def failures(**known: Any) -> Iterator[Record]:
    """Rows without a device, one mechanism that cannot do a thing, one that ran out of memory."""
    for n in (512, 1024, 2048):
        for variant in ("full", "linear"):
            lost = {"device": "cuda", "status": "skipped", "reason": NO_CUDA} | known
            yield Record(row(variant, mode="forward", seq_len=n, **lost))
    lost = {"status": "unsupported", "reason": "linformer is not causal: its projection mixes positions"} | known
    yield Record(row("linformer:rank=128", mode="forward", causal=True, seq_len=512, **lost))
    reason = "needs 34.4 GB, and the limit is 8.0 GB"
    yield Record(row("full:backend=dense", mode="forward", seq_len=16384, status="oom", reason=reason, **known))


def everything(**known: Any) -> Iterator[Record]:
    """The rows of a quickstart."""
    yield from speed(**known)
    yield from speed(causal=True, **known)
    yield from speed("forward_backward", True, (512, 1024, 2048, 4096), **known)
    yield from decode(**known)
    yield from fidelity(**known)
    yield from failures(**known)


def about(machine: str = "Xeon-x2-15GiB", **known: Any) -> dict[str, Any]:
    """The description of a session in run.json."""
    return {
        "run_id": "quickstart-1",
        "suite": {"name": "quickstart", "title": TITLE, "baseline": "full"},
        "suite_text": SUITE,
        "command": ["efficient-attn", "run", "quickstart", "--out", "my results"],
        "version": "0.1.0",
        "started": "2026-01-02T03:04:05+00:00",
        "finished": "2026-01-02T03:06:01+00:00",
        "environment": {
            "machine": machine, "cpu": "Intel(R) Xeon(R) @ 2.10GHz", "cores": 2, "memory_bytes": 16 * 2**30, "gpus": [],
            "os": "Linux-6.1", "python": "3.12.1", "torch": "2.13.0", "packages": {"numpy": "2.1", "pandas": "3.0"},
            "git": {"revision": "7e97230", "changed": False}, "variables": {"OMP_NUM_THREADS": "1"},
        },
    } | known  # fmt: skip


def write_run(folder: Path, records: Iterable[Record], described: dict[str, Any] | None = None) -> Path:
    """A run's folder with these records, written by the store."""
    with RunWriter(folder) as writer:
        writer.write_session(about() if described is None else described)
        for record in records:
            writer.write(record)
    return folder
