"""Requirements: contradictions are refused with a one-line message."""

from __future__ import annotations

from typing import Any

import pytest

from efficient_attn.errors import UsageError
from efficient_attn.report.answers.requirements import Requirements


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"seq_len": 0}, "seq_len must be at least 1"),
        ({"mode": "train"}, "mode must be one of forward"),
        ({"mode": "decode", "causal": False}, "decode is always causal"),
        ({"kv_heads": 3, "heads": 8}, "3 key-value heads do not divide 8 heads"),
        ({"max_error": float("nan")}, "--max-error must be at least 0"),
        ({"max_ppl_ratio": 0.9}, "at least 1 \\(the model's own perplexity\\)"),
        ({"min_accuracy": {"mqar": 95.0}}, "mqar=95 must be between 0 and 1"),
    ],
)
def test_contradictory_requirements_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as found:
        Requirements(**({"seq_len": 1024} | given))
    assert "\n" not in str(found.value)


def test_the_description_contains_all_requirements() -> None:
    asked = Requirements(seq_len=16384, mode="decode", kv_heads=2, max_error=0.1, memory=2**21, latency_ms=50.0)
    assert asked.describe() == (
        "decode at 16,384, causal, on cpu, 2 key-value heads, error at most 0.1, memory at most 2.00 MiB, "
        "at most 50.0 ms per call"
    )
    assert asked.resolved_causal is True
    assert Requirements(seq_len=1).resolved_causal is None
    assert not Requirements(seq_len=1).has_quality_bounds
    assert Requirements(seq_len=1, min_accuracy={"mqar": 0.9}).has_quality_bounds
    assert asked.as_data() == {
        "seq_len": 16384, "mode": "decode", "device": "cpu", "kv_heads": 2, "max_error": 0.1, "memory": 2**21,
        "latency_ms": 50.0,
    }  # fmt: skip
