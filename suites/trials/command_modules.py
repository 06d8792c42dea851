"""Import everything that a command may import, for processes that are forked for each command."""

from __future__ import annotations

import importlib
import pkgutil

LIBRARIES = ("torch", "pandas", "scipy.stats", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg")
LEFT_OUT = ("__main__", ".peers", ".integrations", ".triton_kernels")  # import other libraries, where they are needed


def import_modules() -> None:
    """Import the libraries and the package's modules. No tensor operation runs: OpenMP's threads survive no fork."""
    import efficient_attn

    for name in LIBRARIES:
        importlib.import_module(name)
    for module in pkgutil.walk_packages(efficient_attn.__path__, "efficient_attn."):
        if not any(part in module.name for part in LEFT_OUT):
            importlib.import_module(module.name)
