"""Declared workspace of calls, compared with peaks from published runs."""

from __future__ import annotations

import pytest

import efficient_attn as ea
from efficient_attn.contract.shapes import Shape

SMALL = Shape(batch=1, heads=2, kv_heads=2, n=256, m=512, head_dim=8, value_dim=16)  # an output of 32 KiB in float32
LARGE = Shape(batch=2, heads=4, kv_heads=1, n=16384, m=16384, head_dim=64, value_dim=64)  # one of 32 MiB


@pytest.mark.parametrize(
    ("variant", "shape", "training", "peak"),
    [
        ("full", SMALL, False, 147_456),
        ("full", SMALL, True, 376_832),
        ("full:backend=dense", SMALL, False, 2_146_304),
        ("full:backend=dense", SMALL, True, 4_489_216),
        ("gqa", LARGE, False, 50_331_648),
        ("gqa", LARGE, True, 184_549_376),
        ("sliding_window", SMALL, False, 49_152),
        ("sliding_window", LARGE, True, 301_989_888),
        ("sliding_window:backend=dense", SMALL, True, 4_489_216),
        ("linear", SMALL, False, 147_456),
        ("linear", SMALL, True, 294_912),
        ("linear", LARGE, False, 53_477_376),
        ("linear", LARGE, True, 301_989_888),
        ("linear:backend=dense", SMALL, False, 2_146_304),
        ("nystromformer", SMALL, True, 294_912),
    ],
)
def test_output_and_workspace_bytes_equal_the_peak(variant: str, shape: Shape, training: bool, peak: int) -> None:
    attn = ea.create(variant)
    output = shape.batch * shape.heads * shape.n * shape.value_dim * 4
    causal = attn.traits.causal
    assert output + attn.workspace_bytes(shape, 4, causal=causal, training=training) == peak


def test_workspace_of_many_features_is_that_of_their_sums() -> None:
    """The Taylor features of a head of 256 are 34,049, whose sums take far more memory than 64 keys and queries."""
    shape = Shape(batch=1, heads=2, kv_heads=2, n=64, m=64, head_dim=256, value_dim=16)
    attn, sums = ea.create("taylor"), 2 * 34_049 * 17 * 4
    assert [attn.workspace_bytes(shape, 4, causal=True, training=x) for x in (False, True)] == [3 * sums, 4 * sums]


def test_workspace_is_proportional_to_the_element_size() -> None:
    attn = ea.create("linear")
    wide, narrow = (attn.workspace_bytes(LARGE, size, causal=True, training=False) for size in (8, 2))
    assert wide == 4 * narrow


def test_workspace_of_mla_has_the_width_of_its_values() -> None:
    attn = ea.create("mla", dims=ea.Dims(heads=2, head_dim=8))
    assert attn.workspace_bytes(SMALL, 4, causal=True, training=False) == 16_384
