"""The lines that mechanisms without traits or growth get, pasted into their classes, pass all checks."""

from __future__ import annotations

import textwrap
from dataclasses import replace

import pytest
from planted_bugs.planting import subclass
from torch import Tensor
from toy_mechanisms import CausalOnly, Pooled, Toy

import efficient_attn as ea
from efficient_attn.contract.mask import Mask
from efficient_attn.contract.mechanism import Attention
from efficient_attn.testing import Subject, run_checks

NOTHING = {"traits": Attention.traits, "growth": Attention.growth}
FAMILIES = ("full", "sliding_window", "linear", "linformer", "reformer:n_hashes=2:bucket_size=8", "gqa:kv_heads=2")
OTHERS = ("general", "bigbird", "retention", "cosformer", "nystromformer:n_landmarks=8", "mqa", "mla")


def subject_of(spec: str, declarations: dict[str, object]) -> Subject:
    """A mechanism with these declarations instead of its own."""
    changed: dict[type[Attention], type[Attention]] = {}

    def make(dims: ea.Dims, seed: int, backend: str | None) -> Attention:
        attn = ea.create(spec, dims=dims, seed=seed, backend=backend)
        cls = type(attn)
        attn.__class__ = changed.setdefault(cls, changed.get(cls) or subclass(cls, declarations))
        attn.origin = replace(attn.origin, spec=None)  # which would create the original
        return attn

    return Subject(make, others=())


def paste(lines: tuple[str, ...]) -> dict[str, object]:
    """The declarations that the lines make in the body of a class."""
    names: dict[str, object] = {}
    exec("class Pasted:\n" + textwrap.indent("\n".join(lines), "    "), {"ea": ea}, names)
    body = vars(names["Pasted"])
    return {name: body[name] for name in ("traits", "growth") if name in body}


@pytest.mark.sampled(30, "declarations")
@pytest.mark.slow
@pytest.mark.parametrize("spec", [*FAMILIES, *OTHERS])
def test_pasted_lines_pass(spec: str) -> None:
    (missing,) = run_checks(subject_of(spec, NOTHING))
    assert (missing.check.name, missing.status) == ("declared_traits", "failed")
    assert missing.reason.endswith("declares no traits")
    assert all(len(line) <= 75 for line in missing.lines[:-5])
    pasted = paste(missing.lines)
    outcomes = run_checks(subject_of(spec, {**NOTHING, **pasted}))
    assert [(o.check.name, o.reason) for o in outcomes if o.status == "failed"] == []
    original = ea.create(spec, dims=Subject(spec).attn.dims).traits
    assert (pasted["traits"].directions, pasted["traits"].decode) == (original.directions, original.decode)  # type: ignore[attr-defined]


class Rounding(Toy):
    """Computes in float32 whatever the dtype is, which is no missing trait."""

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        return super().oracle(q.float(), k.float(), v.float(), mask).to(q.dtype)

    compute = oracle


class Gated(Toy):
    """Has a further input, which the signature names."""

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, gate: Tensor) -> Tensor:  # type: ignore[override]
        return super().oracle(q, k, v, mask) * gate.sigmoid()

    compute = oracle


class Broken(Toy):
    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        return super().compute(q, k, v, mask) * float("nan")


def strip(cls: type[Toy], **declarations: object) -> Subject:
    stripped = subclass(cls, {**NOTHING, **declarations})
    return Subject(lambda dims, seed, backend: stripped())


def declared(cls: type[Toy]) -> ea.Traits:
    (missing,) = run_checks(strip(cls))
    traits = paste(missing.lines)["traits"]
    assert isinstance(traits, ea.Traits)
    return traits


@pytest.mark.sampled(6)
@pytest.mark.slow
def test_traits_of_toys_are_found() -> None:
    traits = declared(Rounding)
    assert traits == ea.Traits(decode=False, grouped=traits.grouped, exact=True)
    assert declared(CausalOnly).causal
    pooled = declared(Pooled)
    assert (pooled.causal, pooled.strictly_causal, pooled.mixes_queries) == (True, False, True)
    gated = declared(Gated)
    assert gated.inputs == {"gate": ea.Input("query", tail=(1,))}
    assert not gated.normalised


def test_a_broken_mechanism_is_corrected_first() -> None:
    (missing,) = run_checks(strip(Broken))
    assert missing.lines == ()
    assert "cannot be measured yet: output: output for N=1, M=1: not finite" in missing.reason


@pytest.mark.sampled(4)
def test_a_method_without_property_is_explained() -> None:
    (found,) = run_checks(strip(Broken, traits=lambda self: ea.Traits()))
    assert "cannot be measured yet" in found.reason
    (found,) = run_checks(strip(Toy, traits=lambda self: ea.Traits()))
    assert found.reason == "traits is a method, no ea.Traits; is @property missing?"
    assert found.lines[0] == "traits = ea.Traits("
