"""Sparse patterns: which keys each query sees, as a tuple of facts joined by ``|``. A public module.

from efficient_attn.patterns import Band, Keys
pattern = Band(-64, 64) | Keys(0, 4)
"""

from .classics import dilated_window, fixed, global_tokens, random_blocks, sinks, sliding_window, strided
from .facts import Band, Blocks, Fact, Geometry, Keys, Pattern, Queries, Reach, Where, as_pattern

__all__ = [
    "Band",
    "Blocks",
    "Fact",
    "Geometry",
    "Keys",
    "Pattern",
    "Queries",
    "Reach",
    "Where",
    "as_pattern",
    "dilated_window",
    "fixed",
    "global_tokens",
    "random_blocks",
    "sinks",
    "sliding_window",
    "strided",
]
