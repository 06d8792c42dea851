"""Baselines by logistic regression."""

from __future__ import annotations

import numpy as np
import pytest

from efficient_attn.tasks.problems.logistic_scores import score_logistic_regression


def test_a_threshold_on_a_feature_is_learned_at_any_scale() -> None:
    pytest.importorskip("sklearn")
    generator = np.random.default_rng(0)
    features, noise = generator.normal(size=(2, 2000, 1)), generator.normal(size=(2, 2000, 1))
    labels = (features[..., 0] > 0.3).astype(int)
    both = 1e-6 * np.concatenate([features, noise], -1)
    assert score_logistic_regression(both[0], labels[0], both[1], labels[1]) > 0.98
    assert abs(score_logistic_regression(noise[0], labels[0], noise[1], labels[1]) - (labels[1] == 0).mean()) < 0.02
