"""Baselines by logistic regression on a few features of examples, with scikit-learn."""

from ...errors import NotInstalled
from ..training.problem import Array


def require_scikit_learn(task: str) -> None:
    """Raise `NotInstalled`, for a task that needs it, without scikit-learn."""
    try:
        import sklearn  # noqa: F401  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
    except ImportError:
        message = f"{task}: the baselines need scikit-learn; run: pip install 'efficient-attn[data]'"
        raise NotInstalled(message) from None


def score_logistic_regression(features: Array, labels: Array, test_features: Array, test_labels: Array) -> float:
    """Accuracy on tests of a classifier that is fitted to features ``[S, F]``, each scaled to variance 1, and labels
    ``[S]``. scikit-learn is required."""
    from sklearn.linear_model import LogisticRegression  # pyright: ignore[reportMissingImports]
    from sklearn.pipeline import make_pipeline  # pyright: ignore[reportMissingImports]
    from sklearn.preprocessing import StandardScaler  # pyright: ignore[reportMissingImports]

    classifier = make_pipeline(StandardScaler(), LogisticRegression()).fit(features, labels)
    return float(classifier.score(test_features, test_labels))
