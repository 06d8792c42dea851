"""Options: each has an effect, and padding, gradients and decode steps are correct at other values than the default."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch

from ...contract.decode_state import state_bytes
from ...contract.mask import Mask
from ..check import CheckFailure, check
from ..probing import create_others, other_instances
from ..sequence_decoding import Decoding
from ..subject import Subject
from ..tensor_comparison import assert_all_close, describe

N = 70
LENGTHS = (33, 300)  # of outputs that are compared: short, and longer than most blocks
COSTS = (64, 640, 4096)  # lengths at which costs and states are compared


def _list_aspects(subject: Subject, seed: int = 0) -> Iterator[Any]:
    """What an option may change, the cheapest to compare first: outputs, declarations, cost and state."""
    for n in LENGTHS:
        shape = subject.shape(n)
        attn = subject.oracle(shape, seed=seed)
        for mask in subject.plain_masks:
            yield subject.draw(shape, mask=mask).run(attn).detach()
    attn = subject.make(subject.shape(LENGTHS[-1]), seed=seed)
    yield attn.traits, attn.backend, attn.kv_heads, attn.key_dim, attn.growth.time, attn.growth.memory
    if attn.traits.decode:
        yield [state_bytes(attn.init_state(1, n, subject.dtype, "meta")) for n in COSTS]
    for n, causal in product(COSTS, subject.causalities):
        yield attn.growth.cost(n, n, causal), attn.pairs(n, n, causal), attn.pairs_computed(n, n, causal)


def _differ(results: Iterator[Any], others: Iterator[Any]) -> bool:
    return any(_differs(x, y) for x, y in zip(results, others, strict=False))


def _differs(x: Any, y: Any) -> bool:
    return not torch.equal(x, y) if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) else x != y


def takes_seed(subject: Subject) -> bool:
    """Whether the constructor takes the seed, which is how a mechanism claims that the seed matters."""
    return "seed" in inspect.signature(type(subject.attn).__init__).parameters


def _no_options(subject: Subject) -> str | None:
    has_options = subject.attn.origin.options and subject.others is None
    return None if has_options or takes_seed(subject) else "it has no options that can be varied, and takes no seed"


@check(skip_reason=_no_options)
def options_matter(subject: Subject) -> str | None:
    """Every option, and a seed that the constructor takes, changes the output, the cost or the decode state."""
    untested, variations = [], [subject]
    for name, value in subject.attn.origin.options.items() if subject.others is None else ():
        others = dict(create_others(subject, name))
        if not others:
            untested.append(f"no other value of the option {name} is accepted")
        elif not any(_differ(_list_aspects(subject), _list_aspects(other)) for other in others.values()):
            values = " and ".join(map(str, others))
            raise CheckFailure(
                f"the option {name} has no effect: with {name}={values} outputs over {LENGTHS} positions, growth, "
                f"pairs and state equal those with {name}={value}; use the option, or remove it from the constructor"
            )
        variations += others.values()
    if takes_seed(subject) and not any(  # some options switch off everything random
        _differ(_list_aspects(x), _list_aspects(x, seed=seed)) for x in variations for seed in (1, 2)
    ):
        raise CheckFailure(
            f"the seed has no effect: seeds 0, 1 and 2 give equal outputs over {LENGTHS} positions; draw with "
            "torch.Generator().manual_seed(seed), or remove seed from the constructor"
        )
    return "; ".join(untested) or None


@check(skip_reason=lambda s: None if any(True for _ in other_instances(s)) else "no option changes its results")
def other_options(subject: Subject) -> None:
    """With another value of each option, padded calls, gradients and decode steps equal the reference."""
    for other in other_instances(subject):
        shape = other.shape(N)
        attn, reference, drawn = other.make(shape), other.oracle(shape), other.draw(shape)
        for causal in other.causalities:
            masks = [Mask(causal=causal)]
            if other.traits.padding:
                lengths, holes = other.lengths(N - 9, N), other.holes(shape)
                masks = [Mask(causal=causal, key_lengths=lengths, key_mask=holes, query_lengths=lengths)]
            for call in map(drawn.under, masks):
                label = f"{other.label}, {describe(call.mask)}"
                assert_all_close(other.evaluate(call, attn), other.evaluate(call, reference), label)
        if other.traits.decode:
            call = drawn.under(Mask(causal=True))
            with torch.no_grad():
                decoding = Decoding(other, attn, call, call.run(reference))
                decoding.step((9, 1, 1), other.label)
                decoding.absorb(N - 20)
                decoding.step((1, 5, 1), f"{other.label}, after absorbing {N - 20}")
