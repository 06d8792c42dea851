"""Training objectives, as functions of logits and of the batch. Each is a mean over targets, in nats unless stated
otherwise; positions of `IGNORED` have no target. Each raises `UsageError` for shapes that do not fit, for labels out of
range, and without any target."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UsageError

IGNORED = -100  # marks positions without a target, as in torch and in datasets


def classify(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of one label a row: logits ``[B, classes]``, labels ``[B]``."""
    return _cross_entropy("classify", logits, labels)


def predict_next(logits: Tensor, tokens: Tensor) -> Tensor:
    """The next token at each position: logits ``[B, N, vocab]`` from the tokens ``[B, N]``."""
    _check_fit("predict_next", logits, tokens)
    return _cross_entropy("predict_next", logits[:, :-1], tokens[:, 1:])


def predict_masked(logits: Tensor, targets: Tensor) -> Tensor:
    """The original tokens at masked positions: logits ``[B, N, vocab]``, targets ``[B, N]``, `IGNORED` elsewhere (BERT,
    Devlin et al. 2018, arXiv:1810.04805). The same for sequence to sequence, with padding ignored."""
    return _cross_entropy("predict_masked", logits, targets)


translate = predict_masked


def follows(logits: Tensor, labels: Tensor) -> Tensor:
    """Whether the second of two sentences really follows the first: logits ``[B, 2]``, labels ``[B]`` (BERT)."""
    if logits.ndim != 2 or logits.shape[1] != 2:
        raise UsageError(f"follows: logits must be [B, 2], got {list(logits.shape)}")
    return _cross_entropy("follows", logits, labels)


def predict_patches(predicted: Tensor, patches: Tensor, hidden: Tensor) -> Tensor:
    """Mean squared error of hidden patches, each scaled to mean 0 and variance 1: predicted and patches ``[B, P, W]``,
    hidden ``[B, P]`` bool (masked autoencoders, He et al. 2021, arXiv:2111.06377)."""
    if predicted.shape != patches.shape or hidden.shape != patches.shape[:2]:
        shapes = ", ".join(str(list(x.shape)) for x in (predicted, patches, hidden))
        raise UsageError(f"predict_patches: predicted, patches [B, P, W] and hidden [B, P] do not fit: {shapes}")
    if not hidden.any():
        raise UsageError("predict_patches: no patch is masked, so there is no target")
    variance, mean = torch.var_mean(patches, -1, keepdim=True)
    targets = (patches - mean) * (variance + 1e-6).rsqrt()
    return (predicted - targets).square().mean(-1)[hidden].mean()


def _cross_entropy(name: str, logits: Tensor, targets: Tensor) -> Tensor:
    _check_fit(name, logits, targets)
    scored_targets = targets[targets != IGNORED]
    if not scored_targets.numel():
        raise UsageError(f"{name}: all targets are {IGNORED}, so there is no target")
    low, high = (int(x) for x in scored_targets.aminmax())
    if low < 0 or high >= logits.shape[-1]:
        raise UsageError(f"{name}: label {low if low < 0 else high} is outside of {logits.shape[-1]} classes")
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED)


def _check_fit(name: str, logits: Tensor, targets: Tensor) -> None:
    if logits.ndim < 2 or logits.shape[:-1] != targets.shape:
        raise UsageError(f"{name}: logits {list(logits.shape)} and targets {list(targets.shape)} do not fit")
    if targets.is_floating_point():
        raise UsageError(f"{name}: targets must be whole numbers, got {targets.dtype}")
