"""The page of the Python API: the public names, documented by mkdocstrings."""

from __future__ import annotations

import importlib
import inspect

import efficient_attn as ea

GROUPS = {
    "Create and call": ("create", "attention", "names", "info", "Mask", "Dims", "Shape"),
    "Decode": (
        "state_bytes",
        "longest_context",
        "KVCache",
        "RollingCache",
        "LatentCache",
        "RowStarts",
        "select_state_rows",
    ),
    "Layers": ("MultiHeadAttention", "mean_pool_kv", "train_selections", "collect_auxiliary_losses"),
    "Trained models": ("swap",),
    "Run and read": ("run", "Run", "load"),
    "Write a mechanism": (
        *(
            "register",
            "register_backend",
            "load_plugin",
            "Attention",
            "SparseAttention",
            "LinearAttention",
            "SoftmaxAttention",
            "ScoredAttention",
            "RecurrentAttention",
            "Recurrence",
            "BlockAttention",
        ),
        *("FeatureMap", "Traits", "Growth", "Input", "Budget", "KernelFunction", "differentiate_once"),
    ),
    "Errors": ("UnsupportedError", "UsageError"),
}
MODULES = ("patterns", "feature_maps", "testing", "tasks", "layers.positions", "layers.baselines", "models.config")
INTRODUCTION = """# Python API

All names of `import efficient_attn as ea`, and those of public modules.
[Public API](public-api.md) lists the modules and what is guaranteed;
[masks](masks.md), [decoding](decoding.md) and [the multi-head layer](layers.md) have examples.
"""


def render_page() -> str:
    """A heading and a directive of mkdocstrings for each name; raises `ValueError` for a public name in no group."""
    listed = [name for names in GROUPS.values() for name in names]
    public = [name for name in ea.__all__ if name != "__version__" and not inspect.ismodule(getattr(ea, name))]
    if sorted(listed) != sorted(public):
        raise ValueError(f"python_api.py: GROUPS and efficient_attn.__all__ differ in {set(listed) ^ set(public)}")
    parts = [INTRODUCTION]
    for title, names in GROUPS.items():
        parts += [f"## {title}\n", *(_direct(getattr(ea, name), f"ea.{name}") for name in names)]
    for name in MODULES:
        module = importlib.import_module(f"efficient_attn.{name}")
        parts += [
            f"## `efficient_attn.{name}`\n",
            f"{_first_paragraph(module.__doc__ or '')}\n",
            *_list_members(module),
        ]
    return "\n".join(parts)


def _direct(value: object, label: str) -> str:
    """The directive of a function or class; methods that its base classes document are left out."""
    target = f"{value.__module__}.{value.__qualname__}"  # type: ignore[attr-defined]
    return f"::: {target}\n    options:\n      heading: {label}\n      toc_label: {label}\n"


def _list_members(module: object) -> list[str]:
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__  # type: ignore[attr-defined]
    ]
    values = {name: getattr(module, name) for name in names}
    return [
        _direct(value, name) for name, value in values.items() if inspect.isclass(value) or inspect.isfunction(value)
    ]


def _first_paragraph(doc: str) -> str:
    return " ".join(doc.partition("\n\n")[0].split()).replace("``", "`")
