"""Peers: attention of other libraries behind our call signature, verified against our references and timed with our
implementations.

Each module is a plug-in that registers its mechanisms; suites load it by ``plugins = ["efficient_attn.peers.sparse"]``,
the command line by ``--plugin``. A peer passes q, k and v to its library as the library's own model would. Libraries
are installed by the extra ``peers``, and imported when a peer is created; this module imports neither torch nor them.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ..errors import UsageError


class Peer(NamedTuple):
    """A peer, the plug-in that registers it, and its library."""

    name: str
    plugin: str
    library: str


PEERS = tuple(
    Peer(name, f"{__name__}.{module}", library)
    for name, module, library in (
        ("peer_local_attention", "sparse", "local-attention"),
        ("peer_longformer", "sparse", "transformers"),
        ("peer_bigbird", "sparse", "transformers"),
        ("peer_flex_sliding_window", "flex", "torch's flex_attention"),
        ("peer_flex_longformer", "flex", "torch's flex_attention"),
        ("peer_flex_strided", "flex", "torch's flex_attention"),
        ("peer_linear_transformer", "linear", "linear-attention-transformer"),
        ("peer_performer", "linear", "performer-pytorch"),
        ("peer_simple_gla", "fla", "flash-linear-attention"),
        ("peer_fla_linear", "fla", "flash-linear-attention"),
        ("peer_linformer", "low_rank", "linformer"),
        ("peer_nystromformer", "low_rank", "transformers"),
        ("peer_reformer", "hashed", "reformer-pytorch"),
    )
)


def import_library(peer: str, package: str, module: str) -> Any:
    """A module of a peer's library. Raises `UsageError` with the installation command if it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise _make_missing_error(peer, package) from error


@cache
def load_library_file(peer: str, package: str, file: str) -> ModuleType:
    """Execute a file of a peer's library, such as ``fla/ops/simple_gla/naive.py``, without importing its package.

    For files that can be used where their package cannot be imported, for example without a GPU compiler. Raises
    `UsageError` with the installation command if the file, or one of its imports, is missing.
    """
    top, _, relative_path = file.partition("/")
    package_spec = importlib.util.find_spec(top)  # finding a top-level package runs none of its code
    folders = (package_spec and package_spec.submodule_search_locations) or ()
    path = next((path for folder in folders if (path := Path(folder, relative_path)).is_file()), None)
    spec = path and importlib.util.spec_from_file_location(file.removesuffix(".py").replace("/", "."), path)
    if not spec or not spec.loader:
        raise _make_missing_error(peer, package)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise _make_missing_error(peer, package) from error
    return module


def _make_missing_error(peer: str, package: str) -> UsageError:
    return UsageError(f"{peer} needs the package {package}: pip install 'efficient-attn[peers]'")
