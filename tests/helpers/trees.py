"""Folders of small files, in place of /proc and /sys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def tree(root: Path, files: Mapping[str, str]) -> Path:
    """Write files by their paths under a root, each with a final newline."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    return root
