"""Benchmark efficient-attention mechanisms against exact attention, with verified outputs.

Public names are imported when they are first used: importing this package imports neither torch nor pandas.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cli.python_api import Run as Run
    from .cli.python_api import run as run
    from .contract.budget import Budget as Budget
    from .contract.capacity import longest_context as longest_context
    from .contract.decode_state import KVCache as KVCache
    from .contract.decode_state import LatentCache as LatentCache
    from .contract.decode_state import RollingCache as RollingCache
    from .contract.decode_state import select_state_rows as select_state_rows
    from .contract.decode_state import state_bytes as state_bytes
    from .contract.mask import Mask as Mask
    from .contract.mechanism import Attention as Attention
    from .contract.row_starts import RowStarts as RowStarts
    from .contract.shapes import Dims as Dims
    from .contract.shapes import Shape as Shape
    from .contract.traits import Growth as Growth
    from .contract.traits import Input as Input
    from .contract.traits import Traits as Traits
    from .errors import UnsupportedError as UnsupportedError
    from .errors import UsageError as UsageError
    from .feature_maps import FeatureMap as FeatureMap
    from .integrations.swapping import swap as swap
    from .kernels.derivatives import KernelFunction as KernelFunction
    from .kernels.derivatives import differentiate_once as differentiate_once
    from .layers.auxiliary_losses import collect_auxiliary_losses as collect_auxiliary_losses
    from .layers.auxiliary_losses import train_selections as train_selections
    from .layers.grouping import mean_pool_kv as mean_pool_kv
    from .layers.multi_head import MultiHeadAttention as MultiHeadAttention
    from .registry import create as create
    from .registry import info as info
    from .registry import load_plugin as load_plugin
    from .registry import names as names
    from .registry import register as register
    from .registry.added_backends import register_backend as register_backend
    from .registry.call import attention as attention
    from .results.gathered import load as load
    from .variants.full.scored import ScoredAttention as ScoredAttention
    from .variants.full.softmax_attention import SoftmaxAttention as SoftmaxAttention
    from .variants.linear.linear_attention import LinearAttention as LinearAttention
    from .variants.recurrent.recurrent_state import Recurrence as Recurrence
    from .variants.recurrent.recurrent_state import RecurrentAttention as RecurrentAttention
    from .variants.selected.block_attention import BlockAttention as BlockAttention
    from .variants.sparse.sparse_attention import SparseAttention as SparseAttention

_MODULE_OF_NAME = {
    "Attention": "contract.mechanism",
    "BlockAttention": "variants.selected.block_attention",
    "Budget": "contract.budget",
    "Dims": "contract.shapes",
    "FeatureMap": "feature_maps",
    "Growth": "contract.traits",
    "Input": "contract.traits",
    "KernelFunction": "kernels.derivatives",
    "KVCache": "contract.decode_state",
    "LatentCache": "contract.decode_state",
    "LinearAttention": "variants.linear.linear_attention",
    "Mask": "contract.mask",
    "MultiHeadAttention": "layers.multi_head",
    "Recurrence": "variants.recurrent.recurrent_state",
    "RecurrentAttention": "variants.recurrent.recurrent_state",
    "RollingCache": "contract.decode_state",
    "RowStarts": "contract.row_starts",
    "Run": "cli.python_api",
    "ScoredAttention": "variants.full.scored",
    "Shape": "contract.shapes",
    "SoftmaxAttention": "variants.full.softmax_attention",
    "SparseAttention": "variants.sparse.sparse_attention",
    "Traits": "contract.traits",
    "UnsupportedError": "errors",
    "UsageError": "errors",
    "attention": "registry.call",
    "collect_auxiliary_losses": "layers.auxiliary_losses",
    "create": "registry",
    "differentiate_once": "kernels.derivatives",
    "info": "registry",
    "load": "results.gathered",
    "load_plugin": "registry",
    "longest_context": "contract.capacity",
    "mean_pool_kv": "layers.grouping",
    "names": "registry",
    "register": "registry",
    "register_backend": "registry.added_backends",
    "run": "cli.python_api",
    "select_state_rows": "contract.decode_state",
    "state_bytes": "contract.decode_state",
    "swap": "integrations.swapping",
    "train_selections": "layers.auxiliary_losses",
}
_PUBLIC_MODULES = ("feature_maps", "patterns", "testing")

__all__ = ["__version__", *sorted(_MODULE_OF_NAME), *_PUBLIC_MODULES]  # noqa: F822  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("efficient-attn")
    if name in _PUBLIC_MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF_NAME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
