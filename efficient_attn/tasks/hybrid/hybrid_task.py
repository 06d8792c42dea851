"""Hybrid: a trained model in which a mechanism replaces the model's own attention in some of its layers.

The layers are chosen on some segments of text (`layer_choice`), one row for each layer that the greedy rule adds. Then
each rule's choice reads longer segments of other documents, in turns with the unmodified model (`rule_measurement`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args

from pydantic import AfterValidator, Field

from ...bench.case_config import CaseConfig, Group
from ...bench.measuring import scratch
from ...bench.planning.request import TaskRequest
from ...bench.task import Guess, Keys, Task
from ...errors import NotNeeded, UsageError
from ...integrations.model_info import describe_model
from ...integrations.texts import Text
from ...registry import create
from ...results.rows import Record, Row
from ...results.section import Column, Section
from ..trained import GEMM_EFFICIENCY, check_axes
from .layer_rules import WITHOUT_LIMIT, MeasuredRule, Rule

if TYPE_CHECKING:
    from ...bench.case import Case
    from ...instruments.roofline import Roofline

STEP = "step"  # the stage in which the greedy rule adds a layer
QUICK_DIVISOR = 4  # of the length at which a quick run chooses


def check_limits(limits: tuple[float, ...]) -> tuple[float, ...]:
    """Refuse limits that occur twice."""
    if len(set(limits)) < len(limits):
        raise ValueError("each limit may occur once")
    return limits


class HybridKeys(Keys):
    """model: ``smollm2``, or a folder with a decoder that transformers can load. text: ``sotu``, or a text file. rules:
    by which layers are chosen: ``greedy``, ``linear`` (by single effects), ``spaced`` and ``ends`` (where the layers
    with the model's own attention are), ``everywhere`` (in none), ``uniform`` (all layers have the mechanism, with more
    keys, and as many query-key pairs). The last but ``everywhere`` follow the greedy rule, or without it the linear
    one, which is much cheaper: it needs the effects of single layers only. limits: of the rise of perplexity, as shares
    of the model's own. chosen_at: tokens of the segments on which layers are chosen; choice_segments: how many. A quick
    run leaves out the greedy rule, which takes half an hour, and chooses on a quarter of the tokens. stage, counted_by:
    set by the plan."""

    model: tuple[str, ...] = ("smollm2",)
    text: str = "sotu"
    rules: Annotated[tuple[Rule, ...], Field(min_length=1)] = get_args(Rule)
    limits: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1), AfterValidator(check_limits)] = (
        0.01,
        0.02,
    )
    chosen_at: Annotated[int, Field(ge=2)] = 1024
    choice_segments: Annotated[int, Field(ge=1)] = 2
    stage: tuple[str, float | None] | None = None
    counted_by: MeasuredRule = "greedy"


class Stage(NamedTuple):
    """What a group evaluates: a step of the greedy rule, by its number from 0, or a rule with its limit."""

    name: str
    value: float | None

    @property
    def label(self) -> str:
        """Its name in a row's ``inputs``."""
        if self.name == STEP:
            return f"{STEP} {self.value}"
        return self.name if self.value is None else f"{self.name} {self.value:g}"


def plan(request: TaskRequest) -> Iterator[tuple[Group, int | None]]:
    """A group for each step of the choice, then one for each rule and limit at each length."""
    check_axes(request)
    text, keys = Text.find(request.keys.text), request.keys
    for name, point in product(keys.model, request.grid.combine("threads", "seq_len")):
        model = describe_model(name)
        if model.kind != "decoder":
            raise UsageError(f"--model {name}: it is an encoder, which has no perplexity; give a decoder")
        model.check_length(point["seq_len"])
        chosen_at, rules = keys.chosen_at, keys.rules
        if request.quick:
            rules = tuple(rule for rule in rules if rule != "greedy") or rules
            chosen_at = min(max(chosen_at // QUICK_DIVISOR, 2), point["seq_len"])
        if chosen_at > point["seq_len"]:
            raise UsageError(f"hybrid: chosen_at={chosen_at} is above seq_len {point['seq_len']}, where it is verified")
        sizes: dict[str, Any] = {"heads": model.heads, "head_dim": model.head_dim, "causal": True}
        sizes |= {"max_len": model.positions, "inputs": f"{model.label}:{text.label}"}
        choice = {"model": (name,), "text": keys.text, "chosen_at": chosen_at, "choice_segments": keys.choice_segments}
        choice |= {"counted_by": "linear"} if "greedy" not in rules else {}
        group = request.make_group(CaseConfig(**point, **sizes), **choice, stage=None)
        for number in range(model.layers if "greedy" in rules else 1):
            yield set_stage(group, Stage(STEP, number)), model.kv_heads
        for rule in rules:
            for limit in (None,) if rule in WITHOUT_LIMIT else keys.limits:
                yield set_stage(group, Stage(rule, limit)), model.kv_heads


def set_stage(group: Group, stage: Stage) -> Group:
    """The group of another stage."""
    keys = {**dict(group.keys), "stage": tuple(stage)}
    inputs = ":".join([*group.config.inputs.split(":")[:2], stage.label])
    length = keys["chosen_at"] if stage.name == STEP else group.config.seq_len
    return replace(group, keys=tuple(keys.items()), config=replace(group.config, seq_len=length, inputs=inputs))


def judge(case: Case, row: Row, report_stage: Callable[..., None]) -> Record:
    """Add a layer by the greedy rule, or evaluate a rule. Raises `NotNeeded` without the rows that it needs."""
    stage = Stage(*case.keys.stage)
    if stage.name == STEP:
        from .layer_choice import measure_step

        return measure_step(case, row, _read_steps(case, int(stage.value or 0)))
    from .rule_measurement import measure_rule

    rule: Any = stage.name
    count = describe_model(case.keys.model[0]).layers if case.keys.counted_by == "greedy" else 1
    return measure_rule(case, row, rule, stage.value, _read_steps(case, count))


def _read_steps(case: Case, count: int) -> list[Record]:
    """The rows of the first ``count`` steps. Raises `NotNeeded` if one is missing or failed."""
    from ...results.store import read

    if not count or (folder := scratch.get_folder()) is None:
        stored = []
    else:
        stored = read(folder, on_damage=lambda damage: None)
    records = {record.row.case_key: record for record in stored if record.row.status == "ok"}
    keys = [replace(case, group=set_stage(case.group, Stage(STEP, number))).key for number in range(count)]
    if missing := [number for number, key in enumerate(keys) if key not in records]:
        raise NotNeeded(f"the layers are not known, because step {missing[0]} of their choice gave no result")
    return [records[key] for key in keys]


def guess(case: Case, best: Roofline) -> Guess:
    """The estimated cost of the passes of a stage, with memory for weights, logits, and the outputs of layers."""
    from ...bench.planning.cost_estimate import CALLS

    model, s, keys = describe_model(case.keys.model[0]), case.shape, case.keys
    stage = Stage(*keys.stage)
    pairs = create("full", dims=case.dims).growth.cost(s.n, s.n, True)
    flops = 2 * s.n * model.parameters + 4 * model.layers * s.heads * s.head_dim * pairs
    logits = 4 * s.n * model.outputs
    if stage.name == STEP:  # passes continue from the outputs of earlier layers: on average, half of the model
        passes = keys.choice_segments * (1 + (model.layers - int(stage.value or 0)) / 2)
    else:
        passes = 2 * case.group.sampling.rounds + 1
    seconds = passes * (flops / best.gemm_flops_per_s / GEMM_EFFICIENCY + 8 * logits / best.bytes_per_s)
    outs = 4 * s.n * model.layers * s.heads * s.head_dim
    return Guess(seconds / CALLS, 0, 4 * model.parameters + 3 * logits + outs)


HYBRID = Task(
    name="hybrid",
    words=("hybrid",),
    keys=HybridKeys,
    plan=plan,
    judge=judge,
    guess=guess,
    together=lambda case: set_stage(case.group, Stage(STEP, 0)),
    columns={
        "step": "of the choice, from 0; the greedy rule adds a layer in each",
        "layer": "the layer that the step adds",
        "alone": "perplexity over the unmodified model's with the mechanism in this layer only",
        "rule": "by which the layers were chosen",
        "limit": "of the rise of perplexity, as a share of the model's own",
        "own_layers": "how many layers keep the model's own attention",
        "own": "their numbers",
        "mechanism": "in the other layers",
        "own_loss": "of the unmodified model on the same tokens, nats a token",
        "perplexity": "over the unmodified model's on the same tokens, the geometric mean over segments",
        "perplexity_low": "lower end of its 95% interval over segments",
        "perplexity_high": "the upper end",
        "predicted": "perplexity over the unmodified model's where the effects of single layers add up",
        "at_choice": "perplexity over the unmodified model's on the segments of the choice",
        "speedup": "of a pass with the logits of all positions, over the unmodified model's of the same turn",
        "speedup_low": "lower end of its 95% interval over segments",
        "speedup_high": "the upper end",
        "step_ms": "a decode step after a segment, the median of 8, and over segments",
        "step_speedup": "of these steps",
        "step_speedup_low": "lower end of its 95% interval over segments",
        "step_speedup_high": "the upper end",
        "own_state_bytes": "of the unmodified model's cache",
        "own_peak_bytes": "peak memory of the unmodified model reading a prompt, without weights",
    },
    sections=(
        Section(
            name="hybrid",
            task="hybrid",
            title="Mechanisms in some layers of a trained model",
            layout="hybrid",
            columns=(
                Column(name="hybrid.rule", heading="Rule"),
                Column(name="hybrid.perplexity", heading="Perplexity, over its own", unit="ratio"),
                Column(name="hybrid.speedup", heading="Time of a pass", unit="ratio"),
            ),
            x="hybrid.own_layers",
            y="hybrid.perplexity",
        ),
    ),
)
