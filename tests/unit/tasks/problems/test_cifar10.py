"""CIFAR-10: splits, labels and baselines of the images in files."""

from __future__ import annotations

from pathlib import Path

import lra_files
import numpy as np
import pytest

from efficient_attn.errors import UsageError
from efficient_attn.tasks.problems.cifar10 import CIFAR10, Cifar10Keys


def test_draws_have_the_images_of_their_split_once(tmp_path: Path) -> None:
    keys = Cifar10Keys(data=str(lra_files.write_cifar10(tmp_path)))
    CIFAR10.check(keys, 1024)
    batches = [CIFAR10.draw(keys, 1024, 1000, np.random.default_rng(0), s) for s in ("train", "validation", "test")]
    assert [batch.inputs.shape for batch in batches] == [(90, 1024), (10, 1024), (20, 1024)]
    images = {row.tobytes() for batch in batches for row in batch.inputs}
    assert len(images) == 120
    for batch in batches:
        is_bright = np.arange(1024) // 100 == batch.targets[:, None]
        assert ((batch.inputs > 130) == is_bright).all()


def test_baselines_compare_pixels(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    keys = Cifar10Keys(data=str(lra_files.write_cifar10(tmp_path)))
    baselines = CIFAR10.baselines(keys, 1024)
    assert (baselines.chance, baselines.majority) == (0.1, 0.1)
    assert baselines.shortcuts["nearest neighbour"] == 1
    assert baselines.shortcuts["ridge regression"] == 1


def test_other_lengths_and_missing_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="1024 pixels, which is the only length; got 64"):
        CIFAR10.check(Cifar10Keys(data=str(tmp_path)), 64)
    with pytest.raises(UsageError, match="--data DIR"):
        CIFAR10.check(Cifar10Keys(), 1024)
    with pytest.raises(UsageError, match=r"data_batch_1: No such file or directory; --data is the folder"):
        CIFAR10.check(Cifar10Keys(data=str(tmp_path)), 1024)
