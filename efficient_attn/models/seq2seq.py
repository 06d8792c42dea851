"""Recurrent sequence to sequence, with and without attention."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from ..contract import Dims, Mask
from ..errors import UsageError
from ..layers.weights import draw_uniform, make_embedding, make_projection
from ..registry import create
from .stacks import check_tokens

How = Literal["bahdanau", "luong"]
SCORES: dict[How, str] = {"bahdanau": "additive", "luong": "general"}


@dataclass(frozen=True)
class Read:
    """Encoded sources: a row for each token ``[B, M, 2 width]``, and the mask of padding."""

    rows: Tensor
    mask: Mask


class Seq2Seq(nn.Module):
    """A bidirectional GRU encodes the source, another GRU generates the target, one token after another.

    attention: None, with a single context vector, the encoder's last states (Cho et al. 2014, arXiv:1406.1078);
    ``bahdanau``, attention by the decoder's previous state, as an input of its next state (arXiv:1409.0473); ``luong``,
    by the present state, combined with it afterwards (arXiv:1508.04025). variant: the mechanism, by default
    ``additive`` and ``general``.
    """

    def __init__(
        self,
        *,
        source_vocab: int,
        target_vocab: int,
        width: int = 64,
        attention: How | None = None,
        variant: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if attention not in (None, *SCORES):
            raise UsageError(f"Seq2Seq: attention is {', '.join(SCORES)} or None, got {attention!r}")
        if min(source_vocab, target_vocab, width) < 1:
            raise UsageError("Seq2Seq: vocabularies and width must be at least 1")
        self.width, self.how = width, attention
        self.sources = make_embedding(source_vocab, width, seed=seed, name="sources")
        self.targets = make_embedding(target_vocab, width, seed=seed, name="targets")
        inputs = width + (2 * width if attention == "bahdanau" else 0)
        with torch.random.fork_rng(devices=()):  # torch's initial weights, which are replaced by those from the seed
            self.reader = nn.GRU(width, width, batch_first=True, bidirectional=True)
            self.writer = nn.GRUCell(inputs, width)
        draw_uniform(self.reader, width**-0.5, seed=seed, name="reader")
        draw_uniform(self.writer, width**-0.5, seed=seed, name="writer")
        self.bridge = make_projection(2 * width, width, bias=True, seed=seed, name="bridge")
        self.head = make_projection(width, target_vocab, bias=True, seed=seed, name="head")
        self.attn = self.keys = self.join = None
        if attention is not None:
            dims = Dims(heads=1, kv_heads=1, head_dim=width, value_dim=2 * width)
            self.attn = create(variant or SCORES[attention], dims=dims, seed=seed)
            self.keys = make_projection(2 * width, width, bias=False, seed=seed, name="keys")
        if attention == "luong":
            self.join = make_projection(3 * width, width, bias=False, seed=seed, name="join")

    def forward(self, source: Tensor, target: Tensor, source_lengths: Tensor | None = None) -> Tensor:
        """Sources ``[B, M]`` and targets ``[B, N]`` to logits ``[B, N, target vocab]`` of the token after each target.
        source_lengths: ``[B]``, for sources padded at their ends."""
        check_tokens("Seq2Seq", target, self.targets.num_embeddings)
        read, state = self.read(source, source_lengths)
        outputs = []
        for position, token in enumerate(target.unbind(1)):
            logits, state = self.write(token, state, read, position)
            outputs.append(logits)
        return torch.stack(outputs, 1)

    def read(self, source: Tensor, lengths: Tensor | None = None) -> tuple[Read, Tensor]:
        """The encoded sources, and the decoder's first state ``[B, width]``."""
        check_tokens("Seq2Seq", source, self.sources.num_embeddings)
        x = self.sources(source)
        source_lengths = torch.full((len(x),), x.shape[1]) if lengths is None else lengths.cpu()
        packed = nn.utils.rnn.pack_padded_sequence(x, source_lengths, batch_first=True, enforce_sorted=False)
        rows, last = self.reader(packed)
        rows, _ = nn.utils.rnn.pad_packed_sequence(rows, batch_first=True, total_length=x.shape[1])
        return Read(rows, Mask(key_lengths=lengths)), self.bridge(torch.cat([*last], -1)).tanh()

    def write(self, token: Tensor, state: Tensor, read: Read, position: int) -> tuple[Tensor, Tensor]:
        """The logits of the token after that ``[B]`` at a position, counted from 0, and the next state."""
        read = replace(read, mask=replace(read.mask, query_start=position))
        x = self.targets(token)
        if self.how == "bahdanau":
            x = torch.cat([x, self._attend(state, read)], -1)
        state = self.writer(x, state)
        output = state
        if self.join is not None:
            output = self.join(torch.cat([state, self._attend(state, read)], -1)).tanh()
        return self.head(output), state

    def _attend(self, state: Tensor, read: Read) -> Tensor:
        """The attention output from the source for a state ``[B, width]``: ``[B, 2 width]``."""
        assert self.attn is not None
        assert self.keys is not None
        q, k, v = state[:, None, None], self.keys(read.rows)[:, None], read.rows[:, None]
        return self.attn(q, k, v, read.mask)[:, 0, 0]

    def generate(self, source: Tensor, *, begin: int, steps: int, source_lengths: Tensor | None = None) -> Tensor:
        """Generate the most likely tokens ``[B, steps]`` after ``begin``, one after another."""
        with torch.no_grad():
            read, state = self.read(source, source_lengths)
            token, tokens = source.new_full((len(source),), begin), []
            for position in range(steps):
                logits, state = self.write(token, state, read, position)
                token = logits.argmax(-1)
                tokens.append(token)
        return torch.stack(tokens, 1)
