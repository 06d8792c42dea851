"""One string names a mechanism with its options everywhere: ``performer:n_features=256:kind=positive``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
        name, *pairs = text.strip().split(":")
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

    def __str__(self) -> str:
        """The spec in its canonical form: options in alphabetical order, the backend last."""
        parts = [f"{key}={_text(value)}" for key, value in sorted(self.options.items())]
        return ":".join([self.name, *parts, *([f"backend={self.backend}"] if self.backend else [])])


def parse_union(text: str) -> tuple[Spec, ...]:
    """Read ``a:x=1|b:y=2``: the parts of a union of patterns, one part for a plain mechanism."""
    return tuple(Spec.parse(part) for part in text.split("|"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value).replace("null", "none")
