"""Short names of cases for tables: fields that all cases share are removed and reported once."""

import re
from collections.abc import Sequence
from itertools import groupby

PART_COUNT = 6  # suite, part, task, variant, sizes, options
VARIANT_INDEX, SIZES_INDEX = 3, 4


def shorten_names(names: Sequence[str]) -> tuple[dict[str, str], str]:
    """Return a short name for each, and the removed fields: ``linear/n512``, and ``tiny, forward, b1, float32``.

    The variant and the length are never removed. Names of another form, written by other tools, are not shortened.
    """
    unchanged = {name: name for name in names}, ""
    if not names or any(name.count("/") != PART_COUNT - 1 for name in names):
        return unchanged
    fields_by_name = {name: _list_fields(name) for name in names}
    shared = set.intersection(*map(set, fields_by_name.values()))
    removed = [
        (index, field)
        for index, field in fields_by_name[names[0]]
        if (index, field) in shared and index != VARIANT_INDEX and not (index == SIZES_INDEX and field[:1] == "n")
    ]
    short = {}
    for name, fields in fields_by_name.items():
        parts = groupby((pair for pair in fields if pair not in removed), key=lambda pair: pair[0])
        short[name] = "/".join("-".join(field for _, field in pairs) for _, pairs in parts)
    if len(set(short.values())) < len(short):
        return unchanged
    return short, ", ".join(dict.fromkeys(field for _, field in removed))


def find_mechanism(name: str) -> tuple[str, str]:
    """The part and the mechanism of a case, the first one of a union, without options; a name of another tool twice."""
    parts = name.split("/")
    return (parts[1], re.split("[:|]", parts[VARIANT_INDEX])[0]) if len(parts) == PART_COUNT else (name, name)


def _list_fields(name: str) -> list[tuple[int, str]]:
    """The fields of a name with the index of their part; only sizes and options have several."""
    parts = enumerate(name.split("/"))
    return [(index, field) for index, part in parts for field in (part.split("-") if index >= SIZES_INDEX else [part])]
