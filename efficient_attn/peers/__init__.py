"""Peers: other people's implementations behind our signature, held to our oracles and timed beside our own.

A module here is a plug-in: a suite names it (``plugins = ["efficient_attn.peers.sparse"]``), as does ``--plugin``, and
its mechanisms are then in the registry. Each hands q, k and v to its library as the library's own model would, and
nothing more. The libraries come with the extra ``peers``, and are imported when a peer is created.
"""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import UsageError


def library(peer: str, package: str, module: str) -> Any:
    """A module of a peer's library; `UsageError` says how to install the package where it is absent."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        hint = "pip install 'efficient-attn[peers]'"
        raise UsageError(f"{peer} needs the package {package}: {hint}") from error
