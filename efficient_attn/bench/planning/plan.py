"""The plan: every case of a suite, in the order in which it runs."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod
from typing import Any, get_origin

from ...errors import UsageError, make_unknown_error
from ...layers.named import is_baseline
from ...registry import rename_backend
from ...spec import Spec, Union, format_value, parse
from ..case import Case, group_cases
from ..case_config import Sampling
from ..task import Task
from ..task_registry import find_task
from .case_factory import accepts_kv_heads, fit_all, make_case
from .experimental_design import choose_points, list_contrasts
from .request import DEFAULTS, AxisGrid, TaskRequest
from .suite import LoadedSuite, Suite, TaskKeys, check_keys
from .suite_schema import DesignTable, SuitePart, VariantTable

MAX_CASES = 100_000  # of a part
MAX_SIZE = 2**26  # positions, batch, heads, or width


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """Changes of a suite by the command line: axes by name, variants, keys of tasks.

    flags: the flag by which a key was set, if not ``--set``. tasks, parts: select some of the suite's. shape: the model
    whose sizes the axes have; variants of the suite that require other key-value heads are left out, with a warning.
    quick: a run with fewer lengths and rounds.
    """

    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    variants: Sequence[str] = ()
    keys: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    tasks: Sequence[str] = ()
    parts: Sequence[str] = ()
    shape: str | None = None
    seed: int | None = None
    quick: bool = False

    @property
    def described(self) -> tuple[str, ...]:
        """Each change as on the command line, ``--seq-len 64,128``; empty without changes."""
        flags = {"--task": self.tasks or None, "--part": self.parts or None, "--variant": self.variants or None}
        flags |= {f"--{name.replace('_', '-')}": values for name, values in self.axes.items()} | {"--seed": self.seed}
        changes = [f"{flag} {_format_toml(value)}" for flag, value in flags.items() if value is not None]
        for name, value in self.keys.items():
            flag = f"{self.flags[name]} " if name in self.flags else f"--set {name}="
            changes.append(f"{flag}{_format_toml(value)}")
        return (*(["--quick"] if self.quick else []), *changes)


def _format_toml(value: Any) -> str:
    """A value as on the command line."""
    if isinstance(value, list | tuple):
        return ",".join(map(_format_toml, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def make_plan(loaded: LoadedSuite, overrides: Overrides = Overrides()) -> list[Case]:
    """All cases of a suite. Raises `UsageError` for unknown names and duplicate cases."""
    sampling, parts = _make_sampling(loaded, overrides), loaded.suite.parts()
    _check_baselines(loaded.name, parts)
    cases: list[Case] = []
    task_names = list(dict.fromkeys(task_keys.task for part in loaded.task_keys for task_keys in part))
    for name in overrides.tasks:
        if name not in task_names:
            raise make_unknown_error("task", name, task_names, where=f"--task: {loaded.name}")
    selected = _find_parts(loaded.name, overrides.parts, [part.name for part in parts])
    with_blocks = any(part.block for part in parts)
    for part, all_tasks in zip(parts, loaded.task_keys, strict=True):
        if selected and part.name not in selected:
            continue
        tasks = [t for t in all_tasks if not overrides.tasks or t.task in overrides.tasks]
        try:
            cases += _plan_part(loaded.name, part, tasks, sampling, overrides, with_blocks)
        except UsageError as error:
            raise UsageError(f"{loaded.name}, part {part.name!r}: {error}") from error
    if not cases:
        requested = ", ".join(overrides.variants) or "a mechanism"
        raise UsageError(f"{loaded.name}: no part has key-value heads that {requested} supports")
    _check_overrides(loaded.name, overrides, cases)
    case_by_digest: dict[str, Case] = {}
    for case in cases:
        same = case_by_digest.setdefault(case.digest, case)  # unlike the key, independent of how a variant is written
        if same is not case:
            raise UsageError(f"{loaded.name}: {case.variant} and {same.variant} are the same case; drop one")
    on_gpu = (case.group for case in cases if case.group.config.device == "cuda")
    if any(group.config.dtype == "float32" and find_task(group.target).work for group in on_gpu):
        text = "efficient kernels are for bfloat16 and float16, and TF32 is off in float32; give --dtype bfloat16"
        warnings.warn(f"{loaded.name}: float32 on cuda: {text}", stacklevel=2)
    return cases


def _make_sampling(loaded: LoadedSuite, overrides: Overrides) -> Sampling:
    suite: Suite = loaded.suite
    if overrides.quick:
        rounds = min(3, suite.rounds)
        quick = {"rounds": rounds, "max_rounds": rounds, "processes": 2, "budget_s": min(suite.budget_s, 1.0)}
        suite = suite.model_copy(update=quick)
    if suite.max_rounds is not None and suite.max_rounds < suite.rounds:
        raise UsageError(f"{loaded.name}: max_rounds ({suite.max_rounds}) is less than rounds ({suite.rounds})")
    return Sampling(
        rounds=suite.rounds,
        max_rounds=suite.max_rounds or 3 * suite.rounds,
        processes=min(suite.processes, suite.rounds),
        half_width=suite.half_width,
        budget_s=suite.budget_s,
        seed=suite.seed if overrides.seed is None else overrides.seed,
        warm_up_calls=suite.warm_up_calls,
    )


def _plan_part(
    suite: str, part: SuitePart, tasks: Sequence[TaskKeys], sampling: Sampling, overrides: Overrides, with_blocks: bool
) -> list[Case]:
    """with_blocks: whether any part has blocks; names of baselines on the command line then refer to blocks."""
    mechanisms = [text for text in overrides.variants if not is_baseline(text)] if with_blocks else overrides.variants
    specs = _choose_variants(part.variant, mechanisms) if mechanisms or not overrides.variants else []
    blocks = _choose_variants(part.block, overrides.variants)
    # the spec of the part's baseline; None if the part does not run it
    baseline = next((str(s) for s in (*specs, *blocks) if part.baseline and s.matches(part.baseline)), None)
    grids = _make_grids(part, overrides)
    _check_sizes(grids, len(tasks) * (len(specs) + len(blocks)))
    cases: list[Case] = []
    left_out: dict[Spec | Union, None] = {}
    for task_keys in tasks:
        task = find_task(task_keys.target)
        request = TaskRequest(
            suite=suite,
            part=part.name,
            task=task_keys.task,
            target=task_keys.target,
            words=task_keys.words,
            keys=check_keys(task_keys.target, {**task_keys.keys, **_select_keys(task, overrides.keys)}, "--set"),
            grid=grids[0],
            sampling=sampling,
            baseline=baseline,
            quick=overrides.quick,
            variants=bool(part.variant),
            blocks=bool(part.block),
            names=tuple(map(str, (*specs, *blocks))),
        )
        planned = chain.from_iterable(task.plan(replace(request, grid=grid)) for grid in grids)
        for group, kv_heads in dict.fromkeys(planned):  # groups that do not depend on the shape occur once
            # command-line variants run in the parts whose key-value heads they support; the suite's own have to fit
            candidates = blocks if group.of_blocks else specs
            filtered = overrides.variants or overrides.shape
            accepted = [s for s in candidates if not filtered or accepts_kv_heads(group, s, kv_heads)]
            left_out |= dict.fromkeys(s for s in candidates if s not in accepted and not overrides.variants)
            budgets = grids[0]["budget"] if task.mechanisms else (None,)
            fitted = fit_all(group, accepted if task.mechanisms else [Spec(task_keys.task)], kv_heads, budgets)
            cases += [make_case(group, spec, kv_heads, budget) for spec, budget in fitted]
    if left_out:
        message = f"left out of part {part.name!r}: {', '.join(map(str, left_out))}"
        warnings.warn(f"--shape {overrides.shape}: {message}: other key-value heads than the model's", stacklevel=2)
    return _set_baselines(cases)


def _check_sizes(grids: Sequence[AxisGrid], cases_per_point: int) -> None:
    """Refuse plans that cannot be made, let alone measured, before anything is built."""
    most = sum(prod(map(len, grid.axes.values())) for grid in grids) * cases_per_point
    if most > MAX_CASES:
        raise UsageError(f"up to {most:,} cases, more than {MAX_CASES:,}; name fewer values of its axes, or variants")
    for name, values in chain.from_iterable(grid.axes.items() for grid in grids):
        if largest := max((x for x in values if isinstance(x, int) and x > MAX_SIZE), default=None):
            raise UsageError(f"{name} is {largest:,}; at most {MAX_SIZE:,}")


def _select_keys(task: Task, keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that the task has. A single value of a key that takes several becomes a list."""
    fields = {name: f for name, f in task.keys.model_fields.items() if name in keys}
    lists = {name for name, f in fields.items() if get_origin(f.annotation) in (tuple, list)}
    return {k: [keys[k]] if k in lists and not isinstance(keys[k], list) else keys[k] for k in fields}


def _set_baselines(cases: Sequence[Case]) -> list[Case]:
    """The cases, each group with its baseline's number of key-value heads, the largest if there are several."""
    kv_heads = {
        group: max((c.kv_heads for c in members if c.variant == group.baseline), default=None)
        for group, members in group_cases(cases)
    }
    return [replace(case, group=replace(case.group, baseline_kv_heads=kv_heads[case.group])) for case in cases]


def get_spec(variant: VariantTable) -> Spec | Union:
    """A suite's variant as a spec, with values as text and the current name of its backend."""
    options = {name: format_value(value) for name, value in variant.options.items()}
    return rename_backend(parse(variant.name).with_options(options, variant.backend))


def _choose_variants(tables: Sequence[VariantTable] | None, requested: Sequence[str]) -> list[Spec | Union]:
    """A part's variants or blocks; if some are requested, those: the suite's if the name matches, else as given."""
    specs = [get_spec(v) for v in tables or ()]
    if not requested or tables is None:
        return specs
    chosen: dict[Spec | Union, None] = {}
    for text in requested:
        spec = get_spec(VariantTable(name=text))
        chosen |= dict.fromkeys([s for s in specs if s.matches(text) or s == spec] or [spec])
    return list(chosen)


def _check_baselines(name: str, parts: Sequence[SuitePart]) -> None:
    variants = [v for part in parts for v in (*(part.variant or ()), *(part.block or ()))]
    names = {text for v in variants for text in (v.name, str(get_spec(v)))}
    for part in parts:
        if part.baseline is not None and part.baseline not in names:
            raise make_unknown_error("baseline", part.baseline, names, where=name)


def _find_parts(suite: str, requested: Sequence[str], part_names: Sequence[str]) -> set[str]:
    """The requested parts, from texts with one or several names separated by commas. As names may contain commas too,
    such as ``growth, causal``, the longest match counts."""
    by_name, selected = {normalise_name(name): name for name in part_names}, set[str]()
    for text in requested:
        pieces = normalise_name(text).split(", ")
        while pieces:
            end = next((end for end in range(len(pieces), 0, -1) if ", ".join(pieces[:end]) in by_name), None)
            if end is None:
                raise make_unknown_error("part", pieces[0], part_names, where=f"--part: {suite}")
            selected.add(by_name[", ".join(pieces[:end])])
            pieces = pieces[end:]
    return selected


def normalise_name(name: str) -> str:
    """A name with one space after each comma, however it was typed."""
    return ", ".join(piece.strip() for piece in name.split(","))


def _check_overrides(name: str, overrides: Overrides, cases: Sequence[Case]) -> None:
    """Check that every key set on the command line is used by some group."""
    groups = {case.group for case in cases}
    fields = [item for group in groups for item in find_task(group.target).keys.model_fields.items()]
    names = {name for name, _ in fields}
    supported = {key for group in groups for key, value in group.keys if value is not None}
    supported |= {n for n, f in fields if f.default == overrides.keys.get(n)}  # which groups do not store
    for key, value in overrides.keys.items():
        is_axis = isinstance(value, list | tuple)  # of which each group has a single value
        if key not in names or (key not in supported and not is_axis):
            near = difflib.get_close_matches(key, names - {key}, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            flag = overrides.flags.get(key, f"--set {key}")
            raise UsageError(f"{flag}: the suite {name} has no task with this key{hint}")


def _make_grids(part: SuitePart, overrides: Overrides) -> list[AxisGrid]:
    """The part's grid; with shapes one for each, so that mechanisms are created for that shape's length."""
    axes = DEFAULTS | {name: (value,) for name, value in part.dims.given.items()} | part.axes.given
    if overrides.quick:
        axes["seq_len"] = axes["seq_len"][:2]
        axes |= part.quick.given
    changed = {name: tuple(dict.fromkeys(values)) for name, values in overrides.axes.items()}
    if part.shapes:
        sizes = [shape.given for shape in part.shapes[: 2 if overrides.quick else None]]
        return [AxisGrid(axes | {name: (value,) for name, value in shape.items()} | changed) for shape in sizes]
    grid = AxisGrid(axes | changed)
    return [grid if part.design is None else replace(grid, points=_choose_points(grid, part.design, overrides.quick))]


def _choose_points(grid: AxisGrid, design: DesignTable, quick: bool) -> tuple[Mapping[str, Any], ...]:
    """The design's points; in a quick run as few as can separate the effects."""
    points = grid.combine(*(name for name in grid.axes if name not in ("device", "dtype", "budget")))
    flops = [4 * p["batch"] * p["heads"] * p["seq_len"] ** 2 * p["head_dim"] for p in points]
    points = [p for p, n in zip(points, flops, strict=True) if design.most_flops is None or n <= design.most_flops]
    if not points:
        raise UsageError(f"design: exact attention needs more than {design.most_flops:.3g} operations at every point")
    levels = {name: list(dict.fromkeys(p[name] for p in points)) for name in points[0]}
    count = min(design.points, len(list_contrasts(levels)) + 1) if quick else design.points
    return tuple(choose_points(points, levels, count, design.seed))
