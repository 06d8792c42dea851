"""The structure: imports go down only, no cycles, no long files, and nothing heavy is imported before it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

CHECKOUT = Path(__file__).parents[2]
PACKAGE = CHECKOUT / "efficient_attn"  # the sources: what is installed holds the suites' files too
LONGEST = 320  # lines of a file

# From low to high. A module imports its own unit and units of lower lines, never the same line or a higher one.
# "variants" is the package's table, "variants.*" are its modules. From results and report on no torch is in reach.
LAYERS = (
    "errors",
    "spec  units  variants  shipped",
    "results",
    "instruments",
    "contract  patterns",
    "feature_maps",
    "kernels",
    "variants.*",
    "registry",
    "layers",
    "testing  peers",
    "engines",
    "tasks",
    "bench",
    "report",
    "cli",
    "__main__  __init__",
)


class Import(NamedTuple):
    """One import of a module of the package by another; names are relative to the package."""

    importer: str
    imported: str
    line: int
    at_start: bool  # when the module is imported, not when a function of it is called


def modules(folder: Path) -> dict[str, Path]:
    """Every module under a package's folder by its dotted name; the package itself is ``__init__``."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return found


def imports(folder: Path) -> list[Import]:
    """All imports within a package, those for type checkers excluded."""
    known = modules(folder)
    found = []
    for name, path in known.items():
        here = [] if name == "__init__" else name.split(".")
        package = here if path.name == "__init__.py" else here[:-1]
        for node, at_start in _statements(ast.parse(path.read_text(encoding="utf-8")), True):
            targets = _targets(node, package, folder.name, known)
            found += [Import(name, target, node.lineno, at_start) for target in targets if target != name]
    return found


def _statements(node: ast.AST, at_start: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node, at_start
        return
    for_checkers = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in node.orelse if for_checkers else ast.iter_child_nodes(node):
        yield from _statements(child, at_start and not later)


def _targets(node: ast.Import | ast.ImportFrom, package: list[str], top: str, known: dict[str, Path]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        bases = [a.name.split(".") for a in node.names]
        yield from (".".join(b[1:]) or "__init__" for b in bases if b[0] == top)
        return
    if node.level:
        base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
    else:
        first, *base = (node.module or "").split(".")
        if first != top:
            return
    plain = ".".join(part for part in base if part)
    for alias in node.names:
        inner = f"{plain}.{alias.name}".lstrip(".")
        yield inner if inner in known else plain or "__init__"


def unit(module: str) -> str:
    """What the table calls a module's place."""
    first, _, rest = module.partition(".")
    return "variants.*" if first == "variants" and rest else first


def upward(found: list[Import], layers: tuple[str, ...]) -> list[str]:
    """Imports that the table does not allow, and modules that it does not know."""
    height = {name: at for at, line in enumerate(layers) for name in line.split()}
    wrong = []
    for importer, imported, line, _ in found:
        low, high = unit(imported), unit(importer)
        if missing := {low, high} - height.keys():
            wrong.append(f"{importer}:{line}: {min(missing)} has no place in LAYERS; give it one")
        elif low != high and height[low] >= height[high]:
            wrong.append(f"{importer}:{line}: imports {imported}, which is not below it")
    return wrong


def cycle(found: list[Import]) -> list[str]:
    """Modules that import each other in a circle when they are imported; empty when there are none."""
    graph: dict[str, list[str]] = {}
    for importer, imported, _, at_start in found:
        if at_start:
            graph.setdefault(importer, []).append(imported)
    done: set[str] = set()

    def visit(module: str, way: list[str]) -> list[str]:
        if module in way:
            return [*way[way.index(module) :], module]
        if module in done:
            return []
        for other in graph.get(module, ()):
            if circle := visit(other, [*way, module]):
                return circle
        done.add(module)
        return []

    return next((c for start in graph if (c := visit(start, []))), [])


def too_long(*folders: Path) -> list[str]:
    counted = {p: len(p.read_text(encoding="utf-8").splitlines()) for f in folders for p in f.rglob("*.py")}
    return [f"{path}: {lines} lines" for path, lines in sorted(counted.items()) if lines > LONGEST]


# -- the package ---------------------------------------------------------------------------------------------------


def test_imports_go_down_only() -> None:
    found = imports(PACKAGE)
    assert len(found) > 60  # the checker sees them
    assert upward(found, LAYERS) == []


def test_every_module_has_a_place() -> None:
    places = {name for line in LAYERS for name in line.split()}
    assert sorted({unit(m) for m in modules(PACKAGE)} - places) == []
    assert sorted(places - {unit(m) for m in modules(PACKAGE)}) == []


def test_no_module_imports_itself_in_a_circle() -> None:
    assert cycle(imports(PACKAGE)) == []


def test_no_file_is_too_long() -> None:
    assert too_long(CHECKOUT / "efficient_attn", CHECKOUT / "suites", CHECKOUT / "tests") == []


HEAVY = ("torch", "pandas", "matplotlib", "scipy")
LIGHT = ("efficient_attn", "efficient_attn.cli", "efficient_attn.cli.console", "efficient_attn.registry")
LIGHT += ("efficient_attn.results", "efficient_attn.report", "efficient_attn.results.store")


def _imported_by(module: str, heavy: tuple[str, ...]) -> list[str]:
    code = f"import sys, {module}; print(*(m for m in {heavy!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_import_nothing_heavy(module: str) -> None:
    assert _imported_by(module, HEAVY) == []


def test_results_and_reports_are_read_without_torch() -> None:
    names = [f"efficient_attn.{m}" for m in modules(PACKAGE) if unit(m) in ("results", "report")]
    assert "efficient_attn.report.write" in names
    assert _imported_by(", ".join(names), ("torch", "pandas", "matplotlib")) == ["pandas", "matplotlib"]


# -- the checker itself --------------------------------------------------------------------------------------------


def _package(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / "made" / f"{name.replace('__in__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "made"


@pytest.mark.parametrize(
    ("statement", "line"),
    [
        ("from .high import x", 1),
        ("from . import high", 1),
        ("import made.high", 1),
        ("from made.high import x", 1),
        ("from made import high", 1),
        ("def f():\n    from .high import x", 2),
        ("try:\n    from .high import x\nexcept ImportError:\n    pass", 2),
        ("class A:\n    from . import high", 2),
    ],
)
def test_an_upward_import_is_found(statement: str, line: int, tmp_path: Path) -> None:
    found = imports(_package(tmp_path, __init__="", low=statement, high="from . import low"))
    assert upward(found, ("low", "high", "__init__")) == [f"low:{line}: imports high, which is not below it"]


def test_imports_for_type_checkers_do_not_count(tmp_path: Path) -> None:
    text = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .high import x\nelse:\n    from . import other\n"
    )
    found = imports(_package(tmp_path, __init__="", low=text, high="from . import low", other=""))
    assert {(i.importer, i.imported) for i in found} == {("low", "other"), ("high", "low")}


def test_a_neighbour_on_the_same_line_is_not_below(tmp_path: Path) -> None:
    found = imports(_package(tmp_path, __init__="", one="from . import two", two=""))
    assert upward(found, ("one  two", "__init__")) == ["one:1: imports two, which is not below it"]


def test_a_module_without_a_place_is_named(tmp_path: Path) -> None:
    found = imports(_package(tmp_path, __init__="", one="from . import two", two=""))
    assert upward(found, ("one", "__init__")) == ["one:1: two has no place in LAYERS; give it one"]


def test_modules_of_packages_are_resolved(tmp_path: Path) -> None:
    made = _package(tmp_path, __init__="", p__in____init__="from .a import x", p__in__a="from .. import q", q="")
    assert set(imports(made)) == {Import("p", "p.a", 1, True), Import("p.a", "q", 1, True)}
    assert upward(imports(made), ("p", "q", "__init__")) == ["p.a:1: imports q, which is not below it"]


def test_a_cycle_is_found(tmp_path: Path) -> None:
    made = _package(tmp_path, __init__="", a="from .b import x", b="from . import c", c="import made.a")
    assert cycle(imports(made)) == ["a", "b", "c", "a"]


def test_an_import_inside_a_function_closes_no_cycle(tmp_path: Path) -> None:
    made = _package(tmp_path, __init__="", a="from .b import x", b="def f():\n    from . import a")
    assert cycle(imports(made)) == []


def test_a_long_file_is_found(tmp_path: Path) -> None:
    made = _package(tmp_path, short="x = 1\n" * LONGEST, long="x = 1\n" * (LONGEST + 1))
    assert too_long(made) == [f"{made / 'long.py'}: {LONGEST + 1} lines"]
