"""Create instances from specs. Options are the parameters of the constructor, converted to their annotated types."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from ..errors import UsageError, make_unknown_error
from ..spec import Spec, SpecLike, Union, parse
from .entries import class_of

if TYPE_CHECKING:
    from ..contract.mechanism import Attention
    from ..contract.shapes import Dims

RESERVED = ("dims", "seed", "backend")  # parameters of `create`, which are not options


def create(
    variant: SpecLike, /, *, dims: Dims | None = None, seed: int = 0, backend: str | None = None, **options: Any
) -> Attention:
    """Create a mechanism from its spec, with options in the spec, as keywords, or both.

    ``create("sliding_window:window=256")``, ``create("sliding_window", window=256)``; ``a:x=1|b:y=2`` is a union of
    patterns. dims: the known sizes of the tensors. seed: of all random numbers. backend: one of the mechanism's;
    ``dense`` is the reference implementation. Raises `UsageError` for unknown names, options or values, and
    `UnsupportedError` for a backend that is not available.
    """
    from ..contract.shapes import Dims

    spec, dims = parse(variant), dims or Dims()
    if isinstance(spec, Union):
        return _create_union(spec.with_options(options), dims, seed, backend)
    return _create_from_spec(spec.with_options(options, backend), dims, seed)


def rename_backend(spec: Spec | Union) -> Spec | Union:
    """The spec with the present name of its backend. Imports the mechanism if the spec names a backend."""
    if isinstance(spec, Union) or spec.backend is None:
        return spec
    return Spec(spec.name, spec.options, class_of(spec.name).renamed.get(spec.backend, spec.backend))


def _create_from_spec(spec: Spec, dims: Dims, seed: int) -> Attention:
    from ..contract.mechanism import Origin

    cls = class_of(spec.name)
    parameters = {p.name: p.default for p in _list_parameters(cls)}
    defaults = {name: default for name, default in parameters.items() if name not in RESERVED}
    if unknown := [option for option in spec.options if option not in defaults]:
        raise make_unknown_error("option", unknown[0], defaults, where=spec.name)
    typed = {name: convert_option(cls, spec.name, name, value) for name, value in spec.options.items()}
    renamed_spec = rename_backend(Spec(spec.name, typed, spec.backend))
    origin = Origin(spec=renamed_spec, options={**defaults, **typed}, dims=dims, seed=seed)
    reserved = {name: value for name, value in (("dims", dims), ("seed", seed)) if name in parameters}
    return cls.made_from(origin, backend=renamed_spec.backend, **typed, **reserved)


def _create_union(union: Union, dims: Dims, seed: int, backend: str | None) -> Attention:
    from ..contract.mechanism import Origin
    from ..patterns import Pattern
    from ..variants.sparse.sparse_attention import SparseAttention

    facts = []
    for part in union.parts:
        attn = _create_from_spec(part, dims, seed)
        if not isinstance(attn, SparseAttention):
            raise UsageError(f"{union}: only patterns can be joined by '|', without a backend; {part} is not one")
        facts.extend(attn.pattern.facts)
    origin = Origin(spec=union, dims=dims, seed=seed)
    return SparseAttention.made_from(origin, backend=backend, pattern=Pattern(tuple(facts)))


def _list_parameters(cls: type[Attention]) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(cls).parameters.values())
    invalid = [p for p in parameters if p.kind is not p.KEYWORD_ONLY or p.default is p.empty]
    if invalid:
        name, default = invalid[0].name, invalid[0].default
        hint = f"write `def __init__(self, *, {name}={64 if default is inspect.Parameter.empty else repr(default)})`"
        raise UsageError(f"{cls.__name__}: options must be keyword-only with defaults, {name!r} is not; {hint}")
    return parameters


def convert_option(cls: type, name: str, option: str, value: Any) -> Any:
    """The value converted to the type of the constructor's parameter: text is parsed, other values are only validated.

    name: of the mechanism in messages. Raises `UsageError` for an invalid value.
    """
    from typing import get_type_hints

    from pydantic import TypeAdapter, ValidationError

    hint = get_type_hints(cls.__init__).get(option, Any)
    is_text = isinstance(value, str)
    try:
        return TypeAdapter(hint).validate_python(None if value == "none" else value, strict=not is_text)
    except ValidationError as error:
        problem = error.errors()[0]["msg"]
        type_name = getattr(hint, "__name__", str(hint))
        raise UsageError(f"{name}: option {option}={value!r} does not fit {type_name}: {problem}") from error
