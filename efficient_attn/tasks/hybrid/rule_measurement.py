"""What a rule's choice of layers loses and saves: passes over long segments, in turns with the unmodified model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

from ...contract.budget import Budget
from ...errors import NotNeeded, UnsupportedError, UsageError
from ...integrations.model_info import describe_model
from ...integrations.texts import Text
from ...registry import class_of, create
from ...results.rows import Record, Row
from ...results.stats import estimate_geometric_mean
from ...spec import Spec, SpecLike
from .layer_choice import collect_effects, get_own_loss, load_choice
from .layer_rules import LayerEffects, Rule, choose_layers, format_layers

if TYPE_CHECKING:
    from torch import Tensor

    from ...bench.case import Case
    from ...integrations.bundled import LoadedModel
    from ...integrations.model_swap import ForwardPass


class Turn(NamedTuple):
    """Passes over one segment, without their outputs, and the losses of both."""

    unmodified: ForwardPass
    hybrid: ForwardPass
    own_loss: float
    loss: float

    @property
    def disturbance(self) -> str | None:
        """Why the times are unreliable, if they are."""
        return self.unmodified.disturbance or self.hybrid.disturbance


def measure_rule(case: Case, row: Row, rule: Rule, limit: float | None, steps: Sequence[Record]) -> Record:
    """Read each segment with the rule's layers and with the unmodified model, in turns."""
    from ...integrations.model_swap import measure_prompt_memory
    from ...integrations.segments import cut_segment

    effects, config = collect_effects(steps), case.group.config
    layers = choose_layers(rule, effects, limit, counted_by=case.keys.counted_by)
    equivalent = choose_layers(case.keys.counted_by, effects, limit) if rule == "uniform" else ()
    spec = fit_uniform(case, equivalent) if rule == "uniform" else case.variant
    mechanisms = dict.fromkeys(layers, spec)
    loaded_model, choice_segments = load_choice(case.group)
    text, options = Text.find(case.keys.text), {"without": choice_segments}
    numbers = range(case.group.sampling.rounds)
    segments = [cut_segment(loaded_model, text, config.seq_len, number, **options) for number in numbers]
    row.peak_memory_bytes = measure_prompt_memory(loaded_model, mechanisms, segments[0])
    own_peak = measure_prompt_memory(loaded_model, {}, segments[0]) if rule == "everywhere" else None
    turns = [_take_turn(loaded_model, mechanisms, tokens, own_first=n % 2 == 0) for n, tokens in enumerate(segments)]
    row.loss, row.metric = fmean([turn.loss for turn in turns]), "nats a token"
    row.parameters, row.state_bytes = loaded_model.sizes.parameters, turns[0].hybrid.bytes
    row.pairs = round(count_pairs(case, spec, len(layers), effects.layers))
    row.rounds, row.processes = len(turns), 1
    row.contaminated = sum(turn.disturbance is not None for turn in turns)
    own_layers = [layer for layer in range(effects.layers) if layer not in layers]
    row.extra = {"rule": rule, "limit": limit, "own_layers": len(own_layers), "own": format_layers(own_layers)}
    row.extra |= {"mechanism": str(spec), "own_loss": fmean([turn.own_loss for turn in turns])}
    row.extra |= {"own_state_bytes": turns[0].unmodified.bytes, "own_peak_bytes": own_peak}
    row.extra["step_ms"] = median(turn.hybrid.step_s or 0.0 for turn in turns) * 1e3
    if rule != "uniform":
        row.extra["predicted"] = math.exp(effects.predict(layers))
        row.extra["at_choice"] = _measure_at_choice(case, mechanisms, effects, steps)
    ratios = {
        "perplexity": [math.exp(turn.loss - turn.own_loss) for turn in turns],
        "speedup": [turn.unmodified.seconds / turn.hybrid.seconds for turn in turns],
        "step_speedup": [(turn.unmodified.step_s or 0.0) / (turn.hybrid.step_s or 1.0) for turn in turns],
    }
    for name, values in ratios.items():
        estimate = estimate_geometric_mean(values)
        row.extra |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    samples = {
        "own_ms": [turn.unmodified.seconds * 1e3 for turn in turns],
        "ms": [turn.hybrid.seconds * 1e3 for turn in turns],
        "own_losses": [turn.own_loss for turn in turns],
        "losses": [turn.loss for turn in turns],
        "disturbed": [turn.disturbance for turn in turns],
    }
    return Record(row, samples)


def _take_turn(
    loaded_model: LoadedModel, mechanisms: Mapping[int, SpecLike], tokens: Tensor, *, own_first: bool
) -> Turn:
    """The unmodified model's pass and the hybrid's, each after a short one for warming up."""
    from ...integrations.model_swap import WARM_UP, run_partial_pass
    from ...integrations.segments import measure_loss

    passes, losses = {}, {}
    for is_own in (own_first, not own_first):
        replaced = {} if is_own else mechanisms
        run_partial_pass(loaded_model, replaced, tokens[:, :WARM_UP])
        result = run_partial_pass(loaded_model, replaced, tokens)
        losses[is_own] = measure_loss(result.out, tokens)
        passes[is_own] = replace(result, out=result.out[:0].clone())  # logits of long segments take gigabytes
        del result
    return Turn(passes[True], passes[False], losses[True], losses[False])


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
    return math.exp(fmean(losses) - get_own_loss(steps))


def count_pairs(case: Case, spec: SpecLike, replaced: int, layers: int) -> float:
    """Query-key pairs of one head at the verified length, the mean over all layers."""
    n = case.group.config.seq_len
    all_pairs, pairs = (create(each, dims=case.dims).growth.cost(n, n, True) for each in ("full", spec))
    return (replaced * pairs + (layers - replaced) * all_pairs) / layers


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
