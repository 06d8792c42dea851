"""Backends that others add to mechanisms."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn import registry
from efficient_attn.bench.planning.case_factory import fingerprint
from efficient_attn.contract.shapes import Shape
from efficient_attn.registry.entries import ADDED_BACKENDS

CALLS: list[str] = []
CAUSAL = ea.Mask(causal=True)


def attend(attn: ea.Attention, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
    CALLS.append(attn.label)
    return attn.oracle(q, k, v, mask, **inputs)


@pytest.fixture(autouse=True)
def backends() -> Iterator[None]:
    CALLS.clear()
    before = dict(ADDED_BACKENDS)
    yield
    ADDED_BACKENDS.clear()
    ADDED_BACKENDS.update(before)


def draw(n: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = torch.randn(3, 1, 2, n, 8, generator=torch.Generator().manual_seed(n)).unbind()
    return q, k, v


@pytest.mark.parametrize("spec", ["full", "sliding_window:window=2", "linear", "cosformer", "gla", "reformer"])
def test_the_function_computes_calls_of_its_spec_alone(spec: str) -> None:
    ea.register_backend(spec.partition(":")[0], "mine", attend)
    dims = ea.Dims(heads=2, kv_heads=2, head_dim=8, value_dim=8, max_len=16)
    mine, own = ea.create(f"{spec}:backend=mine", dims=dims), ea.create(spec, dims=dims)
    sample = own.sample(Shape(1, 2, own.kv_heads or 2, 9, 9, 8, 8), generator=torch.Generator().manual_seed(0))
    for attn in (own, mine):
        attn.load_state_dict(own.state_dict())
    out = mine(sample.q, sample.k, sample.v, CAUSAL, **sample.inputs)
    assert [mine.label] == CALLS
    torch.testing.assert_close(out, own(sample.q, sample.k, sample.v, CAUSAL, **sample.inputs))
    assert [mine.label] == CALLS
    assert (
        mine.backend,
        mine.what_runs(Shape.of(*draw()), causal=True, dtype=torch.float32, device=torch.device("cpu"), gradient=False),
    ) == (
        "mine",
        ("mine", None),
    )
    assert own.backend != "mine"


def advance(attn: ea.Attention, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> tuple[Tensor, Any]:
    state = state.append(k, v)
    return attend(attn, q, *state.filled(), state.mask), state


def test_it_decodes_with_its_own_steps_alone() -> None:
    """So that no row names a backend that another one has computed."""
    ea.register_backend("full", "mine", attend)
    with pytest.raises(ea.UnsupportedError, match="cannot decode"):
        ea.create("full:backend=mine").init_state(1, 7)
    ea.register_backend("full", "mine", attend, step=advance)
    attn, (q, k, v) = ea.create("full:backend=mine"), draw(7)
    state, rows = attn.init_state(1, 7), []
    for t in range(7):
        out, state = attn.step(q[:, :, t : t + 1], k[:, :, t : t + 1], v[:, :, t : t + 1], state)
        rows.append(out)
    assert [attn.label] * 7 == CALLS
    torch.testing.assert_close(torch.cat(rows, 2), attn(q, k, v, CAUSAL))


def test_copies_and_pickles_have_it() -> None:
    ea.register_backend("full", "mine", attend)
    attn = ea.create("full:backend=mine")
    for other in (copy.deepcopy(attn), pickle.loads(pickle.dumps(attn))):
        other(*draw())
        assert (type(other), other.backend, CALLS.pop()) == (type(attn), "mine", "full:backend=mine")


def test_what_it_lacks_is_refused() -> None:
    ea.register_backend("full", "mine", attend, lacks=["gradient", "padding"], only_dtypes=[torch.float32])
    attn, (q, k, v) = ea.create("full:backend=mine"), draw()
    assert not attn.traits.gradient
    assert attn.traits.cross
    assert attn.traits is attn.traits
    for call in (
        lambda: attn(q.requires_grad_(), k, v),
        lambda: attn(q.detach(), k, v, ea.Mask(key_lengths=torch.tensor([3]))),
        lambda: attn(q.double(), k.double(), v.double()),
    ):
        with pytest.raises(ea.UnsupportedError):
            call()
    ea.register_backend("full", "far", attend, only_on="cuda")
    with pytest.raises(ea.UnsupportedError, match="runs on cuda only"):
        ea.create("full:backend=far")(*draw())
    assert CALLS == []


def test_it_is_listed_and_part_of_the_sources(tmp_path: Path) -> None:
    text = "import efficient_attn as ea\n\ndef f(attn, q, k, v, mask):\n    return attn.oracle(q, k, v, mask)\n"
    digests = []
    for i, comment in enumerate(("", "# changed\n")):
        path = tmp_path / f"plugin_{i}.py"
        path.write_text(f'{text}\n{comment}ea.register_backend("full", "from_file_{i}", f)\n')
        assert ea.load_plugin(str(path)) == [f"full:backend=from_file_{i}"]
        assert ea.load_plugin(str(path)) == [f"full:backend=from_file_{i}"], "again"
        assert ea.info("full").backends[-1] == f"from_file_{i}"
        info = ea.info(f"full:backend=from_file_{i}")
        assert (info.backends, info.source) == ((f"from_file_{i}", "dense"), str(path))
        digests.append(fingerprint(registry.class_of("full", f"from_file_{i}")))
    assert len({*digests, fingerprint(registry.class_of("full"))}) == 3


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        (("full", "sdpa", attend), {}, "needs a new name"),
        (("full", "dense", attend), {}, "needs a new name"),
        (("sliding_window", "windows", attend), {}, "needs a new name"),
        (("full", "my backend", attend), {}, "needs a new name"),
        (("ful", "mine", attend), {}, "did you mean 'full'"),
        (("full", "mine", None), {}, "needs Python functions"),
        (("full", "mine", torch.softmax), {}, "needs Python functions"),
        (("full", "mine", attend), {"step": partial(advance)}, "call it in one of your own"),
        (("full", "mine", attend), {"lacks": ["gradients"]}, "did you mean 'gradient'"),
        (("full", "mine", attend), {"lacks": ["exact"]}, "unknown trait"),
    ],
)
def test_bad_registrations_are_refused(arguments: tuple, settings: dict, message: str) -> None:
    before = dict(ADDED_BACKENDS)
    with pytest.raises(ea.UsageError, match=message):
        ea.register_backend(*arguments, **settings)
    assert before == ADDED_BACKENDS


def test_two_modules_cannot_add_one_name(tmp_path: Path) -> None:
    ea.register_backend("full", "mine", attend)
    ea.register_backend("full", "mine", attend)
    path = tmp_path / "other.py"
    path.write_text('import efficient_attn as ea\nea.register_backend("full", "mine", lambda *a, **b: None)\n')
    with pytest.raises(ea.UsageError, match="another module has already added"):
        ea.load_plugin(str(path))
