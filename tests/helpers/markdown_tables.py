"""Tables of generated pages."""

from __future__ import annotations


def parse_table(text: str) -> dict[str, dict[str, str]]:
    """The cells of a table, by spec and column."""
    cells = [[c.strip(" `") for c in line.strip("|").split(" | ")] for line in text.splitlines() if line[:1] == "|"]
    head, _, *body = cells
    return {spec.replace("\\|", "|"): dict(zip(head[1:], row, strict=True)) for spec, *row in body}
