"""Options that `Attention.fit` selects for a budget have the size of the budget."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import torch

from ...contract.budget import Budget
from ...contract.decode_state import state_bytes
from ...contract.mask import Mask
from ...contract.mechanism import Attention
from ...contract.shapes import Dims
from ...errors import UnsupportedError, UsageError
from ...spec import Union
from ..check import check
from ..subject import Subject

KEYS, LENGTH = 48, 256  # of budgets of keys; most rows are not near an end of the sequence
STATE_KEYS, STATE_WIDTH = 128, 64  # of budgets of a state, on the meta device
LONG = 2**14  # states of this length and twice it are equally large if they are bounded
SLACK = 0.1


def _fit(subject: Subject, keys: int, width: int, *, causal: bool, length: int = LENGTH) -> tuple[Any, Subject]:
    """The options for a budget, and the mechanism with them and with defaults for the others."""
    kind, origin = type(subject.attn), subject.attn.origin
    options = kind.fit(Budget(keys=keys, length=length, head_dim=width, causal=causal))
    reserved = inspect.signature(kind.__init__).parameters.keys() & {"dims", "seed"}

    def make(dims: Dims, seed: int, backend: str | None) -> Attention:
        known = {"dims": dims, "seed": seed}
        made_from = replace(origin, spec=None, options=options, dims=dims, seed=seed)
        return kind.made_from(made_from, backend=backend, **options, **{name: known[name] for name in reserved})

    return options, replace(subject, source=make, others=())


def _no_rule(subject: Subject) -> str | None:
    if isinstance(subject.attn.origin.spec, Union):
        return "it is a union of patterns"
    try:
        _fit(subject, KEYS, 8, causal=subject.causalities[-1])
    except (UnsupportedError, UsageError) as error:
        return str(error)
    return None


@check(skip_reason=_no_rule)
@torch.no_grad()
def fit(subject: Subject) -> str | None:
    """With the options that fit() selects for a budget, a query reads that number of keys, or without query-key pairs,
    a decode state is as large as these, within 10%."""
    tested = False
    for causal in subject.causalities:
        options, fitted = _fit(subject, KEYS, 8, causal=causal)
        heads = fitted.attn.kv_heads or 1
        shape = fitted.shape(LENGTH, batch=1, heads=heads, kv_heads=heads, value_dim=LENGTH)
        attn = fitted.oracle(shape)
        if not fitted.traits.values or attn.pairs(LENGTH, LENGTH, causal) is None:
            continue
        call = fitted.draw(shape, mask=Mask(causal=causal))
        weights = call.with_(v=torch.eye(LENGTH).to(call["v"]).expand(call["v"].shape)).run(attn)
        counts = (weights != 0).sum(-1).flatten().sort().values
        # early rows of a causal call read fewer keys; of others, those of global queries read more
        read = int(counts[-1] if causal else counts[len(counts) * 3 // 4])
        _compare(read, KEYS, f"a query reads {read} of {LENGTH} keys, causal={causal}, {options}")
        tested = True
    if not tested and subject.traits.decode:
        tested = _check_state(subject)
    return None if tested else "fit(): neither pairs() nor a bounded decode state shows the size that it selects"


def _check_state(subject: Subject) -> bool:
    """Compare the fitted decode state with the budget. Return whether it is bounded, and was compared."""
    options, fitted = _fit(subject, STATE_KEYS, STATE_WIDTH, causal=True, length=LONG)
    heads = fitted.attn.kv_heads or 1
    width = {"heads": heads, "kv_heads": heads, "head_dim": STATE_WIDTH, "value_dim": STATE_WIDTH}
    attn = fitted.new(Dims(**width, max_len=2 * LONG))
    size, doubled = (state_bytes(attn.init_state(1, n, torch.float32, "meta")) for n in (LONG, 2 * LONG))
    if size == doubled:
        allowed = STATE_KEYS * 2 * STATE_WIDTH * heads * 4
        _compare(size, allowed, f"a decode state has {size} bytes, {options}")
    return size == doubled


def _compare(size: int, allowed: int, label: str) -> None:
    message = f"with the options of fit(), {label}; the budget is {allowed}: correct fit"
    assert abs(size - allowed) <= SLACK * allowed, message
