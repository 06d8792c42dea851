"""The choice of layers: a step adds the layer at which the mechanism raises the loss least."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean
from typing import TYPE_CHECKING

from ...integrations.texts import Text
from ...results.rows import Record, Row
from .layer_rules import LayerEffects

if TYPE_CHECKING:
    from torch import Tensor

    from ...bench.case import Case
    from ...bench.case_config import Group
    from ...integrations.bundled import LoadedModel


def measure_step(case: Case, row: Row, earlier: Sequence[Record]) -> Record:
    """The loss with the mechanism in each further layer, with those of earlier steps; the layer that raises it least is
    added."""
    from ...integrations.model_swap import PartialSwap
    from ...integrations.segments import measure_loss

    loaded_model, segments = load_choice(case.group)
    spec, replaced = case.variant, [int(record.row.extra["layer"] or 0) for record in earlier]
    layers = [layer for layer in range(loaded_model.sizes.layers) if layer not in replaced]
    losses_by_segment, own_losses = [], []
    for tokens in segments:
        base = PartialSwap.read(loaded_model, tokens, dict.fromkeys(replaced, spec))
        own_losses.append(measure_loss(base.out, tokens))
        losses_by_segment.append([measure_loss(base.run(layer, spec), tokens) for layer in layers])
    own_loss = get_own_loss(earlier) if earlier else fmean(own_losses)
    losses = [fmean(values) for values in zip(*losses_by_segment, strict=True)]
    row.loss, layer = min(zip(losses, layers, strict=True))
    row.metric, row.parameters = "nats a token", loaded_model.sizes.parameters
    row.extra = {"step": len(replaced), "layer": layer, "own_loss": own_loss}
    row.extra["perplexity"] = math.exp(row.loss - own_loss)
    record = Record(row, {"layers": layers, "losses": losses})
    effects = collect_effects([*earlier, record])
    row.extra["alone"] = math.exp(effects.single[layer])
    row.extra["predicted"] = math.exp(effects.predict([*replaced, layer]))
    return record


def get_own_loss(steps: Sequence[Record]) -> float:
    """The unmodified model's loss on the segments of the choice."""
    return float(steps[0].row.extra["own_loss"] or 0.0)


def collect_effects(steps: Sequence[Record]) -> LayerEffects:
    """The effects that all steps of a choice measured."""
    own_loss = get_own_loss(steps)
    single = dict(zip(steps[0].samples["layers"], steps[0].samples["losses"], strict=True))
    return LayerEffects(
        single=tuple(single[layer] - own_loss for layer in sorted(single)),
        steps=tuple((int(s.row.extra["layer"] or 0), float(s.row.loss or 0.0) - own_loss) for s in steps),
    )


@lru_cache(maxsize=1)
def load_choice(group: Group) -> tuple[LoadedModel, list[Tensor]]:
    """The model, and the segments on which layers are chosen."""
    from ...integrations.segments import cut_segment

    keys = dict(group.keys)
    loaded_model, text = _load_model(keys["model"][0]), Text.find(keys["text"])
    return loaded_model, [cut_segment(loaded_model, text, keys["chosen_at"], n) for n in range(keys["choice_segments"])]


@lru_cache(maxsize=1)
def _load_model(name: str) -> LoadedModel:
    """A model with its own attention."""
    from ...integrations.bundled import load

    loaded_model = load(name)
    loaded_model.model.set_attn_implementation("sdpa" if loaded_model.model._supports_sdpa else "eager")
    return loaded_model
