"""Layers that attention is compared with: recurrence, convolution and a dense map over positions.

Each maps ``x [B, N, d_model]`` to the same shape; causal ones also have `step`. `cost` is the published cost.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UnsupportedError, UsageError
from .weights import draw_uniform


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The published cost of a layer. time: for N positions with D numbers. parameters: of the map itself, for N
    positions, D numbers in and Dv out, without biases. sequential: the number of sequential steps for N."""

    time: str
    parameters: Callable[[int, int, int], int]
    sequential: Callable[[int], int]


def once(n: int) -> int:
    """The sequential steps of a layer that computes all positions at the same time."""
    return 1


def one_by_one(n: int) -> int:
    """The sequential steps of a layer that computes one position after another."""
    return n


class Baseline(nn.Module):
    """Base class of these layers. Causal ones have a state, and `step` for one or several positions."""

    cost: ClassVar[Cost]
    causal: bool = True

    def __init__(self, d_model: int) -> None:
        super().__init__()
        if d_model < 1:
            raise UsageError(f"{type(self).__name__}: d_model must be at least 1, got {d_model}")
        self.d_model = d_model

    def forward(self, x: Tensor) -> Tensor:
        """``[B, N, d_model]`` to ``[B, N, d_model]``. Raises `UsageError` for another width."""
        self.check(x)
        return self.mix(x)

    def mix(self, x: Tensor) -> Tensor:
        """`forward` after its checks."""
        raise UnsupportedError(f"{type(self).__name__} does not implement mix")

    def init_state(self, batch: int, max_len: int) -> Any:
        """The state before the first position. Raises `UnsupportedError` if later positions change earlier rows."""
        if not self.causal:
            raise UnsupportedError(f"{type(self).__name__} sees later positions, so it has no steps")
        return None

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return the rows of T >= 1 new positions, and the state after them."""
        raise UnsupportedError(f"{type(self).__name__} has no steps")

    def check(self, x: Tensor) -> None:
        if x.ndim != 3 or x.shape[2] != self.d_model:
            raise UsageError(f"{type(self).__name__}: x must be [B, length, {self.d_model}], got {list(x.shape)}")


class Recurrent(Baseline):
    """torch's recurrence of one layer, with a state as wide as x."""

    kind: ClassVar[type[nn.GRU | nn.LSTM]]

    def __init__(self, d_model: int, *, seed: int = 0) -> None:
        super().__init__(d_model)
        with torch.random.fork_rng(devices=()):  # torch's initial weights, which are replaced by those from the seed
            self.cells = self.kind(d_model, d_model, batch_first=True)
        draw_uniform(self.cells, d_model**-0.5, seed=seed, name="recurrent")

    def mix(self, x: Tensor) -> Tensor:
        return self.cells(x)[0]

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        self.check(x)
        return self.cells(x, state)


class GRU(Recurrent):
    """Gated recurrent units (Cho et al. 2014, arXiv:1406.1078)."""

    kind = nn.GRU
    cost = Cost(time="O(N D^2)", parameters=lambda n, d, out: 3 * (d * out + out * out), sequential=one_by_one)


class LSTM(Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber 1997)."""

    kind = nn.LSTM
    cost = Cost(time="O(N D^2)", parameters=lambda n, d, out: 4 * (d * out + out * out), sequential=one_by_one)


@dataclass(frozen=True)
class Tape:
    """The memory of an `LSTMN`: hidden states and memories so far ``[B, length, D]``, and their last summary."""

    hidden: Tensor
    memory: Tensor
    summary: Tensor


class LSTMN(Baseline):
    """An LSTM that attends to all of its past states instead of the last one (Cheng et al. 2016, arXiv:1601.06733): at
    each position, additive attention over the hidden states so far weights them and the memories."""

    cost = Cost(time="O(N^2 D + N D^2)", parameters=lambda n, d, out: 4 * (d * out + out * out) + 3 * d * out + out,
                sequential=one_by_one)  # fmt: skip

    def __init__(self, d_model: int, *, seed: int = 0) -> None:
        super().__init__(d_model)
        d = d_model
        self.gates, self.score = (nn.Parameter(torch.empty(size)) for size in ((4 * d, 2 * d), (d,)))
        self.bias = nn.Parameter(torch.zeros(4 * d))
        self.of_hidden, self.of_x, self.of_summary = (nn.Parameter(torch.empty(d, d)) for _ in range(3))
        draw_uniform(self, d**-0.5, seed=seed, name="lstmn")

    def mix(self, x: Tensor) -> Tensor:
        return self.step(x, self.init_state(len(x), x.shape[1]))[0]

    def init_state(self, batch: int, max_len: int) -> Tape:
        empty = self.score.new_zeros(batch, 0, self.d_model)
        return Tape(empty, empty, self.score.new_zeros(batch, self.d_model))

    def step(self, x: Tensor, state: Tape) -> tuple[Tensor, Tape]:
        self.check(x)
        past_length = state.hidden.shape[1]
        for row in x.unbind(1):
            state = self._step_once(row, state)
        return state.hidden[:, past_length:], state

    def _step_once(self, row: Tensor, tape: Tape) -> Tape:
        hidden, memory = torch.zeros_like(tape.summary), torch.zeros_like(tape.summary)
        if tape.hidden.shape[1]:
            query = (row @ self.of_x.T + tape.summary @ self.of_summary.T)[:, None]
            weights = ((tape.hidden @ self.of_hidden.T + query).tanh() @ self.score).softmax(-1)[:, None]
            hidden, memory = (weights @ tape.hidden)[:, 0], (weights @ tape.memory)[:, 0]
        i, f, g, o = (torch.cat([hidden, row], -1) @ self.gates.T + self.bias).chunk(4, -1)
        new_memory = f.sigmoid() * memory + i.sigmoid() * g.tanh()
        new_hidden = o.sigmoid() * new_memory.tanh()
        all_hidden = torch.cat([tape.hidden, new_hidden[:, None]], 1)
        all_memory = torch.cat([tape.memory, new_memory[:, None]], 1)
        return Tape(all_hidden, all_memory, hidden)


class Convolution(Baseline):
    """A convolution over ``kernel`` positions: the last ones if causal, else around each position."""

    def __init__(self, d_model: int, *, kernel: int = 3, causal: bool = True, seed: int = 0) -> None:
        super().__init__(d_model)
        if kernel < 1 or (not causal and kernel % 2 == 0):
            raise UsageError(f"Convolution: kernel must be at least 1, and odd where it is centred, got {kernel}")
        self.kernel, self.causal = kernel, causal
        self.weight, self.bias = nn.Parameter(torch.empty(d_model, d_model, kernel)), nn.Parameter(torch.zeros(d_model))
        draw_uniform(self, (d_model * kernel) ** -0.5, seed=seed, name="convolution")
        self.cost = Cost(time="O(k N D^2)", parameters=lambda n, d, out: kernel * d * out, sequential=once)  # pyright: ignore

    def mix(self, x: Tensor) -> Tensor:
        left_padding = self.kernel - 1 if self.causal else self.kernel // 2
        return self._convolve(F.pad(x.mT, (left_padding, self.kernel - 1 - left_padding)))

    def init_state(self, batch: int, max_len: int) -> Tensor:
        super().init_state(batch, max_len)
        return self.weight.new_zeros(batch, self.kernel - 1, self.d_model)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        self.check(x)
        window = torch.cat([state, x], 1)
        next_state = window[:, window.shape[1] - self.kernel + 1 :].clone()  # a view would keep the whole tensor alive
        return self._convolve(window.mT), next_state

    def _convolve(self, x: Tensor) -> Tensor:
        return F.conv1d(x, self.weight, self.bias).mT


class Dense(Baseline):
    """One linear map over all positions: each output number depends on all inputs, which have that ``length``."""

    causal = False
    cost = Cost(time="O(N^2 D^2)", parameters=lambda n, d, out: n * n * d * out, sequential=once)

    def __init__(self, d_model: int, *, length: int, seed: int = 0) -> None:
        super().__init__(d_model)
        if length < 1:
            raise UsageError(f"Dense: length must be at least 1, got {length}")
        self.length, size = length, length * d_model
        self.weight, self.bias = nn.Parameter(torch.empty(size, size)), nn.Parameter(torch.zeros(size))
        draw_uniform(self, size**-0.5, seed=seed, name="dense")

    def mix(self, x: Tensor) -> Tensor:
        if x.shape[1] != self.length:
            raise UsageError(f"Dense: made for {self.length} positions, got {x.shape[1]}")
        return F.linear(x.flatten(1), self.weight, self.bias).view(x.shape)
