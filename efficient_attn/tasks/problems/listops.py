"""ListOps: the value of a nested list of operators and digits (Nangia & Bowman 2018, arXiv:1804.06028). The form of
Long Range Arena (Tay et al. 2020, arXiv:2011.04006) is ``depth=10, arguments=10, longer_than=500`` at length 2,000;
``depth=6, arguments=8, longer_than=128`` at 512 is a shorter one."""

from functools import lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from ...errors import UsageError
from ..training.problem import Baselines, Batch, Count, LearnKeys, Problem, Recipe, Split
from .expressions import CLOSE, MIN, PAD, count_max_tokens, draw_expressions, evaluate_expression
from .listops_files import FILES, read_rows

BASELINE_EXAMPLES = 2000  # over which baselines are counted, as many as LRA's tests have


class ListopsKeys(LearnKeys):
    """depth: as in LRA, one more than the deepest nesting of operators. arguments: the largest number of an operator's
    arguments. longer_than: expressions have more tokens, with brackets, and fewer than the length. data: a folder with
    LRA's ``basic_train.tsv``, ``basic_val.tsv`` and ``basic_test.tsv``, which replace generated examples."""

    depth: Annotated[int, Field(ge=2, strict=True)] = 4
    arguments: Annotated[int, Field(ge=2, strict=True)] = 5
    longer_than: Count = 8
    data: str | None = None


def check(keys: ListopsKeys, length: int) -> None:
    if keys.data is not None:
        for split in FILES:
            rows, _ = read_rows(keys.data, split)
            longest_row = max(range(len(rows)), key=lambda row: len(rows[row]))
            if len(rows[longest_row]) > length:
                line = f"{Path(keys.data) / FILES[split]}:{longest_row + 2}"
                raise UsageError(f"listops: {line}: {len(rows[longest_row])} tokens, more than the length {length}")
        return
    longest = count_max_tokens(keys.depth, keys.arguments)
    if not keys.longer_than < min(longest, length - 1):
        limit = f"depth {keys.depth} and {keys.arguments} arguments make up to {longest} tokens"
        raise UsageError(f"listops: {limit}; none is longer than {keys.longer_than} and shorter than {length}")


def draw(keys: ListopsKeys, length: int, count: int, generator: np.random.Generator, split: Split) -> Batch:
    """Tokens ``[B, N]`` padded at their ends, labels ``[B]`` from 0 to 9. Expressions in one draw are distinct. From
    files, at most all rows are drawn, each once."""
    inputs = np.full((count, length), PAD)
    if keys.data is not None:
        rows, labels = read_rows(keys.data, split)
        indices = generator.permutation(len(rows))[:count]
        examples, targets, inputs = [rows[i] for i in indices], labels[indices], inputs[: len(indices)]
    else:
        options = keys.model_dump(include={"depth", "arguments", "longer_than"})
        examples = list(draw_expressions(**options, length=length, count=count, generator=generator))
        targets = np.array([evaluate_expression(tokens) for tokens in examples])
    for row, tokens in zip(inputs, examples, strict=True):
        row[: len(tokens)] = tokens
    return Batch(inputs, targets, lengths=np.array([len(tokens) for tokens in examples]))


@lru_cache(8)
def baselines(keys: ListopsKeys, length: int) -> Baselines:
    """The most frequent label of 2,000 examples, or of the tests' file; that by first operator; and the value without
    nested expressions, if an argument is a digit."""
    batch = draw(keys, length, BASELINE_EXAMPLES, np.random.default_rng(0), "test")
    tokens, counts = batch.inputs, np.zeros((PAD, 10), dtype=int)
    np.add.at(counts, (tokens[:, 0], batch.targets), 1)
    depths = np.cumsum((tokens >= MIN) & (tokens < CLOSE), axis=1) - np.cumsum(tokens == CLOSE, axis=1)
    is_argument = (depths == 1) & (tokens < MIN)
    guesses = np.full(len(tokens), counts.sum(0).argmax())
    for i in np.flatnonzero(is_argument.any(1)):
        guesses[i] = evaluate_expression([tokens[i, 0], *tokens[i, is_argument[i]], CLOSE])
    return Baselines(
        chance=0.1,
        majority=float(counts.sum(0).max() / counts.sum()),
        shortcuts={
            "the root operator alone": float(counts.max(1).sum() / counts.sum()),
            "the root operator and its digits": float((guesses == batch.targets).mean()),
        },
        caveat="Such a score needs no nested expression, so the task does not show that models evaluate these.",
    )


LISTOPS = Problem(
    name="listops",
    keys=ListopsKeys,
    recipe=Recipe(model="encoder", layers=2, positions="rotary", steps=700),
    draw=draw,
    check=check,
    inputs=lambda keys: PAD + 1,
    outputs=lambda keys: 10,
    baselines=baselines,
)
