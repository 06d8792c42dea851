"""State tracking: the product of all elements so far, at every position of a random sequence of a group's elements.
Parity is the group of two elements, S3 and S5 are the permutations of three and of five points (Merrill, Petty &
Sabharwal 2024, "The Illusion of State in State-Space Models", arXiv:2404.08819).

Products in S5, the only one of the three that is not solvable, are complete for NC1: unless TC0 equals NC1, no
transformer and no linear state-space model of fixed depth computes them at all lengths. ``shortest = 1`` trains on all
lengths up to N, and ``test_len`` tests at longer ones.
"""

from functools import cache
from itertools import permutations

import numpy as np

from ...errors import UsageError
from ..training.problem import Array, Baselines, Batch, LearnKeys, Problem, Recipe, Split

CAVEAT = "Such a score needs no product, so the task does not show that models track a state."


@cache
def list_elements(points: int) -> Array:
    """All permutations of so many points in lexicographic order, ``[S, points]``. A token is the index of one."""
    return np.array(list(permutations(range(points))))


@cache
def compute_products(points: int) -> Array:
    """The table ``[S, S]`` of products: of the permutation of the row, which is applied first, and the column's."""
    elements, digits = list_elements(points), points ** np.arange(points)[::-1]
    products = elements[:, elements].swapaxes(0, 1)  # [S, S, points]: at (a, b) that i goes to b[a[i]]
    return np.searchsorted(elements @ digits, products @ digits)  # lexicographic order is that of the numbers


def compute_scores(elements: int, length: int) -> dict[str, float]:
    """The scores of simple rules. Without one of the elements so far all products are equally likely, so that only the
    first product can be derived from fewer."""
    return {"the last element alone": (1 + (length - 1) / elements) / length}


def make_problem(name: str, points: int) -> Problem:
    """The problem of products of permutations of so many points. Inputs and targets are ``[B, N]``."""
    elements = len(list_elements(points))

    def check(keys: LearnKeys, length: int) -> None:
        if length < 2:
            raise UsageError(f"{name}: a product needs a length of at least 2, got {length}")

    def draw(keys: LearnKeys, length: int, count: int, generator: np.random.Generator, split: Split) -> Batch:
        """The distance is that of the first element, on which every product depends."""
        products = compute_products(points)
        inputs = generator.integers(elements, size=(count, length))
        targets = inputs.copy()
        for position in range(1, length):
            targets[:, position] = products[targets[:, position - 1], inputs[:, position]]
        return Batch(inputs, targets, distance=np.tile(np.arange(length), (count, 1)))

    def baselines(keys: LearnKeys, length: int) -> Baselines:
        scores = compute_scores(elements, length)
        return Baselines(chance=1 / elements, majority=1 / elements, shortcuts=scores, caveat=CAVEAT)

    return Problem(
        name=name,
        keys=LearnKeys,
        recipe=Recipe(model="decoder", layers=2, convolution=2, positions=None, steps=2000),
        draw=draw,
        check=check,
        inputs=lambda keys: elements,
        outputs=lambda keys: elements,
        baselines=baselines,
        windowed=True,
    )


PARITY, S3, S5 = make_problem("parity", 2), make_problem("s3", 3), make_problem("s5", 5)
