"""Real text for models: the State of the Union addresses, or the user's file."""

from __future__ import annotations

import hashlib
import lzma
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..resources import find_suites_folder

BUILT_IN_TEXT = "sotu"


@dataclass(frozen=True, eq=False)
class Text:
    """Documents in order. label: the file's name and a digest of its content."""

    label: str
    documents: tuple[str, ...]

    @classmethod
    def find(cls, name: str) -> Text:
        """The built-in addresses by name, or a text file (``.txt``, also ``.xz``) by path.

        A form feed begins a document, with a line that names it; without one the file is one document. Raises
        `UsageError` for a file that is not there, or is no text.
        """
        path = find_suites_folder() / "data" / "sotu.txt.xz" if name == BUILT_IN_TEXT else Path(name)
        if not path.is_file():
            raise UsageError(f"--text {name}: no such file (built in: {BUILT_IN_TEXT})")
        content = path.read_bytes()
        try:
            text = (lzma.decompress(content) if path.suffix == ".xz" else content).decode("utf-8")
        except (UnicodeDecodeError, lzma.LZMAError) as error:
            raise UsageError(f"--text {name}: no text in UTF-8: {error}") from error
        first, *remaining = text.split("\f")
        documents = [first, *(document.partition("\n")[2] for document in remaining)]
        digest = hashlib.sha256(content).hexdigest()[:8]
        return cls(f"{name if name == BUILT_IN_TEXT else path.name}@{digest}", tuple(d for d in documents if d.strip()))

    def list_spread_numbers(self) -> list[int]:
        """The documents' numbers in an order in which any prefix is spread over all of them."""
        count = len(self.documents)
        step = next(s for s in range(max(round(count * 0.618), 1), count + 1) if _coprime(s, count))
        return [(i * step) % count for i in range(count)]


def _coprime(a: int, b: int) -> bool:
    while b:
        a, b = b, a % b
    return a == 1
