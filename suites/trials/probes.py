"""What can be asked of a mechanism beside what the conformance kit holds it to: a function a column of the table.

Each takes a spec and says in a few words what came of it: `yes`, or `no` and why. What it raises is a failure. The
first paragraph of its docstring says what the column means.
"""

from __future__ import annotations

from collections.abc import Callable

PROBES: dict[str, Callable[[str], str]] = {}
