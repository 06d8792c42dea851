"""The registered mechanisms: of the catalogue, of plug-ins, and of other packages' entry points."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import zlib
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import UsageError, describe_exception, make_unknown_error
from ..variants import CATALOGUE, FAMILIES, Entry

if TYPE_CHECKING:
    from ..contract.mechanism import Attention

GROUP = "efficient_attn.variants"  # the entry-point group for mechanisms of other packages

ADDED_BACKENDS: dict[tuple[str, str], Any] = {}  # the classes of mechanisms with backends of others, by both names
_registrations: dict[str, tuple[Entry, type[Attention]]] = {}
_loaded_plugins: dict[str, None] = {}  # in the order in which they were loaded
A = TypeVar("A", bound="type[Attention]")


def register(name: str, *, family: str, sentence: str = "") -> Callable[[A], A]:
    """Class decorator that registers a mechanism under a name. The sentence defaults to the docstring's first line.

    Raises `UsageError` for a name that exists, an unknown family, or a class that is no mechanism.
    """
    if family not in FAMILIES:
        raise make_unknown_error("family", family, FAMILIES, where=f"register({name!r})")

    def add_entry(cls: A) -> A:
        if not hasattr(cls, "made_from"):
            raise UsageError(f"register({name!r}): the class {cls.__name__} does not derive from ea.Attention")
        target = f"{cls.__module__}:{cls.__qualname__}"
        existing = _collect_entries().get(name)
        if existing and (existing.target != target or existing in CATALOGUE):
            raise UsageError(f"register: the name {name!r} is already used by {existing.target}")
        if not name.replace("_", "").isalnum() or not name[0].isalpha():
            raise UsageError(f"register: a name is letters, digits and underscores, not {name!r}")
        first_line = (inspect.getdoc(cls) or "").partition("\n")[0]
        _registrations[name] = Entry(name, target, family, sentence or first_line), cls
        return cls

    return add_entry


def names(*, family: str | None = None) -> list[str]:
    """The names of all mechanisms, or of one family, in the catalogue's order."""
    return [e.name for e in catalogue(family=family)]


def catalogue(*, family: str | None = None) -> list[Entry]:
    """The entries of all mechanisms, or of one family, without importing their modules."""
    if family is not None and family not in FAMILIES:
        raise make_unknown_error("family", family, FAMILIES)
    return [e for e in _collect_entries().values() if family in (None, e.family)]


def entry_of(name: str) -> Entry:
    """The entry of a name. Raises `UsageError` with the nearest name if there is none."""
    entries = _collect_entries()
    if name not in entries:
        raise make_unknown_error("mechanism", name, entries)
    return entries[name]


def class_of(name: str, backend: str | None = None) -> type[Attention]:
    """Import the class of a mechanism, or the one with a backend that others have added. Raises `UsageError` for an
    unknown name or a failing entry point."""
    entry = entry_of(name)
    if backend is not None and (name, backend) in ADDED_BACKENDS:
        return ADDED_BACKENDS[name, backend]
    if name in _registrations:
        return _registrations[name][1]
    module, _, attribute = entry.target.partition(":")
    try:
        target: Any = importlib.import_module(module)
        for part in attribute.split("."):
            target = getattr(target, part)
    except Exception as error:
        if name in {e.name for e in CATALOGUE}:
            raise
        raise UsageError(f"{name}: the entry point {entry.target} failed: {type(error).__name__}: {error}") from error
    return target


def list_added_backends(name: str) -> tuple[str, ...]:
    """The backends of a mechanism that others have added."""
    return tuple(backend for mechanism, backend in ADDED_BACKENDS if mechanism == name)


def load_plugin(target: str) -> list[str]:
    """Import a plug-in, a ``.py`` file or a dotted module path; returns the names of the mechanisms that it registered,
    and the specs with backends that it added."""
    path = Path(target)
    is_file = target.endswith(".py")
    if is_file and not path.is_file():
        raise UsageError(f"{target}: no such file")
    previous_names = {*_registrations, *_list_added_specs()}
    try:
        module = _import_file(path.resolve()) if is_file else importlib.import_module(target)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"{target}: import failed: {describe_exception(error)}") from error
    _loaded_plugins[str(path.resolve()) if is_file else target] = None
    names = [n for n, (_, cls) in _registrations.items() if cls.__module__ == module.__name__]
    names += _list_added_specs(module.__name__)
    return names or sorted({*_registrations, *_list_added_specs()} - previous_names)


def _list_added_specs(module: str | None = None) -> list[str]:
    """The specs with added backends, of all modules or of one."""
    classes = ADDED_BACKENDS.items()
    return [f"{name}:backend={backend}" for (name, backend), cls in classes if module in (None, cls.__module__)]


def plugins() -> tuple[str, ...]:
    """The plug-ins loaded by `load_plugin`, for worker processes to load as well."""
    return tuple(_loaded_plugins)


def _collect_entries() -> dict[str, Entry]:
    entries = {e.name: e for e in CATALOGUE}
    for name, point in _find_entry_points().items():
        package = point.dist.name if point.dist else point.value
        entries.setdefault(name, Entry(name, point.value, "", f"From the package {package}."))
    entries.update({name: entry for name, (entry, _) in _registrations.items()})
    return entries


@cache
def _find_entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _import_file(path: Path) -> Any:
    name = f"efficient_attn_plugin_{path.stem}_{zlib.crc32(bytes(path)):08x}"  # unique for each path
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
