"""A vision transformer: an image's patches as tokens."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from ..errors import UsageError
from ..layers.positions import Learned
from ..layers.weights import make_generator, make_projection
from .config import Config
from .stacks import Encoder


class VisionTransformer(nn.Module):
    """A vision transformer: each patch of an image becomes a token by a linear map, after a class token (ViT,
    Dosovitskiy et al. 2020, arXiv:2010.11929).

    image: its channels, height and width. patch: the side of a patch, which divides both. Positions are always learned,
    because patches have no single order.
    """

    def __init__(self, config: Config, *, image: tuple[int, int, int], patch: int, classes: int) -> None:
        super().__init__()
        channels, height, width = image
        if patch < 1 or height % patch or width % patch:
            raise UsageError(f"VisionTransformer: patches of {patch} do not divide an image of {height} x {width}")
        if classes < 1:
            raise UsageError(f"VisionTransformer: classes must be at least 1, got {classes}")
        self.image, self.patch = image, patch
        count, d, seed = height // patch * (width // patch) + 1, config.d_model, config.seed
        self.encoder = Encoder(replace(config, positions=None, max_len=count))
        self.positions = Learned(d, max_len=count, seed=seed)
        self.patches = make_projection(channels * patch * patch, d, bias=True, seed=seed, name="patches")
        self.whole = nn.Parameter(torch.randn(1, 1, d, generator=make_generator(seed, "whole")) * 0.02)
        self.head = make_projection(d, classes, bias=True, seed=seed, name="head")

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[B, C, height, width]`` to logits ``[B, classes]``."""
        return self.head(self.encode(images)[:, 0])

    def encode(self, images: Tensor) -> Tensor:
        """The rows of the class token and of all patches, line by line: ``[B, 1 + patches, d_model]``."""
        return self._encode(self.patches(self.cut(images)))

    def cut(self, images: Tensor) -> Tensor:
        """The patches ``[B, patches, C * patch * patch]``."""
        if images.ndim != 4 or images.shape[1:] != self.image:
            expected = f"[B, {', '.join(map(str, self.image))}]"
            raise UsageError(f"VisionTransformer: images must be {expected}, got {list(images.shape)}")
        side = self.patch
        parts = images.unflatten(3, (-1, side)).unflatten(2, (-1, side))  # B, C, rows, side, columns, side
        return parts.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)

    def _encode(self, x: Tensor) -> Tensor:
        return self.encoder(self.positions(torch.cat([self.whole.expand(len(x), -1, -1), x], 1)))


class MaskedPatches(VisionTransformer):
    """A vision transformer that predicts masked patches: a learned token replaces each of them, and a linear map of
    each output predicts the patch's values (SimMIM, Xie et al. 2021, arXiv:2111.09886)."""

    def __init__(self, config: Config, *, image: tuple[int, int, int], patch: int) -> None:
        super().__init__(config, image=image, patch=patch, classes=max(1, image[0] * patch * patch))
        blank = torch.randn(config.d_model, generator=make_generator(config.seed, "blank")) * 0.02
        self.blank = nn.Parameter(blank)

    def forward(self, images: Tensor, hidden: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Images ``[B, C, height, width]`` and a mask of hidden patches ``[B, patches]`` bool to values of all patches
        ``[B, patches, C * patch * patch]``."""
        x = self.patches(self.cut(images))
        if hidden.shape != x.shape[:2] or hidden.dtype != torch.bool:
            shape_text = f"{list(hidden.shape)} {hidden.dtype}"
            raise UsageError(f"MaskedPatches: hidden must be {list(x.shape[:2])} bool, got {shape_text}")
        return self.head(self._encode(torch.where(hidden[..., None], self.blank, x))[:, 1:])
