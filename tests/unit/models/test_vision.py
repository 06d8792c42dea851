"""The vision transformer: patches, training, masked patches, and invalid arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import efficient_attn as ea
from efficient_attn.models.config import Config
from efficient_attn.models.vision import MaskedPatches, VisionTransformer

CONFIG = Config(d_model=16, heads=2, layers=2)


def test_patches_are_in_row_major_order() -> None:
    model = VisionTransformer(CONFIG, image=(2, 6, 9), patch=3, classes=4)
    images = torch.arange(2 * 2 * 6 * 9.0).view(2, 2, 6, 9)
    patches = model.cut(images)
    assert patches.shape == (2, 6, 18)
    for number, (top, left) in enumerate((top, left) for top in (0, 3) for left in (0, 3, 6)):
        assert torch.equal(patches[1, number], images[1, :, top : top + 3, left : left + 3].flatten())


@pytest.mark.parametrize("attention", ["full", "linear", "nystromformer:n_landmarks=4", "sliding_window:window=2"])
def test_training_separates_two_classes_of_images(attention: str) -> None:
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
    ("options", "message"),
    [
        ({"patch": 4}, "patches of 4 do not divide an image of 6 x 9"),
        ({"patch": 0}, "patches of 0"),
        ({"classes": 0}, "classes must be at least 1"),
    ],
)
def test_invalid_arguments_are_reported(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ea.UsageError, match=message):
        VisionTransformer(CONFIG, **{"image": (1, 6, 9), "patch": 3, "classes": 2, **options})
    with pytest.raises(ea.UsageError, match=r"images must be \[B, 1, 6, 9\]"):
        VisionTransformer(CONFIG, image=(1, 6, 9), patch=3, classes=2)(torch.zeros(1, 1, 6, 6))


# -- masked patches --------------------------------------------------------------------------------------------------


def test_masked_patches_do_not_affect_the_output() -> None:
    model = MaskedPatches(CONFIG, image=(1, 8, 8), patch=2)
    images, hidden = torch.rand(2, 1, 8, 8), torch.zeros(2, 16, dtype=torch.bool)
    hidden[:, 5] = True  # second row, second column
    other = images.clone()
    other[:, :, 2:4, 2:4] = 7
    assert torch.equal(model(images, hidden), model(other, hidden))
    assert not torch.equal(model(images, ~hidden), model(other, ~hidden))
    assert model(images, hidden).shape == (2, 16, 4)


@pytest.mark.parametrize("hidden", [torch.zeros(2, 9, dtype=torch.bool), torch.zeros(2, 16)])
def test_masks_of_wrong_shape_or_dtype_are_refused(hidden: torch.Tensor) -> None:
    with pytest.raises(ea.UsageError, match=r"hidden must be \[2, 16\] bool"):
        MaskedPatches(CONFIG, image=(1, 8, 8), patch=2)(torch.rand(2, 1, 8, 8), hidden)
