"""Segment means and the iterated pseudo-inverse."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from efficient_attn.kernels.low_rank.landmarks import (
    Landmarks,
    assign_segments,
    landmark_weights,
    pseudo_inverse,
    segment_means,
    segment_means_with_input,
)
from efficient_attn.testing.tensor_comparison import assert_close


def ramp(length: int) -> torch.Tensor:
    """``[1, 1, L, 1]``: 0, 1, 2, .."""
    return torch.arange(length, dtype=torch.float64).view(1, 1, length, 1)


@pytest.mark.parametrize(
    ("length", "count", "want"),
    [
        (8, 4, [0.5, 2.5, 4.5, 6.5]),
        (10, 4, [1, 4, 7, 9]),  # segments of 3, 3, 3 and 1
        (9, 4, [1, 4, 7]),  # segments of 3: a fourth would be empty
        (5, 4, [0.5, 2.5, 4]),
        (3, 4, [0, 1, 2]),
        (1, 4, [0]),
        (7, 1, [3]),
    ],
)
def test_segment_means_of_a_ramp(length: int, count: int, want: list[float]) -> None:
    means, present = segment_means(ramp(length), None, count)
    assert present is None
    assert means.flatten().tolist() == want
    all_valid = torch.ones(1, length, dtype=torch.bool)
    padded, present = segment_means(ramp(length), all_valid, count)
    assert present is not None
    assert present.tolist() == [[True] * len(want) + [False] * (min(count, length) - len(want))]
    assert padded[present[:, None]].flatten().tolist() == want


def test_segments_contain_valid_positions_only() -> None:
    valid = torch.tensor([[1, 0, 1, 1, 0, 1, 1], [0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0]], dtype=torch.bool)
    segment, filled = assign_segments(valid, 3)
    assert segment.tolist() == [[0, 3, 0, 1, 3, 1, 2], [3, 3, 3, 3, 0, 1, 3], [3] * 7]
    assert filled.tolist() == [[2, 2, 1], [1, 1, 0], [0, 0, 0]]
    means, present = segment_means(ramp(7).expand(3, 2, 7, 1), valid, 3)
    assert means[:, 1, :, 0].tolist() == [[1, 4, 6], [4, 5, 0], [0, 0, 0]]
    assert present is not None
    assert present.tolist() == [[True, True, True], [True, True, False], [False, False, False]]


@pytest.mark.parametrize("length", [12, 13])
def test_half_precision_is_averaged_in_float32(length: int) -> None:
    x = torch.full((1, 1, length, 2), 257.0, dtype=torch.float16)
    x[..., 0, :] = 2049.0 - 1
    for valid in (None, torch.ones(1, length, dtype=torch.bool)):
        means, _ = segment_means(x, valid, 3)
        assert means.dtype == torch.float32
        assert_close(means, segment_means(x.double(), valid, 3).means.float(), "means", tolerance=1e-3 / 2048)


@pytest.mark.parametrize("shape", [(7, 7), (5, 8), (8, 5)])
def test_iteration_converges_to_the_pseudo_inverse(shape: tuple[int, int]) -> None:
    a = torch.rand(3, 2, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(-1)
    want = torch.linalg.pinv(a)
    scale = float(want.abs().max())
    assert_close(pseudo_inverse(a, 24) / scale, want / scale, f"{shape}", tolerance=1e-8)
    assert not torch.allclose(pseudo_inverse(a, 3), want, rtol=1e-3)


def test_one_iteration_equals_the_formula() -> None:
    a = torch.tensor([[0.5, 0.5], [0.25, 0.75]], dtype=torch.float64)
    z, identity = a.mT / 1.25, torch.eye(2, dtype=torch.float64)
    az = a @ z
    want = 0.25 * z @ (13 * identity - az @ (15 * identity - az @ (7 * identity - az)))
    assert_close(pseudo_inverse(a, 1), want, "one step")


def test_matrices_of_a_batch_are_inverted_independently() -> None:
    a = torch.rand(2, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a[1] *= 1000
    inverses = pseudo_inverse(a, 6)
    for inverse, x in zip(inverses, a, strict=True):
        assert torch.allclose(inverse, pseudo_inverse(x, 6), rtol=1e-12)


def test_zero_rows_and_columns_stay_zero_with_finite_gradients() -> None:
    a = torch.zeros(2, 4, 5, dtype=torch.float64)
    a[0, :3, :2] = torch.rand(3, 2)
    a.requires_grad_()
    z = pseudo_inverse(a, 20)
    assert_close(z[0, :2, :3], torch.linalg.pinv(a[0, :3, :2]), "nonzero part", tolerance=1e-8)
    assert torch.equal(z[0, 2:], torch.zeros(3, 4))
    assert torch.equal(z[:, :, 3], torch.zeros(2, 5))
    assert torch.equal(z[1], torch.zeros(5, 4))
    (grad,) = torch.autograd.grad(z.square().sum(), a)
    assert bool(grad.isfinite().all())


def test_missing_landmarks_get_no_weight() -> None:
    q, k = torch.randn(2, 2, 3, 4, 5, dtype=torch.float64)
    present = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)
    w = landmark_weights(Landmarks(q, present), Landmarks(k, None), 0.5)
    assert torch.equal(w[0, :, 2:], torch.zeros(3, 2, 4))
    assert_close(w[0, :, :2].sum(-1), torch.ones(3, 2, dtype=torch.float64), "rows of present landmarks")
    w = landmark_weights(Landmarks(q, None), Landmarks(k, present), 0.5)
    assert_close(w[0, :, :, :2], torch.softmax(q[0] @ k[0, :, :2].mT / 2, -1), "columns of present landmarks")
    assert torch.equal(w[0, :, :, 2:], torch.zeros(3, 4, 2))
    assert_close(landmark_weights(Landmarks(q, None), Landmarks(k, None), 0.5)[1], w[1], "no mask")


@pytest.mark.parametrize(("length", "count"), [(12, 4), (13, 4), (3, 5), (7, 1)])
def test_gradients_of_means_with_input_equal_autograds(length: int, count: int) -> None:
    x = torch.randn(2, 3, length, 4, dtype=torch.float64, requires_grad=True)

    def input_and_means(x: Tensor, joined: bool) -> tuple[Tensor, Tensor]:
        same, marks = segment_means_with_input(x, None, count) if joined else (x, segment_means(x, None, count))
        return same, marks.means

    grads = []
    for joined in (False, True):
        same, means = input_and_means(x, joined)
        grads += torch.autograd.grad(same.cos().sum() + means.sin().sum() * 3, x)
    torch.testing.assert_close(grads[1], grads[0], rtol=0, atol=1e-12)
    assert torch.autograd.gradcheck(lambda x: input_and_means(x, True), x)
    assert torch.autograd.gradgradcheck(lambda x: input_and_means(x, True), x)
