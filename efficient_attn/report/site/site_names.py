"""Names on a site: of files, and short ones of machines and mechanisms; the page of a run has the complete ones."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ... import units
from .. import formatting
from ..formatting import format_config, make_slug, shorten_machine, shorten_text

LONGEST_SLUG = 40


def make_name(text: str) -> str:
    """``sliding-window-2f6c1a09``: a readable and unique name of only letters, digits and dashes, for any text."""
    slug = make_slug(text)[:LONGEST_SLUG].strip("-")
    return "-".join(filter(None, (slug, digest(text.encode())[:8])))


def digest(data: bytes) -> str:
    """The SHA-256 of a file's bytes."""
    return hashlib.sha256(data).hexdigest()


def name_machines(machines: Iterable[object]) -> dict[str, str]:
    """The short name of each machine: ``AMD Zen 4 (2 cores)``, numbered where several would have the same."""
    identities = sorted({str(machine) for machine in machines if units.is_present(machine)})
    names = {identity: shorten_text(shorten_machine(identity)) for identity in identities}
    counts, numbers = Counter(names.values()), Counter[str]()
    for identity, name in names.items():
        numbers[name] += 1
        names[identity] = f"{name} #{numbers[name]}" if counts[name] > 1 else name
    return names


def format_machine_config(config: Mapping[str, Any], machines: Mapping[str, str]) -> str:
    """A configuration that starts with the machine's short name, if it is known."""
    name = machines.get(str(config["machine"]), "")
    return ", ".join(filter(None, (name, format_config({**config, "machine": None}, {}))))


def split_label(label: str) -> tuple[str, str]:
    """Split a label into the mechanism and its options: ``sliding_window``, ``window=128``; of a union, both parts."""
    parts = formatting.split_label(label)
    options = (", ".join(options) for _, options in parts)
    return " | ".join(name for name, _ in parts), " | ".join(filter(None, options))


def capitalise(text: str) -> str:
    """The text with its first letter capitalized, and the others unchanged."""
    return text[:1].upper() + text[1:]
