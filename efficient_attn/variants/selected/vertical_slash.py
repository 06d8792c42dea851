"""Attention over columns and diagonals that the last queries select."""

import torch
from torch import Tensor

from ...contract import Attention, Budget, Growth, Mask, Traits
from ...errors import UsageError, check_at_least_one
from ...kernels.dense import softmax_attention
from ...kernels.score_lines import attend_lines, select_lines


class VerticalSlash(Attention):
    """Softmax over the columns and the diagonals of the score matrix that hold the largest sums of weights of the last
    queries, for each head: for reading a prompt, not for decoding (Jiang et al. 2024, arXiv:2407.02490, MInference).

    columns: keys that all later queries see; of equal sums the first. diagonals: distances at which every query sees a
    key, 0 always among them; of equal sums the smallest. queries: the last so many are read.

    Causal self-attention only, without padding: other queries' contents decide, so that no prefix of the result is the
    result of the prefix. Gradients are those of the selected keys. Backends: ``lines``, which reads only these keys,
    and ``dense``.
    """

    backends = ("lines", "dense")

    def __init__(self, *, columns: int = 64, diagonals: int = 64, queries: int = 64) -> None:
        super().__init__()
        check_at_least_one("vertical_slash", columns=columns, diagonals=diagonals, queries=queries)
        self.columns, self.diagonals, self.queries = columns, diagonals, queries

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        """Half of the keys in columns, half on diagonals."""
        if budget.keys < 2:
            raise UsageError(f"vertical_slash: half of {budget.keys} keys is less than one")
        return {"columns": budget.keys // 2, "diagonals": budget.keys - budget.keys // 2}

    @property
    def traits(self) -> Traits:
        return Traits(
            strictly_causal=False,
            bidirectional=False,
            cross=False,
            padding=False,
            decode=False,
            exact=True,
            positional=True,
            mixes_queries=True,
        )

    @property
    def growth(self) -> Growth:
        return Growth("O(N P), P lines", "O(N)", self._cost)

    def _cost(self, n: int, m: int, causal: bool) -> float:
        """The weights of the last queries, and the keys on the lines."""
        return min(self.queries, n) * m + n * min(self.columns + self.diagonals, n)

    def pairs_computed(self, n: int, m: int, causal: bool) -> int:
        return int(self._cost(n, m, causal))

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        n = q.shape[2]
        columns, distances = select_lines(q.double(), k.double(), self.queries, self.columns, self.diagonals)
        position = torch.arange(n, device=q.device)
        on_column = (position == columns[..., None]).any(2)[:, :, None]
        distance = position[:, None] - position
        on_diagonal = (distance == distances[..., None, None]).any(2)
        return softmax_attention(q, k, v, (on_column | on_diagonal) & (distance >= 0))

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        columns, distances = select_lines(q.detach(), k.detach(), self.queries, self.columns, self.diagonals)
        return attend_lines(q, k, v, columns, distances)
