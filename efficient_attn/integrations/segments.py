"""Segments of a text as a model's tokens, and what a model loses on them, token by token, against itself as it was."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor

from ..errors import UsageError
from .bundled import Loaded
from .texts import Text

EARLY = 512  # the first positions, of which a window sees all
STRETCH = 32  # positions of an encoder's segment that count as a sentence
BLOCK = 256  # positions whose probabilities over the vocabulary exist together


def cut_segment(loaded: Loaded, text: Text, length: int, number: int) -> Tensor:
    """The tokens ``[1, length]`` of one segment: the beginning of a document that is long enough, each another one.

    Raises `UsageError` where the model has fewer positions, or the text fewer such documents.
    """
    loaded.sizes.check_length(length)
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


def compare(loaded: Loaded, out: Tensor, own: Tensor, tokens: Tensor) -> dict[str, float | None]:
    """What a pass over tokens ``[1, N]`` loses against the model's own, by name: `Losses`, for encoders `Drift`."""
    if loaded.sizes.kind == "decoder":
        return asdict(measure_losses(out, own, tokens[0]))
    return asdict(measure_drift(out, own))


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


@dataclass(frozen=True, kw_only=True)
class Drift:
    """How far an encoder's last hidden rows move. hidden_error: ratio of Frobenius norms. embedding_cosine: between the
    means over the segment. similarity_rank: Spearman's correlation of the cosines between all pairs of stretches of 32
    positions, as the model has them and as they are now."""

    hidden_error: float
    embedding_cosine: float
    similarity_rank: float


def measure_drift(rows: Tensor, own: Tensor) -> Drift:
    """Compare hidden rows ``[N, d]`` of a pass with those of the model as it was."""
    mine, theirs = rows.double(), own.double()
    return Drift(
        hidden_error=((mine - theirs).norm() / theirs.norm()).item(),
        embedding_cosine=torch.cosine_similarity(mine.mean(0), theirs.mean(0), dim=0).item(),
        similarity_rank=_correlate_ranks(_similarities(mine), _similarities(theirs)),
    )


def _similarities(rows: Tensor) -> list[float]:
    """The cosines between the means of all stretches, each pair once."""
    means = torch.stack([part.mean(0) for part in rows.split(STRETCH)])
    cosines = torch.nn.functional.normalize(means, dim=1) @ torch.nn.functional.normalize(means, dim=1).mT
    return cosines[*torch.triu_indices(len(means), len(means), 1)].tolist()


def _correlate_ranks(a: list[float], b: list[float]) -> float:
    found: Any = spearmanr(a, b)
    return float(found.statistic)
