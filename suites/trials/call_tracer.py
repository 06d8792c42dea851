"""The files that a reader opens to follow a call, found in the sources of a package without executing it.

The rule: start with some functions or classes. Continue with everything that their code calls, the bases of a class,
everything named in tables that they read, and every method that is called by name, in each class (or module in a table)
reached so far that has it. Skip branches of an ``if`` that end in return or raise, and exceptions that are raised. The
result is the files of all definitions reached. Used by structure.py and by the structure test.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from imports import Module, list_modules

Definition = tuple[str, str]  # a module, and the name of a function, class or constant at its top
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
IMPLICIT_METHODS = ("__init__", "__post_init__", "__call__", "__enter__", "__exit__")  # called without being named


class CallTracer:
    """Traces calls through the sources of one package."""

    def __init__(self, folder: Path) -> None:
        paths = list_modules(folder)
        self.trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in paths.items()}
        self.defined = {name: dict(_definitions(tree)) for name, tree in self.trees.items()}
        self.bound = {name: dict(self._bindings(Module(name, paths[name], folder.name, paths))) for name in paths}

    def find(self, names: str) -> Definition:
        """The top-level function or class of a name, in any module; ``new|old`` if its name has changed.

        Raises ValueError if there is none or more than one.
        """
        kinds, accepted = (*FUNCTIONS, ast.ClassDef), names.split("|")
        definitions = [
            (m, n) for m, by_name in self.defined.items() for n in accepted if isinstance(by_name.get(n), kinds)
        ]
        if len(definitions) != 1:
            raise ValueError(
                f"{names} is defined {len(definitions)} times: {', '.join(m for m, _ in definitions) or 'nowhere'}"
            )
        return definitions[0]

    def follow(self, starts: list[Definition], methods: set[str]) -> list[str]:
        """The modules reached from some definitions, if methods of these names are called on them."""
        reached, called = set(starts), {*methods, *IMPLICIT_METHODS}
        size = 0
        while size < len(reached) + len(called):
            size = len(reached) + len(called)
            for module, name in sorted(reached):
                for part in _list_code(self.defined[module][name], called):
                    reached.update(self._list_called(part, module, called))
        return sorted({module for module, _ in reached})

    def _list_called(self, code: ast.AST, module: str, called: set[str]) -> Iterator[Definition]:
        """The definitions that code calls and the tables that it reads; of a table or bases, all definitions named."""
        nodes = list(_list_main_line(code))
        functions = [node.func for node in nodes if isinstance(node, ast.Call)]
        called.update(function.attr for function in functions if isinstance(function, ast.Attribute))
        for node in nodes:
            if isinstance(node, ast.Name | ast.Attribute):
                definitions = list(self._resolve(module, ast.unparse(node).split("."), called))
                tables = [
                    (owner, name) for owner, name in definitions if isinstance(self.defined[owner][name], ast.expr)
                ]
                yield from definitions if node in functions or isinstance(code, ast.expr) else tables

    def _resolve(self, module: str, parts: list[str], called: set[str]) -> Iterator[Definition]:
        """The definition that a name like ``dense.wide`` refers to in a module; of a module, the functions called."""
        if parts[0] in self.defined[module]:
            yield module, parts[0]
        elif bound := self.bound[module].get(parts[0]):
            owner, name = bound
            rest = [*([name] if name else []), *parts[1:]]
            while rest and f"{owner}.{rest[0]}" in self.trees:
                owner, *rest = f"{owner}.{rest[0]}", *rest[1:]
            if rest and owner != module:
                yield from self._resolve(owner, rest, called)
            elif not rest:
                yield from ((owner, function) for function in self.defined[owner] if function in called)

    def _bindings(self, module: Module) -> Iterator[tuple[str, Definition]]:
        """What the names that a module imports from its package refer to: a module, or a name in one."""
        for node in ast.walk(self.trees[module.name]):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = ".".join(module.resolve_relative(node.level, node.module or ""))
                for alias in node.names:
                    inner = f"{base}.{alias.name}".lstrip(".")
                    target = (inner, "") if inner in module.modules else (base or "__init__", alias.name)
                    yield alias.asname or alias.name, target


def _definitions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    for node in tree.body:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield node.name, node
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((ast.unparse(target), node.value) for target in targets)


def _list_code(node: ast.AST, called: set[str]) -> Iterator[ast.AST]:
    """The parts of a definition that run: of a class its bases, fields and called methods."""
    if not isinstance(node, ast.ClassDef):
        yield node
        return
    yield from (*node.bases, *node.decorator_list)
    yield from (part for part in node.body if not isinstance(part, FUNCTIONS) or part.name in called)


def _list_main_line(node: ast.AST) -> Iterator[ast.AST]:
    """Every node of code except annotations, raised exceptions, and branches that end in return or raise."""
    if isinstance(node, ast.Raise):
        return
    yield node
    if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return | ast.Raise):
        children = [node.test, *node.orelse]
    elif isinstance(node, FUNCTIONS):
        children = [*node.decorator_list, *node.body]
    elif isinstance(node, ast.AnnAssign):
        children = [node.value] if node.value else []
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from _list_main_line(child)
