"""Scikit-learn as an optional dependency."""

from __future__ import annotations

import sys

import pytest

from efficient_attn.errors import NotInstalled
from efficient_attn.tasks.problems.scikit_learn import import_part


def test_a_missing_package_is_reported_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.svm", None)
    with pytest.raises(NotInstalled, match=r"^digits need scikit-learn; run: pip install 'efficient-attn\[data\]'$"):
        import_part("svm", "digits")


def test_parts_are_imported_by_name() -> None:
    pytest.importorskip("sklearn")
    assert import_part("tree", "dates").DecisionTreeClassifier().fit([[0], [1]], [0, 1]).predict([[1]]) == [1]
