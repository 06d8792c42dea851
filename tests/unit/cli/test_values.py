"""Option values: abbreviations, and errors of one line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import pytest

from efficient_attn.cli import values
from efficient_attn.cli.parser import make_parser


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (values.length, "1000", 1000),
        (values.length, "32K", 32768),
        (values.length, "1k", 1024),
        (values.length, "8k", 8192),
        (values.length, "16K", 16384),
        (values.length, "1M", 1048576),
        (values.length, "2m", 2097152),
        (values.dtype, "bf16", "bfloat16"),
        (values.dtype, "fp16", "float16"),
        (values.dtype, "float64", "float64"),
        (values.milliseconds, "50ms", 50.0),
        (values.milliseconds, "2s", 2000.0),
        (values.milliseconds, "800us", 0.8),
        (values.task_share, "mqar=.95", ("mqar", 0.95)),
        (values.bound, "0", 0.0),
    ],
)
def test_values_are_parsed(read: Callable[[str], Any], text: str, value: Any) -> None:
    assert read(text) == pytest.approx(value) if isinstance(value, float) else read(text) == value


def test_a_models_shape_is_axes() -> None:
    assert values.shape("llama3-8b").axes == {"heads": 32, "kv_heads": 8, "head_dim": 128}
    assert values.shape("bert-base").axes == {"heads": 12, "head_dim": 64}


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (values.length, "0"),
        (values.length, "K"),
        (values.length, "1.5K"),
        (values.length, "-1K"),
        (values.length, "1MB"),
        (values.length, "1G"),
        (values.length, "0M"),
        (values.length, "M"),
        (values.length, ""),
        (values.dtype, "bf-16"),
        (values.milliseconds, "ms"),
        (values.milliseconds, "0ms"),
        (values.milliseconds, "nanms"),
        (values.task_share, "=.9"),
        (values.bound, "inf"),
        (values.path, ""),
        (values.shape, "llama"),
    ],
)
def test_invalid_values_raise_one_line(read: Callable[[str], Any], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as found:
        read(text)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("twice", ["--seq-len 8", "--max-error 0", "--max-ppl-ratio 2", "--memory 1GB", "--latency 1s"])
def test_a_bound_given_twice_is_refused(twice: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Even with the same value, also 0."""
    once = ["recommend", "--seq-len", "8"] if "seq-len" not in twice else ["recommend"]
    assert make_parser().parse_args([*once, *twice.split()]).verb == "recommend"
    with pytest.raises(SystemExit, match="2"):
        make_parser().parse_args([*once, *twice.split(), *twice.split()])
    said = f"efficient-attn recommend: argument {twice.split()[0]}: given twice; give it only once\n"
    assert capsys.readouterr().err == said
