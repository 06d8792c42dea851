"""Generate tokens with a decoder, step by step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UnsupportedError, UsageError
from .stacks import Decoder


@dataclass(frozen=True, kw_only=True)
class Draw:
    """How the next token is chosen from logits: the most likely one if ``temperature`` is 0, else a random one, from
    the ``top_k`` most likely if given, with ``seed``. Raises `UsageError` for invalid values."""

    temperature: float = 0.0
    top_k: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise UsageError(f"Draw: temperature must not be below 0, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"Draw: top_k must be at least 1, got {self.top_k}")

    def take(self, logits: Tensor, generator: torch.Generator) -> Tensor:
        """``[B, vocab]`` to ``[B]``."""
        if not self.temperature:
            return logits.argmax(-1)
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            threshold = logits.topk(self.top_k, -1)[0][:, -1:]
            logits = logits.masked_fill(logits < threshold, float("-inf"))
        return torch.multinomial((logits / self.temperature).softmax(-1), 1, generator=generator)[:, 0]


GREEDY = Draw()


def generate(
    model: Decoder, prompts: Tensor | Sequence[Tensor], steps: int, *, draw: Draw = GREEDY
) -> Tensor | list[Tensor]:
    """Generate tokens after prompts: ``[B, steps]`` for ``[B, N]``, or one ``[steps]`` for each prompt of a list.

    Prompts of a list may have several lengths. They form one left-padded batch if every layer's state supports rows
    that begin late; otherwise those of one length do. Each row's logits, and greedy tokens, are those of its prompt
    alone. Random tokens are not: all rows of a batch share one generator. Raises `UsageError` for an empty prompt, and
    if prompt and steps exceed the model's max_len.
    """
    if isinstance(prompts, Tensor):
        return _generate_batch(model, prompts, None, steps, draw)
    lengths = [len(prompt) for prompt in prompts]
    batches = [[i for i, n in enumerate(lengths) if n == length] for length in dict.fromkeys(lengths)]
    if len(batches) > 1 and min(lengths) > 0 and _supports_starts(model):
        batches = [list(range(len(prompts)))]
    outputs: dict[int, Tensor] = {}
    for indices in batches:
        rows = _generate_batch(model, *_pad([prompts[i] for i in indices]), steps, draw)
        outputs |= dict(zip(indices, rows, strict=True))
    return [outputs[i] for i in range(len(prompts))]


def _supports_starts(model: Decoder) -> bool:
    """Whether rows of the model's states may begin late, tested with the smallest state."""
    try:
        model.init_state(1, 1, starts=torch.zeros(1, dtype=torch.long))
    except UnsupportedError:
        return False
    return True


def _pad(prompts: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """A left-padded batch of prompts, and where each begins; None if all begin together."""
    longest = max(len(prompt) for prompt in prompts)
    starts = prompts[0].new_tensor([longest - len(prompt) for prompt in prompts], dtype=torch.long)
    tokens = torch.stack([F.pad(prompt, (longest - len(prompt), 0)) for prompt in prompts])
    return tokens, starts if any(len(prompt) < longest for prompt in prompts) else None


@torch.no_grad()
def _generate_batch(model: Decoder, prompt: Tensor, starts: Tensor | None, steps: int, draw: Draw) -> Tensor:
    if steps < 1 or prompt.shape[1] < 1:
        raise UsageError(f"generate: needs a prompt and a step, got {prompt.shape[1]} tokens and {steps} steps")
    length, max_len = prompt.shape[1] + steps, model.config.max_len
    if length > max_len:
        raise UsageError(f"generate: a prompt of {prompt.shape[1]} and {steps} steps are beyond max_len={max_len}")
    generator = torch.Generator(prompt.device).manual_seed(draw.seed)
    logits, state = model.step(prompt, model.init_state(len(prompt), length, starts=starts))
    tokens = [draw.take(logits[:, -1], generator)]
    for _ in range(steps - 1):
        logits, state = model.step(tokens[-1][:, None], state)
        tokens.append(draw.take(logits[:, -1], generator))
    return torch.stack(tokens, 1)
