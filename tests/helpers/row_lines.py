"""Lines of rows with any contents and a correct checksum."""

from __future__ import annotations

import json
import zlib
from typing import Any

from efficient_attn.results.rows import COLUMNS, Row


def line(body: object) -> str:
    """A line with a correct checksum."""
    text = json.dumps(body)
    return f'{text[:-1]},"crc":{zlib.crc32(text.encode())}}}\n'


def body(**changed: object) -> dict[str, Any]:
    """The contents of an empty row, of which some values are changed."""
    return {name: getattr(Row(), name) for name in COLUMNS} | {"samples": {}} | changed
