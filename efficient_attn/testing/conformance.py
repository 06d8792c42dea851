"""Verify a mechanism against its traits; if it declares none, find those that it satisfies, as lines to write."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

import torch

from ..contract.mask import Mask
from ..contract.mechanism import Attention
from ..contract.shapes import Dims
from ..contract.traits import Input, Traits
from ..errors import UnsupportedError, UsageError
from ..instruments.environment import describe_absence
from .check import Check, CheckFailure, Outcome, check, make_failure, run_check
from .checks import CHECKS, algebra, growth_claims
from .probing import declares_growth
from .subject import Factory, Subject

LEAST = Traits(
    **dict.fromkeys(("causal", "strictly_causal", "cross", "padding", "decode", "grouped"), False),
    **dict.fromkeys(("normalised", "deterministic", "padded_as_trimmed", "linear_values"), False),
    positional=True,
    mixes_queries=True,
)
DIRECTIONS: tuple[dict[str, bool], ...] = ({}, {"causal": True, "bidirectional": False})
STEPS: tuple[tuple[dict[str, bool], ...], ...] = (  # in order, each with declarations to try until one holds
    ({"gradient": True}, {"gradient": False}),
    ({"deterministic": True},),
    ({"causal": True, "strictly_causal": True}, {"causal": True}),
    ({"cross": True},),
    ({"mixes_queries": False},),
    ({"positional": False},),
    ({"padding": True, "padded_as_trimmed": True}, {"padding": True}),
    ({"normalised": True},),
    ({"linear_values": True},),
    ({"grouped": True},),
    ({"decode": True},),
    ({"dropout": True},),
)
ALWAYS = ("output", "equals_oracle", "dtypes", "blind_rows")  # checks of what several traits allow
COLUMNS = 75  # of a line with a comment


def run_checks(
    source: str | Factory | Subject,
    *,
    checks: Iterable[Check] | None = None,
    backend: str | None = None,
    device: str = "cpu",
    dtype: torch.dtype | str = torch.float64,
    seed: int = 0,
    thorough: bool = False,
) -> list[Outcome]:
    """Verify that a mechanism satisfies its traits.

    source: a spec, or a factory ``(dims, seed, backend) -> Attention``. dtype: of all calls; with float64, the default,
    checks of dtypes test the others as well. seed: of random sizes and splits. thorough: compare ten times as many
    calls, in which every pair of sizes, dtypes, masks, memory orders and options occurs. Raises `UsageError` and
    `UnsupportedError` of creating the mechanism, and `UnsupportedError` for a device that does not exist; other
    exceptions are outcomes. A mechanism without traits has one outcome, with the lines to write.
    """
    if reason := describe_absence(torch.device(device).type):
        raise UnsupportedError(f"check: {reason}; leave --device out to check on the CPU")
    if torch.device(device).type == "cuda":
        torch.cuda.init()  # so that no mechanism's first call changes what torch sets with it
    if isinstance(source, Subject):
        subject = source
    else:
        torch_dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        subject = Subject(source, backend=backend, device=device, dtype=torch_dtype, seed=seed, thorough=thorough)
    try:
        _ = subject.attn
    except (UsageError, UnsupportedError):
        raise
    except Exception as error:
        return [make_failure(declared_traits, error)]
    declared = run_check(declared_traits, subject)
    if declared.status == "failed":
        return [declared]
    return [run_check(c, subject) for c in (CHECKS if checks is None else checks)]


def sum_up(outcomes: Sequence[Outcome], traits: Traits | None = None) -> str:
    """The number of checks by outcome, and what the traits exclude, in one line."""
    counts = Counter(o.status for o in outcomes)
    labels = {"passed": "passed", "failed": "failed", "not_claimed": "do not apply"}
    text = ", ".join(f"{counts[status]} {label}" for status, label in labels.items() if counts[status])
    return f"{text}; limits: {', '.join(traits.unclaimed)}" if traits and traits.unclaimed else text


@check()
def declared_traits(subject: Subject) -> None:
    """It can be created, and declares its traits."""
    attn = subject.attn
    try:
        message = f"traits is a {type(attn.traits).__name__}, no ea.Traits; is @property missing?"
        if isinstance(attn.traits, Traits):
            return
    except UnsupportedError as error:
        message = str(error)
    # so that float32 inside a mechanism, which other checks report, does not count as a missing trait
    traits, reasons = find_traits(
        replace(subject, dtype=torch.float32 if subject.dtype == torch.float64 else subject.dtype)
    )
    lines = write_traits(traits, reasons)
    if not declares_growth(attn):
        lines += growth_claims.write_growth(_declare(subject, traits))
    raise CheckFailure(message, lines=lines)


def find_traits(subject: Subject) -> tuple[Traits, dict[str, str]]:
    """The traits that a mechanism satisfies, and for each that it does not, the first check that failed.

    Raises `CheckFailure` if it fails without any.
    """
    best, reasons = _find_first(subject), dict[str, str]()
    for candidates in STEPS:
        for declarations in candidates:
            trial = replace(best, **declarations)
            failure = _find_failure(_declare(subject, trial), declarations)
            if failure is None:
                best = trial
                break
            reasons = dict.fromkeys(declarations, failure) | reasons
    return replace(best, exact=best.values and _is_exact(_declare(subject, best))), reasons


def _find_first(subject: Subject) -> Traits:
    failures = []
    least = replace(LEAST, grouped=subject.attn.kv_heads not in (None, subject.heads))
    values = "v" in _declare(subject, least).draw(subject.shape(1)).tensors
    for inputs, direction in product(_list_inputs(subject), DIRECTIONS):
        trial = replace(least, values=values, inputs=inputs, **direction)
        failure = _find_failure(_declare(subject, trial), {})
        if failure is None:
            return trial
        failures.append(failure)
    raise CheckFailure(f"it declares no traits, and they cannot be measured yet: {failures[0]}")


def _list_inputs(subject: Subject) -> Iterator[dict[str, Input]]:
    """The inputs that the reference may take besides q, k, v and mask."""
    parameters = list(inspect.signature(subject.attn.oracle).parameters.values())[4:]
    names = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    kinds = [Input(side, tail=tail) for tail in ((), (1,)) for side in ("query", "key")]
    for chosen in product(kinds, repeat=len(names)):
        yield dict(zip(names, chosen, strict=True))


def _find_failure(subject: Subject, declarations: Mapping[str, bool]) -> str | None:
    """The first failure of a check that depends on the declarations."""
    for c in (*CHECKS, future_has_no_weight):
        if c.name in ALWAYS or declarations.keys() & {*c.needs, *c.unless}:
            outcome = run_check(c, subject)
            if outcome.status == "failed":
                return f"{c.name}: {outcome.reason}"
    return None


@check(needs="causal", skip_reason=algebra.no_values)
def future_has_no_weight(subject: Subject) -> None:
    """Under a causal mask, later keys have no weight."""
    future = algebra.weights(subject, 70, 70, Mask(causal=True)).triu(1)
    assert not future.any(), f"later keys have weights of up to {future.abs().max():.2g}"


def _is_exact(subject: Subject) -> bool:
    """Whether the weights are a softmax of scaled dot products over the keys that have one."""
    shape, mask = subject.shape(33), subject.mask()
    w, call = algebra.weights(subject, 33, 33, mask, oracle=True), subject.draw(subject.shape(33, value_dim=33))
    scores = call["q"] @ call["k"].mT.repeat_interleave(shape.heads // shape.kv_heads, 1) * shape.head_dim**-0.5
    return torch.allclose(w, scores.masked_fill(w == 0, float("-inf")).softmax(-1), atol=1e-5)


def _declare(subject: Subject, traits: Traits) -> Subject:
    """The same mechanism with other traits."""
    cls = type(subject.attn)
    declared = type(cls.__name__, (cls,), {"traits": traits, "__module__": cls.__module__})

    def make(dims: Dims, seed: int, backend: str | None) -> Attention:
        attn = subject.new(dims, seed, backend)
        attn.__class__ = declared
        return attn

    return replace(subject, source=make, others=())


def write_traits(traits: Traits, reasons: Mapping[str, str]) -> tuple[str, ...]:
    """The declaration of traits, with the reasons for those that are not the default."""
    changed = {name: value for name, value in vars(traits).items() if value != getattr(Traits(), name)}
    if not changed:
        return ("traits = ea.Traits()",)
    lines = []
    for name, value in changed.items():
        text = _write_inputs(value) if name == "inputs" else value
        comment = f"  # {' '.join(reasons[name].split())}" if name in reasons else ""
        line = f"    {name}={text},{comment}"
        lines.append(line if len(line) <= COLUMNS else f"{line[: COLUMNS - 2]}..")
    return ("traits = ea.Traits(", *lines, ")")


def _write_inputs(inputs: Mapping[str, Input]) -> str:
    texts = (f'"{name}": ea.Input("{i.side}"{f", tail={i.tail}" if i.tail else ""})' for name, i in inputs.items())
    return f"{{{', '.join(texts)}}}"
