"""Peers: other libraries with our call signature, verified against our references and timed next to our
implementations.

A module here is a plug-in: a suite names it (``plugins = ["efficient_attn.peers.sparse"]``), or ``--plugin`` does, and
its mechanisms are registered. Each passes q, k and v to its library as the library's own model would. The libraries are
installed by the extra ``peers``, and imported when a peer is created.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import UsageError


def import_library(peer: str, package: str, module: str) -> Any:
    """A module of a peer's library. Raises `UsageError` with the installation command if it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise _make_missing_error(peer, package) from error


@cache
def load_library_file(peer: str, package: str, file: str) -> ModuleType:
    """A file of a peer's library by its path, ``fla/ops/simple_gla/naive.py``, run without its package.

    For plain code in a package that cannot be imported without what its other files need, such as a GPU compiler.
    Raises `UsageError` with the installation command if the file, or one of its imports, is missing.
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
