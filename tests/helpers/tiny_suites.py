"""Tiny suites, and exact attention with modified outputs, for tests of runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

import efficient_attn as ea
from efficient_attn.bench import task_registry
from efficient_attn.bench.case import Case
from efficient_attn.bench.planning import suite
from efficient_attn.bench.planning.plan import Overrides, make_plan
from efficient_attn.bench.planning.suite import LoadedSuite, parse_suite
from efficient_attn.registry import entries
from efficient_attn.tasks import TABLE

TINY = """
title    = "Tiny"
measure  = ["forward"]
baseline = "full"
rounds   = 2
max_rounds=2
budget_s = 1
axes     = { seq_len = [16], threads = [1] }
dims     = { heads = 2, head_dim = 8 }
[[variant]]
name = "full"
"""

TRAINING = """
title          = "Training"
baseline       = "full"
variant        = [{ name = "full" }, { name = "linear" }]
measure        = ["mqar"]
pairs          = 2
vocab          = 32
seeds          = 2
axes           = { seq_len = [16], threads = [1], causal = [true] }
learning_rates = [1e-3, 2e-3]
"""


FAULTY = """
title      = "Faulty mechanisms"
measure    = ["forward"]
baseline   = "full"
rounds     = 2
max_rounds = 2
processes  = {processes}
budget_s   = {budget_s}
plugins    = [{plugins}]
axes       = {{ seq_len = {lengths}, threads = [1] }}
dims       = {{ heads = 2, head_dim = 8 }}
variant    = [{variants}]
"""


def write_faulty_suite(
    path: Path,
    names: Sequence[str],
    *,
    plugins: Sequence[object],
    lengths: Sequence[int] = (16,),
    processes: int = 2,
    budget_s: float = 2,
) -> None:
    """Write a suite of these mechanisms, which plug-ins register, in few short rounds."""
    variants = ", ".join(f'{{ name = "{name}" }}' for name in names)
    files = ", ".join(f'"{plugin}"' for plugin in plugins)
    values = {"processes": processes, "budget_s": budget_s, "lengths": list(lengths)}
    path.write_text(FAULTY.format(variants=variants, plugins=files, **values))


SEVERAL = """
title    = "Several"
measure  = ["forward", "peak_memory"]
baseline = "full"
axes     = { seq_len = [16, 32, 64], causal = [false, true], threads = [1] }
dims     = { heads = 2, head_dim = 8 }
[[variant]]
name = "full"
[[variant]]
name    = "sliding_window"
options = { window = 4 }
[[variant]]
name    = "sliding_window"
options = { window = 8 }
[[variant]]
name = "linear"
"""


def values_of(cases: list[Any], axis: str) -> list[Any]:
    """The distinct values of an axis, in the order of the plan."""

    def value(case: Any) -> Any:
        owners = (case, case.group, case.group.config, case.group.sampling)
        return next(getattr(owner, axis) for owner in owners if hasattr(owner, axis))

    return list(dict.fromkeys(map(value, cases)))


def parse(text: str = TINY, name: str = "trial") -> LoadedSuite:
    return parse_suite(text, name, TABLE)


def load_suite(name: str) -> LoadedSuite:
    return suite.load_suite(name, TABLE)


def plan(text: str = TINY, **overrides: Any) -> list[Case]:
    return make_plan(parse(text), Overrides(**overrides))


def case(variant: str = "full", mode: str = "forward", **axes: Any) -> Case:
    """One case of a tiny suite; axes such as ``seq_len=64`` replace the suite's."""
    text = TINY.replace('"forward"', f'"{mode}"')
    (found,) = plan(text, variants=[variant], axes={name: [value] for name, value in axes.items()})
    return found


Change = Callable[[Tensor], Tensor]


def register_modified(
    name: str,
    compute: Change = lambda out: out,
    *,
    advance: Change = lambda out: out,
    traits: ea.Traits | None = None,
) -> str:
    """Register exact attention whose outputs are changed by ``compute``, and those of steps by ``advance``."""

    class Modified(ea.SoftmaxAttention):
        """Exact attention with modified outputs."""

        @property
        def traits(self) -> ea.Traits:
            return traits or super().traits

        def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
            return compute(super().compute(q, k, v, mask, **inputs))

        def advance(self, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> Any:
            out, state = super().advance(q, k, v, state, **inputs)
            return advance(out), state

    ea.register(name, family="full")(Modified)
    return name


def raising(error: BaseException) -> Change:
    def raise_error(out: Tensor) -> Tensor:
        raise error

    return raise_error


@contextmanager
def isolated_registry() -> Iterator[None]:
    """Undo all registrations of the context at its end."""
    before, loaded, tasks = dict(entries._registrations), dict(entries._loaded_plugins), dict(task_registry._registered)
    try:
        yield
    finally:
        for module in entries._loaded_plugins.keys() - loaded:
            sys.modules.pop(module, None)  # so that a later import of the module registers again
        task_registry._registered.clear()
        task_registry._registered.update(tasks)
        entries._registrations.clear()
        entries._registrations.update(before)
        entries._loaded_plugins.clear()
        entries._loaded_plugins.update(loaded)


def write_suite(folder: Path, text: str, name: str = "trial.toml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)
