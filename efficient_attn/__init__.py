"""Efficient attention mechanisms behind one signature, proved right, then measured honestly.

The public names, each imported when it is first used: importing this package imports neither torch nor pandas.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .capacity import longest_context as longest_context
    from .errors import UnsupportedError as UnsupportedError
    from .errors import UsageError as UsageError
    from .families.linear import LinearAttention as LinearAttention
    from .families.softmax import SoftmaxAttention as SoftmaxAttention
    from .families.sparse import SparseAttention as SparseAttention
    from .feature_maps import FeatureMap as FeatureMap
    from .functional import attention as attention
    from .layers.grouping import mean_pool_kv as mean_pool_kv
    from .layers.multi_head import MultiHeadAttention as MultiHeadAttention
    from .mask import Mask as Mask
    from .mechanism import Attention as Attention
    from .registry import create as create
    from .registry import info as info
    from .registry import load_plugin as load_plugin
    from .registry import names as names
    from .registry import register as register
    from .results.frames import load as load
    from .shapes import Dims as Dims
    from .state import state_bytes as state_bytes
    from .traits import Growth as Growth
    from .traits import Input as Input
    from .traits import Traits as Traits

_HOME = {
    "Attention": "mechanism",
    "Dims": "shapes",
    "FeatureMap": "feature_maps",
    "Growth": "traits",
    "Input": "traits",
    "LinearAttention": "families.linear",
    "Mask": "mask",
    "MultiHeadAttention": "layers.multi_head",
    "SoftmaxAttention": "families.softmax",
    "SparseAttention": "families.sparse",
    "Traits": "traits",
    "UnsupportedError": "errors",
    "UsageError": "errors",
    "attention": "functional",
    "create": "registry",
    "info": "registry",
    "load": "results.frames",
    "load_plugin": "registry",
    "longest_context": "capacity",
    "mean_pool_kv": "layers.grouping",
    "names": "registry",
    "register": "registry",
    "state_bytes": "state",
}
_MODULES = ("feature_maps", "patterns", "testing")

__all__ = ["__version__", *sorted(_HOME), *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("efficient-attn")
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
