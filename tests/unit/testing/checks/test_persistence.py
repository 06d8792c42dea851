"""Pickling, torch.save and copying: of every mechanism, to another process too, and what the checks find."""

from __future__ import annotations

import copy
import io
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from planted_bugs.planting import subclass
from specs import SPECS
from tiny_suites import isolated_registry
from toy_mechanisms import Toy

import efficient_attn as ea
from efficient_attn.testing import Subject, run_check
from efficient_attn.testing.checks import persistence


def test_pickling_errors_are_detected() -> None:
    class Local(Toy):
        """Pickles find a class by its name alone."""

    class Closed(ea.LinearAttention):
        def __init__(self) -> None:
            super().__init__(ea.FeatureMap(lambda x: x.exp()))

    for cls in (Local, Closed):
        outcome = run_check(persistence.pickles, Subject(lambda dims, seed, backend, cls=cls: cls()))
        assert outcome.status == "failed"
        assert "the mechanism before calls, pickle: " in outcome.reason


@pytest.mark.parametrize("spec", SPECS)
def test_declarations_can_be_pickled(spec: str) -> None:
    attn = Subject(spec).attn
    twin = pickle.loads(pickle.dumps((attn.growth, attn.traits, attn.origin)))
    assert twin[0].cost(70, 70, False) == attn.growth.cost(70, 70, False)
    assert twin[0].step_cost(70) == attn.growth.step_cost(70)
    assert twin[1:] == (attn.traits, attn.origin)


def test_a_layer_can_be_saved() -> None:
    layer = ea.MultiHeadAttention(32, 4, variant="performer:n_features=16", kv_heads=2).eval()
    x, buffer = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(0)), io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    for twin in (torch.load(buffer, weights_only=False), copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin(x), layer(x))


def test_dropout_and_mode_are_pickled() -> None:
    attn = ea.create("full")
    attn.dropout = 0.5
    assert pickle.loads(pickle.dumps(attn)).dropping == 0.5
    assert pickle.loads(pickle.dumps(attn.eval())).dropping == 0


ANSWER = """
import pickle, sys, torch
torch.set_num_threads(1)
calls = pickle.load(sys.stdin.buffer)
pickle.dump([call.run(attn).detach() for attn, call in calls], sys.stdout.buffer)
"""


@pytest.mark.slow
@pytest.mark.sampled(4)
def test_every_mechanism_can_be_sent_to_another_process() -> None:
    calls, wanted = [], []
    for spec in SPECS:
        subject = Subject(spec)
        shape = subject.shape(40)
        attn, call = subject.make(shape, dtype=torch.float32), subject.draw(shape, dtype=torch.float32)
        calls.append((attn, call))
        wanted.append(call.run(attn).detach())
    command = [sys.executable, "-c", ANSWER]
    done = subprocess.run(command, input=pickle.dumps(calls), capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    got = pickle.loads(done.stdout)
    for spec, x, y in zip(SPECS, got, wanted, strict=True):
        assert torch.equal(x, y), spec


def test_a_planted_class_is_found_by_pickles_of_this_process() -> None:
    attn = ea.create("full")
    attn.__class__ = subclass(type(attn), {"label": "planted"})
    for twin in (pickle.loads(pickle.dumps(attn)), copy.deepcopy(attn)):
        assert type(twin) is type(attn)
        assert twin.label == "planted"


KEEPS_TABLES = """
import torch
import efficient_attn as ea

TABLES = {}


@ea.register("zz_registers_tables", family="full")
class RegistersTables(ea.SoftmaxAttention):
    \"\"\"Exact attention whose scale is in a table of this module.\"\"\"

    def __init__(self) -> None:
        super().__init__()
        self.number = len(TABLES)
        TABLES[self.number] = torch.ones(1)

    def compute(self, q, k, v, mask, **inputs):
        return super().compute(q * TABLES[self.number].to(q.dtype), k, v, mask, **inputs)


@ea.register("zz_has_tables", family="full")
class HasTables(ea.SoftmaxAttention):
    \"\"\"Exact attention.\"\"\"


print("loaded")
"""


@pytest.mark.sampled(4)
def test_what_works_in_its_own_process_only_is_detected_if_thorough(tmp_path: Path) -> None:
    file = tmp_path / "tables.py"
    file.write_text(KEEPS_TABLES)
    with isolated_registry():
        assert ea.load_plugin(str(file)) == ["zz_registers_tables", "zz_has_tables"]
        wrong, right = (Subject(name, thorough=True) for name in ("zz_registers_tables", "zz_has_tables"))
        assert run_check(persistence.pickles, wrong).status == "passed"
        outcome = run_check(persistence.another_process, wrong)
        assert outcome.status == "failed"
        assert re.fullmatch(r"in another process: KeyError: \d+ \(q .*; tables.py, line 18\)", outcome.reason)
        assert run_check(persistence.another_process, right).status == "passed"
        assert run_check(persistence.another_process, Subject("zz_has_tables")).status == "not_claimed"
        made_here = Subject(lambda *_: ea.create("full"), thorough=True)
        assert run_check(persistence.another_process, made_here).status == "not_claimed"
