"""Text for models: the State of the Union addresses, or the user's file."""

from __future__ import annotations

import hashlib
import lzma
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..errors import UsageError
from ..resources import find_suites_folder

BUILT_IN_TEXT = "sotu"
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Text:
    """Documents in order. label: the file's name and a digest of its content."""

    label: str
    documents: tuple[str, ...]

    @classmethod
    def find(cls, name: str) -> Text:
        """The built-in addresses by name, or a text file (``.txt``, also ``.xz``) by path.

        A form feed begins a document, whose first line is its title; without one the file is one document. Raises
        `UsageError` for a missing file, and for one that is not text.
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

    def pick(self, number: int, length: int, convert: Callable[[str], T | None], name: str) -> T:
        """The ``number``-th result that is not None of converting documents of at least ``length`` characters.

        Raises `UsageError` for fewer results. convert: returns None for documents that are too short. name: of a result
        in the error.
        """
        count = 0
        for index in self.list_spread_numbers():
            if len(self.documents[index]) >= length and (result := convert(self.documents[index])) is not None:
                if count == number:
                    return result
                count += 1
        raise UsageError(f"{self.label} has {count} documents of {length} tokens; {name} {number + 1} does not exist")

    def list_spread_numbers(self) -> list[int]:
        """The documents' numbers in an order in which any prefix is spread over all of them."""
        count = len(self.documents)
        step = next(s for s in range(max(round(count * 0.618), 1), count + 1) if math.gcd(s, count) == 1)
        return [(i * step) % count for i in range(count)]
