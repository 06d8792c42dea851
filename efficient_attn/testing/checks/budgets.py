"""Options that `Attention.fit` selects for a budget have the size of the budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from ...contract.budget import Budget
from ...contract.decode_state import state_bytes
from ...contract.mask import Mask
from ...contract.shapes import Dims, Shape, draw_sample
from ...errors import UnsupportedError, UsageError
from ...registry import create
from ...spec import Spec
from ..check import check
from ..subject import Subject

# keys of a query, in sequences of which most rows are not near an end
KEYS = Budget(keys=192, length=2048, head_dim=8, causal=True)
STATE = Budget(keys=128, length=2**14, head_dim=64, causal=True)  # on the meta device
SLACK = 0.1


def _fit(subject: Subject, budget: Budget) -> Spec | None:
    """The spec with the options that its class selects for a budget in place of its own; None if it needs more."""
    spec = subject.attn.origin.spec
    assert isinstance(spec, Spec)
    try:
        fitted = type(subject.attn).fit(replace(budget, options=spec.options))
    except UsageError:
        return None
    return Spec(spec.name, {**spec.options, **fitted})


def _no_rule(subject: Subject) -> str | None:
    if not isinstance(subject.attn.origin.spec, Spec):
        return "it was not created from a spec of one mechanism"
    try:
        _fit(subject, STATE)
    except UnsupportedError as error:
        return str(error)
    return None


def _read_sizes(subject: Subject) -> Iterator[tuple[int, int, str]]:
    """Sizes that can be counted, those of their budgets, and labels."""
    for causal in subject.causalities:
        budget = replace(KEYS, causal=causal)
        if (spec := _fit(subject, budget)) is None:
            continue
        dims = Dims(heads=1, kv_heads=1, head_dim=budget.head_dim, max_len=budget.length)
        attn = create(str(spec), dims=dims, backend="dense")
        if attn.traits.values and attn.pairs(budget.length, budget.length, causal) is not None:
            length, generator = budget.length, torch.Generator().manual_seed(subject.seed)
            shape = Shape(1, 1, 1, length, length, budget.head_dim, length)
            kinds = attn.traits.inputs
            drawn = draw_sample(shape, kinds, generator=generator, dtype=torch.float32, device="cpu")
            out = attn(drawn.q, drawn.k, torch.eye(length)[None, None], Mask(causal=causal), **drawn.inputs)
            counts = (out != 0).sum(-1).flatten()
            # early rows of a causal call read fewer keys; of others, those of global queries read more
            most = counts.max() if causal else counts.kthvalue(budget.length * 3 // 4).values
            yield int(most), budget.keys, f"keys with {spec}"
    spec = _fit(subject, STATE)
    if spec is not None and subject.traits.decode and subject.attn.pairs(4, 4, True) is None:
        width = STATE.head_dim
        attn = create(str(spec), dims=Dims(heads=1, kv_heads=1, head_dim=width, value_dim=width, max_len=STATE.length))
        sizes = [state_bytes(attn.init_state(1, n, device="meta")) for n in (STATE.length // 2, STATE.length)]
        if sizes[0] == sizes[1]:  # a state that stores every position has no budget
            yield sizes[0], STATE.keys * 2 * width * 4, f"bytes of a decode state with {spec}"


@check(skip_reason=_no_rule)
@torch.no_grad()
def fit(subject: Subject) -> str | None:
    """With the options that fit() selects, a query reads the budget's number of keys, or a decode state has the size of
    those, within 10%."""
    sizes = list(_read_sizes(subject))
    for size, allowed, label in sizes:
        assert abs(size - allowed) <= SLACK * allowed, f"{size} {label}, the budget is {allowed}: correct fit()"
    return None if sizes else "fit(): larger budgets, pairs() or a bounded decode state would show the selected size"
