"""The structure of the package: layers of imports, no cycles, lengths of files, locations of tests, light imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import docstring_names
import pytest
from call_tracer import CallTracer
from imports import Import, find_cycles, find_package, list_imports, list_modules
from layout import (
    ENDS,
    list_long_files,
    list_misplaced_tests,
    list_small_packages,
    list_toplevel_modules,
    list_upward_imports,
)
from structure import CALL_PATHS, VAGUE, list_bindings

CHECKOUT = Path(__file__).parents[2]
PACKAGE = CHECKOUT / "efficient_attn"  # the sources: what is installed holds the suites' files too
LONGEST_TEST = 320  # lines
MOST_VAGUE = 3  # assignments of names such as `found` and `said`
MOST_TOPLEVEL = 7  # modules in no subpackage

# From low to high. A module imports its own package and those on lower lines, never another one on the same line or a
# higher one. results and report do not import torch.
LAYERS = (
    "errors",
    "spec  units  resources  garbage  shared_caches",
    "instruments  results",
    "contract  patterns  feature_maps",
    "kernels",
    "variants",
    "registry",
    "distributed",
    "layers",
    "models",
    "engines  testing  peers  integrations",
    "bench",
    "tasks  report",
    "cli",
    "__main__  __init__",
)

# Subpackages with a single module besides their `__init__`, and the reason.
SMALL_PACKAGES = {
    "variants/hashed": "every family has a folder, and Reformer is the only hashed mechanism",
}

# Tests that are not named after a module, and their subject.
NAMED_OTHERWISE = {
    "bench/test_shipped_suites.py": "the suites of suites/",
    "contract/test_workspace.py": "workspace of all mechanisms in the catalogue",
    "layers/test_from_torch.py": "weights of torch's own layer",
    "report/answers/test_twenty_questions.py": "answers of `recommend`, with their quality and cost",
    "variants/test_formulas.py": "the formulas of all engines",
    "registry/test_readme_plugins.py": "README's own plug-ins",
    "report/test_large.py": "the report as a whole",
    "test_conformance_page.py": "docs/reference/conformance.md, and the trial that writes it",
    "test_torch_features.py": "docs/reference/torch-features.md, and the trial that writes it",
    "test_figures.py": "the tables and the picture of README and measured-results.md",
    "test_compare_cases.py": "the trial that writes the table of compare-runs.md",
    "test_packaging.py": "what is installed",
    "test_sampling.py": "the sample of tests in a run",
    "test_structure.py": "all of the package",
    "test_structure_checks.py": "the checks of test_structure.py",
}


# -- the package ---------------------------------------------------------------------------------------------------


def test_the_call_paths_of_the_trial_exist() -> None:
    tracer = CallTracer(PACKAGE)
    for starts, methods in CALL_PATHS.values():
        assert len(tracer.follow([tracer.find(name) for name in starts], methods)) > 9


@pytest.fixture(scope="module")
def found() -> list[Import]:
    """All imports of the package, those for type checkers excluded."""
    return list_imports(PACKAGE)


def test_imports_go_down_only(found: list[Import]) -> None:
    assert len(found) > 60  # imports are detected at all
    assert list_upward_imports(found, LAYERS) == []


def test_every_module_is_in_a_layer() -> None:
    layers = {name for line in LAYERS for name in line.split()}
    assert sorted({find_package(m) for m in list_modules(PACKAGE)} - layers) == []
    assert sorted(layers - {find_package(m) for m in list_modules(PACKAGE)}) == []


def test_no_import_cycles_including_type_checking_imports(found: list[Import]) -> None:
    assert find_cycles(found) == []
    assert find_cycles(list_imports(PACKAGE, typing=True)) == []


# Names that several modules or classes share, and why.
SHARED_MODULES = {
    "linear": "the mechanism, and other libraries' implementations of it",
    "retrieval": "the task, and its section of the report",
    "speed": "the task, and its section of the report",
    "swap": "the task, and its section of the report",
}
SHARED_CLASSES = {"Keys": "public: a fact of patterns, and the base class of a task's keys"}


def test_modules_and_classes_have_distinct_names() -> None:
    """Except for the listed names."""
    files = [path for path in list_modules(PACKAGE).values() if path.stem not in ENDS]
    stems = Counter(path.stem for path in files)
    assert {name for name, count in stems.items() if count > 1} == SHARED_MODULES.keys()
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in list_modules(PACKAGE).values()]
    classes = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert {name for name, count in classes.items() if count > 1} == SHARED_CLASSES.keys()


def test_docstrings_name_what_exists() -> None:
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in list_modules(PACKAGE).items()}
    assert docstring_names.list_unknown_arguments(trees) == []
    assert docstring_names.list_unknown_references(trees) == []


def test_few_bindings_have_vague_names() -> None:
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in list_modules(PACKAGE).items()}
    vague = [f"{name}: {bound}" for name, tree in trees.items() for bound in list_bindings(tree) if bound in VAGUE]
    assert len(vague) <= MOST_VAGUE, vague


def test_no_file_is_too_long() -> None:
    assert (
        list_long_files(PACKAGE)
        + list_long_files(CHECKOUT / "suites")
        + list_long_files(CHECKOUT / "docs")
        + list_long_files(CHECKOUT / "tests", LONGEST_TEST)
        == []
    )


def test_few_modules_are_in_no_subpackage() -> None:
    assert len(list_toplevel_modules(PACKAGE)) <= MOST_TOPLEVEL, list_toplevel_modules(PACKAGE)


def test_no_subpackage_is_nearly_empty() -> None:
    assert list_small_packages(PACKAGE) == sorted(SMALL_PACKAGES)


def test_tests_are_in_the_folders_of_their_modules() -> None:
    misplaced = list_misplaced_tests(CHECKOUT / "tests" / "unit", PACKAGE)
    assert misplaced == sorted(NAMED_OTHERWISE)


HEAVY = ("torch", "pandas", "matplotlib", "scipy")
LIGHT = ("efficient_attn", "efficient_attn.cli", "efficient_attn.cli.console", "efficient_attn.registry")
LIGHT += ("efficient_attn.results", "efficient_attn.report", "efficient_attn.results.store")
LIGHT += (
    "efficient_attn.tasks",
    "efficient_attn.tasks.speed",
    "efficient_attn.bench.planning.suite",
    "efficient_attn.bench.measuring.conditions",
    "efficient_attn.units",
)


def _imported_by(module: str, heavy: tuple[str, ...]) -> list[str]:
    code = f"import sys, {module}; print(*(m for m in {heavy!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_import_nothing_heavy(module: str) -> None:
    assert _imported_by(module, HEAVY) == []


def test_results_and_report_do_not_import_torch() -> None:
    names = [f"efficient_attn.{m}" for m in list_modules(PACKAGE) if find_package(m) in ("results", "report")]
    assert "efficient_attn.report.write" in names
    assert _imported_by(", ".join(names), ("torch", "pandas", "matplotlib")) == ["pandas", "matplotlib"]
