"""How large are the package's files and functions, which names are shared or vague, and what are its import cycles?

    python suites/trials/structure.py [CHECKOUT]

prints figures for CHECKOUT, by default this one, so that two commits can be compared. Its sources are parsed, not
executed. Imports in functions, type-checking imports and strings that name modules count (imports.py). call_tracer.py
defines which files a reader opens to follow a call.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from call_tracer import CallTracer
from imports import find_cycles, find_package, list_imports, list_modules

PACKAGE = "efficient_attn"
ENTRY_POINTS = ("__init__", "__main__")
MOST_ARGUMENTS = 7

# names that do not describe their value
VAGUE = ("found", "said", "told", "own", "known", "taken", "kept", "seen", "shown", "given", "mine", "what", "one")

# the definitions where a reader starts, and the methods called there; ``new|old`` if a name has changed
CALL_PATHS = {
    "one sliding_window call": (("create", "SlidingWindow"), {"forward", "compute"}),
    "one timing": (("ProcessRuns|Sittings", "MeasureRounds|Sit"), {"run"}),
    "rows to a page": (("write_report",), set[str]()),
}


def main() -> None:
    checkout = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2]
    folder = checkout / PACKAGE
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in list_modules(folder).items()}
    print_sizes(folder)
    print_names(folder, trees)
    print_structure(folder)


def print_sizes(folder: Path) -> None:
    counts = count_lines(folder)
    print(f"lines: {sum(counts['file'])} in {len(counts['file'])} files")
    for unit, values in counts.items():
        print(f"lines per {unit}: median {statistics.median(values):g}, p95 {p95(values):g}, longest {max(values)}")


def print_names(folder: Path, trees: dict[str, ast.Module]) -> None:
    paths: dict[str, list[str]] = defaultdict(list)
    for name, path in list_modules(folder).items():
        if path.name != "__init__.py" and path.stem not in ENTRY_POINTS:
            paths[path.stem].append(name)
    classes: dict[str, list[str]] = defaultdict(list)
    for name, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(name)
    for unit, names in (("modules", paths), ("classes", classes)):
        shared = {name: owners for name, owners in names.items() if len(owners) > 1}
        print(f"{unit} that share a name: {sum(map(len, shared.values()))} under {len(shared)} names")
        print(f"    {', '.join(sorted(shared))}")
    bound_names = [name for tree in trees.values() for name in list_bindings(tree)]
    counts = {name: bound_names.count(name) for name in VAGUE}
    print(f"vague bindings: {sum(counts.values())}\n    {', '.join(f'{n} {c}' for n, c in counts.items())}")
    many = [
        f"{m}.{f}" for m, tree in trees.items() for f, count in list_positional_counts(tree) if count > MOST_ARGUMENTS
    ]
    print(f"functions of more than {MOST_ARGUMENTS} positional arguments: {len(many)}\n    {', '.join(many)}")


def print_structure(folder: Path) -> None:
    loose = [n for n, path in list_modules(folder).items() if path.parent == folder and n not in ENTRY_POINTS]
    print(f"modules in no subpackage: {len(loose)}\n    {', '.join(loose)}")
    for label, edges in (
        ("", list_imports(folder)),
        (", including type-checking imports", list_imports(folder, typing=True)),
    ):
        cycles = find_cycles(edges)
        print(f"import cycles{label}: {len(cycles)}")
        for cycle in cycles:
            print(f"    {len(cycle)} files: {', '.join(cycle)}")
    pairs = {(find_package(edge.importer), find_package(edge.imported)) for edge in list_imports(folder)}
    print(f"edges between top-level packages: {sum(a != b for a, b in pairs)}")
    tracer = CallTracer(folder)
    for path, (starts, methods) in CALL_PATHS.items():
        files = tracer.follow([tracer.find(name) for name in starts], methods)
        print(f"files to open for {path}: {len(files)}\n    {', '.join(files)}")


def count_lines(folder: Path) -> dict[str, list[int]]:
    """The lines of every file and function, including docstrings and blank lines."""
    texts = [path.read_text(encoding="utf-8") for path in list_modules(folder).values()]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {
        "file": [len(text.splitlines()) for text in texts],
        "function": [(f.end_lineno or f.lineno) - f.lineno + 1 for f in functions],
    }


def list_bindings(tree: ast.Module) -> Iterator[str]:
    """The names of all assignments and arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def list_positional_counts(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The functions with their numbers of positional arguments, except ``self``, ``cls`` and ``ctx``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
            yield node.name, len([name for name in names if name not in ("self", "cls", "ctx")])


def p95(counts: list[int]) -> float:
    return statistics.quantiles(counts, n=20, method="inclusive")[-1]


if __name__ == "__main__":
    main()
