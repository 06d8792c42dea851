"""What the structure test checks of a package: directions of imports, lengths of files, places of modules and tests."""

from __future__ import annotations

from pathlib import Path

from imports import Import, find_package, list_modules

LONGEST = 300  # lines of a file
ENDS = ("__init__", "__main__")


def upward(found: list[Import], layers: tuple[str, ...]) -> list[str]:
    """Imports that the table does not allow, and modules that it does not know."""
    height = {name: at for at, line in enumerate(layers) for name in line.split()}
    wrong = []
    for importer, imported, line, _ in found:
        low, high = find_package(imported), find_package(importer)
        if missing := {low, high} - height.keys():
            wrong.append(f"{importer}:{line}: {min(missing)} has no place in LAYERS; give it one")
        elif low != high and height[low] >= height[high]:
            wrong.append(f"{importer}:{line}: imports {imported}, which is not below it")
    return wrong


def too_long(folder: Path, most: int = LONGEST) -> list[str]:
    counted = {p: len(p.read_text(encoding="utf-8").splitlines()) for p in folder.rglob("*.py")}
    return [f"{path}: {lines} lines" for path, lines in sorted(counted.items()) if lines > most]


def loose(folder: Path) -> list[str]:
    """The modules of a package that are in no room."""
    return [name for name, path in list_modules(folder).items() if path.parent == folder and name not in ENDS]


def small(folder: Path) -> list[str]:
    """Folders of a package with fewer than two files of source beside their ``__init__``."""
    inits = [path for path in folder.rglob("__init__.py") if path.parent != folder]
    beside = {i.parent: [p for p in i.parent.iterdir() if p != i and p.suffix in (".py", ".cpp", ".h")] for i in inits}
    inner = {f: [i for i in inits if i.parent.parent == f] for f in beside}
    return sorted(f.relative_to(folder).as_posix() for f in beside if len(beside[f]) + len(inner[f]) < 2)


def astray(tests: Path, folder: Path) -> list[str]:
    """Files of tests that are not in the folder of what they are called after: ``test_plan_long`` after ``plan``."""
    known = {tuple(name.split(".")) for name in list_modules(folder)}
    lost = []
    for path in sorted(tests.rglob("test_*.py")):
        where = path.parent.relative_to(tests).parts
        named = path.stem.removeprefix("test_")
        names = [n[-1] for n in known if n[:-1] == where] + list(where[-1:])
        in_place = not where or where in known
        if not (in_place and any(named == n or named.startswith(f"{n}_") for n in names)):
            lost.append(path.relative_to(tests).as_posix())
    return lost
