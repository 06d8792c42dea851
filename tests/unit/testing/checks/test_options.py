"""Options and seeds without effect are named."""

from __future__ import annotations

import pytest
from toy_mechanisms import Toy

import efficient_attn as ea
from efficient_attn.contract.shapes import Dims
from efficient_attn.registry import entries
from efficient_attn.testing import Subject, run_check
from efficient_attn.testing.checks import options


class Unused(Toy):
    """Its option and its seed are stored only."""

    def __init__(self, *, width: int = 4, dims: Dims = Dims(), seed: int = 0) -> None:
        super().__init__()
        self.width = width


def test_an_option_without_effect_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "_registrations", dict(entries._registrations))
    ea.register("unused_width", family="full")(Unused)
    outcome = run_check(options.options_matter, Subject("unused_width"))
    assert outcome.status == "failed"
    assert "the option width has no effect: with width=3 and 2 and 5" in outcome.reason


def test_a_seed_without_effect_is_reported() -> None:
    outcome = run_check(options.options_matter, Subject(lambda dims, seed, backend: Unused(seed=seed)))
    assert outcome.status == "failed"
    assert "the seed has no effect" in outcome.reason


def test_options_and_seeds_with_an_effect_pass() -> None:
    for spec in ("sliding_window", "random_blocks", "linformer", "gqa"):
        outcome = run_check(options.options_matter, Subject(spec))
        assert outcome.status == "passed", outcome.reason
