"""Uptraining: models with fewer key-value heads are made from trained multi-head models, and trained further for a
share of the original's steps (Ainslie et al. 2023, arXiv:2305.13245, section 2.1).

Further training has the original's learning rate and batch size, the examples that come next, and a schedule of its
own: warm-up, constant rate, and decay. The optimizer starts anew, because pooled projections have no moments of their
own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...bench.measuring import scratch
from ...bench.planning.case_factory import make_case
from ...errors import NotNeeded, UnsupportedError, UsageError
from ...results import checkpoints
from ...results.rows import Row
from ...spec import parse
from .attempts import Attempt
from .problem import Conversion, LearnKeys, Problem

if TYPE_CHECKING:
    from torch import nn

    from ...bench.case import Case
    from .learners import Learner

UPTRAINING_KEYS = "conversions", "shares"  # on which no training from scratch depends
UNCHANGED = "none"  # the conversion of a model with as many key-value heads
SAME_REASON = "conversions do not differ with as many key-value heads as the original"


class MissingOriginal(LookupError):
    """The model that another one is made from does not exist."""


def check_uptraining(problem: Problem, keys: LearnKeys, names: Sequence[str]) -> None:
    """Raise `UsageError` for keys that do not go together. names: of the variants that are trained."""
    original = keys.uptrained_from
    if original is None:
        if unused := sorted({*UPTRAINING_KEYS} & keys.model_fields_set):
            raise UsageError(f"{problem.name}: {unused[0]} is used with uptrained_from only; set it or remove this key")
        return
    if keys.architecture == "recurrent":
        raise UsageError(f"{problem.name}: uptrained_from needs attention heads, not architecture recurrent")
    if str(parse(original)) not in names:
        trained = ", ".join(names) or "none"
        raise UsageError(f"{problem.name}: uptrained_from is {original}, the variants are {trained}; add it to them")


def is_original(case: Case) -> bool:
    """Whether other models are made from the trained one of a case."""
    original = case.keys.uptrained_from
    return original is not None and parse(original) == case.variant


def make_original_case(case: Case, attempt: Attempt) -> Case:
    """The case of the original's variant in the group of an attempt. Raises `NotNeeded` if the attempt's model would be
    that of another one."""
    original = make_case(case.group, parse(case.keys.uptrained_from), None)
    if original.kv_heads == case.kv_heads and attempt.conversion != case.keys.conversions[0]:
        raise NotNeeded(SAME_REASON)
    return original


def restore_original(learner: Learner, row: Row | None, label: str) -> Row:
    """Load the weights of the trained original. row: of its training, which is returned. label: describes it in
    messages. Raises `MissingOriginal`."""
    from .checkpoint import restore_model

    if row is None:
        remedy = "continue with --resume --retry-failed, or run again with another --out if it was skipped"
        raise MissingOriginal(f"the training of {label} did not come to an end; {remedy}")
    folder = scratch.get_folder()
    assert folder is not None, "its row was read there"
    path = checkpoints.model_path_of(folder, checkpoints.digest_of(row.case_key))
    if not restore_model(path, learner.model):
        raise MissingOriginal(f"{path} is not the model of {label}; run again with another --out")
    return row


def convert_model(original: nn.Module, model: nn.Module, how: Conversion, *, seed: int) -> None:
    """Replace the weights of a model by those of the original, with keys and values of fewer heads in each layer.

    how: as of `mean_pool_kv`. Raises `UnsupportedError` if the models have different parameters.
    """
    from ...layers.grouping import mean_pool_kv
    from ...layers.multi_head import MultiHeadAttention

    state = original.state_dict()
    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, MultiHeadAttention)]
    for number, (name, layer) in enumerate(layers):
        source = original.get_submodule(name)
        assert isinstance(source, MultiHeadAttention)
        if source.kv_heads != layer.kv_heads:
            pooled = mean_pool_kv(source, layer.kv_heads, how=how, seed=seed + number)
            state |= {f"{name}.{part}": x for part, x in pooled.state_dict().items()}
    needed = {name: x.shape for name, x in model.state_dict().items()}
    shapes = {name: x.shape for name, x in state.items()}
    if differing := sorted(name for name in {*needed, *shapes} if needed.get(name) != shapes.get(name)):
        raise UnsupportedError(f"no conversion of the original has the parameter {differing[0]} of this mechanism")
    model.load_state_dict(state)


def count_uptraining_steps(share: float, original_steps: int) -> int:
    """The steps of further training, at least one unless the share is 0."""
    return max(1, round(share * original_steps)) if share else 0
