"""The checks of the structure test: directions of imports, lengths of files, locations of modules and tests."""

from __future__ import annotations

from pathlib import Path

from imports import Import, find_package, list_modules

LONGEST = 300  # lines of a file
ENDS = ("__init__", "__main__")


def list_upward_imports(found: list[Import], layers: tuple[str, ...]) -> list[str]:
    """Imports that the layers do not allow, and modules that are in no layer."""
    height = {name: at for at, line in enumerate(layers) for name in line.split()}
    wrong = []
    for importer, imported, line, _ in found:
        low, high = find_package(imported), find_package(importer)
        if missing := {low, high} - height.keys():
            wrong.append(f"{importer}:{line}: {min(missing)} is not in LAYERS")
        elif low != high and height[low] >= height[high]:
            wrong.append(f"{importer}:{line}: imports {imported}, which is not in a lower layer")
    return wrong


def list_long_files(folder: Path, most: int = LONGEST) -> list[str]:
    counted = {p: len(p.read_text(encoding="utf-8").splitlines()) for p in folder.rglob("*.py")}
    return [f"{path}: {lines} lines" for path, lines in sorted(counted.items()) if lines > most]


def list_toplevel_modules(folder: Path) -> list[str]:
    """The modules of a package that are in no subpackage."""
    return [name for name, path in list_modules(folder).items() if path.parent == folder and name not in ENDS]


def list_small_packages(folder: Path) -> list[str]:
    """Subpackages with fewer than two source files and subpackages sourcess their ``__init__``."""
    inits = [path for path in folder.rglob("__init__.py") if path.parent != folder]
    sources = {i.parent: [p for p in i.parent.iterdir() if p != i and p.suffix in (".py", ".cpp", ".h")] for i in inits}
    inner = {f: [i for i in inits if i.parent.parent == f] for f in sources}
    return sorted(f.relative_to(folder).as_posix() for f in sources if len(sources[f]) + len(inner[f]) < 2)


def list_misplaced_tests(tests: Path, folder: Path) -> list[str]:
    """Test files that are not in the folder of the module in their name: ``test_plan_long`` is of ``plan``."""
    known = {tuple(name.split(".")) for name in list_modules(folder)}
    misplaced = []
    for path in sorted(tests.rglob("test_*.py")):
        folders = path.parent.relative_to(tests).parts
        named = path.stem.removeprefix("test_")
        names = [n[-1] for n in known if n[:-1] == folders] + list(folders[-1:])
        in_place = not folders or folders in known
        if not (in_place and any(named == n or named.startswith(f"{n}_") for n in names)):
            misplaced.append(path.relative_to(tests).as_posix())
    return misplaced
