"""Parameters by part: each counted once, all of them counted."""

from __future__ import annotations

import torch

from efficient_attn.models.config import Config
from efficient_attn.models.counting import count_parameters
from efficient_attn.models.stacks import Decoder


def test_every_parameter_counts_once_for_what_it_is() -> None:
    config = Config(d_model=8, heads=2, layers=2, hidden=12, positions="learned", max_len=10, attention="general")
    model = Decoder(config, vocab=5)
    found = count_parameters(model)
    assert found == {
        "attention": 2 * (4 * (8 * 8 + 8) + 2 * 4 * 4),
        "embeddings": 5 * 8 + 10 * 8,
        "mixer": 2 * (8 * 12 + 12 + 12 * 8 + 8 + 2 * 16) + 16 + 5 * 8,
    }
    assert sum(found.values()) == sum(p.numel() for p in model.parameters())
    assert model.embedding is not None
    model.head.weight = model.embedding.weight  # tied: counted where it is met first
    assert sum(count_parameters(model).values()) == sum(found.values()) - 5 * 8


def test_what_is_no_attention_is_mixer() -> None:
    assert count_parameters(torch.nn.GRU(4, 4)) == {"attention": 0, "embeddings": 0, "mixer": 2 * 3 * (16 + 4)}
