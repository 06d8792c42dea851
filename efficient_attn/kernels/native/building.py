"""Find C++ kernels, built or to be built, and call them.

A wheel contains them if a compiler was there when it was built. Otherwise they are built once and kept in the user's
cache: by a run before it measures, by ``efficient-attn doctor``, or when ``backend=cpp`` is asked for. Other calls use
what is there and never wait for a compiler; neither do worker processes. With ``EFFICIENT_ATTN_NATIVE=off`` only
``backend=cpp`` uses them.
"""

from __future__ import annotations

import ctypes
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from math import gcd
from pathlib import Path

import torch
from torch import Tensor

from ...errors import UnsupportedError
from ...results.user_cache import find_foreign_access, make_private_folder, user_folder
from ..autotuning.autotuner import is_off
from .compiler import (
    FOLDER,
    LIBRARIES,
    CompilerError,
    compile_library,
    is_intact,
    library_name,
    list_classes,
)

PACKAGED = FOLDER / "built"  # in a wheel
VARIABLE = "EFFICIENT_ATTN_NATIVE"

_loaded: dict[str, ctypes.CDLL] = {}
_failures: dict[str, str] = {}  # of builds, which are not tried twice


def cache_folder() -> Path:
    """The folder of libraries that are built on this machine."""
    return user_folder() / "native"


def load_library(name: str, *, build: bool = False) -> tuple[ctypes.CDLL | None, str | None]:
    """The library of ``name.cpp``, or why there is none. build: whether to build it, if this process may."""
    if name in _loaded:
        return _loaded[name], None
    try:
        library, reason = _load(name)
        if library is None and build:
            reason = _failures.get(name) or reason
            if name not in _failures and multiprocessing.parent_process() is None:
                compile_library(name, find_class(), _make_cache_folder())
                library, reason = _load(name)
    except (CompilerError, OSError, RuntimeError) as error:  # RuntimeError: no home at all
        library, reason = None, f"it could not be built: {error}"
    if library is None:
        if build and reason:
            _failures[name] = reason
        return None, reason
    _loaded[name] = library
    return library, None


def _make_cache_folder() -> Path:
    """The folder for builds, the user's alone. Raises `CompilerError` if others can write to it."""
    folder, reason = make_private_folder("native")
    if reason:
        raise CompilerError(reason)
    return folder


def _load(name: str) -> tuple[ctypes.CDLL | None, str | None]:
    """The library if it is built, or why it cannot be loaded."""
    reason = "it is not built; efficient-attn doctor and runs build it"
    for folder in (PACKAGED, cache_folder()):
        path = folder / library_name(name, find_class())
        if not path.exists():
            continue
        if folder != PACKAGED and (foreign := find_foreign_access(folder) or find_foreign_access(path)):
            reason = foreign
            continue
        if not is_intact(path):
            reason = f"{path} is damaged"
            continue
        try:
            return ctypes.CDLL(str(path)), None
        except OSError as error:
            reason = f"{path} cannot be loaded: {error}"
    return None, reason


@cache
def find_class() -> str:
    """This processor's class, of those that libraries are built for."""
    return torch.backends.cpu.get_cpu_capability()


def build_all() -> dict[str, str | None]:
    """Build the libraries that this machine does not have; for each, why it is not used, if it is not."""
    if is_off(VARIABLE):
        return dict.fromkeys(LIBRARIES, f"{VARIABLE} is off")
    with ThreadPoolExecutor(len(LIBRARIES)) as executor:
        return dict(zip(LIBRARIES, executor.map(why_no_native, LIBRARIES), strict=True))


def locate_libraries() -> dict[str, str]:
    """The folder of each library that this process has loaded."""
    return {name: str(Path(library._name).parent) for name, library in _loaded.items()}


def list_unused() -> list[str]:
    """The classes of processors, besides this one's, for which all libraries are built."""
    folders = (PACKAGED, cache_folder())
    others = (processors for processors in list_classes() if processors != find_class())
    return [c for c in others if all(any((f / library_name(n, c)).exists() for f in folders) for n in LIBRARIES)]


def why_no_native(name: str) -> str | None:
    """Why a library cannot run here; None when it can. Builds it, the first time."""
    return load_library(name, build=True)[1]


def is_available(name: str) -> bool:
    """Whether a library may be selected: it is built, and not switched off."""
    return not is_off(VARIABLE) and load_library(name)[0] is not None


def call(library: str, function: str, like: Tensor, *arguments: object) -> None:
    """Call a library's function for the dtype of a tensor, with torch's number of threads as last argument. Built if it
    is not there, as for ``backend=cpp`` that was unpickled: whatever is selected is."""
    cdll, reason = load_library(library, build=True)
    if cdll is None:
        raise UnsupportedError(f"no kernel in C++: {reason}")
    run = getattr(cdll, f"{function}_{str(like.dtype).removeprefix('torch.')}")
    run(*arguments, ctypes.c_int64(torch.get_num_threads()))


def contiguous_rows(x: Tensor) -> Tensor:
    """With each row in one piece; strides between rows are the kernels' business."""
    return x if x.stride(-1) == 1 else x.contiguous()


def count_parts(heads: int) -> int:
    """The number of parts of every head that gives each of torch's threads equally many."""
    threads = torch.get_num_threads()
    return threads // gcd(threads, heads)


def pack_tensors(*tensors: Tensor | None) -> ctypes.Array[ctypes.c_int64]:
    """Address and strides of tensors ``[Bh, G, L, ..]``, ``[Bh, L, ..]`` or ``[Bh, ..]``, as an argument of a library's
    function: of a head of keys, of a query head in its group, and of a row. Missing ones are zeros."""
    numbers: list[int] = []
    for x in tensors:
        strides = (0, 0, 0) if x is None else x.stride()[:3] if x.ndim == 4 else (x.stride(0), 0, x.stride(1))
        numbers += [0 if x is None else x.data_ptr(), *strides]
    return make_integers(*numbers)


def make_integers(*values: int) -> ctypes.Array[ctypes.c_int64]:
    """The values as an argument of a library's function."""
    return (ctypes.c_int64 * len(values))(*values)
