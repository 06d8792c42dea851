"""Fixed copies of the plug-in in README and of another one, which must keep working without changes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tiny_suites

import efficient_attn as ea
from efficient_attn import testing

README = Path(__file__).parents[3] / "README.md"
PLUGINS = '''import torch.nn.functional as F

import efficient_attn as ea
from efficient_attn.patterns import Band, Keys


@ea.register("sink_window", family="sparse")
class SinkWindow(ea.SparseAttention):
    """A sliding window plus the first tokens of the sequence (attention sinks, arXiv:2309.17453)."""

    def __init__(self, *, window: int = 256, n_sink: int = 4) -> None:
        super().__init__(Band(-window, window) | Keys(0, n_sink))


@ea.register("softplus", family="linear")
class Softplus(ea.LinearAttention):
    """Linear attention with phi(x) = log(1 + exp(x))."""

    def __init__(self) -> None:
        super().__init__(ea.FeatureMap(F.softplus))
'''
NAMES = ("output", "equals_oracle", "causality", "decode_equals_forward", "spec_round_trip")
QUICK = [c for c in testing.CHECKS if c.name in NAMES]


def test_readme_contains_the_plugin() -> None:
    section = README.read_text(encoding="utf-8").partition("## Add your own mechanism")[2]
    block = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert block
    first = PLUGINS.partition('\n\n\n@ea.register("softplus"')[0].removeprefix("import torch.nn.functional as F\n\n")
    assert block[1] == f"{first}\n"


@pytest.mark.parametrize(
    ("spec", "options"), [("sink_window:window=20", {"window": 20, "n_sink": 4}), ("softplus", {})]
)
def test_plugins_load_and_pass_checks(tmp_path: Path, spec: str, options: dict[str, int]) -> None:
    path = tmp_path / "my_attn.py"
    path.write_text(PLUGINS)
    with tiny_suites.isolated_registry():
        assert ea.load_plugin(str(path)) == ["sink_window", "softplus"]
        attn = ea.create(spec, dims=ea.Dims(heads=2), seed=7)
        assert (attn.spec, attn.dims, attn.seed) == (spec, ea.Dims(heads=2), 7)
        assert ea.info(spec).options == options
        outcomes = testing.run_checks(spec, checks=QUICK)
        assert [o.reason for o in outcomes if o.status != "passed"] == []
        assert len(outcomes) == len(NAMES)
