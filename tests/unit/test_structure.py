"""The structure: imports go down only, no circles, no long files, tests in their place, nothing heavy too early."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from following import Follower
from imports import Import, circles, imports, modules, package_of
from structure import CALL_PATHS, VAGUE, bindings

CHECKOUT = Path(__file__).parents[2]
PACKAGE = CHECKOUT / "efficient_attn"  # the sources: what is installed holds the suites' files too
LONGEST, LONGEST_TEST = 300, 320  # lines of a file
MOST_VAGUE = 17  # assignments of names such as `found` and `said`
MOST_LOOSE = 7  # modules at the top that are in no room
ENDS = ("__init__", "__main__")

# From low to high. A module imports its own room and those of lower lines, never the same line or a higher one.
# From results and report on no torch is in reach.
LAYERS = (
    "errors",
    "spec  units  resources",
    "instruments  results",
    "contract  patterns  feature_maps",
    "kernels",
    "variants",
    "registry",
    "layers",
    "models",
    "engines  testing  peers  integrations",
    "bench",
    "tasks  report",
    "cli",
    "__main__  __init__",
)

# Folders that hold a single file beside their `__init__`, and why they are there already.
SMALL = {
    "variants/hashed": "a family is a folder, and Reformer is its only mechanism so far",
}

# Tests that are called after no module, and what they are about.
NAMED_OTHERWISE = {
    "bench/test_shipped_suites.py": "the suites of suites/",
    "contract/test_workspace.py": "what mechanisms hold, over the catalogue",
    "layers/test_from_torch.py": "weights of torch's own layer",
    "variants/test_formulas.py": "the formulas of all engines",
    "registry/test_readme_plugins.py": "README's own plug-ins",
    "report/test_large.py": "the report as a whole",
    "test_abilities.py": "docs/abilities.md, and the trial that writes it",
    "test_docs.py": "docs/ and README",
    "test_figures.py": "README's figures",
    "test_packaging.py": "what is installed",
    "test_sampling.py": "which tests a run holds",
    "test_structure.py": "all of the package",
    "testing/test_kit.py": "the kit as a whole",
}


def upward(found: list[Import], layers: tuple[str, ...]) -> list[str]:
    """Imports that the table does not allow, and modules that it does not know."""
    height = {name: at for at, line in enumerate(layers) for name in line.split()}
    wrong = []
    for importer, imported, line, _ in found:
        low, high = package_of(imported), package_of(importer)
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
    return [name for name, path in modules(folder).items() if path.parent == folder and name not in ENDS]


def small(folder: Path) -> list[str]:
    """Folders of a package with fewer than two files of source beside their ``__init__``."""
    inits = [path for path in folder.rglob("__init__.py") if path.parent != folder]
    beside = {i.parent: [p for p in i.parent.iterdir() if p != i and p.suffix in (".py", ".cpp", ".h")] for i in inits}
    inner = {f: [i for i in inits if i.parent.parent == f] for f in beside}
    return sorted(f.relative_to(folder).as_posix() for f in beside if len(beside[f]) + len(inner[f]) < 2)


def astray(tests: Path, folder: Path) -> list[str]:
    """Files of tests that are not in the folder of what they are called after: ``test_plan_long`` after ``plan``."""
    known = {tuple(name.split(".")) for name in modules(folder)}
    lost = []
    for path in sorted(tests.rglob("test_*.py")):
        where = path.parent.relative_to(tests).parts
        named = path.stem.removeprefix("test_")
        names = [n[-1] for n in known if n[:-1] == where] + list(where[-1:])
        in_place = not where or where in known
        if not (in_place and any(named == n or named.startswith(f"{n}_") for n in names)):
            lost.append(path.relative_to(tests).as_posix())
    return lost


# -- the package ---------------------------------------------------------------------------------------------------


def test_the_ways_of_the_trial_begin_somewhere() -> None:
    follower = Follower(PACKAGE)
    for starts, methods in CALL_PATHS.values():
        assert len(follower.follow([follower.find(name) for name in starts], methods)) > 9


@pytest.fixture(scope="module")
def found() -> list[Import]:
    """All imports of the package, those for type checkers excluded."""
    return imports(PACKAGE)


def test_imports_go_down_only(found: list[Import]) -> None:
    assert len(found) > 60  # the checker sees them
    assert upward(found, LAYERS) == []


def test_every_module_has_a_place() -> None:
    places = {name for line in LAYERS for name in line.split()}
    assert sorted({package_of(m) for m in modules(PACKAGE)} - places) == []
    assert sorted(places - {package_of(m) for m in modules(PACKAGE)}) == []


def test_no_import_cycles_not_even_for_type_checkers(found: list[Import]) -> None:
    assert circles(found) == []
    assert circles(imports(PACKAGE, typing=True)) == []


# Names that several modules or classes share because they mean the same.
SHARED_MODULES = {
    "linear": "the mechanism, and other libraries' implementations of it",
    "retrieval": "the task, and its section of the report",
    "speed": "the task, and its section of the report",
    "swap": "the task, and its section of the report",
}
SHARED_CLASSES = {"Keys": "public: a fact of patterns, and the base class of a task's keys"}


def test_one_meaning_a_name() -> None:
    """No two modules have one file name, and no two classes one name, unless they mean the same."""
    files = [path for path in modules(PACKAGE).values() if path.stem not in ENDS]
    stems = Counter(path.stem for path in files)
    assert {name for name, count in stems.items() if count > 1} == SHARED_MODULES.keys()
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in modules(PACKAGE).values()]
    classes = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert {name for name, count in classes.items() if count > 1} == SHARED_CLASSES.keys()


def test_few_bindings_say_nothing() -> None:
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in modules(PACKAGE).items()}
    vague = [f"{name}: {bound}" for name, tree in trees.items() for bound in bindings(tree) if bound in VAGUE]
    assert len(vague) <= MOST_VAGUE, vague


def test_no_file_is_too_long() -> None:
    assert too_long(PACKAGE) + too_long(CHECKOUT / "suites") + too_long(CHECKOUT / "tests", LONGEST_TEST) == []


def test_few_modules_are_in_no_package_of() -> None:
    assert len(loose(PACKAGE)) <= MOST_LOOSE, loose(PACKAGE)


def test_no_room_is_nearly_empty() -> None:
    assert small(PACKAGE) == sorted(SMALL)


def test_tests_stand_where_their_modules_do() -> None:
    lost = astray(CHECKOUT / "tests" / "unit", PACKAGE)
    assert lost == sorted(NAMED_OTHERWISE)


HEAVY = ("torch", "pandas", "matplotlib", "scipy")
LIGHT = ("efficient_attn", "efficient_attn.cli", "efficient_attn.cli.console", "efficient_attn.registry")
LIGHT += ("efficient_attn.results", "efficient_attn.report", "efficient_attn.results.store")
LIGHT += (
    "efficient_attn.tasks",
    "efficient_attn.tasks.speed",
    "efficient_attn.bench.planning.suite",
    "efficient_attn.units",
)


def _imported_by(module: str, heavy: tuple[str, ...]) -> list[str]:
    code = f"import sys, {module}; print(*(m for m in {heavy!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_import_nothing_heavy(module: str) -> None:
    assert _imported_by(module, HEAVY) == []


def test_results_and_reports_are_read_without_torch() -> None:
    names = [f"efficient_attn.{m}" for m in modules(PACKAGE) if package_of(m) in ("results", "report")]
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


def test_imports_for_type_checkers_count_where_asked(tmp_path: Path) -> None:
    text = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .high import x\nelse:\n    from . import other\n"
    )
    found = imports(_package(tmp_path, __init__="", low=text, high="from . import low", other=""))
    assert {(i.importer, i.imported) for i in found} == {("low", "other"), ("high", "low")}
    assert circles(imports(tmp_path / "made", typing=True)) == [["high", "low"]]


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


@pytest.mark.parametrize("text", ["import made.a", "def f():\n    from . import a", "NAME = 'made.a:x'"])
def test_a_circle_is_found(text: str, tmp_path: Path) -> None:
    made = _package(tmp_path, __init__="", a="from .b import x", b="from . import c", c=text, d="from . import a")
    assert circles(imports(made)) == [["a", "b", "c"]]


def test_a_chain_is_no_circle(tmp_path: Path) -> None:
    made = _package(tmp_path, __init__="", a="from .b import x\nfrom . import c", b="from . import c", c="x = 1")
    assert circles(imports(made)) == []


@pytest.mark.parametrize(
    "text",
    [
        "NAMES = ('torch', 'made.high')",
        "NAME = 'made.high:Thing'",
        "NAME = 'made.high.Thing'",
        "def f(name='made.high'): ...",
        "def f(name):\n    return load(f'made.high.{name}')",
        "import importlib\nimportlib.import_module('.high', __package__)",
        "def f():\n    return import_module(f'{__package__}.high')",
        "def f(name):\n    return import_module(f'{__package__}.{name}')\nHOME = {'x': 'high'}",
        "from importlib.metadata import entry_points\nGROUP = 'made.high'\nload(GROUP)",
    ],
)
def test_a_text_that_names_a_module_is_an_import(text: str, tmp_path: Path) -> None:
    found = imports(_package(tmp_path, __init__="", low=text, high="x = 1"))
    assert {(i.importer, i.imported, i.at_start) for i in found} == {("low", "high", False)}


@pytest.mark.parametrize(
    "text",
    [
        "NAME = 'high'",
        "NAME = 'see made.high'",
        "NAME = 'made.other'",
        "NAME = 'others.high'",
        "NAME = 'made.low:x'",
        "GROUP = 'made.high'\nfound = entry_points(group=GROUP)",
        "found = entry_points(group='made.high')",
    ],
)
def test_other_texts_are_none(text: str, tmp_path: Path) -> None:
    assert imports(_package(tmp_path, __init__="", low=text, high="x = 1")) == []


def test_a_lazy_table_of_a_package_leads_to_its_modules(tmp_path: Path) -> None:
    lazy = "import importlib\nHOME = {'x': 'a'}\ndef __getattr__(n):\n    return importlib.import_module(HOME[n])"
    made = _package(tmp_path, __init__="", p__in____init__=lazy, p__in__a="OWN = 'made.p'")
    assert [(i.importer, i.imported) for i in imports(made)] == [("p", "p.a")]  # a package comes before its modules


def test_a_long_file_is_found(tmp_path: Path) -> None:
    made = _package(tmp_path, short="x = 1\n" * LONGEST, long="x = 1\n" * (LONGEST + 1))
    assert too_long(made) == [f"{made / 'long.py'}: {LONGEST + 1} lines"]


def test_loose_modules_are_counted(tmp_path: Path) -> None:
    made = _package(tmp_path, __init__="", __main__="", a="", p__in____init__="", p__in__b="")
    assert loose(made) == ["a"]


def test_a_nearly_empty_folder_is_found(tmp_path: Path) -> None:
    files = {
        "__init__": "",
        "p__in____init__": "",
        "p__in__a": "",
        "q__in____init__": "",
        "q__in__a": "",
        "q__in__b": "",
    }
    assert small(_package(tmp_path, **files)) == ["p"]


def test_a_test_astray_is_found(tmp_path: Path) -> None:
    made = _package(tmp_path / "of", __init__="", a="", p__in____init__="", p__in__b="")
    names = ("a", "a_long", "nothing", "p/b", "p/b_long", "p/p", "p/a", "q/b")
    for name in names:
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f"test_{path.name}.py").touch()
    assert astray(tmp_path / "tests", made) == ["p/test_a.py", "q/test_b.py", "test_nothing.py"]
