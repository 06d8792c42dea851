"""Build C++ kernels when they are first needed, in torch's folder of extensions. Later processes find them there. They
are built for a class of processors, because such folders are shared."""

import ctypes
import hashlib
import os
import shutil
import tempfile
import warnings
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from ...errors import UnsupportedError

FOLDER = Path(__file__).parent
HEADER = "registers.h"  # sources of all of them
FLAGS = {"AVX512": ["-march=x86-64-v4"], "AVX2": ["-march=x86-64-v3"]}  # by torch's name of the processor's capability


@cache
def load_library(name: str) -> tuple[ctypes.CDLL | None, str | None]:
    """The library built from ``name.cpp`` in this folder, or why there is none."""
    compiler = "cl" if os.name == "nt" else os.environ.get("CXX") or "c++"
    if shutil.which(compiler.split()[0]) is None:
        return None, f"it is built on first use, and there is no C++ compiler ({compiler})"
    try:
        return ctypes.CDLL(str(_build(FOLDER / f"{name}.cpp"))), None
    except (ImportError, OSError, RuntimeError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        line = next((line for line in lines if "error:" in line), lines[0])
        return None, f"it could not be built: {line}"


def why_no_native(name: str) -> str | None:
    """Why a library cannot run here; None when it can. Builds it, the first time."""
    return load_library(name)[1]


def call(library: str, function: str, like: Tensor, *arguments: object) -> None:
    """Call a library's function for the dtype of a tensor, with torch's number of threads as last argument."""
    cdll, reason = load_library(library)
    if cdll is None:
        raise UnsupportedError(f"no kernel in C++: {reason}")
    run = getattr(cdll, f"{function}_{str(like.dtype).removeprefix('torch.')}")
    run(*arguments, ctypes.c_int64(torch.get_num_threads()))


def make_integers(*values: int) -> ctypes.Array[ctypes.c_int64]:
    """The values as an argument of a library's function."""
    return (ctypes.c_int64 * len(values))(*values)


def _build(source: Path) -> Path:
    """The library's file. Built under a unique name and then renamed, so that no process loads an incomplete one or
    waits for the lock of a killed process, as with torch's own folders."""
    from torch.utils import cpp_extension  # needs setuptools, and a tenth of a second

    capability = torch.backends.cpu.get_cpu_capability()
    flags = ["-O3", "-ffp-contract=fast", "-pthread", *FLAGS.get(capability, [])]
    text = source.read_bytes() + (FOLDER / HEADER).read_bytes() + " ".join(flags).encode()
    key = hashlib.sha256(text).hexdigest()[:16]
    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root())
    target = folder / "efficient_attn" / f"{source.stem}_{capability.lower()}_{key}.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cpp_extension.load(
            source.stem,
            [str(source)],
            extra_cflags=flags,
            extra_ldflags=["-pthread"],
            build_directory=scratch,
            is_python_module=False,
        )
        (built_file,) = Path(scratch).glob(f"{source.stem}*.so")
        built_file.replace(target)
    return target
