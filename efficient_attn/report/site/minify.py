"""Shrink pages without changing how they look."""

from __future__ import annotations

import re

OPTIONAL_END_TAG = re.compile("</(?:td|th|tr|thead|tbody|li)>")  # optional in HTML


def drop_end_tags(html: str) -> str:
    """Remove the optional end tags of table parts and list items."""
    return OPTIONAL_END_TAG.sub("", html)
