"""The checks of test_structure.py detect violations."""

from __future__ import annotations

import ast
from pathlib import Path

import docstring_names
import pytest
from imports import Import, find_cycles, list_imports
from layout import (
    LONGEST,
    list_long_files,
    list_misplaced_tests,
    list_small_packages,
    list_toplevel_modules,
    list_upward_imports,
)


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
def test_an_upward_import_is_detected(statement: str, line: int, tmp_path: Path) -> None:
    found = list_imports(_package(tmp_path, __init__="", low=statement, high="from . import low"))
    assert list_upward_imports(found, ("low", "high", "__init__")) == [
        f"low:{line}: imports high, which is not in a lower layer"
    ]


def test_type_checking_imports_are_optional(tmp_path: Path) -> None:
    text = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .high import x\nelse:\n    from . import other\n"
    )
    found = list_imports(_package(tmp_path, __init__="", low=text, high="from . import low", other=""))
    assert {(i.importer, i.imported) for i in found} == {("low", "other"), ("high", "low")}
    assert find_cycles(list_imports(tmp_path / "made", typing=True)) == [["high", "low"]]


def test_a_package_of_the_same_layer_is_not_lower(tmp_path: Path) -> None:
    found = list_imports(_package(tmp_path, __init__="", one="from . import two", two=""))
    assert list_upward_imports(found, ("one  two", "__init__")) == ["one:1: imports two, which is not in a lower layer"]


def test_a_module_in_no_layer_is_reported(tmp_path: Path) -> None:
    found = list_imports(_package(tmp_path, __init__="", one="from . import two", two=""))
    assert list_upward_imports(found, ("one", "__init__")) == ["one:1: two is not in LAYERS"]


def test_relative_imports_are_resolved(tmp_path: Path) -> None:
    made = _package(tmp_path, __init__="", p__in____init__="from .a import x", p__in__a="from .. import q", q="")
    assert set(list_imports(made)) == {Import("p", "p.a", 1, True), Import("p.a", "q", 1, True)}
    assert list_upward_imports(list_imports(made), ("p", "q", "__init__")) == [
        "p.a:1: imports q, which is not in a lower layer"
    ]


@pytest.mark.parametrize("text", ["import made.a", "def f():\n    from . import a", "NAME = 'made.a:x'"])
def test_a_cycle_is_detected(text: str, tmp_path: Path) -> None:
    made = _package(tmp_path, __init__="", a="from .b import x", b="from . import c", c=text, d="from . import a")
    assert find_cycles(list_imports(made)) == [["a", "b", "c"]]


def test_a_chain_is_not_a_cycle(tmp_path: Path) -> None:
    made = _package(tmp_path, __init__="", a="from .b import x\nfrom . import c", b="from . import c", c="x = 1")
    assert find_cycles(list_imports(made)) == []


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
def test_a_string_that_names_a_module_is_an_import(text: str, tmp_path: Path) -> None:
    found = list_imports(_package(tmp_path, __init__="", low=text, high="x = 1"))
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
def test_other_strings_are_not_imports(text: str, tmp_path: Path) -> None:
    assert list_imports(_package(tmp_path, __init__="", low=text, high="x = 1")) == []


def test_a_lazy_table_of_a_package_imports_its_modules(tmp_path: Path) -> None:
    lazy = "import importlib\nHOME = {'x': 'a'}\ndef __getattr__(n):\n    return importlib.import_module(HOME[n])"
    made = _package(tmp_path, __init__="", p__in____init__=lazy, p__in__a="OWN = 'made.p'")
    assert [(i.importer, i.imported) for i in list_imports(made)] == [
        ("p", "p.a")
    ]  # packages are imported before their modules


def test_a_long_file_is_detected(tmp_path: Path) -> None:
    made = _package(tmp_path, short="x = 1\n" * LONGEST, long="x = 1\n" * (LONGEST + 1))
    assert list_long_files(made) == [f"{made / 'long.py'}: {LONGEST + 1} lines"]


def test_toplevel_modules_are_listed(tmp_path: Path) -> None:
    made = _package(tmp_path, __init__="", __main__="", a="", p__in____init__="", p__in__b="")
    assert list_toplevel_modules(made) == ["a"]


def test_a_nearly_empty_subpackage_is_detected(tmp_path: Path) -> None:
    files = {
        "__init__": "",
        "p__in____init__": "",
        "p__in__a": "",
        "q__in____init__": "",
        "q__in__a": "",
        "q__in__b": "",
    }
    assert list_small_packages(_package(tmp_path, **files)) == ["p"]


def test_a_misplaced_test_is_detected(tmp_path: Path) -> None:
    made = _package(tmp_path / "of", __init__="", a="", p__in____init__="", p__in__b="")
    names = ("a", "a_long", "nothing", "p/b", "p/b_long", "p/p", "p/a", "q/b")
    for name in names:
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f"test_{path.name}.py").touch()
    assert list_misplaced_tests(tmp_path / "tests", made) == ["p/test_a.py", "q/test_b.py", "test_nothing.py"]


@pytest.mark.parametrize(
    ("docstring", "unknown"),
    [
        ("Cut. size: of a slice.", []),
        ("Cut. width: of a slice.", ["a.cut: width"]),
        ("Cut.\n\n    size, width: of a slice. step: of all.\n    ", ["a.cut: width", "a.cut: step"]),
        ("Cut into two: halves. Raises: nothing.", []),
    ],
)
def test_arguments_that_do_not_exist_are_reported(docstring: str, unknown: list[str]) -> None:
    tree = ast.parse(f'def cut(size):\n    """{docstring}"""')
    assert docstring_names.list_unknown_arguments({"a": tree}) == unknown


def test_fields_and_methods_are_arguments_of_a_class() -> None:
    tree = ast.parse('class A:\n    """A value. x: its size. scale: a factor. area: of x. y: missing."""\n'
                     "    x: int\n    def area(self, scale): ...")  # fmt: skip
    assert docstring_names.list_unknown_arguments({"a": tree}) == ["a.A: y"]


def test_references_to_names_that_do_not_exist_are_reported() -> None:
    trees = {"a.b": ast.parse('"""See `cut`, `b.cut`, ``any``, `ea.load` and `gone`."""\ndef cut(): load()')}
    assert docstring_names.list_unknown_references(trees) == ["a.b: gone"]
