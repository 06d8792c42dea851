"""Names in docstrings that nothing has: what a renaming leaves behind, and no other tool reports."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

# ``size, step: in positions. count: of slices`` at the start of a paragraph or after a sentence
DESCRIBED = re.compile(r"(?:^|\n\n|[.;]\s)\s*([a-z_]\w*(?:, [a-z_]\w*)*): ")
REFERENCE = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)`(?!`)")
SECTIONS = {"raises", "shapes"}

Documented = ast.Module | ast.ClassDef | ast.FunctionDef


def list_unknown_arguments(trees: dict[str, ast.Module]) -> list[str]:
    """Arguments and fields that a docstring describes and its function or class does not have."""
    return [
        f"{module}.{node.name}: {name}"
        for module, node, docstring in _list_docstrings(trees)
        if not isinstance(node, ast.Module)
        for names in DESCRIBED.findall(docstring)
        for name in names.split(", ")
        if name not in SECTIONS | set(_list_members(node))
    ]


def list_unknown_references(trees: dict[str, ast.Module]) -> list[str]:
    """References in single backticks to names that occur nowhere in the code."""
    names = {"ea"} | {part for module in trees for part in module.split(".")}
    names.update(name for tree in trees.values() for name in _list_names(tree))
    return [
        f"{module}: {reference}"
        for module, _, docstring in _list_docstrings(trees)
        for reference in REFERENCE.findall(docstring)
        if not set(reference.split(".")) <= names
    ]


def _list_docstrings(trees: dict[str, ast.Module]) -> Iterator[tuple[str, Documented, str]]:
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, Documented) and (docstring := ast.get_docstring(node)):
                yield module, node, docstring


def _list_members(node: ast.ClassDef | ast.FunctionDef) -> Iterable[str]:
    """The arguments of a function; the fields, methods and their arguments of a class."""
    for inner in ast.walk(node) if isinstance(node, ast.ClassDef) else ast.walk(node.args):
        if isinstance(inner, ast.arg):
            yield inner.arg
        elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
            yield inner.target.id
        elif isinstance(inner, ast.FunctionDef):
            yield inner.name
        elif isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            yield inner.attr


def _list_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
                yield from name.split(".")
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.keyword(arg=str(name)) | ast.Constant(value=str(name)) if name.isidentifier():
                yield name
