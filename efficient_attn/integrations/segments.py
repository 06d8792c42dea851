"""Segments of a text as a model's tokens, and what a model loses on them: per token, against the same model as it was."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import UsageError
from .bundled import Loaded
from .texts import Text

EARLY = 512  # the first positions, of which a window sees all
BLOCK = 256  # positions whose probabilities over the vocabulary exist together


def cut_segment(loaded: Loaded, text: Text, length: int, number: int) -> Tensor:
    """The tokens ``[1, length]`` of one segment: the beginning of a document that is long enough, each another one.

    Raises `UsageError` where the model has fewer positions, or the text fewer such documents.
    """
    if length > loaded.positions:
        raise UsageError(f"seq_len {length}: the model {loaded.name} has {loaded.positions} positions")
    found = -1
    for at in text.spread():
        document = text.documents[at]
        if len(document) < length:  # a token is a character at least
            continue
        tokens = loaded.tokenizer(document[: 16 * length], return_tensors="pt", verbose=False).input_ids
        found += tokens.shape[1] >= length
        if found == number:
            return tokens[:, :length]
    raise UsageError(f"{text.label} has {found + 1} documents of {length} tokens, segment {number + 1} is asked for")


@dataclass(frozen=True, kw_only=True)
class Losses:
    """What a pass over a segment of N tokens loses, in nats a token.

    loss: of the next token, also over the first 512 positions and the later ones. divergence: of its probabilities
    from the model's own, KL(own || swapped), the mean and the 99th percentile over positions. agreement: how often both
    have the same first choice.
    """

    loss: float
    loss_early: float
    loss_later: float | None
    divergence: float
    divergence_p99: float
    agreement: float


def measure_losses(logits: Tensor, own: Tensor, tokens: Tensor) -> Losses:
    """Compare the logits ``[N, V]`` of a pass with those of the model as it was, over tokens ``[N]``."""
    losses, apart, same = [], [], []
    for first in range(0, len(tokens) - 1, BLOCK):
        rows = slice(first, min(first + BLOCK, len(tokens) - 1))
        mine, theirs = (x[rows].float().log_softmax(-1) for x in (logits, own))
        wanted = tokens[rows.start + 1 : rows.stop + 1, None]
        losses.append(-mine.gather(1, wanted)[:, 0])
        apart.append((theirs.exp() * (theirs - mine)).sum(-1))
        same.append(mine.argmax(-1) == theirs.argmax(-1))
    loss, divergence, agrees = torch.cat(losses).double(), torch.cat(apart).double(), torch.cat(same)
    later = loss[EARLY:]
    return Losses(
        loss=loss.mean().item(),
        loss_early=loss[:EARLY].mean().item(),
        loss_later=later.mean().item() if len(later) else None,
        divergence=divergence.mean().item(),
        divergence_p99=divergence.quantile(0.99).item(),
        agreement=agrees.double().mean().item(),
    )
