"""Training under autocast: the loss of a small layer in bfloat16 compared with float32, for causal mechanisms.

    python suites/trials/training.py [STEPS [SPEC...]]

A layer learns to say which token came some positions before: cross-entropy, Adam, the same seeds and batches for both.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch import nn

import efficient_attn as ea
from efficient_attn.testing import Subject

WIDTH, HEADS, LENGTH, TOKENS, BATCH, DISTANCE = 32, 4, 64, 16, 8, 3
N_AVERAGED = 20  # steps whose losses are averaged


class Model(nn.Module):
    """Embeddings of tokens and positions, one attention layer, and a guess."""

    def __init__(self, spec: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.positions = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        kv_heads = Subject(spec).attn.kv_heads
        self.attn = ea.MultiHeadAttention(WIDTH, HEADS, variant=spec, kv_heads=kv_heads, max_len=LENGTH, seed=0)
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.positions.weight
        return self.head(h + self.attn(h, mask=ea.Mask(causal=True)))


def train(spec: str, steps: int, *, autocast: bool) -> list[float]:
    """The losses of all steps."""
    model, losses = Model(spec), []
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randint(TOKENS, (BATCH, LENGTH), generator=generator)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            logits = model(x)[:, DISTANCE:]
        loss = F.cross_entropy(logits.float().flatten(0, 1), x[:, :-DISTANCE].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(steps: int, specs: list[str]) -> None:
    print(f"loss of the first step, and of the last {N_AVERAGED} of {steps}, on average")
    print("| spec | first | float32 | autocast | apart |\n|---|---|---|---|---|")
    for spec in specs or [name for name in ea.names() if Subject(name).traits.causal]:
        float32_losses, autocast_losses = (train(spec, steps, autocast=a) for a in (False, True))
        a, b = (sum(x[-N_AVERAGED:]) / len(x[-N_AVERAGED:]) for x in (float32_losses, autocast_losses))
        print(f"| `{spec}` | {autocast_losses[0]:.3f} | {a:.3f} | {b:.3f} | {b - a:+.3f} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200, sys.argv[2:])
