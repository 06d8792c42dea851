"""Swap: the change of a trained model's loss and time when a mechanism replaces its attention, with unchanged weights.

A group is one segment of text, which the original model reads, and then the model with every mechanism.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

from ..bench.case_config import CaseConfig, Group
from ..bench.planning.request import TaskRequest
from ..bench.planning.suite_schema import Count
from ..bench.task import Guess, Keys, Task
from ..integrations.model_info import describe_model
from ..integrations.texts import Text
from ..results.rows import Record, Row, finite_or_none
from ..results.section import Column, Section
from .trained import EXACT_SPEC, GEMM_EFFICIENCY, check_axes

if TYPE_CHECKING:
    from torch import Tensor

    from ..bench.case import Case
    from ..instruments.roofline import Roofline
    from ..integrations.bundled import LoadedModel
    from ..integrations.model_swap import ForwardPass, PartialSwap


class SwapKeys(Keys):
    """model: ``smollm2``, ``minilm``, or a folder that transformers can load. text: ``sotu``, or a text file. scope:
    ``all`` layers have the mechanism, and passes are timed; or one ``layer`` at a time, without timing. draws: of
    random mechanisms, whose mean is reported with the range of the loss; passes are timed with the first."""

    scope: tuple[Literal["all", "layer"], ...] = ("all",)
    model: tuple[str, ...] = ("smollm2",)
    text: str = "sotu"
    draws: Count = 1


def plan(request: TaskRequest) -> Iterator[tuple[Group, int | None]]:
    """A group for each model, length and segment, and with ``scope = "layer"`` for each layer."""
    check_axes(request)
    text = Text.find(request.keys.text)
    axes = request.grid.combine("threads", "seq_len")
    for name, scope, point in product(request.keys.model, request.keys.scope, axes):
        model = describe_model(name)
        model.check_length(point["seq_len"])
        sizes: dict[str, Any] = {"heads": model.heads, "head_dim": model.head_dim, "causal": model.kind == "decoder"}
        sizes |= {"max_len": model.positions, "inputs": f"{model.label}:{text.label}"}
        keys: dict[str, Any] = {"model": (name,), "text": request.keys.text, "draws": request.keys.draws}
        layers = range(model.layers) if scope == "layer" else (None,)
        for layer, segment in product(layers, range(request.sampling.rounds)):
            config = CaseConfig(**point, **sizes, segment=segment, layer=layer)
            yield request.make_group(config, **keys, scope=(scope,)), model.kv_heads


def judge(case: Case, row: Row, report_stage: Callable[..., None]) -> Record:
    """Read a segment with the case's mechanism, and compare with the original model."""
    return _measure_one_layer(case, row) if case.group.config.layer is not None else _measure_all_layers(case, row)


def _measure_all_layers(case: Case, row: Row) -> Record:
    from ..instruments.allocator import return_freed_pages
    from ..instruments.environment import find_total_memory
    from ..instruments.memory import measure_footprint
    from ..integrations.model_swap import list_blocks, run_pass
    from ..integrations.segments import compare_with_own

    (model, tokens), baseline = _load_segment(case.group), _run_own_attention(case.group)

    def compare(result: ForwardPass) -> tuple[ForwardPass, Mapping[str, float | None]]:
        """The pass without its logits. Those of a long text take gigabytes, so that only one draw's are held, and of a
        worker that keeps freed memory the free part is returned."""
        metrics = compare_with_own(model, result.out, baseline.out, tokens)
        return replace(result, out=result.out.new_empty(0)), metrics

    return_freed_pages(above=(find_total_memory() or 0) // 4)
    result, metrics = compare(baseline if case.variant == EXACT_SPEC else run_pass(model, case.variant, tokens))
    draws = [metrics]
    for draw in range(1, _count_draws(case)):
        return_freed_pages(above=(find_total_memory() or 0) // 4)
        draws.append(compare(run_pass(model, case.variant, tokens, steps=0, draw=draw))[1])
    return_freed_pages(above=(find_total_memory() or 0) // 4)
    row.mode = "prefill" if case.group.config.causal else "forward"
    row.latency_ms, row.speedup = result.seconds * 1e3, baseline.seconds / result.seconds
    row.tokens_per_s, row.state_bytes = case.group.config.seq_len / result.seconds, result.bytes
    row.rounds, row.processes, row.contaminated = 1, 1, int(result.disturbance is not None)
    row.parameters = model.sizes.parameters
    if not case.group.config.segment:  # the passes of all segments have the same size
        footprint = measure_footprint(
            lambda: run_pass(model, case.variant, tokens, steps=0), device="cpu", modules=list_blocks(model.model)
        )
        row.peak_memory_bytes = footprint.peak
    _fill_row(row, draws, case)
    row.extra["attention_share"] = result.attention_s / result.seconds
    if result.step_s is not None:
        row.extra["step_ms"] = result.step_s * 1e3
    if result.no_steps:
        row.reason = f"no decode step was timed: {result.no_steps}"
    return Record(row, {"own_ms": baseline.seconds * 1e3, "disturbed": result.disturbance})


def _count_draws(case: Case) -> int:
    return case.keys.draws if case.keys.draws > 1 and case.is_random() else 1


def _measure_one_layer(case: Case, row: Row) -> Record:
    from ..integrations.segments import compare_with_own

    own_pass, layer = _read_with_own_attention(case.group), case.group.config.layer
    assert layer is not None
    out = own_pass.out if case.variant == EXACT_SPEC else own_pass.run(layer, case.variant)
    row.parameters = own_pass.loaded_model.sizes.parameters
    _fill_row(row, [compare_with_own(own_pass.loaded_model, out, own_pass.out, own_pass.tokens)], case)
    return Record(row)


def _fill_row(row: Row, draws: Sequence[Mapping[str, float | None]], case: Case) -> None:
    """Metrics are means over draws of a random mechanism."""
    metrics = [{name: value for name, value in draw.items() if value is not None} for draw in draws]
    values = {name: [draw[name] for draw in metrics] for name in metrics[0]}
    row.extra = {name: finite_or_none(sum(of_draws) / len(draws)) for name, of_draws in values.items()}
    main = "loss" if "loss" in values else "hidden_error"
    row.metric = "nats a token" if main == "loss" else "relative error of hidden rows"
    row.loss = finite_or_none(sum(values[main]) / len(draws))
    row.extra["segment"] = case.group.config.segment
    if len(draws) > 1:
        row.extra |= {"draws": len(draws), "loss_range": finite_or_none(max(values[main]) - min(values[main]))}


@lru_cache(maxsize=1)
def _load_segment(group: Group) -> tuple[LoadedModel, Tensor]:
    """The model and the segment's tokens of a group, which all of its cases in this worker share."""
    from ..integrations.bundled import load
    from ..integrations.segments import cut_segment

    keys, config = dict(group.keys), group.config
    model = load(keys["model"][0])
    return model, cut_segment(model, Text.find(keys["text"]), config.seq_len, config.segment or 0)


@lru_cache(maxsize=1)
def _run_own_attention(group: Group) -> ForwardPass:
    """The original model's pass over a group's segment, after a warm-up."""
    from ..integrations.model_swap import run_pass

    model, tokens = _load_segment(group)
    run_pass(model, EXACT_SPEC, tokens)
    return run_pass(model, EXACT_SPEC, tokens)


@lru_cache(maxsize=1)
def _read_with_own_attention(group: Group) -> PartialSwap:
    from ..integrations.model_swap import PartialSwap
    from ..integrations.transformers import register

    model, tokens = _load_segment(group)
    model.model.set_attn_implementation(register(EXACT_SPEC))
    return PartialSwap.read(model, tokens)


def guess(case: Case, best: Roofline) -> Guess:
    """The estimated cost of the model's matrix products, attention and loss, with memory for weights and logits."""
    from ..bench.planning.cost_estimate import CALLS

    model, s, attn = describe_model(case.keys.model[0]), case.shape, case.create()
    pairs = attn.growth.cost(s.n, s.n, case.group.config.causal)
    flops = 2 * s.n * model.parameters + 4 * model.layers * s.heads * s.head_dim * pairs
    logits = 4 * s.n * model.outputs
    seconds = flops / best.gemm_flops_per_s / GEMM_EFFICIENCY + 8 * logits / best.bytes_per_s
    return Guess(_count_draws(case) * seconds / CALLS, 0, 4 * model.parameters + 3 * logits)  # one model for all cases


SWAP = Task(
    name="swap",
    words=("swap",),
    keys=SwapKeys,
    plan=plan,
    judge=judge,
    guess=guess,
    columns={
        "segment": "the part of the text, from 0",
        "loss": "nats a token of the text",
        "loss_early": "of the first 512 positions",
        "loss_later": "of the positions from 512 on",
        "divergence": "KL(original || swapped), mean over positions, nats",
        "divergence_p99": "its 99th percentile over positions",
        "agreement": "share of positions at which both have the same first choice",
        "hidden_error": "of an encoder's last hidden rows, ratio of Frobenius norms",
        "embedding_cosine": "between mean hidden states of the original and the swapped model",
        "similarity_rank": "Spearman's correlation of similarities between stretches of 32 positions",
        "draws": "of a random mechanism, over which metrics are means",
        "loss_range": "largest minus smallest loss of these draws; of an encoder, error of hidden rows",
        "attention_share": "share of the pass spent in attention",
        "step_ms": "a decode step after the segment, the median of 8",
    },
    sections=(
        Section(
            name="swap",
            task="swap",
            title="Swapped into a trained model",
            layout="swap",
            columns=(
                Column(name="swap.loss", heading="Loss"),
                Column(name="swap.divergence", heading="KL a token"),
                Column(name="latency_ms", heading="Time of a pass", unit="time"),
            ),
            x="swap.segment",
            y="swap.loss",
        ),
    ),
)
