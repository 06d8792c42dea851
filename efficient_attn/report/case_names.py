"""Short names of cases for tables: fields that all cases share are removed and reported once."""

import re
from collections.abc import Sequence

PART_COUNT = 6  # suite, part, task, variant, sizes, options
VARIANT_INDEX, SIZES_INDEX = 3, 4


def shorten_names(names: Sequence[str]) -> tuple[dict[str, str], str]:
    """Return a short name for each, and the removed fields: ``linear/n512``, and ``tiny, forward, b1, float32``.

    The variant and the length are never removed. Names of another form, written by other tools, are not shortened.
    """
    unchanged = {name: name for name in names}, ""
    if not names or any(name.count("/") != PART_COUNT - 1 for name in names):
        return unchanged
    parts_by_name = {name: name.split("/") for name in names}
    short_parts: list[dict[str, str | None]] = []  # by index; None: all fields of the part are removed
    removed: dict[str, None] = {}  # in order
    for index, parts in enumerate(map(dict.fromkeys, zip(*parts_by_name.values(), strict=True))):  # few names differ
        fields_by_part = {part: part.split("-") if index >= SIZES_INDEX else [part] for part in parts}
        shared = set.intersection(*map(set, fields_by_part.values())) if index != VARIANT_INDEX else set[str]()
        shared -= {field for field in shared if index == SIZES_INDEX and field[:1] == "n"}
        removed |= dict.fromkeys(field for field in next(iter(fields_by_part.values())) if field in shared)
        distinct = {part: [field for field in fields if field not in shared] for part, fields in fields_by_part.items()}
        short_parts.append({part: "-".join(fields) if fields else None for part, fields in distinct.items()})
    short = {}
    for name, parts in parts_by_name.items():
        shortened = (by_part[part] for by_part, part in zip(short_parts, parts, strict=True))
        short[name] = "/".join(part for part in shortened if part is not None)
    if len(set(short.values())) < len(short):
        return unchanged
    return short, ", ".join(removed)


def find_mechanism(name: str) -> tuple[str, str]:
    """The part and the mechanism of a case, the first one of a union, without options; a name of another tool twice."""
    parts = name.split("/")
    return (parts[1], re.split("[:|]", parts[VARIANT_INDEX])[0]) if len(parts) == PART_COUNT else (name, name)
