"""A problem: what models are trained to do, as a value. Examples are NumPy arrays, so that none of it needs torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ...bench.task import Keys

IGNORED = -100  # of a target: nothing is asked here
Split = Literal["train", "validation", "test"]
RecipeModel = Literal["decoder", "encoder", "vision", "patches", "sequence"]
Count = Annotated[int, Field(ge=1, strict=True)]
Rate = Annotated[float, Field(gt=0, lt=1)]
Array = NDArray[Any]


@dataclass(frozen=True)
class Batch:
    """Examples. inputs: tokens ``[B, N]``, or images ``[B, C, height, width]``. targets: labels ``[B, N]`` or ``[B]``,
    `IGNORED` where nothing is asked. begun: of sequence to sequence, what the decoder reads, the targets one later,
    ``[B, T]`` as the targets. lengths: of inputs that are padded at their ends, ``[B]``. distance: as targets, how many
    positions back the last token lies that the answer depends on, where that is known; -1 where nothing is asked.
    hidden: of images, which patches are, ``[B, patches]`` bool; targets are then values ``[B, patches, W]``, NaN where
    nothing is asked."""

    inputs: Array
    targets: Array
    begun: Array | None = None
    lengths: Array | None = None
    distance: Array | None = None
    hidden: Array | None = None


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The default model, and how it is trained. model: ``decoder``, a token after each position; ``encoder``, a label
    of the whole; ``vision``, the same of an image; ``patches``, its hidden patches; ``sequence``, an encoder and a
    decoder. convolution: before attention, its width. positions: as in `models.Config`. learning_rates: the grid.
    steps, batch: of training. solved: of validation, the score at which training has nothing left to do."""

    model: RecipeModel
    layers: int = 1
    d_model: int = 64
    heads: int = 4
    convolution: int = 0
    positions: str | None = None
    learning_rates: tuple[float, ...] = (2e-3, 5e-4)
    steps: int = 400
    batch: int = 64
    patch: int = 2
    solved: float = 0.999


@dataclass(frozen=True, kw_only=True)
class Baselines:
    """What a score stands beside. chance: of a guess that knows the classes only. majority: of the one answer that is
    most often right. shortcut: of the cheap way that the task allows, which ``way`` names in words; None where it is
    the window alone that matters (`Problem.windowed`)."""

    chance: float
    majority: float
    shortcut: float | None = None
    way: str = ""


class LearnKeys(Keys):
    """What every task that trains takes; each adds its own sizes.

    steps: of training, or seconds, which become steps by a measured step; by default the task's own. learning_rates:
    the grid, all tried with the first seed; the others have the best of them. seeds: how many. examples: of which a
    score is the mean. test_len: lengths at which it is tested too, beside the one that it was trained at. shortest: if
    given, each batch of training has a length drawn from there to ``seq_len``. architecture: of sequence to sequence,
    ``recurrent`` too: through one vector where the variant is ``gru``, else with attention. checkpoint_s: seconds after
    which training is saved. attempt: which of the planned ones this is; a suite leaves it out.
    """

    steps: Count | None = None
    seconds: Annotated[float, Field(gt=0)] | None = None
    learning_rates: Annotated[tuple[Rate, ...], Field(min_length=1)] | None = None
    seeds: Count = 3
    examples: Count = 512
    batch: Count | None = None
    layers: Count | None = None
    test_len: tuple[Count, ...] = ()
    shortest: Count | None = None
    architecture: Literal["transformer", "recurrent"] = "transformer"
    attempt: tuple[tuple[str, str | float | int | None], ...] = ()
    checkpoint_s: Annotated[float, Field(gt=0, exclude=True)] = 60.0


DrawExamples = Callable[[Any, int, int, np.random.Generator, Split], Batch]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A task's own part, all of which is light to import.

    draw(keys, length, count, generator, split): so many examples of a length. What is generated is drawn anew for each
    split; of what is given the splits are apart, and no more come than there are. inputs, outputs: how many tokens
    there are, and how many labels. image: of images, channels, height and width. metric: ``accuracy``, the share of
    labels that are right, ``exact``, the share of whole sequences, or ``explained``, that of the variance of values; or
    ``bits``, of a label. baselines(keys, length):
    computed, never quoted. check: refuses (`UsageError`) sizes that do not fit together, before anything runs.
    windowed: whether a model that sees few keys is judged by what lies within them (`Batch.distance`).
    """

    name: str
    title: str
    sentence: str
    keys: type[LearnKeys]
    recipe: Recipe
    draw: DrawExamples
    inputs: Callable[[Any], int]
    outputs: Callable[[Any], int]
    baselines: Callable[[Any, int], Baselines]
    check: Callable[[Any, int], None] = field(default=lambda keys, length: None)
    image: tuple[int, int, int] | None = None
    metric: Literal["accuracy", "exact", "explained", "bits"] = "accuracy"
    windowed: bool = False
