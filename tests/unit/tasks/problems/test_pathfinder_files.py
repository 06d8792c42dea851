"""Long Range Arena's images of Pathfinder: the splits, empty images, and damaged or missing files."""

from __future__ import annotations

from pathlib import Path

import lra_files
import numpy as np
import pytest
from PIL import Image

from efficient_attn.errors import UsageError
from efficient_attn.tasks.problems.pathfinder import PATHFINDER, PathfinderKeys
from efficient_attn.tasks.problems.pathfinder_files import list_images, read_images


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A hundred images, their numbers in the first pixel, in files 0 to 9 and 10 of metadata."""
    return lra_files.write_pathfinder(tmp_path, 110)


def test_splits_are_in_numerical_order_of_the_metadata(folder: Path) -> None:
    numbers = {}
    for split in ("train", "validation", "test"):
        images, labels = read_images(str(folder), 16, split)
        assert images.dtype == np.uint8
        numbers[split] = images[:, 0, 0].tolist()
        assert (images[:, 3, 5] == 200 * labels).all()
        assert (labels == images[:, 0, 0] % 2).all()
    assert numbers == {"train": [*range(88)], "validation": [*range(88, 99)], "test": [*range(99, 110)]}


def test_images_replace_generated_ones(folder: Path) -> None:
    pytest.importorskip("sklearn")
    keys = PathfinderKeys(side=16, data=str(folder))
    PATHFINDER.check(keys, 256)
    batch = PATHFINDER.draw(keys, 256, 1000, np.random.default_rng(0), "validation")
    assert sorted(batch.inputs[:, 0].tolist()) == [*range(88, 99)]
    assert (batch.inputs.max(), PATHFINDER.inputs(keys)) == (200, 256)
    assert (batch.inputs[:, 3 * 16 + 5] == 200 * batch.targets).all()
    baselines = PATHFINDER.baselines(keys, 256)
    assert baselines.shortcuts == {"logistic regression on ink": 1}
    assert baselines.majority == pytest.approx(6 / 11)


def test_empty_images_are_left_out_with_a_warning(folder: Path) -> None:
    for number in (3, 20):
        (folder / "imgs" / str(number // 10) / f"sample_{number}.png").write_bytes(b"")
    keys = PathfinderKeys(side=16, data=str(folder))
    with pytest.warns(UserWarning, match=r"imgs/0/sample_3\.png and 1 more: empty, left out"):
        PATHFINDER.check(keys, 256)
    images, _ = read_images(str(folder), 16, "train")
    assert images[:4, 0, 0].tolist() == [0, 1, 2, 4]
    assert len(list_images(str(folder)).files) == 108


@pytest.mark.parametrize("keep", [8, 40, 60])
def test_damaged_images_are_refused_by_name(keep: int, folder: Path) -> None:
    path = folder / "imgs" / "0" / "sample_5.png"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UsageError, match=r"imgs/0/sample_5\.png: damaged: "):
        read_images(str(folder), 16, "train")


def test_flipped_bytes_never_crash(folder: Path) -> None:
    """Each byte of a file in turn: it is read as before, or refused by name."""
    path = folder / "imgs" / "0" / "sample_5.png"
    content, (expected, _) = path.read_bytes(), read_images(str(folder), 16, "train")
    for index in range(len(content)):
        damaged = bytearray(content)
        damaged[index] ^= 0xFF
        path.write_bytes(damaged)
        read_images.cache_clear()
        try:
            assert np.array_equal(read_images(str(folder), 16, "train")[0], expected)
        except UsageError as error:
            assert "sample_5.png" in str(error)  # noqa: PT017


def test_images_of_another_size_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"sample_0\.png: an image of 16 x 16, not 32 x 32; change side"):
        read_images(str(folder), 32, "train")
    Image.fromarray(np.zeros((16, 20), np.uint8)).save(folder / "imgs" / "1" / "sample_15.png")
    with pytest.raises(UsageError, match=r"sample_15\.png: an image of 16 x 20"):
        read_images(str(folder), 16, "train")


@pytest.mark.parametrize(
    "line", ["imgs/4 sample_41.png", "imgs/4 sample_41.png 1 2 0", "imgs/4 sample_41.png 1 x 0", ""]
)
def test_invalid_metadata_are_refused_with_the_line(line: str, folder: Path) -> None:
    path = folder / "metadata" / "4.npy"
    path.write_text("imgs/4 sample_40.png 0 0 1\n" + line + "\n")
    with pytest.raises(UsageError, match=r"metadata/4\.npy:2: no folder, file, number and label 0 or 1"):
        list_images(str(folder))


def test_missing_files_are_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "imgs" / "3" / "sample_37.png").unlink()
    with pytest.raises(UsageError, match=r"metadata/3\.npy:8: .*sample_37\.png: No such file"):
        list_images(str(folder))
    np.save(folder / "metadata" / "3.npy", np.arange(300))
    with pytest.raises(UsageError, match=r"metadata/3\.npy: no plain text"):
        list_images(str(folder))
    with pytest.raises(UsageError, match=r"metadata: no \.npy files; --data is a folder such as pathfinder32"):
        list_images(str(tmp_path / "imgs"))
    with pytest.raises(UsageError, match="3 images, too few"):
        list_images(str(lra_files.write_pathfinder(tmp_path / "few", 3)))
