"""The registry: names to mechanisms, built in, from plug-ins, or from other packages' entry points.

Reading names needs no torch; a mechanism's module is imported when it is created or described.
"""

from .entries import catalogue, class_of, entry_of, load_plugin, names, plugins, register
from .factory import RESERVED, Info, create, info, rename_backend

__all__ = [
    "RESERVED",
    "Info",
    "catalogue",
    "class_of",
    "create",
    "entry_of",
    "info",
    "load_plugin",
    "names",
    "plugins",
    "register",
    "rename_backend",
]
