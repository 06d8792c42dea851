"""Baselines by logistic regression on a few features of examples, with scikit-learn."""

from ..training.problem import Array


def score_logistic_regression(features: Array, labels: Array, test_features: Array, test_labels: Array) -> float:
    """Accuracy on tests of a classifier that is fitted to features ``[S, F]``, each scaled to variance 1, and labels
    ``[S]``. scikit-learn is required."""
    from sklearn.linear_model import LogisticRegression  # pyright: ignore[reportMissingImports]
    from sklearn.pipeline import make_pipeline  # pyright: ignore[reportMissingImports]
    from sklearn.preprocessing import StandardScaler  # pyright: ignore[reportMissingImports]

    classifier = make_pipeline(StandardScaler(), LogisticRegression()).fit(features, labels)
    return float(classifier.score(test_features, test_labels))
