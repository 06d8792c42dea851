"""Scikit-learn, an optional dependency: its images, and its models that trained ones are compared with."""

from importlib import import_module
from typing import Any

from ...errors import NotInstalled


def import_part(name: str, task: str) -> Any:
    """A subpackage of scikit-learn. Raises `NotInstalled` without it. task: who needs it."""
    try:
        return import_module(f"sklearn.{name}")
    except ImportError:
        raise NotInstalled(f"{task} need scikit-learn; run: pip install 'efficient-attn[data]'") from None
