"""A plug-in's growth that its own work contradicts is refused before the first case."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_suites

import efficient_attn as ea
from efficient_attn.bench import declared_growth
from efficient_attn.bench.declared_growth import check_growth
from efficient_attn.bench.run import run
from efficient_attn.engines.local import LocalEngine

PLUGIN = '''
import time
import torch
import efficient_attn as ea

@ea.register("zz_mine", family="full")
class Mine(ea.SoftmaxAttention):
    """Exact attention with a growth of its own."""

    growth = ea.Growth({growth})

    def compute(self, q, k, v, mask, **inputs):
        {first}
        return super().compute(q, k, v, mask)
'''
RIGHT = '"O(N^2)", "O(N)", lambda n, m, causal: n * m'
WRONG = {
    "contradicts its work": ('"O(N)", "O(N)", lambda n, m, causal: n', "times the work of growth.cost"),
    "contradicts itself": ('"O(N)", "O(N)", lambda n, m, causal: n * m', "growth.time declares 'O(N)'"),
    "decreases": ('"O(N^2)", "O(N)", lambda n, m, causal: 1e9 / n', "cost decreases over the lengths"),
    "takes other arguments": ('"O(N^2)", "O(N)", lambda n: n', "TypeError"),
}


def check(folder: Path, growth: str, first: str = "pass", engine: LocalEngine | None = None) -> None:
    """Check the plug-in in a plan with a built-in mechanism."""
    (folder / "mine.py").write_text(PLUGIN.format(growth=growth, first=first))
    with tiny_suites.isolated_registry():
        ea.load_plugin(str(folder / "mine.py"))
        cases = tiny_suites.plan(tiny_suites.TINY.replace('"full"', '"zz_mine"'))
        assert {case.variant.names for case in cases} == {("zz_mine",)}
        check_growth(cases, engine or LocalEngine("inline"))


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_growth_is_refused_with_the_line_to_write(name: str, tmp_path: Path) -> None:
    growth, reason = WRONG[name]
    with pytest.raises(ea.UsageError, match="zz_mine: wrong growth") as refused:
        check(tmp_path, growth)
    message = str(refused.value)
    assert reason in message
    assert "\n" not in message
    line = message.partition("as counted: ")[2]
    assert line.startswith('growth = ea.Growth(time="O(N^2)", memory="O(N)", cost=lambda n, m, causal: ')
    check(tmp_path, line.removeprefix("growth = ea.Growth(").removesuffix(")"))


def test_a_right_growth_is_accepted(tmp_path: Path) -> None:
    check(tmp_path, RIGHT)


@pytest.mark.slow
def test_a_mechanism_that_fails_is_left_to_its_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = WRONG["contradicts its work"][0]
    monkeypatch.setattr(declared_growth, "LIMIT_S", 1.0)
    reasons = {"time.sleep(60)": "counting its work takes over 1 s", "__import__('os')._exit(3)": "3"}
    for first, reason in reasons.items():
        (tmp_path / first).mkdir()
        with pytest.warns(UserWarning, match=f"zz_mine: growth not checked: .*{reason}"):
            check(tmp_path / first, wrong, first, LocalEngine())


def test_a_mechanism_whose_work_cannot_be_counted_is_named(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="zz_mine: growth not checked: ValueError: not today"):
        check(tmp_path, WRONG["contradicts its work"][0], "raise ValueError('not today')")


def test_built_in_growth_is_not_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: LocalEngine, job: object) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(LocalEngine, "run", refuse)
    check_growth(tiny_suites.plan(tiny_suites.TINY), LocalEngine())


def test_a_refused_run_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN.format(growth=WRONG["contradicts itself"][0], first="pass"))
    with tiny_suites.isolated_registry():
        ea.load_plugin(str(tmp_path / "mine.py"))
        cases = tiny_suites.plan(tiny_suites.TINY.replace('"full"', '"zz_mine"'))
        with pytest.raises(ea.UsageError, match="wrong growth"):
            run(tiny_suites.parse(), cases, tmp_path / "out", start_method="inline")
    assert not (tmp_path / "out").exists()
