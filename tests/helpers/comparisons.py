"""Comparisons with changes of every kind, to format."""

from __future__ import annotations

from dataclasses import replace

from efficient_attn.results.compare import Change, Comparison

SLOWER = Change(name="s/slower", kind="slower", by="speedup", ratio=0.8, low=0.75, high=0.85, base_ms=10, new_ms=12.5)
WORST = replace(SLOWER, name="s/worst", ratio=0.5, low=0.45, high=0.55)
FASTER = Change(name="s/fast", kind="faster", by="speedup", ratio=1.2, low=1.15, high=1.26, base_ms=0.12, new_ms=0.1)
SAME = Change(name="s/same", kind="same", by="latency", ratio=1.0, low=0.99, high=1.01, base_ms=900, new_ms=900)
UNCLEAR = Change(name="s/unclear", kind="inconclusive", by="latency", ratio=1.0, low=0.908, high=1.1)
SINGLE = Change(name="s/single", kind="inconclusive", by="latency", ratio=1.1, reason="a single round", blind=True)
BROKEN = Change(name="a|b", kind="broken", reason="oom: no memory")
FIXED = Change(name="s/fixed", kind="fixed", reason="error: boom")
ALL = (SAME, UNCLEAR, FASTER, SLOWER, SINGLE, FIXED, BROKEN, WORST)


def make_comparison(*changes: Change, **fields: object) -> Comparison:
    defaults: dict[str, object] = {
        "base": "old", "new": "new", "by": "speedup", "confidence": 0.95, "margin": 0.02, "drift": 0.02, "unlike": (),
        "tolerance": 0.1, "itself": False,
        "only_in_base": (), "only_in_new": (), "failing": (),
    }  # fmt: skip
    return Comparison(changes=changes, **(defaults | fields))  # type: ignore[arg-type]
