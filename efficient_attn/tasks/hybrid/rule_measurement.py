"""What a rule's choice of layers loses and saves: passes over long segments, in turns with the unmodified model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from ...contract.budget import Budget
from ...errors import NotNeeded, UnsupportedError, UsageError
from ...integrations.model_info import describe_model
from ...integrations.texts import Text
from ...registry import class_of, create
from ...results.rows import Record, Row
from ...results.stats import estimate_geometric_mean
from ...spec import Spec, SpecLike
from .layer_choice import collect_effects, compute_mean, get_own_loss, load_choice
from .layer_rules import LayerEffects, Rule, choose_layers, format_layers

if TYPE_CHECKING:
    from torch import Tensor

    from ...bench.case import Case
    from ...integrations.bundled import LoadedModel
    from ...integrations.model_swap import ForwardPass


def measure_rule(case: Case, row: Row, rule: Rule, limit: float | None, steps: Sequence[Record]) -> Record:
    """Read each segment with the rule's layers and with the unmodified model, one after the other, in turns."""
    from ...integrations.model_swap import measure_prompt_memory
    from ...integrations.segments import cut_segment, measure_loss

    effects, config = collect_effects(steps), case.group.config
    layers = choose_layers(rule, effects, limit)
    spec = case.variant if rule != "uniform" else fit_uniform(case, choose_layers("greedy", effects, limit))
    mechanisms = dict.fromkeys(layers, spec)
    loaded_model, choice_segments = load_choice(case.group)
    text, options = Text.find(case.keys.text), {"without": choice_segments}
    numbers = range(case.group.sampling.rounds)
    segments = [cut_segment(loaded_model, text, config.seq_len, number, **options) for number in numbers]
    row.peak_memory_bytes = measure_prompt_memory(loaded_model, mechanisms, segments[0])
    own_peak = measure_prompt_memory(loaded_model, {}, segments[0]) if rule == "everywhere" else None
    own_passes, passes, losses = [], [], []
    for number, tokens in enumerate(segments):
        own_pass, hybrid_pass = _run_in_turns(loaded_model, mechanisms, tokens, own_first=number % 2 == 0)
        losses.append((measure_loss(own_pass.out, tokens), measure_loss(hybrid_pass.out, tokens)))
        own_passes.append(replace(own_pass, out=tokens[:0]))  # logits of long segments take gigabytes
        passes.append(replace(hybrid_pass, out=tokens[:0]))
    row.loss, row.metric = compute_mean([loss for _, loss in losses]), "nats a token"
    row.parameters, row.state_bytes = loaded_model.sizes.parameters, passes[0].bytes
    row.pairs = round(count_pairs(case, spec, len(layers), effects.layers))
    row.rounds, row.processes = len(passes), 1
    row.contaminated = sum(any(p.disturbance for p in pair) for pair in zip(passes, own_passes, strict=True))
    own_layers = [layer for layer in range(effects.layers) if layer not in layers]
    row.extra = {"rule": rule, "limit": limit, "own_layers": len(own_layers), "own": format_layers(own_layers)}
    row.extra |= {
        "mechanism": str(spec),
        "own_loss": compute_mean([own for own, _ in losses]),
        "own_peak_bytes": own_peak,
    }
    row.extra |= {"own_state_bytes": own_passes[0].bytes, "step_ms": median(p.step_s or 0.0 for p in passes) * 1e3}
    if rule != "uniform":
        row.extra["predicted"] = math.exp(effects.predict(layers))
        row.extra["at_choice"] = _measure_at_choice(case, mechanisms, effects, steps)
    ratios = {
        "perplexity": [math.exp(loss - own) for own, loss in losses],
        "speedup": [own.seconds / p.seconds for own, p in zip(own_passes, passes, strict=True)],
        "step_speedup": [(own.step_s or 0.0) / (p.step_s or 1.0) for own, p in zip(own_passes, passes, strict=True)],
    }
    for name, values in ratios.items():
        estimate = estimate_geometric_mean(values)
        row.extra |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    times = {"own_ms": [p.seconds * 1e3 for p in own_passes], "ms": [p.seconds * 1e3 for p in passes]}
    own_losses, hybrid_losses = zip(*losses, strict=True)
    disturbed = [p.disturbance or own.disturbance for p, own in zip(passes, own_passes, strict=True)]
    return Record(row, {**times, "own_losses": own_losses, "losses": hybrid_losses, "disturbed": disturbed})


def _run_in_turns(
    loaded_model: LoadedModel, mechanisms: Mapping[int, SpecLike], tokens: Tensor, *, own_first: bool
) -> tuple[ForwardPass, ForwardPass]:
    """The unmodified model's pass and the hybrid's, each after a short one for warming up."""
    from ...integrations.model_swap import WARM_UP, run_partial_pass

    passes = {}
    for is_own in (own_first, not own_first):
        for prompt in (tokens[:, :WARM_UP], tokens):
            passes[is_own] = run_partial_pass(loaded_model, {} if is_own else mechanisms, prompt)
    return passes[True], passes[False]


def _measure_at_choice(
    case: Case, mechanisms: Mapping[int, SpecLike], effects: LayerEffects, steps: Sequence[Record]
) -> float:
    """The perplexity over the model's own on the segments of the choice; that of a greedy choice is known."""
    from ...integrations.model_swap import PartialSwap
    from ...integrations.segments import measure_loss

    for count in range(1, len(effects.steps) + 1):
        if {layer for layer, _ in effects.steps[:count]} == set(mechanisms):
            return math.exp(effects.steps[count - 1][1])
    loaded_model, segments = load_choice(case.group)
    losses = [measure_loss(PartialSwap.read(loaded_model, t, mechanisms).out, t) for t in segments]
    return math.exp(compute_mean(losses) - get_own_loss(steps))


def count_pairs(case: Case, spec: SpecLike, replaced: int, layers: int) -> float:
    """Query-key pairs of one head at the verified length, the mean over all layers."""
    n = case.group.config.seq_len
    own, pairs = (create(each, dims=case.dims).growth.cost(n, n, True) for each in ("full", spec))
    return (replaced * pairs + (layers - replaced) * own) / layers


def fit_uniform(case: Case, replaced: tuple[int, ...]) -> Spec:
    """The case's mechanism with as many keys as give a model with it in all layers the pairs of one with it in these
    layers only. Raises `NotNeeded` for a mechanism that no number of keys fits."""
    layers, sizes = describe_model(case.keys.model[0]).layers, case.shape
    target, spec, best = count_pairs(case, case.variant, len(replaced), layers), case.variant, None
    if not isinstance(spec, Spec):
        raise NotNeeded(f"{spec} is a union, which no number of keys fits")
    low, high = 1, sizes.n
    while low <= high:
        keys = (low + high) // 2
        budget = Budget(keys=keys, length=sizes.n, head_dim=sizes.head_dim, causal=True)
        try:
            fitted = replace(spec, options={**spec.options, **class_of(spec.name).fit(budget)})
        except UnsupportedError as error:
            raise NotNeeded(str(error)) from error
        except UsageError:  # fewer keys than the mechanism needs
            low = keys + 1
            continue
        if count_pairs(case, fitted, layers, layers) <= target:
            best, low = fitted, keys + 1
        else:
            high = keys - 1
    if best is None:
        raise NotNeeded(f"no number of keys gives {spec.name} as few pairs")
    return best
