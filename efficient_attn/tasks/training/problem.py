"""A problem: what models are trained to do, as a value. Examples are NumPy arrays, so that it does not need torch."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator, Field

from ...bench.planning.suite_schema import Count as Count
from ...bench.task import Keys

IGNORED = -100  # marks positions without a target
Split = Literal["train", "validation", "test"]
RecipeModel = Literal["decoder", "encoder", "pair", "vision", "patches", "sequence"]


def list_items(value: Any) -> Any:
    """A table of a suite as pairs, because keys must be hashable."""
    return tuple(value.items()) if isinstance(value, dict) else value


def check_distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Raise ValueError for a value that occurs twice."""
    if repeated := [value for i, value in enumerate(values) if value in values[:i]]:
        raise ValueError(f"{repeated[0]} occurs twice; remove one")
    return values


Rate = Annotated[float, Field(gt=0, lt=1)]
Conversion = Literal["mean", "first", "random"]
Share = Annotated[float, Field(ge=0, le=1)]
Array = NDArray[Any]


@dataclass(frozen=True)
class Batch:
    """Examples. inputs: tokens ``[B, N]``, pairs ``[B, 2, N]``, or images ``[B, C, height, width]``. targets: labels
    ``[B, N]`` or ``[B]``, `IGNORED` where there is none. begun: for sequence to sequence, the decoder's input, the
    targets shifted by one, ``[B, T]``. lengths: of inputs that are padded at their ends, ``[B]``, of pairs ``[B, 2]``.
    distance: in the shape of targets, the number of positions from a target back to the first token that its answer
    depends on, if known; -1 without a target. Of a pair of key and value that is the key, without which its value is
    one of many. hidden: for images, the masked patches, ``[B, patches]`` bool; targets are then values
    ``[B, patches, W]``, NaN where there is none."""

    inputs: Array
    targets: Array
    begun: Array | None = None
    lengths: Array | None = None
    distance: Array | None = None
    hidden: Array | None = None


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The default model and its training. model: ``decoder`` predicts a token after each position, ``encoder`` a label
    of the whole, ``pair`` one of two sequences, ``vision`` that of an image, ``patches`` its masked patches;
    ``sequence`` is an encoder and a decoder. convolution: its width before attention. positions: as in `models.Config`.
    learning_rates: the grid. solved: the score on validation at which training ends."""

    model: RecipeModel
    layers: int = 1
    d_model: int = 64
    heads: int = 4
    convolution: int = 0
    positions: str | None = None
    learning_rates: tuple[float, ...] = (1e-3, 2e-3, 4e-3)
    steps: int = 400
    batch: int = 64
    patch: int = 2
    solved: float = 0.999


@dataclass(frozen=True, kw_only=True)
class Baselines:
    """The scores that models are compared with. chance: of guessing among the classes. majority: of the most frequent
    answer. shortcuts: of simple methods without attention, by their descriptions, which become names of columns.
    caveat: a sentence about what the task shows of models that are not better than the best shortcut. note: a sentence
    about the examples that is always shown."""

    chance: float
    majority: float
    shortcuts: Mapping[str, float] = field(default_factory=dict)
    caveat: str = "No attention is needed for such a score."
    note: str | None = None


class LearnKeys(Keys):
    """Keys of every training task; each adds its own sizes.

    steps: of training at most, or seconds, converted by a measured step; by default the task's own. learning_rates: the
    grid, all tried with the first seed; the others use the best. rates: those of mechanisms that do not need a grid, as
    selected by an earlier run. seeds: how many; two more if their scores disagree. seeds_between: if given, other seeds
    are trained only if the first one's score on validation lies between these. examples: over which a score is
    averaged; half as many for validation. heads: of the model, whose width is divided among them. test_len: further
    lengths to test at. shortest: if given, each batch of training has a length drawn from it to
    ``seq_len``. architecture: for sequence to sequence also ``recurrent``: with a single context vector if the variant
    is ``gru``, else with attention. uptrained_from: a variant from whose trained models the others are also made
    (`uptraining`): by each of ``conversions``, and trained further for each of ``shares`` of its steps. checkpoint_s:
    seconds between checkpoints. attempt, data_digest: set by the plan, not by suites; the digest is of the given files.
    """

    steps: Count | None = None
    seconds: Annotated[float, Field(gt=0)] | None = None
    learning_rates: Annotated[tuple[Rate, ...], Field(min_length=1)] | None = None
    rates: Annotated[tuple[tuple[str, Rate], ...], BeforeValidator(list_items)] = ()
    seeds: Annotated[int, Field(ge=1, le=100, strict=True)] = 3
    seeds_between: tuple[float, float] | None = None
    examples: Count = 512
    batch: Count | None = None
    layers: Count | None = None
    heads: Count | None = None
    test_len: tuple[Count, ...] = ()
    shortest: Count | None = None
    architecture: Literal["transformer", "recurrent"] = "transformer"
    uptrained_from: str | None = None
    conversions: Annotated[tuple[Conversion, ...], Field(min_length=1), AfterValidator(check_distinct)] = (
        "mean",
        "first",
        "random",
    )
    shares: Annotated[tuple[Share, ...], Field(min_length=1), AfterValidator(check_distinct)] = (0.0, 0.01, 0.05, 0.1)
    attempt: tuple[tuple[str, str | float | int | None], ...] = ()
    data_digest: str | None = None
    checkpoint_s: Annotated[float, Field(gt=0, exclude=True)] = 60.0


DrawExamples = Callable[[Any, int, int, np.random.Generator, Split], Batch]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The task-specific part of a training task, light to import.

    draw(keys, length, count, generator, split): returns ``count`` examples of a length. Random examples of two splits
    coincide only by chance; given data is split, and not repeated. inputs, outputs: number of tokens and of labels.
    image: channels, height and width of images. metric: ``accuracy``, the share of correct labels; ``exact``, of whole
    sequences; ``explained``, of the variance of values; or ``bits`` of a label. baselines(keys, length): the scores to
    compare with. fit_shortcuts(keys, batches): further shortcuts, fitted to the examples of a training. check: raises
    `UsageError` for inconsistent sizes, before anything runs. windowed: whether `Batch.distance` determines the best
    score of a limited reach.
    """

    name: str
    keys: type[LearnKeys]
    recipe: Recipe
    draw: DrawExamples
    inputs: Callable[[Any], int]
    outputs: Callable[[Any], int]
    baselines: Callable[[Any, int], Baselines]
    fit_shortcuts: Callable[[Any, Iterable[Batch]], Mapping[str, float]] = field(default=lambda keys, batches: {})
    check: Callable[[Any, int], None] = field(default=lambda keys, length: None)
    image: tuple[int, int, int] | None = None
    metric: Literal["accuracy", "exact", "explained", "bits"] = "accuracy"
    windowed: bool = False


def guess_uniformly(keys: Any, length: int) -> Baselines:
    """The baselines of problems whose answers are uniform over ``keys.vocab`` tokens."""
    return Baselines(chance=1 / keys.vocab, majority=1 / keys.vocab)


def make_answer_batch(
    inputs: Array,
    answers: Array,
    *,
    begin: int,
    end: int,
    lengths: Array | None = None,
    answer_lengths: Array | None = None,
) -> Batch:
    """A batch for sequence to sequence: sources ``[B, N]`` and their answers ``[B, T]``. The decoder reads BEGIN and
    the answer, and writes the answer and END, ``[B, T + 1]``. answer_lengths: ``[B]``, of answers that are padded at
    their ends; END follows the last token, and there are no targets after it."""
    edge = np.ones((len(answers), 1), dtype=answers.dtype)
    begun, targets = np.hstack([begin * edge, answers]), np.hstack([answers, end * edge])
    if answer_lengths is not None:
        positions = np.arange(targets.shape[1])
        targets[positions == answer_lengths[:, None]] = end
        targets[positions > answer_lengths[:, None]] = IGNORED
    return Batch(inputs, targets, begun=begun, lengths=lengths)
