"""Parameters by part."""

from __future__ import annotations

import torch

from efficient_attn.models.config import Config
from efficient_attn.models.counting import count_parameters
from efficient_attn.models.stacks import Decoder


def test_parameters_are_counted_once_by_part() -> None:
    config = Config(d_model=8, heads=2, layers=2, hidden=12, positions="learned", max_len=10, attention="general")
    model = Decoder(config, vocab=5)
    counts = count_parameters(model)
    assert counts == {
        "attention": 2 * (4 * (8 * 8 + 8) + 2 * 4 * 4),
        "embeddings": 5 * 8 + 10 * 8,
        "mixer": 2 * (8 * 12 + 12 + 12 * 8 + 8 + 2 * 16) + 16 + 5 * 8,
    }
    assert sum(counts.values()) == sum(p.numel() for p in model.parameters())
    assert model.embedding is not None
    model.head.weight = model.embedding.weight  # tied: counted at its first use
    assert sum(count_parameters(model).values()) == sum(counts.values()) - 5 * 8


def test_parameters_outside_attention_count_as_mixer() -> None:
    assert count_parameters(torch.nn.GRU(4, 4)) == {"attention": 0, "embeddings": 0, "mixer": 2 * 3 * (16 + 4)}


def test_fixed_parameters_do_not_count() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2).requires_grad_(False))
    assert count_parameters(model) == {"attention": 0, "embeddings": 0, "mixer": 3 * 2 + 2}
