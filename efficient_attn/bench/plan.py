"""The plan: every case that a suite asks for, in the order in which it will run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from ..errors import UsageError, unknown
from ..spec import Spec, parse_union
from ..tasks.activations import Activations
from .case import RESERVE, Case, Cell, make_case, takes
from .suite import Loaded, Part, Suite, Variant

TIMED = ("forward", "forward_backward", "prefill", "decode")
DEFAULTS: dict[str, tuple[Any, ...]] = {
    "seq_len": (1024,),
    "causal": (False,),
    "dtype": (),
    "device": ("cpu",),
    "threads": (None,),
    "batch": (1,),
    "heads": (8,),
    "kv_heads": (None,),
    "head_dim": (64,),
    "cache": ("warm",),
    "compiled": (False,),
    "cuda_graph": (False,),
}
DTYPES = {"cuda": ("float16", "bfloat16")}  # where a suite does not say; elsewhere float32


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """What the command line changes in a suite: axes by name, variants, the activations file; ``quick`` shrinks it."""

    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    variants: Sequence[str] = ()
    activations: str | None = None
    seed: int | None = None
    memory_budget: int | None = None
    quick: bool = False


def make_plan(loaded: Loaded, overrides: Overrides = Overrides()) -> list[Case]:
    """All cases of a suite. Raises `UsageError` for what does not exist or is planned twice."""
    suite = loaded.suite
    if overrides.seed is not None:
        suite = suite.model_copy(update={"seed": overrides.seed})
    if overrides.memory_budget is not None:
        suite = suite.model_copy(update={"memory_budget": overrides.memory_budget})
    if overrides.quick:
        short = {"rounds": 3, "max_rounds": 3, "processes": 2, "budget_s": min(suite.budget_s, 1.0)}
        suite = suite.model_copy(update=short)
    if suite.max_rounds is not None and suite.max_rounds < suite.rounds:
        raise UsageError(f"{loaded.name}: max_rounds ({suite.max_rounds}) is less than rounds ({suite.rounds})")
    if overrides.activations and not any("fidelity" in (part.measure or ()) for part in suite.parts()):
        raise UsageError(f"--activations: the suite {loaded.name} measures no fidelity")
    if overrides.memory_budget and not any("decode" in (part.measure or ()) for part in suite.parts()):
        raise UsageError(f"--memory-budget: the suite {loaded.name} measures no decoding")
    _check_baselines(loaded.name, suite.parts())
    cases: list[Case] = []
    for part in suite.parts():
        try:
            cases += _cases(loaded.name, suite, part, overrides)
        except UsageError as error:
            raise UsageError(f"{loaded.name}, part {part.name!r}: {error}") from error
    if not cases:
        raise UsageError(f"{loaded.name}: no part has key-value heads that {', '.join(overrides.variants)} takes")
    seen: dict[str, Case] = {}
    for case in cases:
        same = seen.setdefault(case.digest, case)  # the key shows options as they were written, the digest all of them
        if same is not case:
            raise UsageError(f"{loaded.name}: {case.variant} and {same.variant} are the same case; drop one")
    return cases


def _cases(name: str, suite: Suite, part: Part, overrides: Overrides) -> list[Case]:
    specs, grid = _variants(part, overrides.variants), _grid(part, overrides)
    # what is asked for by name stands in every part whose key-value heads it takes; a suite's own has to fit
    asked = bool(overrides.variants)
    baseline = _baseline(part, specs)
    cases: list[Case] = []
    if timed := [m for m in part.measure or () if m in TIMED]:
        cases += _timed(name, suite, part, timed, grid, specs, baseline, asked=asked)
    if "fidelity" in (part.measure or ()):
        activations = Activations.find(overrides.activations or suite.activations)
        cases += _fidelity(name, suite, part, grid, specs, activations, asked=asked)
    return _compared(cases)


def _compared(cases: Sequence[Case]) -> list[Case]:
    """The cases, their cells told with how many key-value heads the baseline runs: with the most that it has there."""
    most = {
        cell: max((c.kv_heads for c in members if c.variant == cell.baseline), default=None)
        for cell, members in cells(cases)
    }
    return [replace(case, cell=replace(case.cell, baseline_kv_heads=most[case.cell])) for case in cases]


def cells(cases: Sequence[Case]) -> list[tuple[Cell, list[Case]]]:
    """Cases grouped by the cell in which they are compared, in the plan's order."""
    groups: dict[Cell, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.cell, []).append(case)
    return list(groups.items())


def spec_of(variant: Variant) -> str:
    """A suite's variant as the one string that names it."""
    parts = parse_union(variant.name)
    if len(parts) != 1:
        if variant.options or variant.backend:
            raise UsageError(f"{variant.name}: options of a union belong to its parts, in the name")
        return "|".join(sorted(str(p) for p in parts))
    own = parts[0]
    return str(Spec(own.name, {**own.options, **variant.options}, variant.backend or own.backend))


def _variants(part: Part, wanted: Sequence[str]) -> list[str]:
    """The part's variants; when some are asked for, those: by name as the suite has them, else as they are written."""
    own = [spec_of(v) for v in part.variant or ()]
    if not wanted:
        return own
    chosen: list[str] = []
    for text in wanted:
        spec = spec_of(Variant(name=text))
        same = [s for s in own if s == spec or ("|" not in s and ":" not in spec and parse_union(s)[0].name == spec)]
        chosen += [s for s in (same or [spec]) if s not in chosen]
    return chosen


def _baseline(part: Part, specs: Sequence[str]) -> str | None:
    """The variant that others are compared with, by its spec or its name; None when the part does not run it."""
    named = [s for s in specs if s == part.baseline or s.split(":")[0] == part.baseline]
    return named[0] if named else None


def _check_baselines(name: str, parts: Sequence[Part]) -> None:
    known = {text for part in parts for v in part.variant or () for text in (v.name, spec_of(v))}
    for part in parts:
        if part.baseline is not None and part.baseline not in known:
            raise unknown("baseline", part.baseline, known, where=name)


def _grid(part: Part, overrides: Overrides) -> dict[str, tuple[Any, ...]]:
    grid = dict(DEFAULTS)
    grid |= {name: (value,) for name, value in part.dims.model_dump(exclude_none=True).items()}
    grid |= part.axes.model_dump(exclude_none=True)
    if overrides.quick:
        grid["seq_len"] = grid["seq_len"][:2]
    grid |= {name: tuple(dict.fromkeys(values)) for name, values in overrides.axes.items()}
    return grid


def _timed(
    name: str,
    suite: Suite,
    part: Part,
    modes: Sequence[str],
    grid: Mapping[str, tuple[Any, ...]],
    specs: Sequence[str],
    baseline: str | None,
    *,
    asked: bool,
) -> list[Case]:
    cases = []
    for mode, at in product(modes, _settings(grid)):
        at = dict(at)
        kv_heads = at.pop("kv_heads")
        if mode in ("decode", "prefill") and not at["causal"]:
            if len(grid["causal"]) > 1:
                continue  # decoding is causal by nature: one of the two is enough
            at["causal"] = True
        for seq_len in grid["seq_len"]:
            cell = Cell(
                suite=name,
                part=part.name,
                task="speed",
                mode=mode,
                seq_len=seq_len,
                max_len=max(grid["seq_len"]) + (RESERVE if mode == "decode" else 0),
                seed=suite.seed,
                rounds=suite.rounds,
                max_rounds=suite.max_rounds or 3 * suite.rounds,
                processes=min(suite.processes, suite.rounds),
                half_width=suite.half_width,
                budget_s=suite.budget_s,
                memory="peak_memory" in (part.measure or ()) and mode in ("forward", "forward_backward"),
                baseline=baseline,
                memory_budget=suite.memory_budget if mode == "decode" else None,
                **at,
            )
            cases += [make_case(cell, spec, kv_heads) for spec in specs if not asked or takes(cell, spec, kv_heads)]
    return cases


def _settings(grid: Mapping[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Every combination of the axes other than the length."""
    order = ("threads", "batch", "heads", "kv_heads", "head_dim", "causal", "cache", "compiled", "cuda_graph")
    return [
        {"device": device, "dtype": dtype} | dict(zip(order, values, strict=True))
        for device in grid["device"]
        for dtype in _dtypes(grid, device)
        for values in product(*(grid[axis] for axis in order))
    ]


def _dtypes(grid: Mapping[str, tuple[Any, ...]], device: str) -> tuple[str, ...]:
    return grid["dtype"] or DTYPES.get(device, ("float32",))


def _fidelity(
    name: str,
    suite: Suite,
    part: Part,
    grid: Mapping[str, tuple[Any, ...]],
    specs: Sequence[str],
    activations: Activations,
    *,
    asked: bool,
) -> list[Case]:
    cases = []
    _, heads, length, width = activations.q.shape
    devices = [(device, dtype) for device in grid["device"] for dtype in _dtypes(grid, device)]
    for (device, dtype), causal, layer in product(devices, grid["causal"], activations.layers):
        cell = Cell(
            suite=name,
            part=part.name,
            task="fidelity",
            mode=None,
            device=device,
            dtype=dtype,
            threads=None,
            batch=1,
            heads=heads,
            seq_len=length,
            head_dim=width,
            causal=causal,
            max_len=length,
            seed=suite.seed,
            rounds=0,
            max_rounds=0,
            processes=1,
            half_width=suite.half_width,
            budget_s=suite.budget_s,
            inputs=activations.label,
            layer=layer,
        )
        kv_heads = activations.k.shape[1]
        cases += [make_case(cell, spec, kv_heads) for spec in specs if not asked or takes(cell, spec, kv_heads)]
    return cases
