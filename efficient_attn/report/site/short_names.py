"""Short names of machines and mechanisms for pages; the page of a run has the complete ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ... import units
from ...results.sanitize import sanitize_line
from .. import formatting
from ..formatting import shorten_machine, shorten_text


def name_machines(machines: Iterable[object]) -> dict[str, str]:
    """The short name of each machine: ``AMD Zen 4 (2 cores)``, numbered where several would have the same."""
    identities = sorted({str(machine) for machine in machines if units.is_present(machine)})
    names = {identity: shorten_text(shorten_machine(identity)) for identity in identities}
    counts, numbers = Counter(names.values()), Counter[str]()
    for identity, name in names.items():
        numbers[name] += 1
        names[identity] = f"{name} #{numbers[name]}" if counts[name] > 1 else name
    return names


def split_label(label: str) -> tuple[str, str]:
    """Split a label into the mechanism and its options: ``sliding_window``, ``window=128``; of a union, both parts."""
    parts = formatting.split_label(label)
    options = (", ".join(options) for _, options in parts)
    return " | ".join(name for name, _ in parts), " | ".join(filter(None, options))


class TextTable(dict[str, int]):
    """Texts of a script, each stored once: its position by text."""

    def intern(self, text: str) -> int:
        """The position of a text, without characters that are not allowed in a page."""
        return self.setdefault(sanitize_line(text), len(self))
