"""The checks of dropout detect false claims and incomplete implementations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from toy_mechanisms import PLAIN, Toy, make

import efficient_attn as ea
from efficient_attn.kernels.dense import softmax_attention
from efficient_attn.testing import Subject, run_check
from efficient_attn.testing.checks import dropout, list_checks


class Dropping(Toy):
    """Drops weights as it should. Subclasses get one thing wrong."""

    claims = replace(PLAIN, dropout=True)
    scaled_by = 1.0

    def drop(self, weights: Tensor) -> Tensor:
        return F.dropout(weights, self.dropping) if self.dropping else weights

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        eye = torch.eye(k.shape[2]).to(k).expand(*k.shape[:3], -1)
        weights = softmax_attention(q, k, eye, mask.dense(q.shape[2], k.shape[2]))
        return self.drop(weights) @ v

    compute = oracle


class OfOutputs(Dropping):
    """Drops outputs instead of weights."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        out = Toy.compute(self, q, k, v, mask)
        return F.dropout(out, self.dropping) if self.dropping else out


class AllHeadsAlike(Dropping):
    def drop(self, weights: Tensor) -> Tensor:
        if not self.dropping:
            return weights
        return weights * F.dropout(torch.ones_like(weights[:, :1]), self.dropping)


class TooFew(Dropping):
    def drop(self, weights: Tensor) -> Tensor:
        return F.dropout(weights, self.dropping * 0.9) if self.dropping else weights


class OneDraw(Dropping):
    def drop(self, weights: Tensor) -> Tensor:
        if not self.dropping:
            return weights
        g = torch.Generator().manual_seed(0)
        return weights * (torch.rand(weights.shape, generator=g) >= self.dropping) / (1 - self.dropping)


class WrongGradient(Dropping):
    def drop(self, weights: Tensor) -> Tensor:
        return super().drop(weights.detach()) + 0 * weights if self.dropping else weights


CAUGHT = {
    make(Toy, dropout=True): "dropout_drops_weights",
    OfOutputs: "dropout_drops_weights",
    AllHeadsAlike: "dropout_drops_weights",
    TooFew: "dropout_drops_weights",
    OneDraw: "dropout_drops_weights",
    WrongGradient: "dropout_gradients",
}


def failed(cls: type[Toy]) -> dict[str, str]:
    outcomes = [run_check(check, Subject(lambda dims, seed, backend: cls())) for check in list_checks(dropout)]
    return {o.check.name: o.reason for o in outcomes if o.status == "failed"}


def test_correct_dropout_passes() -> None:
    before = torch.get_rng_state()
    assert failed(Dropping) == {}
    assert failed(Toy) == {}
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cls", CAUGHT, ids=lambda c: c.__name__)
def test_wrong_dropout_is_detected(cls: type[Toy]) -> None:
    assert CAUGHT[cls] in failed(cls)


def test_ignored_dropout_is_detected() -> None:
    class Accepts(Toy):
        """Takes dropout that it does not claim, and does nothing with it."""

        dropout = 0.0  # pyright: ignore[reportIncompatibleVariableOverride, reportAssignmentType]

    reasons = failed(Accepts)
    assert list(reasons) == ["dropout_is_never_ignored"]
    assert reasons["dropout_is_never_ignored"].endswith("accepted, expected UnsupportedError")
