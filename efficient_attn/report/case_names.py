"""Names of cases that are short enough for a table: what all of them share is left out, and told once."""

from __future__ import annotations

from collections.abc import Sequence

PARTS = 6  # of a case's name: suite, part, what is measured, variant, sizes, how
VARIANT = 3
FIELDS = (4, 5)  # the parts that hold several axes


def shorten(names: Sequence[str]) -> tuple[dict[str, str], str]:
    """A short name for each, and what was left out of all: ``linear/n512``, and ``tiny, forward, b1, float32``.

    The variant and the length always stay. Names of another form than ours, as other tools write them, stay whole.
    """
    split = {name: _split(name) for name in names}
    if not split or any(len(parts) != PARTS for parts in split.values()):
        return {name: name for name in names}, ""
    first = next(iter(split.values()))
    shared = [
        [field for field in first[at] if _may_go(at, field) and all(field in parts[at] for parts in split.values())]
        for at in range(PARTS)
    ]
    short = {name: _join(parts, shared) for name, parts in split.items()}
    if len(set(short.values())) < len(short):
        return {name: name for name in names}, ""
    return short, ", ".join(dict.fromkeys(field for fields in shared for field in fields))


def _split(name: str) -> list[list[str]]:
    """The parts of a name, each as its fields: all but sizes and how have one."""
    parts = name.split("/")
    return [part.split("-") if at in FIELDS else [part] for at, part in enumerate(parts)]


def _may_go(at: int, field: str) -> bool:
    return at != VARIANT and not (at == FIELDS[0] and field.startswith("n"))


def _join(parts: Sequence[Sequence[str]], shared: Sequence[Sequence[str]]) -> str:
    kept = ("-".join(f for f in fields if f not in gone) for fields, gone in zip(parts, shared, strict=True))
    return "/".join(filter(None, kept))
