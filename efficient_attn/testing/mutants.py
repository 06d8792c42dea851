"""Planted bugs: each must be caught in every mechanism that makes the promise it breaks.

A mutant overrides methods of one instance's class, for its fast form only, so that the oracle stays right. The bugs
are those that attention code really has: a leak of one position, the wrong alignment, a group mapped the wrong way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ..contract.mechanism import Attention
from ..contract.shapes import Dims
from . import bugs, lapses, memories
from .checking import Check, run_check
from .checks import CHECKS
from .checks.decoding import not_bound
from .checks.grouping import own_keys
from .pickling import subclass
from .subject import Factory, Subject


@dataclass(frozen=True)
class Mutant:
    """One planted bug.

    methods: given the class that is mutated, the methods that replace its own. needs: the traits whose promise it
    breaks. harmless: why it changes nothing for some mechanism after all. suspects: checks to try first.
    """

    name: str
    meaning: str
    methods: Callable[[type[Attention]], dict[str, Any]]
    needs: tuple[str, ...] = ()
    harmless: Callable[[Subject], str | None] = lambda subject: None
    suspects: tuple[str, ...] = ()

    def why_not(self, subject: Subject) -> str | None:
        """Why the bug cannot be planted in a mechanism; None when it can."""
        for trait in self.needs:
            if not getattr(subject.traits, trait):
                return f"it does not claim {trait}"
        if subject.attn.backend == "dense":
            return "it has no fast form"
        return self.harmless(subject)

    def planted(self, subject: Subject) -> Subject:
        """The same mechanism with the bug in it."""

        def factory(dims: Dims, seed: int, backend: str | None) -> Attention:
            attn = subject.new(dims, seed, backend)
            attn.__class__ = subclass(type(attn), self.methods(type(attn)))
            return attn

        return Subject(factory, backend=subject.backend, device=subject.device)


@dataclass(frozen=True)
class Kill:
    """What became of one mutant in one mechanism; ``by``: the check that caught it, or why it did not apply."""

    mutant: str
    mechanism: str
    status: Literal["caught", "missed", "not_applicable"]
    by: str = ""


def kill_matrix(
    sources: Iterable[str | Factory | Subject],
    *,
    mutants: Iterable[Mutant] | None = None,
    checks: Iterable[Check] | None = None,
) -> list[Kill]:
    """Plant every mutant in every mechanism and tell which check caught it first."""
    every = tuple(CHECKS if checks is None else checks)
    subjects = [s if isinstance(s, Subject) else Subject(s) for s in sources]
    return [_kill(mutant, s, every) for s in subjects for mutant in (MUTANTS if mutants is None else mutants)]


def _kill(mutant: Mutant, subject: Subject, checks: tuple[Check, ...]) -> Kill:
    if reason := mutant.why_not(subject):
        return Kill(mutant.name, subject.label, "not_applicable", reason)
    planted = mutant.planted(subject)
    for check in sorted(checks, key=lambda c: c.name not in mutant.suspects):
        if run_check(check, planted).status == "failed":
            return Kill(mutant.name, subject.label, "caught", check.name)
    return Kill(mutant.name, subject.label, "missed")


MUTANTS = (
    Mutant("future_leak", "a row takes a millionth of the next position's value", bugs.compute(after=bugs.leak),
           ("causal",), suspects=("causality",)),
    Mutant("future_leak_backward", "only the gradient leaks: a value also gets its predecessor's",
           bugs.compute(bugs.leaks_backward),
           ("gradient",), suspects=("gradient_causality", "gradients_equal_oracle")),
    Mutant("wrong_query_gradient", "the query's gradient is 1% too large",
           bugs.compute(lambda q, k, v, m: (bugs.tampered(q, lambda g: 1.01 * g), k, v, m)),
           ("gradient",), bugs.queries_do_nothing, ("gradients_equal_oracle",)),
    Mutant("no_key_padding", "padding is ignored", bugs.compute(bugs.changed(key_lengths=None, key_mask=None)),
           ("padding",), bugs.hidden_keys_weigh_nothing, ("equals_oracle",)),
    Mutant("no_key_mask", "key_lengths are honoured, key_mask is not", bugs.compute(bugs.changed(key_mask=None)),
           ("padding",), bugs.hidden_keys_weigh_nothing, ("equals_oracle",)),
    Mutant("first_rows_padding", "the first row's key_lengths serve the whole batch",
           bugs.compute(bugs.changed(key_lengths=bugs.first_row_lengths)),
           ("padding",), bugs.hidden_keys_weigh_nothing, ("equals_oracle",)),
    Mutant("no_query_lengths", "query_lengths are ignored", bugs.without("query_lengths"), suspects=("query_lengths",)),
    Mutant("no_cu_seqlens", "packed sequences see each other", bugs.without("cu_seqlens"),
           harmless=bugs.never_meet, suspects=("packed_equals_alone",)),
    Mutant("any_mask_field", "mask fields that it does not know are accepted", bugs.any_field, suspects=("refusals",)),
    Mutant("top_left", "the first query sits on the first key",
           bugs.compute(bugs.changed(query_start=bugs.zero_unless_given)),
           ("cross",), bugs.alignment_free, ("alignment",)),
    Mutant("no_query_start", "query_start is ignored", bugs.compute(bugs.changed(query_start=None)),
           ("cross",), bugs.alignment_free, ("alignment",)),
    Mutant("wrong_scale", "scores are 1% too large", bugs.compute(lambda q, k, v, m: (q * 1.01, k, v, m)),
           (), bugs.scale_free, ("equals_oracle",)),
    Mutant("float32_inside", "float64 is computed in float32",
           bugs.compute(after=lambda out, *_: out.float().to(out.dtype)), suspects=("equals_oracle",)),
    Mutant("float32_inputs", "inputs are rounded to float32",
           bugs.compute(lambda q, k, v, m: (*(x.float().to(x.dtype) for x in (q, k, v)), m)),
           suspects=("equals_oracle",)),
    Mutant("wrong_dtype", "the output is always float32", bugs.compute(after=lambda out, *_: out.float()),
           suspects=("output",)),
    Mutant("mutation", "the keys are scaled in place", bugs.compute(bugs.mutates), suspects=("no_mutation",)),
    Mutant("interleaved_groups", "head h uses key-value head h mod Hkv", bugs.interleaved,
           ("grouped",), bugs.one_kv_head, ("head_independence",)),
    Mutant("expands_groups", "keys and values are repeated for each head of a group", bugs.expands_groups,
           ("grouped", "cross"), suspects=("groups_are_not_expanded",)),
    Mutant("unnormalised", "weights sum to 1 + 1e-6", bugs.compute(after=lambda out, *_: out * (1 + 1e-6)),
           suspects=("weights_sum_to_one", "equals_oracle")),
    Mutant("blind_nan", "a row that sees no key is NaN", bugs.compute(after=bugs.blind_to("nan")),
           ("padding",), suspects=("blind_rows",)),
    Mutant("blind_value", "a row that sees no key is not zero", bugs.compute(after=bugs.blind_to("value")),
           ("padding",), suspects=("blind_rows",)),
    Mutant("redrawn", "something is drawn anew in every call", bugs.compute(after=bugs.noise),
           suspects=("determinism",)),
    Mutant("global_seed", "a call seeds torch's own generator", bugs.compute(after=bugs.seeded),
           suspects=("no_side_effects",)),
    Mutant("late_rows", "only rows beyond a chunk border at 256 are wrong", bugs.compute(after=bugs.late),
           suspects=("equals_oracle",)),
    Mutant("batch_leak", "a row takes a little of its neighbours in the batch",
           bugs.compute(after=lambda out, *_: out + 1e-6 * out.mean(0)), suspects=("batch_independence",)),
    Mutant("head_leak", "a head takes a little of the next head",
           bugs.compute(after=lambda out, *_: out + 1e-6 * out.roll(1, 1)), suspects=("head_independence",)),
    Mutant("memory_order", "queries are read in memory order, whatever their strides", bugs.compute(bugs.by_memory),
           (), bugs.queries_do_nothing, ("memory_layout",)),
    Mutant("aliased_output", "over one key, the output is a view of the value", bugs.compute(after=bugs.one_value),
           ("normalised",), bugs.copies_heads, ("output",)),
    Mutant("remembers_address", "an answer is given again to whatever lies in the same memory",
           memories.remembers(memories.by_address), suspects=("renewed_contents",)),
    Mutant("remembers_version", "an answer is given again until a version counter moves",
           memories.remembers(memories.by_version), suspects=("renewed_contents",)),
    Mutant("remembers_corner", "an answer is given again to whatever begins with the same rows",
           memories.remembers(memories.by_corner), suspects=("renewed_contents",)),
    Mutant("skips_every_second", "every second call gives what the one before it gave",
           memories.skips_every_second, suspects=("every_call_is_alike",)),
    Mutant("writes_late", "the keys are written to from the 61st call on",
           memories.writes_late, suspects=("every_call_is_alike",)),
    Mutant("constant", "the output is zero", bugs.compute(after=lambda out, *_: out * 0), suspects=("equals_oracle",)),
    Mutant("subclass", "the output is a tensor of a kind of its own", bugs.compute(after=memories.of_its_own_kind),
           suspects=("output",)),
    Mutant("decode_newest", "a single step does not see its own key", bugs.forgets_newest,
           ("decode",), suspects=("decode_equals_forward",)),
    Mutant("decode_oldest", "a longer step loses its first position for those that follow", bugs.forgets_oldest,
           ("decode",), bugs.no_past, ("decode_equals_forward",)),
    Mutant("decode_overrun", "the state takes one position more than it was made for", bugs.overruns,
           ("decode",), not_bound, ("state_is_bounded",)),
    Mutant("expands_gradients", "the backward pass holds gradients by keys for each head of a group",
           bugs.compute(bugs.expands_gradients),
           ("grouped", "cross", "gradient"), own_keys, ("gradients_are_not_expanded",)),
    Mutant("expands_cache", "a step repeats the cache for each head of a group", bugs.expands_cache,
           ("grouped", "decode"), bugs.no_cache, ("cache_is_not_expanded",)),
    Mutant("ignores_dropout", "dropout is claimed, set and ignored", lapses.ignores_dropout,
           ("dropout",), suspects=("dropout_drops_weights", "dropout_mean")),
    Mutant("drops_in_evaluation", "weights are dropped in evaluation too", lapses.drops_in_evaluation,
           ("dropout",), suspects=("dropout_is_never_ignored",)),
    Mutant("forgets_to_scale", "weights that are left are not scaled up", lapses.forgets_to_scale,
           ("dropout",), suspects=("dropout_drops_weights", "dropout_mean")),
    Mutant("claims_dropout", "dropout is claimed and nothing is dropped", lapses.claims_dropout,
           (), lapses.does_drop, ("dropout_drops_weights", "dropout_mean")),
    Mutant("keeps_a_lambda", "a call leaves a lambda on the module", lapses.keeps_a_lambda, suspects=("pickles",)),
    Mutant("loses_its_backend", "a pickle comes back with another backend", lapses.loses_its_backend,
           suspects=("pickles",)),
)  # fmt: skip
