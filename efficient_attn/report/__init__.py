"""Reports of runs: a web page, the same in Markdown, plots and a table of the rows. This package does not import torch.

`write_report` and `ReportPaths` are imported lazily, on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .write import ReportPaths as ReportPaths
    from .write import write_report as write_report

__all__ = ["ReportPaths", "write_report"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.write"), name)
