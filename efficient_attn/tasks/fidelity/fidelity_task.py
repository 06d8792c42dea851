"""Fidelity: how far each mechanism is from exact attention on queries, keys and values of a trained model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ...bench.case_config import CaseConfig, Group
from ...bench.planning.request import TaskRequest
from ...bench.task import Guess, Keys, Task
from ...errors import UnsupportedError
from ...results.rows import Record, Row, finite_or_none
from ...results.section import Section
from .activations import Activations, describe_activations

if TYPE_CHECKING:
    from torch import Tensor

    from ...bench.case import Case
    from ...contract import Attention, Mask, Shape
    from ...instruments.roofline import Roofline
    from .exact import ExactReference

SECONDS_PER_PAIR = 4e-8  # for a pair in float64: its exact weight and derived values
GRADIENT_FACTOR = 4.5  # of a call: forward, and backward with it
LIVE_BLOCKS = 8  # blocks of exact attention that exist at once, including temporaries


class FidelityKeys(Keys):
    """activations: ``minilm``, ``smollm2``, ``smollm2_8192``, or a file of tensors, identified by its content."""

    activations: str = Field(default="minilm", exclude=True)


def plan(request: TaskRequest) -> Iterator[tuple[Group, int | None]]:
    """A group for each captured layer, device, dtype and direction."""
    activations = describe_activations(request.keys.activations)
    for point, layer in product(request.grid.combine("causal"), activations.layers):
        sizes: dict[str, Any] = {"heads": activations.heads, "head_dim": activations.width}
        sizes |= dict.fromkeys(("seq_len", "max_len"), activations.length)
        config = CaseConfig(**point, **sizes, inputs=activations.label, layer=layer)
        yield request.make_group(config, activations=request.keys.activations), activations.kv_heads


def judge(case: Case, row: Row, report_stage: Callable[..., None]) -> Record:
    """Verify a case on its layer, then compare it with exact attention there."""
    import torch

    from ...contract import Mask
    from ...instruments.global_state import watch_global_state
    from .distances import measure_distances

    config = case.group.config
    q, k, v = _load_layer(case.group)
    attn, mask = case.create(), Mask(causal=config.causal)
    _check_applicable(attn, case.shape)
    with torch.no_grad(), watch_global_state((q, k, v)):
        row.oracle_error, row.gate_len = _verify(case, attn, q, k, v, mask)
        distances = measure_distances(attn, q, k, v, mask, exact=_compute_reference(case.group))
    call: dict[str, Any] = {"causal": config.causal, "dtype": q.dtype, "device": q.device, "gradient": False}
    row.backend_used, _ = attn.what_runs(case.shape, **call)
    row.clamped_rows = attn.clamped_rows(q, k, v, mask)
    if not attn.traits.gradient:
        row.reason = "no gradient_cosine: the mechanism has no gradient"
    mean_value_error = distances.pop("mean_value_error")
    for name, value in distances.items():
        finite_value = finite_or_none(value) if isinstance(value, float) else value
        if name in FIDELITY.columns:
            row.extra[name] = finite_value
        else:
            setattr(row, name, finite_value)
    return Record(row, {"mean_value_error": mean_value_error})


def _check_applicable(attn: Attention, shape: Shape) -> None:
    """Raise `UnsupportedError` for a mechanism that has to be trained, whose error would be that of initial values."""
    import torch

    parameters = sum(p.numel() for p in attn.parameters())
    sample = attn.sample(replace(shape, n=1, m=1), generator=torch.Generator())
    for needs_training, reason in (
        (parameters > 0, f"it has {parameters:,} parameters"),
        (bool(attn.traits.inputs), f"it takes further inputs: {', '.join(attn.traits.inputs)}"),
        (sample.k is sample.q, "its queries are its keys"),
    ):
        if needs_training:
            raise UnsupportedError(f"not applicable: {attn.label} has to be trained ({reason})")


def _load_layer(group: Group) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of a group's layer, read again for each case, because a mechanism may write into them."""
    import torch

    config, keys = group.config, dict(group.keys)
    assert config.layer is not None
    arrays = Activations.find(keys["activations"]).select_layer(config.layer)
    q, k, v = (torch.from_numpy(x).to(device=config.device, dtype=getattr(torch, config.dtype)) for x in arrays)
    return q, k, v


@lru_cache(maxsize=1)
def _compute_reference(group: Group) -> ExactReference:
    from ...contract import Mask
    from .exact import compute_exact

    return compute_exact(*_load_layer(group), Mask(causal=group.config.causal))


def _verify(case: Case, attn: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[float, int]:
    """The error against the mechanism's reference, and the length at which they were compared. Raises `InvalidResult`.
    All rows while the reference computes at most 33 million pairs; above that, drawn rows; for mechanisms that mix
    queries, all rows of as many first positions as the reference can compute."""
    from random import Random

    import torch

    from ...bench.measuring.output_comparison import draw_rows
    from ...bench.measuring.padded_rows import supports_positions
    from ...bench.measuring.row_errors import compare
    from ...bench.measuring.verification import MAX_WHOLE_PAIRS, find_affordable_length
    from ...contract import Sample

    oracle, n, heads = case.create(backend="dense"), q.shape[2], q.shape[0] * q.shape[1]
    if heads * attn.dense_pairs(n, n) > MAX_WHOLE_PAIRS and not attn.traits.rows_alone:
        n = find_affordable_length(n, heads, MAX_WHOLE_PAIRS)
        q, k, v = q[:, :, :n], k[:, :, :n], v[:, :, :n]
    out, dtype = attn(q, k, v, mask), case.group.config.dtype
    if heads * attn.dense_pairs(n, n) <= MAX_WHOLE_PAIRS:
        return compare(out, oracle(q, k, v, mask), dtype), n
    rows = draw_rows(n, Random(case.group.sampling.seed)).to(q.device)
    size = len(rows) if supports_positions(oracle, Sample(q, k, v, {})) else 1
    expected = [oracle(q[:, :, some], k, v, mask.rows(some, n, n)) for some in rows.split(size)]
    return compare(out[:, :, rows], torch.cat(expected, 2), dtype), n


def guess(case: Case, best: Roofline) -> Guess:
    """The estimated cost of the gradient and of calls that return weights; the baseline's with the exact reference."""
    from ...bench.planning.cost_estimate import CALLS, estimate_call
    from .distances import ALL_ROWS, MIN_KEYS_PER_CALL
    from .exact import MAX_BLOCK_BYTES

    s, attn, call = case.shape, case.create(), estimate_call(case, best)
    rows = min(s.n, ALL_ROWS) if attn.traits.rows_alone else s.n
    calls, width_factor = -(-s.m // MIN_KEYS_PER_CALL), (s.head_dim + MIN_KEYS_PER_CALL) / (s.head_dim + s.value_dim)
    seconds = call.call_s * (calls * width_factor * rows / s.n + GRADIENT_FACTOR)
    pairs = rows * s.m
    if case.variant == case.group.baseline:
        pairs += s.n * s.m / (2 if case.group.config.causal else 1)
    seconds += SECONDS_PER_PAIR * s.batch * s.heads * pairs
    call_bytes = call.call_bytes + LIVE_BLOCKS * MAX_BLOCK_BYTES
    return call._replace(call_s=call.call_s + seconds / CALLS, call_bytes=call_bytes)


FIDELITY = Task(
    name="fidelity",
    words=("fidelity",),
    keys=FidelityKeys,
    plan=plan,
    judge=judge,
    guess=guess,
    columns={
        "gradient_cosine": "between the gradients of q, k and v and exact attention's, as one vector",
        "spread_over_heads": "standard deviation over heads of their relative errors",
        "sink_mass": "exact weight on the first 4 keys, averaged over rows",
        "own_sink_mass": "the mechanism's weight on them",
        "weight_rows": "query rows of each head on which total variation and missed mass were measured",
    },
    sections=(
        Section(name="fidelity", task="fidelity", title="Fidelity", layout="fidelity", x="layer", y="relative_error"),
    ),
)
