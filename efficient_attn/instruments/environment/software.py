"""The software: Python, torch and their builds, environment variables, and the state of the sources."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .readings import ROOT, Unknown, read_text, value_or_none

PACKAGES = (
    *("efficient-attn", "torch", "numpy", "pandas", "matplotlib", "scipy", "triton"),
    *("local-attention", "transformers", "linear-attention-transformer", "performer-pytorch"),  # peers
    *("linformer", "reformer-pytorch", "fla-core"),
)
GPU_LIBRARIES = ("triton", "fla-core")
# other variables are not stored, because they may contain secrets
VARIABLES = (
    *("OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "BLIS_*", "VECLIB_*", "DNNL_*", "ONEDNN_*", "MALLOC_*"),
    *("ATEN_CPU_CAPABILITY", "GLIBC_TUNABLES", "LD_PRELOAD", "DYLD_INSERT_LIBRARIES", "PYTHONMALLOC", "PYTHONHASHSEED"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "CUBLAS_WORKSPACE_CONFIG"),
    *("NVIDIA_TF32_OVERRIDE", "TORCH_CUDNN_*", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
)


def list_variables() -> dict[str, str]:
    """Environment variables that affect measurements."""
    names = {name for pattern in VARIABLES for name in fnmatch.filter(os.environ, pattern)}
    return {name: os.environ[name] for name in sorted(names)}


def list_package_versions() -> dict[str, str | None]:
    """Installed versions, None for missing packages."""
    return {name: _find_version(name) for name in PACKAGES}


def describe_gpu_libraries(gpus: Sequence[str]) -> str | None:
    """The versions of installed libraries whose kernels run on GPUs, besides torch's; None without a GPU."""
    versions = {name: _find_version(name) for name in GPU_LIBRARIES}
    return ", ".join(f"{name} {number or 'missing'}" for name, number in versions.items()) if gpus else None


def _find_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def describe_python_build() -> dict[str, Any]:
    """The interpreter, its compiler and build, and whether it has a global lock."""
    return {
        "implementation": platform.python_implementation(),
        "compiler": platform.python_compiler(),
        "build": " ".join(platform.python_build()),
        "gil": getattr(sys, "_is_gil_enabled", lambda: True)(),
    }


def describe_torch_build() -> dict[str, Any]:
    """torch's own description of its build: libraries, flags, and parallel backend."""
    import torch

    return {
        "config": " ".join(torch.__config__.show().split()),
        "parallel": " ".join(torch.__config__.parallel_info().split()),
        "mkl": torch.backends.mkl.is_available(),
        "onednn": torch.backends.mkldnn.is_available(),
        "openmp": torch.backends.openmp.is_available(),
        "cuda": torch.version.cuda,
        "matmul_precision": torch.get_float32_matmul_precision(),
    }


def describe_runtime(root: Path = ROOT) -> dict[str, Any]:
    """The C library, and the allocators and OpenMP libraries that this process has loaded."""
    maps = read_text(root / "proc/self/maps")
    names = sorted({Path(line.split()[-1]).name for line in (value_or_none(maps) or "").splitlines() if ".so" in line})

    def list_loaded(*parts: str) -> list[str] | Unknown:
        return maps if isinstance(maps, Unknown) else [n for n in names if any(p in n for p in parts)]

    return {
        "libc": " ".join(platform.libc_ver()).strip() or Unknown(f"{platform.system()} names no C library"),
        "allocators": list_loaded("jemalloc", "tcmalloc", "mimalloc"),
        "openmp": list_loaded("libgomp", "libiomp", "libomp"),
    }


# -- the source ----------------------------------------------------------------------------------------------------


def describe_checkout() -> dict[str, Any] | None:
    """The checkout: its revision, whether it was modified, and a digest of the modifications.

    None for an installed package.
    """
    folder = Path(__file__).parent
    revision = run_command("git", "rev-parse", "HEAD", folder=folder)
    if revision is None or run_command("git", "ls-files", "--error-unmatch", __file__, folder=folder) is None:
        return None
    package = ":/efficient_attn"  # new files elsewhere, such as results, do not change the sources
    changes = run_command("git", "diff", "HEAD", "--binary", folder=folder) or ""
    list_new = ("git", "ls-files", "--others", "--exclude-standard", "--full-name", package)
    new_files = run_command(*list_new, folder=folder) or ""
    digest = hashlib.sha256(f"{changes}\0{new_files}".encode()).hexdigest()[:12]
    return {"revision": revision, "changed": bool(changes), "digest": digest if changes or new_files else None}


def describe_repository(folder: Path) -> dict[str, Any] | None:
    """The commit of the repository that contains a folder, its time in seconds, and whether tracked files differ."""
    commit = run_command("git", "log", "-1", "--format=%H %ct", folder=folder)
    if not commit:
        return None
    revision, _, committed = commit.partition(" ")
    changes = run_command("git", "status", "--porcelain", "--untracked-files=no", folder=folder)
    return {"revision": revision, "committed": int(committed), "changed": changes != ""}


def run_command(*command: str, folder: Path | None = None, codes: Sequence[int] = (0,)) -> str | None:
    """The output of another program; None if it does not exist or fails."""
    try:
        process = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() if process.returncode in codes else None
