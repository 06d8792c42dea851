"""One string names a mechanism with its options everywhere: ``performer:n_features=256:kind=positive``.

``a:x=1|b:y=2`` is a union of patterns. Nothing else takes such a string apart: `parse` gives a `Spec` or a `Union`, and
for texts that come from elsewhere, as in old rows, `names_in` and `label_of` read without judging.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from .errors import UsageError


@dataclass(frozen=True)
class Spec:
    """A mechanism's name, the options that were given for it, and the backend asked for, if any."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    backend: str | None = None

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Read ``name:option=value:backend=name``; values stay text, the mechanism's signature gives them types."""
        name, *pairs = _split(text)
        options: dict[str, str] = {}
        for pair in pairs:
            key, equals, value = pair.partition("=")
            if not equals or not key or not value:
                raise UsageError(f"{text!r}: expected option=value after ':', got {pair!r}")
            if key in options:
                raise UsageError(f"{text!r}: option {key!r} is given twice")
            options[key] = value
        if not name:
            raise UsageError(f"{text!r}: a mechanism's name is missing")
        return cls(name, options, options.pop("backend", None))

    @property
    def parts(self) -> tuple[Spec, ...]:
        """Itself, as `Union` has several."""
        return (self,)

    @property
    def names(self) -> tuple[str, ...]:
        """The mechanism's name, as `Union` has several."""
        return (self.name,)

    def with_options(self, options: Mapping[str, Any], backend: str | None = None) -> Spec:
        """The spec with what was given beside it. Raises `UsageError` for what is given twice."""
        if self.backend and backend and self.backend != backend:
            raise UsageError(f"{self}: backend is given twice, as {self.backend!r} and {backend!r}")
        if duplicates := self.options.keys() & options.keys():
            raise UsageError(f"{self}: option {min(duplicates)!r} is given twice")
        return Spec(self.name, {**self.options, **options}, backend or self.backend)

    def without_backend(self) -> Spec:
        """The same mechanism, whatever runs it."""
        return replace(self, backend=None)

    def matches(self, text: str) -> bool:
        """Whether a text means this spec: all of it, in any order, or its name alone."""
        return text == self.name or str(parse(text)) == str(self)

    def __str__(self) -> str:
        """The spec in its canonical form: options in alphabetical order, the backend last."""
        pairs = [f"{key}={_format_value(value)}" for key, value in sorted(self.options.items())]
        return ":".join([self.name, *pairs, *([f"backend={self.backend}"] if self.backend else [])])


@dataclass(frozen=True)
class Union:
    """Patterns joined by "|", each with options of its own. A backend is asked of the whole, never in the string."""

    parts: tuple[Spec, ...]
    backend: ClassVar[None] = None

    def __post_init__(self) -> None:
        if with_backend := [part for part in self.parts if part.backend]:
            raise UsageError(
                f"{self}: only patterns can be joined by '|', without a backend; {with_backend[0]} asks for one"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The mechanisms' names, in the order in which they were written."""
        return tuple(part.name for part in self.parts)

    def with_options(self, options: Mapping[str, Any], backend: str | None = None) -> Union:
        """Itself: what is given beside a union belongs to none of its parts, so it raises `UsageError`."""
        if options or backend:
            raise UsageError(f"{self}: options of a union belong to its parts, in the string")
        return self

    def without_backend(self) -> Union:
        """Itself, as it has none."""
        return self

    def matches(self, text: str) -> bool:
        """Whether a text means this union, in any order."""
        return str(parse(text)) == str(self)

    def __str__(self) -> str:
        """The union in its canonical form: its parts in alphabetical order."""
        return "|".join(sorted(str(part) for part in self.parts))


def parse(text: str) -> Spec | Union:
    """Read a spec or a union of several. Raises `UsageError` for what is neither."""
    specs = parse_union(text)
    return specs[0] if len(specs) == 1 else Union(specs)


def parse_union(text: str) -> tuple[Spec, ...]:
    """Read ``a:x=1|b:y=2``: the parts of a union of patterns, one part for a plain mechanism."""
    return tuple(Spec.parse(part) for part in text.split("|"))


def list_names(label: str) -> tuple[str, ...]:
    """The mechanisms' names in a label of a report: a spec, maybe with what tells it apart, ``gqa (kv_heads=2)``."""
    return tuple(_split(part)[0].strip() for part in label.partition(" (")[0].split("|"))


def format_label(variant: str, backend: str | None) -> str:
    """A row's variant as a report shows it: with the backend that it asked for, where its text does not say so."""
    has_backend = any(pair.startswith("backend=") for part in variant.split("|") for pair in _split(part)[1:])
    return variant if has_backend or not backend else f"{variant}:backend={backend}"


def _split(part: str) -> list[str]:
    """A name and its ``option=value`` pairs, unread."""
    return part.strip().split(":")


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value).replace("null", "none")
