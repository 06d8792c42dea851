"""How the package is laid out, in figures: python suites/trials/structure.py [FOLDER]

FOLDER is a checkout, this one unless given. Its sources are read for imports and lines; nothing of it is executed.
Every import counts, inside functions too, and texts that name modules (imports.py); which files one opens to follow a
call is found by the rule of following.py.
"""

from __future__ import annotations

import ast
import statistics
import sys
from pathlib import Path

from following import Follower
from imports import circles, imports, modules, room

PACKAGE = "efficient_attn"
ENDS = ("__init__", "__main__")

# a way through the package: where it begins, and the methods that are called there
WAYS = {
    "one sliding_window call": (("create", "SlidingWindow"), {"forward", "compute"}),
    "one timing": (("Sittings", "Sit"), {"run"}),
    "rows to a page": (("write_report",), set[str]()),
}


def main() -> None:
    checkout = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2]
    folder = checkout / PACKAGE
    loose = [name for name, path in modules(folder).items() if path.parent == folder and name not in ENDS]
    found = imports(folder)
    rooms = {(room(one.importer), room(one.imported)) for one in found}
    edges = {(a, b) for a, b in rooms if a != b}
    print(f"loose modules: {len(loose)}\n    {', '.join(loose)}")
    print(f"cycles: {len(circles(found))}")
    for circle in circles(found):
        print(f"    {len(circle)} files: {', '.join(circle)}")
    print(f"edges between top rooms: {len(edges)}")
    for what, counts in lines(folder).items():
        print(f"lines of a {what}: median {statistics.median(counts):g}, p95 {p95(counts):g}, longest {max(counts)}")
    follower = Follower(folder)
    for way, (starts, methods) in WAYS.items():
        files = follower.follow([follower.find(name) for name in starts], methods)
        print(f"files to open for {way}: {len(files)}\n    {', '.join(files)}")


def lines(folder: Path) -> dict[str, list[int]]:
    """The lines of every file and of every function, docstrings and blank lines counted."""
    texts = [path.read_text(encoding="utf-8") for path in modules(folder).values()]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {
        "file": [len(text.splitlines()) for text in texts],
        "function": [(f.end_lineno or f.lineno) - f.lineno + 1 for f in functions],
    }


def p95(counts: list[int]) -> float:
    return statistics.quantiles(counts, n=20, method="inclusive")[-1]


if __name__ == "__main__":
    main()
