"""What the contract tests run over: every registered name, and options that change the code that runs."""

from __future__ import annotations

import efficient_attn as ea

OPTIONS = (
    "full:backend=dense",
    "gqa:kv_heads=2",
    "sliding_window:window=0",
    "sliding_window:window=3",
    "sliding_window:window=3:backend=blocks",
    "sliding_window:backend=blocks",
    "sliding_window:window=1000",
    "sliding_window:window=3|sliding_window:window=9",
    "linear:backend=dense",
)
SPECS = (*ea.names(), *OPTIONS)
