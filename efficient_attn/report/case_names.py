"""Short names of cases for tables: fields that all cases share are removed and reported once."""

import re
from collections.abc import Sequence

PART_COUNT = 6  # suite, part, task, variant, sizes, options
VARIANT_INDEX = 3
MULTI_FIELD_INDICES = (4, 5)  # parts with several fields


def shorten_names(names: Sequence[str]) -> tuple[dict[str, str], str]:
    """Return a short name for each, and the removed fields: ``linear/n512``, and ``tiny, forward, b1, float32``.

    The variant and the length are never removed. Names of another form, written by other tools, are not shortened.
    """
    parts_by_name = {name: _split_name(name) for name in names}
    if not names or any(len(parts) != PART_COUNT for parts in parts_by_name.values()):
        return {name: name for name in names}, ""
    shared = [
        [field for field in column[0] if _is_removable(index, field) and all(field in fields for fields in column)]
        for index, column in enumerate(zip(*parts_by_name.values(), strict=True))
    ]
    short = {name: _join_name(parts, shared) for name, parts in parts_by_name.items()}
    if len(set(short.values())) < len(short):
        return {name: name for name in names}, ""
    return short, ", ".join(dict.fromkeys(field for fields in shared for field in fields))


def find_mechanism(name: str) -> tuple[str, str]:
    """The part and the mechanism of a case, the first one of a union, without options; a name of another tool twice."""
    parts = name.split("/")
    return (parts[1], re.split("[:|]", parts[VARIANT_INDEX])[0]) if len(parts) == PART_COUNT else (name, name)


def _split_name(name: str) -> list[list[str]]:
    """The parts of a name as lists of fields; only sizes and options have several."""
    parts = name.split("/")
    return [part.split("-") if index in MULTI_FIELD_INDICES else [part] for index, part in enumerate(parts)]


def _is_removable(index: int, field: str) -> bool:
    return index != VARIANT_INDEX and not (index == MULTI_FIELD_INDICES[0] and field.startswith("n"))


def _join_name(parts: Sequence[Sequence[str]], shared: Sequence[Sequence[str]]) -> str:
    remaining = ("-".join(f for f in fields if f not in removed) for fields, removed in zip(parts, shared, strict=True))
    return "/".join(filter(None, remaining))
