"""Tables of crossover lengths."""

from __future__ import annotations

from efficient_attn.report.answers.decision_table import Decision, DecisionTable
from efficient_attn.report.site.crossover_tables import list_crossovers
from efficient_attn.results.stats import Estimate

CONFIG = {"suite": "s", "machine": "m", "device": "cpu", "mode": "forward", "causal": False}
SLOW, OPEN, FAST = Estimate(0.5, 0.4, 0.6), Estimate(1.0, 0.9, 1.1), Estimate(2.0, 1.9, 2.1)


def _decision(label: str, **speedups: Estimate) -> Decision:
    by_length = {int(name[1:]): value for name, value in speedups.items()}
    return Decision(
        label=label, variant=label, crossover=None, speedups=by_length, error_text="exact", error=Estimate(0.0)
    )


def _table(*decisions: Decision, baseline: str = "full", **config: object) -> DecisionTable:
    return DecisionTable(config=CONFIG | config, baseline=baseline, lengths=(4096,), decisions=decisions)


def test_cells_are_classified_and_empty_where_nothing_was_measured() -> None:
    whole = _decision("whole", n512=SLOW, n1024=OPEN, n2048=FAST)
    (shown,) = list_crossovers([_table(whole, _decision("few", n1024=FAST))], {"m": "M (2 cores)"})
    assert shown.lengths == (512, 1024, 2048)
    assert shown.lines[0].speedups == (("slower", "0.500x"), ("unclear", "1.00x"), ("faster", "2.00x"))
    assert shown.lines[1].speedups == (("", ""), ("faster", "2.00x"), ("", ""))
    assert shown.config_text == "M (2 cores), cpu"


def test_the_configuration_with_most_speedups_over_exact_attention_is_shown() -> None:
    one, more = _decision("a", n100=FAST), _decision("a", n100=FAST, n1000=FAST)
    tables = [_table(one), _table(more, machine="other"), _table(more, more, baseline="peer_x")]
    (shown,) = list_crossovers(tables, {"other": "Other"})
    assert shown.config_text.startswith("Other")
    assert list_crossovers(tables[2:], {}) == []
    assert list_crossovers([_table(one, mode="train")], {}) == []
