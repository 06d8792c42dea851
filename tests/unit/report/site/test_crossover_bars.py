"""Crossover charts: unmeasured ranges are hatched, and lengths are placed on the axis."""

from __future__ import annotations

from efficient_attn.report.answers.decision_table import Decision, DecisionTable
from efficient_attn.report.site.crossover_bars import WIDTH, list_bar_charts
from efficient_attn.results.stats import Estimate

PLACE = {"suite": "s", "machine": "m", "device": "cpu", "mode": "forward", "causal": False}
SLOW, OPEN, FAST = Estimate(0.5, 0.4, 0.6), Estimate(1.0, 0.9, 1.1), Estimate(2.0, 1.9, 2.1)


def _decision(label: str, **speedups: Estimate) -> Decision:
    by_length = {int(name[1:]): value for name, value in speedups.items()}
    return Decision(
        label=label, variant=label, family="linear", crossover=None, speedups=by_length, error_text="exact", error=0.0
    )


def _board(*decisions: Decision, **place: object) -> DecisionTable:
    return DecisionTable(config=PLACE | place, baseline="full", lengths=(4096,), decisions=decisions)


def test_a_bar_is_hatched_beyond_the_measured_lengths() -> None:
    whole = _decision("whole", n512=SLOW, n1024=OPEN, n2048=FAST, n4096=FAST)
    few = _decision("few", n1024=FAST, n2048=FAST)
    (shown,) = list_bar_charts([_board(whole, few)], {})
    assert shown.ticks == ("512", "1K", "2K", "4K")
    assert [piece.state for piece in shown.bars[0].segments] == ["slower", "unclear", "faster", "faster"]
    assert [piece.state for piece in shown.bars[1].segments] == ["unmeasured", "faster", "faster", "unmeasured"]
    for strip in shown.bars:
        assert abs(sum(piece.width for piece in strip.segments) - WIDTH) < 1
    assert shown.bars[0].alt_text == "slower at 512, unclear at 1K, faster at 2K and faster at 4K"


def test_the_configuration_with_most_lengths_is_shown() -> None:
    one = _board(_decision("a", n100=FAST))
    more = _board(_decision("a", n100=FAST, n1000=FAST), machine="other")
    (shown,) = list_bar_charts([one, more], {})
    assert "other" in shown.config_text
    (alone,) = list_bar_charts([one], {})
    assert [piece.state for piece in alone.bars[0].segments] == ["unmeasured", "faster", "unmeasured"]


def test_only_speedups_over_exact_attention_are_charted() -> None:
    other = DecisionTable(config=PLACE, baseline="peer_x", lengths=(64,), decisions=(_decision("a", n64=FAST),))
    assert list_bar_charts([other], {}) == []
