"""Compact files: pages without optional end tags, and data as scripts that store each text once."""

from __future__ import annotations

import json
import re
from typing import Any

from ...results.sanitize import sanitize_line

OPTIONAL_END_TAG = re.compile("</(?:td|th|tr|thead|tbody|li)>")  # optional in HTML


def drop_end_tags(html: str) -> str:
    """Remove the optional end tags of table parts and list items."""
    return OPTIONAL_END_TAG.sub("", html)


class TextTable(dict[str, int]):
    """Texts of a script, each stored once: its position by text."""

    def encode(self, value: Any) -> Any:
        """The value with positions in place of its texts, also in lists and tuples, and with rounded numbers.

        Characters that are not allowed in a page are removed from the texts.
        """
        if isinstance(value, str):
            return self.setdefault(sanitize_line(value), len(self))
        if isinstance(value, (list, tuple)):
            return [self.encode(item) for item in value]
        return float(f"{value:.5g}") if isinstance(value, float) else value


def format_call(function: str, *arguments: Any) -> str:
    """A script that calls a function: ``addBlock(0,["full"],[[0,8192]]);``."""
    return f"{function}({json.dumps(arguments, separators=(',', ':'))[1:-1]});\n"
