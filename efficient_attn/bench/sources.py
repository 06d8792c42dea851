"""The sources of a mechanism: every file whose change may change its results. Their digest is part of its cases.

Files are parsed, not imported: from those of a class and its bases, along every import (at the top, inside functions,
in lazy tables, in strings that name modules) to other files of this package, and to C++ sources. An ``__init__`` is a
source, but only the modules of the names that are imported from it are followed. Files that find mechanisms by name are
not sources, because every new mechanism would invalidate all rows. Of other code, a plug-in's own package and single
files next to it are sources; libraries are not.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ..contract.mechanism import Attention
from ..spec import list_names
from ..variants import CATALOGUE

PACKAGE = Path(__file__).resolve().parents[1]
FINDERS = ("__init__.py", "variants/__init__.py", "registry*.py")  # files that find mechanisms by name
LIBRARIES = {*sys.stdlib_module_names, "torch"}  # whose base classes are not sources
DOTTED_NAME = re.compile(r"([A-Za-z_]\w*(?:\.\w+)+)(?::\w+)?")  # efficient_attn.kernels.dense:widen, for one
ALL = "*"


class Import(NamedTuple):
    """``name`` of a module, or the module if it is empty, bound as ``bound``; level: the leading dots of the module."""

    level: int
    module: str
    name: str = ""
    bound: str = ""


class SourceName(NamedTuple):
    """A file and what is imported from it: a name, `ALL`, or nothing for an ``__init__`` that only runs."""

    file: Path
    name: str


@dataclass
class ModuleSource:
    """The names in one file. read: the attributes read from each name, `ALL` if it is used as a whole. calls: for each
    call with a text, the first and last name of the function, and the text. lazy_names: those of a lazy table."""

    imports: list[Import] = field(default_factory=list)
    read: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    lazy_names: dict[str, Import] = field(default_factory=dict)


@cache
def fingerprint(*classes: type[Attention]) -> str:
    """The digest of the sources of mechanisms: twelve hexadecimal digits."""
    return digest(sources(*classes))


def sources(*classes: type[Attention]) -> tuple[Path, ...]:
    """The files of a mechanism, sorted; of a union, those of all parts."""
    files: set[Path] = set()
    for cls in classes:
        bases = [base for base in cls.__mro__ if base.__module__.partition(".")[0] not in LIBRARIES]  # itself included
        files.update(trace(Path(file).resolve() for base in bases if (file := inspect.getsourcefile(base))))
    return tuple(sorted(files))


def digest(files: Iterable[Path]) -> str:
    """A digest of the contents of files, independent of their names and order."""
    contents = sorted(hashlib.sha256(_read_content(file)).digest() for file in files)
    return hashlib.sha256(b"".join(contents)).hexdigest()[:12]


@cache
def digest_package() -> str:
    """The digest of all sources of this package."""
    return digest(file for file in PACKAGE.rglob("*") if file.suffix in (".py", ".cpp", ".h", ".toml"))


@cache
def _read_content(file: Path) -> bytes:
    """The content when this process first read the file, which is what it has imported."""
    return file.read_bytes()


def trace(starts: Iterable[Path], package: Path = PACKAGE) -> tuple[Path, ...]:
    """All files reachable from the given ones, including them. The package of the first is followed like ours."""
    todo = [SourceName(file, ALL) for file in starts]
    own_package = todo[0].file.parent  # or the folder of a file in none
    while (own_package.parent / "__init__.py").is_file():
        own_package = own_package.parent
    packages = frozenset({package, own_package})
    visited: set[SourceName] = set()
    while todo:
        requested = todo.pop()
        if requested not in visited:
            visited.add(requested)
            todo += _follow(requested, packages)
    return tuple(sorted({requested.file for requested in visited if not _is_finder(requested.file, packages)}))


# -- from file to file ---------------------------------------------------------------------------------------------


@cache
def _follow(requested: SourceName, packages: frozenset[Path]) -> set[SourceName]:
    """The names that this file needs from other files."""
    file, name = requested
    # Python runs the `__init__` of every package that contains the file
    inits = [folder / "__init__.py" for folder in file.parents if any(folder.is_relative_to(p) for p in packages)]
    names = {SourceName(init, "") for init in inits if init.is_file()}
    if file.suffix != ".py":
        return names | {SourceName(header, ALL) for header in _list_included(file)}
    if name:
        source, is_finder = _read(file), _is_finder(file, packages)
        for imported in _select_imports(source, requested, is_finder):
            names.update(_resolve_import(imported, file, source, packages))
        names.update(() if is_finder else _resolve_calls(source, file, packages))
    return names


def _is_finder(file: Path, packages: frozenset[Path]) -> bool:
    """Whether a file of this package, or of a copy of it, finds mechanisms by name."""
    ours = [p for p in packages if p.name == PACKAGE.name and file.is_relative_to(p)]
    return any(fnmatch(file.relative_to(package).as_posix(), name) for package in ours for name in FINDERS)


def _select_imports(source: ModuleSource, requested: SourceName, is_finder: bool) -> list[Import]:
    """The imports of a file that are needed for the names requested from it."""
    lazy = [imported for name, imported in source.lazy_names.items() if requested.name in (name, ALL)]
    if is_finder:
        return lazy
    if requested.name != ALL and (named := lazy + [i for i in source.imports if i.bound == requested.name]):
        return named
    return source.imports + list(source.lazy_names.values())


def _resolve_import(
    imported: Import, file: Path, source: ModuleSource, packages: frozenset[Path]
) -> Iterator[SourceName]:
    """The file of an import, once for each requested name; nothing for a library."""
    base = _find_base(imported, file, packages)
    inner = _find_module(base / imported.name) if base and imported.name else None
    target = inner or (_find_module(base) if base else None)
    if target is None or not (target.parent == file.parent or any(target.is_relative_to(p) for p in packages)):
        return
    if target.name != "__init__.py":
        names = {ALL}
    elif imported.name and inner is None:
        names = {imported.name}
    else:
        names = source.read[imported.bound] if imported.bound and file.name != "__init__.py" else {ALL}
    for name in names or {""}:
        is_submodule = name not in ("", ALL) and target.name == "__init__.py"
        submodule = _find_module(target.parent / name) if is_submodule else None
        yield SourceName(submodule, ALL) if submodule else SourceName(target, name)


def _find_base(imported: Import, file: Path, packages: frozenset[Path]) -> Path | None:
    """The path that an import's module would have, without its suffix."""
    parts = imported.module.split(".") if imported.module else []
    if imported.level:
        return file.parents[imported.level - 1].joinpath(*parts)
    for package in packages:
        if package.name == parts[0] and (package / "__init__.py").is_file():
            return package.joinpath(*parts[1:])
    return file.parent / parts[0] if len(parts) == 1 and (file.parent / f"{parts[0]}.py").is_file() else None


def _find_module(base: Path) -> Path | None:
    return next((f for f in (base / "__init__.py", base.with_name(f"{base.name}.py")) if f.is_file()), None)


def _resolve_calls(source: ModuleSource, file: Path, packages: frozenset[Path]) -> Iterator[SourceName]:
    """Files that calls refer to by text: C++ sources in the function's folder, and mechanisms that are created."""
    bound = {i.bound: i for i in source.imports if i.bound}
    for root, function, text in source.calls:
        if root in bound:
            for requested in _resolve_import(bound[root], file, source, packages):
                if re.fullmatch(r"\w+", text) and (cpp := requested.file.with_name(f"{text}.cpp")).is_file():
                    yield SourceName(cpp, ALL)
        if function == "create":
            for entry in (e for e in CATALOGUE if e.name in list_names(text)):
                yield from _resolve_import(Import(0, entry.target.partition(":")[0]), file, source, packages)


def _list_included(file: Path) -> list[Path]:
    named = re.findall(r'^\s*#\s*include\s*"([^"]+)"', _read_content(file).decode(), re.MULTILINE)
    return [path for name in named if (path := (file.parent / name).resolve()).is_file()]


# -- parsing -------------------------------------------------------------------------------------------------------


@cache
def _read(file: Path) -> ModuleSource:
    source, attribute_names = ModuleSource(), set()
    tree = ast.parse(_read_content(file))
    for node in _walk(tree):
        if isinstance(node, ast.Import):
            source.imports += [Import(0, a.name, bound=a.asname or a.name.partition(".")[0]) for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            source.imports += [Import(node.level, module, a.name, a.asname or a.name) for a in node.names]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            source.read[node.value.id].add(node.attr)
            attribute_names.add(node.value)
        elif isinstance(node, ast.Name) and node not in attribute_names:
            source.read[node.id].add(ALL)
        elif isinstance(node, ast.Call) and node.args and (text := _read_text(node.args[0])):
            names = ast.unparse(node.func).split(".")
            source.calls.append((names[0], names[-1], text))
            if names[-1] == "import_module" and text.startswith("."):
                plain = text.lstrip(".")
                source.imports.append(Import(len(text) - len(plain), plain))
        elif isinstance(node, ast.Constant) and (match := DOTTED_NAME.fullmatch(str(node.value))):
            source.imports.append(Import(0, match[1]))
    if file.name == "__init__.py":
        source.lazy_names = _read_lazy_table(tree)
    return source


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below one, except code that only type checkers read."""
    todo = [node]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo += node.orelse
            continue
        for value in node.__dict__.values():  # as `ast.iter_child_nodes`, in a third of the time
            if isinstance(value, list):
                todo += [child for child in value if isinstance(child, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                todo.append(value)


def _read_text(node: ast.expr) -> str:
    """The constant part of a text: ``.write`` of ``f"{__name__}.write"``, ``linear:`` of ``f"linear:{x}"``."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    if len(parts) > 1 and isinstance(parts[0], ast.FormattedValue):
        parts = parts[1:] if ast.unparse(parts[0].value) in ("__name__", "__package__") else []
    first = parts[0] if parts else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def _read_lazy_table(tree: ast.Module) -> dict[str, Import]:
    """The dictionaries of an ``__init__`` from names to modules: ``{"Mask": "contract.mask"}``."""
    tables = [node.value for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)]
    pairs = [(key, value) for table in tables for key, value in zip(table.keys, table.values, strict=True)]
    texts = [(k.value, v.value) for k, v in pairs if isinstance(k, ast.Constant) and isinstance(v, ast.Constant)]
    return {k: Import(1, v, k) for k, v in texts if isinstance(k, str) and isinstance(v, str)}
