"""Segments of a text as a model's tokens, and metrics of a modified model compared with the original one, token by
token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor

from ..instruments.distance import relative_error
from .bundled import LoadedModel
from .texts import Text

EARLY = 512  # the first positions, all visible in a window of that size
POSITIONS_PER_PART = 32  # of an encoder's segment; about a sentence
POSITIONS_PER_BLOCK = 256  # positions whose probabilities over the vocabulary are in memory together


def cut_segment(
    loaded_model: LoadedModel, text: Text, length: int, number: int, *, without: Sequence[Tensor] = ()
) -> Tensor:
    """The tokens ``[1, length]`` of one segment: the beginning of the ``number``-th document that is long enough.

    without: segments, no longer, whose documents are left out.

    Raises `UsageError` if the model has fewer positions, or the text fewer such documents.
    """
    loaded_model.sizes.check_length(length)

    def tokenize(document: str) -> Tensor | None:
        tokens = loaded_model.tokenizer(document[: 16 * length], return_tensors="pt", verbose=False).input_ids
        is_left_out = any(torch.equal(tokens[:, : segment.shape[1]], segment) for segment in without)
        return tokens[:, :length] if tokens.shape[1] >= length and not is_left_out else None

    return text.pick(number, length, tokenize, "segment")  # a token has at least one character


def compare_with_own(
    loaded_model: LoadedModel, out: Tensor, own_out: Tensor, tokens: Tensor
) -> Mapping[str, float | None]:
    """The metrics by name of a pass over tokens ``[1, N]`` compared with the original model's."""
    if loaded_model.sizes.kind == "decoder":
        return measure_token_metrics(out, own_out, tokens[0])
    return measure_hidden_metrics(out, own_out)


def measure_loss(logits: Tensor, tokens: Tensor) -> float:
    """The mean loss in nats a token of a pass with logits ``[N, V]`` over tokens ``[1, N]``."""
    blocks = zip(logits[:-1].split(POSITIONS_PER_BLOCK), tokens[0, 1:].split(POSITIONS_PER_BLOCK), strict=True)
    losses = [torch.nn.functional.cross_entropy(x.float(), targets, reduction="none") for x, targets in blocks]
    return torch.cat(losses).double().mean().item()


def measure_token_metrics(logits: Tensor, own_logits: Tensor, tokens: Tensor) -> dict[str, float | None]:
    """Compare the logits ``[N, V]`` of a pass with those of the original model, over tokens ``[N]``: the columns of the
    task `swap` by name."""
    losses, divergences, agreements = [], [], []
    for first in range(0, len(tokens) - 1, POSITIONS_PER_BLOCK):
        rows = slice(first, min(first + POSITIONS_PER_BLOCK, len(tokens) - 1))
        log_probs, own_log_probs = (x[rows].float().log_softmax(-1) for x in (logits, own_logits))
        targets = tokens[rows.start + 1 : rows.stop + 1, None]
        losses.append(-log_probs.gather(1, targets)[:, 0])
        divergences.append((own_log_probs.exp() * (own_log_probs - log_probs)).sum(-1))
        agreements.append(log_probs.argmax(-1) == own_log_probs.argmax(-1))
    loss, divergence, agrees = torch.cat(losses).double(), torch.cat(divergences).double(), torch.cat(agreements)
    later = loss[EARLY:]
    return {
        "loss": loss.mean().item(),
        "loss_early": loss[:EARLY].mean().item(),
        "loss_later": later.mean().item() if len(later) else None,
        "divergence": divergence.mean().item(),
        "divergence_p99": divergence.quantile(0.99).item(),
        "agreement": agrees.double().mean().item(),
    }


def measure_hidden_metrics(rows: Tensor, own_rows: Tensor) -> dict[str, float]:
    """Compare an encoder's last hidden states ``[N, d]`` with those of the original model: the columns of the task
    `swap` by name."""
    widened, own_widened = rows.double(), own_rows.double()
    rank_correlation: Any = spearmanr(_compute_similarities(widened), _compute_similarities(own_widened))
    return {
        "hidden_error": relative_error(rows, own_rows),
        "embedding_cosine": torch.cosine_similarity(widened.mean(0), own_widened.mean(0), dim=0).item(),
        "similarity_rank": float(rank_correlation.statistic),
    }


def _compute_similarities(rows: Tensor) -> list[float]:
    """The cosines between the means of all parts, each pair once."""
    means = torch.stack([part.mean(0) for part in rows.split(POSITIONS_PER_PART)])
    directions = torch.nn.functional.normalize(means, dim=1)
    cosines = directions @ directions.mT
    return cosines[*torch.triu_indices(len(means), len(means), 1)].tolist()
