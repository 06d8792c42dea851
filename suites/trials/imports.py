"""The imports within a package, found in its sources without executing it.

A string that names a module of the package counts as an import: ``"efficient_attn.bench.measuring.jobs"``,
``"efficient_attn.variants.full.full:Full"``, and names relative to a package in the tables of a file that calls
``import_module``. Names of entry-point groups do not count. Used by structure.py and by the structure test.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Import(NamedTuple):
    """One import of a module of the package by another; names are relative to the package, which is ``__init__``."""

    importer: str
    imported: str
    line: int
    at_start: bool  # runs when the module is imported, not in a function


@dataclass(frozen=True)
class Module:
    """A file whose imports are read, in a package of known modules."""

    name: str
    path: Path
    top: str  # the package's own name
    modules: dict[str, Path]

    @property
    def package(self) -> list[str]:
        """The package that contains the module, or that it is, as parts of a name."""
        parts = [] if self.name == "__init__" else self.name.split(".")
        return parts if self.path.name == "__init__.py" else parts[:-1]

    def find_module(self, name: str) -> str | None:
        """The module of a full name like ``efficient_attn.report.write``, which may end in a name in the module."""
        first, _, rest = name.partition(":")[0].partition(".")
        parts = rest.rstrip(".").split(".")
        names = (".".join(parts), ".".join(parts[:-1])) if first == self.top else ()
        return next((n for n in names if n and n in self.modules), None)

    def resolve_relative(self, level: int, name: str) -> list[str]:
        """The parts of the name of a relative import in this module, with ``level`` dots."""
        return [*self.package[: len(self.package) - level + 1], *(part for part in name.split(".") if part)]


def list_modules(folder: Path) -> dict[str, Path]:
    """Every module under a package's folder by its dotted name; the package itself is ``__init__``."""
    paths = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return paths


def list_imports(folder: Path, *, typing: bool = False) -> list[Import]:
    """All imports within a package, in statements and in strings; with ``typing`` also type-checking imports."""
    paths = list_modules(folder)
    edges = []
    for name, path in paths.items():
        module = Module(name, path, folder.name, paths)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        targets = [*_list_statement_imports(tree, module, typing), *_list_text_imports(tree, module)]
        edges += [Import(name, target, line, at_start) for target, line, at_start in targets if target != name]
    return edges


def find_package(module: str) -> str:
    """The top-level subpackage or module that a module belongs to."""
    return module.partition(".")[0]


def find_cycles(edges: list[Import]) -> list[list[str]]:
    """The groups of modules that import each other, directly or indirectly; imports in functions count."""
    graph: dict[str, set[str]] = {}
    for edge in edges:
        graph.setdefault(edge.importer, set()).add(edge.imported)
    reached = {module: _find_reached(graph, module) for module in graph}
    mutual = {
        tuple(sorted(other for other in reached[m] if m in reached.get(other, ()))) for m in graph if m in reached[m]
    }
    return sorted(list(group) for group in mutual)


def _find_reached(graph: dict[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    todo = list(graph[start])
    while todo:
        module = todo.pop()
        if module not in reached:
            reached.add(module)
            todo += graph.get(module, ())
    return reached


# -- statements ----------------------------------------------------------------------------------------------------


def _list_statement_imports(tree: ast.AST, module: Module, typing: bool) -> Iterator[tuple[str, int, bool]]:
    for node, at_start in walk_nodes(tree, typing=typing):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            yield from ((".".join(n[1:]) or "__init__", node.lineno, at_start) for n in names if n[0] == module.top)
        elif isinstance(node, ast.ImportFrom):
            yield from ((target, node.lineno, at_start) for target in _list_from_imports(node, module))


def walk_nodes(node: ast.AST, at_start: bool = True, *, typing: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every node, and whether it runs on import of the module; with ``typing`` also under TYPE_CHECKING."""
    yield node, at_start
    later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    children = list(ast.iter_child_nodes(node))
    if not typing and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        children = list(node.orelse)
    for child in children:
        yield from walk_nodes(child, at_start and not later, typing=typing)


def _list_from_imports(node: ast.ImportFrom, module: Module) -> Iterator[str]:
    base = module.resolve_relative(node.level, node.module or "") if node.level else (node.module or "").split(".")
    if not node.level and base.pop(0) != module.top:
        return
    base_name = ".".join(base)
    for alias in node.names:
        inner = f"{base_name}.{alias.name}".lstrip(".")
        yield inner if inner in module.modules else base_name or "__init__"


# -- strings -------------------------------------------------------------------------------------------------------


def _list_text_imports(tree: ast.Module, module: Module) -> Iterator[tuple[str, int, bool]]:
    """The modules that strings name, except for the packages that contain the module itself."""
    groups, inner = _find_entry_point_groups(tree), f"{module.name}."
    read = [node for node, _ in walk_nodes(tree)]
    pieces = {part for node in read if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in read:
        if isinstance(node, ast.JoinedStr):
            target = _find_in_pieces(node, module)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in pieces | groups:
            target = _find_in_text(node.value, module)
        else:
            continue
        if target and not inner.startswith(f"{target}."):
            yield target, node.lineno, False
    if any(isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") for node in read):
        yield from _list_table_imports(tree, module)


def _find_in_text(text: str, module: Module) -> str | None:
    if re.fullmatch(r"\.+[\w.]+", text):
        level = len(text) - len(text.lstrip("."))
        named = ".".join(module.resolve_relative(level, text))
        return named if named in module.modules else None
    return module.find_module(text) if re.fullmatch(r"\w+(\.\w+)+(:[\w.]+)?", text) else None


def _find_in_pieces(node: ast.JoinedStr, module: Module) -> str | None:
    """The constant part of ``f"{__name__}.write"`` and ``f"efficient_attn.tasks.{name}"``."""
    first, *rest = node.values
    if isinstance(first, ast.Constant):
        return module.find_module(str(first.value)) if re.fullmatch(r"\w+(\.\w+)*\.", str(first.value)) else None
    is_module_name = isinstance(first, ast.FormattedValue) and ast.unparse(first.value) in ("__name__", "__package__")
    if is_module_name and rest and isinstance(rest[0], ast.Constant):
        named = ".".join(module.resolve_relative(1, str(rest[0].value)))
        return named if named in module.modules else None
    return None


def _list_table_imports(tree: ast.Module, module: Module) -> Iterator[tuple[str, int, bool]]:
    """The entries of tables in a file that imports by name: ``{"Mask": "contract.mask"}``."""
    tables = [n.value for n in tree.body if isinstance(n, ast.Assign | ast.AnnAssign) and n.value]
    for node in (n for table in tables for n in ast.walk(table)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            named = ".".join([*module.package, node.value.partition(":")[0]])
            if named in module.modules:
                yield named, node.lineno, False


def _find_entry_point_groups(tree: ast.Module) -> set[ast.expr]:
    """The strings that are names of entry-point groups: ``entry_points(group=...)``, there or in a constant."""
    keywords = [node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "group"]
    names = {node.value.id for node in keywords if isinstance(node.value, ast.Name)}
    constants = [n for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) in names]
    return {node.value for node in (*keywords, *constants)}
