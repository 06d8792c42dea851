"""The vision transformer: patches in their order, the whole's token, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import efficient_attn as ea
from efficient_attn.models.config import Config
from efficient_attn.models.vision import MaskedPatches, VisionTransformer

CONFIG = Config(d_model=16, heads=2, layers=2)


def test_patches_are_cut_line_by_line() -> None:
    model = VisionTransformer(CONFIG, image=(2, 6, 9), patch=3, classes=4)
    images = torch.arange(2 * 2 * 6 * 9.0).view(2, 2, 6, 9)
    found = model.cut(images)
    assert found.shape == (2, 6, 18)
    for number, (top, left) in enumerate((top, left) for top in (0, 3) for left in (0, 3, 6)):
        assert torch.equal(found[1, number], images[1, :, top : top + 3, left : left + 3].flatten())


@pytest.mark.parametrize("attention", ["full", "linear", "nystromformer:n_landmarks=4", "sliding_window:window=2"])
def test_it_learns_to_tell_images_apart(attention: str) -> None:
    model = VisionTransformer(
        Config(d_model=16, heads=2, layers=1, attention=attention), image=(1, 8, 8), patch=2, classes=2
    )
    labels = torch.arange(32) % 2
    images = torch.randn(32, 1, 8, 8) * 0.5
    images[labels == 1, :, :, :4] += 1  # bright on the left
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(40):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert (model(images).argmax(-1) == labels).float().mean() > 0.95


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"patch": 4}, "patches of 4 do not divide an image of 6 x 9"),
        ({"patch": 0}, "patches of 0"),
        ({"classes": 0}, "classes must be at least 1"),
    ],
)
def test_what_does_not_fit_is_one_line(options: dict[str, Any], what: str) -> None:
    with pytest.raises(ea.UsageError, match=what):
        VisionTransformer(CONFIG, **{"image": (1, 6, 9), "patch": 3, "classes": 2, **options})
    with pytest.raises(ea.UsageError, match=r"images must be \[B, 1, 6, 9\]"):
        VisionTransformer(CONFIG, image=(1, 6, 9), patch=3, classes=2)(torch.zeros(1, 1, 6, 6))


# -- masked patches --------------------------------------------------------------------------------------------------


def test_what_hidden_patches_hold_is_not_seen() -> None:
    model = MaskedPatches(CONFIG, image=(1, 8, 8), patch=2)
    images, hidden = torch.rand(2, 1, 8, 8), torch.zeros(2, 16, dtype=torch.bool)
    hidden[:, 5] = True  # in the second line the second
    other = images.clone()
    other[:, :, 2:4, 2:4] = 7
    assert torch.equal(model(images, hidden), model(other, hidden))
    assert not torch.equal(model(images, ~hidden), model(other, ~hidden))
    assert model(images, hidden).shape == (2, 16, 4)


@pytest.mark.parametrize("hidden", [torch.zeros(2, 9, dtype=torch.bool), torch.zeros(2, 16)])
def test_what_is_hidden_is_said_for_every_patch(hidden: torch.Tensor) -> None:
    with pytest.raises(ea.UsageError, match=r"hidden must be \[2, 16\] bool"):
        MaskedPatches(CONFIG, image=(1, 8, 8), patch=2)(torch.rand(2, 1, 8, 8), hidden)
