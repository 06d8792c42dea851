"""The registry: names to mechanisms, built in, from plug-ins, or from other packages' entry points.

Reading names needs no torch; a mechanism's module is imported when it is created or described.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import UsageError, unknown
from .spec import Spec, parse_union
from .variants import CATALOGUE, FAMILIES, Entry

if TYPE_CHECKING:
    from .contract.mechanism import Attention
    from .contract.shapes import Dims
    from .contract.traits import Growth, Traits
    from .patterns import Pattern

GROUP = "efficient_attn.variants"  # the entry-point group of packages that bring mechanisms of their own
RESERVED = ("dims", "seed", "backend")  # parameters of `create` that every mechanism takes, used or not

_registered: dict[str, tuple[Entry, type[Attention]]] = {}
_plugins: dict[str, None] = {}  # in the order in which they were loaded
A = TypeVar("A", bound="type[Attention]")


def register(name: str, *, family: str, sentence: str = "") -> Callable[[A], A]:
    """Class decorator that enters a mechanism under a name. Without a sentence, its docstring's first line serves.

    Raises `UsageError` for a name that is taken or a family that does not exist.
    """
    if family not in FAMILIES:
        raise unknown("family", family, FAMILIES, where=f"register({name!r})")

    def enter(cls: A) -> A:
        target = f"{cls.__module__}:{cls.__qualname__}"
        if name in _entries() and _entries()[name].target != target:
            raise UsageError(f"register: the name {name!r} is taken by {_entries()[name].target}")
        if not name.replace("_", "").isalnum() or not name[0].isalpha():
            raise UsageError(f"register: a name is letters, digits and underscores, not {name!r}")
        first_line = (inspect.getdoc(cls) or "").partition("\n")[0]
        _registered[name] = Entry(name, target, family, sentence or first_line), cls
        return cls

    return enter


def names(*, family: str | None = None) -> list[str]:
    """The names of all mechanisms, or of one family, in the catalogue's order."""
    return [e.name for e in catalogue(family=family)]


def catalogue(*, family: str | None = None) -> list[Entry]:
    """Every mechanism's entry; nothing is imported for it."""
    if family is not None and family not in FAMILIES:
        raise unknown("family", family, FAMILIES)
    return [e for e in _entries().values() if family in (None, e.family)]


def create(
    variant: str, /, *, dims: Dims | None = None, seed: int = 0, backend: str | None = None, **options: Any
) -> Attention:
    """Create a mechanism from its name, with options in the string, as keywords, or both.

    ``create("sliding_window:window=256")``, ``create("sliding_window", window=256)``; ``a:x=1|b:y=2`` is a union of
    patterns. dims: what is known of the tensors. seed: for everything drawn at random. backend: one of the
    mechanism's; ``dense`` is always the oracle. Raises `UsageError` for unknown names, options or values, and
    `UnsupportedError` for a backend that cannot serve.
    """
    parts = parse_union(variant)
    if len(parts) != 1:
        return _union(parts, dims, seed, backend, options)
    spec = parts[0]
    if spec.backend and backend and spec.backend != backend:
        raise UsageError(f"{variant}: backend is given twice, as {spec.backend!r} and {backend!r}")
    if twice := spec.options.keys() & options.keys():
        raise UsageError(f"{variant}: option {min(twice)!r} is given twice")
    return _create(Spec(spec.name, {**spec.options, **options}, backend or spec.backend), dims, seed)


@dataclass(frozen=True)
class Info:
    """What there is to know of a mechanism before running it. pattern: which pairs it keeps, if it is sparse."""

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


def info(variant: str, /, *, dims: Dims | None = None) -> Info:
    """Describe a mechanism with its options; creates it to ask it.

    Without dims for 1024 positions and heads of 64, eight of them where their number has to be known.
    """
    from .contract.shapes import Dims
    from .patterns import Pattern

    try:
        attn = create(variant, dims=dims or Dims(head_dim=64, max_len=1024))
    except UsageError:
        if dims is not None:
            raise
        attn = create(variant, dims=Dims(heads=8, head_dim=64, max_len=1024))
    pattern = getattr(attn, "pattern", None)
    cls, union = type(attn), "|" in variant
    entry = Entry("union", "", "sparse", "A union of patterns.") if union else entry_of(parse_union(variant)[0].name)
    return Info(
        name=entry.name,
        family=entry.family,
        sentence=entry.sentence,
        spec=attn.spec,
        options=effective_options(attn),
        backends=cls.backends,
        backend=attn.backend,
        traits=attn.traits,
        growth=attn.growth,
        parameters=sum(p.numel() for p in attn.parameters()),
        doc=inspect.getdoc(cls) or "",
        source=inspect.getsourcefile(cls) or "",
        pattern=pattern if isinstance(pattern, Pattern) else None,
    )


def effective_options(attn: Attention) -> dict[str, Any]:
    """All options of an instance, defaults included."""
    return dict(getattr(attn, "_options", {}))


def entry_of(name: str) -> Entry:
    """The entry of a name; `UsageError` names the nearest when there is none."""
    entries = _entries()
    if name not in entries:
        raise unknown("mechanism", name, entries)
    return entries[name]


def load_plugin(target: str) -> list[str]:
    """Import a plug-in, a ``.py`` file or a dotted module path; returns the names that it registered."""
    path = Path(target)
    is_file = target.endswith(".py")
    if is_file and not path.is_file():
        raise UsageError(f"--plugin {target}: no such file")
    before = set(_registered)
    try:
        module = _import_file(path.resolve()) if is_file else importlib.import_module(target)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"--plugin {target}: import failed: {type(error).__name__}: {error}") from error
    _plugins[str(path.resolve()) if is_file else target] = None
    mine = [n for n, (_, cls) in _registered.items() if cls.__module__ == module.__name__]
    return mine or sorted(set(_registered) - before)


def plugins() -> tuple[str, ...]:
    """What `load_plugin` has loaded, for a worker process to load as well."""
    return tuple(_plugins)


# -- underneath --------------------------------------------------------------------------------------------------


def _entries() -> dict[str, Entry]:
    merged = {e.name: e for e in CATALOGUE}
    for name, point in _entry_points().items():
        package = point.dist.name if point.dist else point.value
        merged.setdefault(name, Entry(name, point.value, "", f"From the package {package}."))
    merged.update({name: entry for name, (entry, _) in _registered.items()})
    return merged


@cache
def _entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _load(name: str) -> type[Attention]:
    entry = entry_of(name)
    if name in _registered:
        return _registered[name][1]
    module, _, attribute = entry.target.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:
        if name in {e.name for e in CATALOGUE}:
            raise
        raise UsageError(f"{name}: the entry point {entry.target} failed: {type(error).__name__}: {error}") from error
    return found


def _create(spec: Spec, dims: Dims | None, seed: int) -> Attention:
    from .contract.shapes import Dims

    cls, dims = _load(spec.name), dims or Dims()
    parameters = {p.name: p for p in _parameters(cls)}
    for option in spec.options:
        if option not in parameters or option in RESERVED:
            raise unknown("option", option, [p for p in parameters if p not in RESERVED], where=spec.name)
    options = {name: _typed(cls, spec.name, name, value) for name, value in spec.options.items()}
    reserved = {name: value for name, value in (("dims", dims), ("seed", seed)) if name in parameters}
    attn = cls(**options, **reserved)
    defaults = {p.name: p.default for p in parameters.values() if p.name not in RESERVED}
    return _finished(attn, Spec(spec.name, options, spec.backend), {**defaults, **options}, dims, seed)


def _finished(attn: Attention, spec: Spec, options: Mapping[str, Any], dims: Dims, seed: int) -> Attention:
    attn.spec, attn.dims, attn.seed = str(spec), dims, seed
    attn._options = dict(options)  # type: ignore[assignment]
    attn.backend = spec.backend
    return attn


def _union(
    parts: tuple[Spec, ...], dims: Dims | None, seed: int, backend: str | None, options: Mapping[str, Any]
) -> Attention:
    from .contract.shapes import Dims
    from .patterns import Pattern
    from .variants.sparse.engine import SparseAttention

    label = "|".join(sorted(str(p) for p in parts))
    if options:
        raise UsageError(f"{label}: options of a union belong to its parts, in the string")
    facts = []
    for part in parts:
        attn = _create(part, dims, seed)
        if not isinstance(attn, SparseAttention) or part.backend:
            raise UsageError(f"{label}: only patterns can be joined by '|', without a backend; {part} is not one")
        facts.extend(attn.pattern.facts)
    union = _finished(SparseAttention(Pattern(tuple(facts))), Spec(label), {}, dims or Dims(), seed)
    union.backend = backend
    return union


def _parameters(cls: type[Attention]) -> list[inspect.Parameter]:
    own = list(inspect.signature(cls).parameters.values())
    loose = [p.name for p in own if p.kind is not p.KEYWORD_ONLY or p.default is p.empty]
    if loose:
        raise UsageError(f"{cls.__name__}: options must be keyword-only with defaults, {loose[0]!r} is not")
    return own


def _typed(cls: type[Attention], mechanism: str, option: str, value: Any) -> Any:
    """The value as the signature's annotation wants it; text comes from strings, anything else must fit as it is."""
    from typing import get_type_hints

    from pydantic import TypeAdapter, ValidationError

    hint = get_type_hints(cls.__init__).get(option, Any)
    textual = isinstance(value, str)
    try:
        return TypeAdapter(hint).validate_python(None if value == "none" else value, strict=not textual)
    except ValidationError as error:
        problem = error.errors()[0]["msg"]
        wanted = getattr(hint, "__name__", str(hint))
        raise UsageError(f"{mechanism}: option {option}={value!r} does not fit {wanted}: {problem}") from error


def _import_file(path: Path) -> Any:
    name = f"efficient_attn_plugin_{path.stem}_{zlib.crc32(bytes(path)):08x}"  # files of one name in two folders differ
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"--plugin {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
