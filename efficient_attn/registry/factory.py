"""Create instances from specs, whose options are converted to the types of the constructor, and describe them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import UsageError, make_unknown_error
from ..spec import Spec, SpecLike, Union, parse
from ..variants import Entry
from .entries import class_of, entry_of, list_added_backends

if TYPE_CHECKING:
    from ..contract.mechanism import Attention
    from ..contract.shapes import Dims
    from ..contract.traits import Growth, Traits
    from ..patterns import Pattern

RESERVED = ("dims", "seed", "backend")  # parameters of `create`, which are not options
MAX_INTEGER = 2**40  # of an option, so that sums and products of positions fit into 64 bits


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

    cls = class_of(spec.name, spec.backend)
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
        converted = TypeAdapter(hint).validate_python(None if value == "none" else value, strict=not is_text)
    except ValidationError as error:
        problem = error.errors()[0]["msg"]
        type_name = hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
        raise UsageError(f"{name}: option {option}={value!r} does not fit {type_name}: {problem}") from error
    numbers = converted if isinstance(converted, tuple | list) else (converted,)
    if any(isinstance(x, int) and abs(x) > MAX_INTEGER for x in numbers):
        raise UsageError(f"{name}: option {option}: {str(value)[:40]} is beyond {MAX_INTEGER}")
    return converted


# -- descriptions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Info:
    """The description of a mechanism. pattern: which pairs it keeps, if it is sparse."""

    name: str
    family: str
    sentence: str
    spec: str
    options: Mapping[str, Any]
    backends: tuple[str, ...]
    backend: str
    traits: Traits
    growth: Growth
    parameters: int
    doc: str
    source: str
    pattern: Pattern | None = None


def info(variant: SpecLike, /, *, dims: Dims | None = None) -> Info:
    """Describe a mechanism with its options, from an instance.

    Default dims: 1024 positions and heads of width 64, and eight heads for mechanisms that require their number.
    """
    from ..contract.shapes import Dims
    from ..patterns import Pattern

    spec = parse(variant)
    try:
        attn = create(spec, dims=dims or Dims(head_dim=64, max_len=1024))
    except UsageError:
        if dims is not None:
            raise
        attn = create(spec, dims=Dims(heads=8, head_dim=64, max_len=1024))
    pattern, cls = getattr(attn, "pattern", None), type(attn)
    union_entry = Entry("union", "", "sparse", "A union of patterns.")
    entry = union_entry if isinstance(spec, Union) else entry_of(spec.name)
    added_backends = () if spec.backend else list_added_backends(entry.name)
    return Info(
        name=entry.name,
        family=entry.family,
        sentence=entry.sentence,
        spec=attn.spec,
        options=attn.origin.options,
        backends=(*cls.backends, *added_backends),
        backend=attn.backend,
        traits=attn.traits,
        growth=attn.growth,
        parameters=sum(p.numel() for p in attn.parameters()),
        doc=inspect.getdoc(cls) or "",
        source=inspect.getsourcefile(cls) or "",
        pattern=pattern if isinstance(pattern, Pattern) else None,
    )
