"""Specs: a mechanism's name with its options, written ``performer:n_features=256:kind=positive``.

``a:x=1|b:y=2`` is a union of patterns. `parse` reads a text where it enters the package; all other code receives a
`Spec` or a `Union`. `list_names` and `format_label` read labels of rows and reports without validating them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from .errors import UsageError


class _EqualByText:
    """Equality and hash by the canonical text: a spec equals another one, or a string, with the same text."""

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other) if isinstance(other, _EqualByText | str) else NotImplemented

    def __hash__(self) -> int:
        return hash(str(self))

    def __format__(self, format_spec: str) -> str:
        return format(str(self), format_spec)


@dataclass(frozen=True, eq=False)
class Spec(_EqualByText):
    """A mechanism's name, its options, and its backend if one was chosen."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    backend: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``name:option=value:backend=name``; values stay text until `registry.create` converts them."""
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
    def parts(self) -> tuple[Self, ...]:
        """This spec alone; the parts of a `Union`."""
        return (self,)

    @property
    def names(self) -> tuple[str, ...]:
        """The mechanism's name alone; the names in a `Union`."""
        return (self.name,)

    def with_options(self, options: Mapping[str, Any], backend: str | None = None) -> Self:
        """The spec with further options. Raises `UsageError` for an option or a backend that it has already."""
        if self.backend and backend and self.backend != backend:
            raise UsageError(f"{self}: backend is given twice, as {self.backend!r} and {backend!r}")
        if duplicates := self.options.keys() & options.keys():
            raise UsageError(f"{self}: option {min(duplicates)!r} is given twice")
        return replace(self, options={**self.options, **options}, backend=backend or self.backend)

    def without_backend(self) -> Self:
        """The spec of the same mechanism without a backend."""
        return replace(self, backend=None)

    def matches(self, text: str) -> bool:
        """Whether a text is this spec, with its options in any order, or its name."""
        return text == self.name or parse(text) == self

    def __str__(self) -> str:
        """The spec in its canonical form: options in alphabetical order, the backend last."""
        pairs = [f"{key}={format_value(value)}" for key, value in sorted(self.options.items())]
        return ":".join([self.name, *pairs, *([f"backend={self.backend}"] if self.backend else [])])


@dataclass(frozen=True, eq=False)
class Union(_EqualByText):
    """Patterns joined by "|", each with its own options. A backend belongs to the union as a whole, not to its text."""

    parts: tuple[Spec, ...]
    backend: ClassVar[None] = None

    def __post_init__(self) -> None:
        if invalid := [part for part in self.parts if part.backend]:
            raise UsageError(f"{self}: only patterns can be joined by '|', without a backend; {invalid[0]} has one")

    @property
    def names(self) -> tuple[str, ...]:
        """The mechanisms' names, in the order in which they were written."""
        return tuple(part.name for part in self.parts)

    def with_options(self, options: Mapping[str, Any], backend: str | None = None) -> Self:
        """The union itself. Raises `UsageError` for options or a backend, which would belong to none of its parts."""
        if options or backend:
            raise UsageError(f"{self}: options of a union belong to its parts, in the string")
        return self

    def without_backend(self) -> Self:
        """Itself, as it has none."""
        return self

    def matches(self, text: str) -> bool:
        """Whether a text is this union, with its parts in any order."""
        return parse(text) == self

    def __str__(self) -> str:
        """The union in its canonical form: its parts in alphabetical order."""
        return "|".join(sorted(str(part) for part in self.parts))


SpecLike = str | Spec | Union


def parse(spec: SpecLike) -> Spec | Union:
    """Read a spec or a union; parsed ones are returned unchanged. Raises `UsageError` for invalid text."""
    if not isinstance(spec, str):
        return spec
    specs = tuple(Spec.parse(part) for part in spec.split("|"))
    return specs[0] if len(specs) == 1 else Union(specs)


def list_names(label: str) -> tuple[str, ...]:
    """The mechanisms' names in a label of a report: a spec, maybe with differing columns, ``gqa (kv_heads=2)``."""
    return tuple(_split(part)[0].strip() for part in label.partition(" (")[0].split("|"))


def format_label(variant: str, backend: str | None) -> str:
    """A row's variant in reports: with the chosen backend, if the text does not contain it."""
    has_backend = any(pair.startswith("backend=") for part in variant.split("|") for pair in _split(part)[1:])
    return variant if has_backend or not backend else f"{variant}:backend={backend}"


def _split(part: str) -> list[str]:
    """A name and its ``option=value`` pairs, unparsed."""
    return part.strip().split(":")


def format_value(value: Any) -> str:
    """An option's value as text in a spec."""
    return value if isinstance(value, str) else json.dumps(value).replace("null", "none")
