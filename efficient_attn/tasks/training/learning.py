"""Make a task of a problem: plan its attempts, and train and test a model in a worker."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from ...bench.case_config import CaseConfig, Group
from ...bench.data_files import digest_files
from ...bench.measuring import scratch
from ...bench.planning.request import TaskRequest
from ...bench.task import Task
from ...errors import Unchanged, UsageError
from ...results import checkpoints
from ...results.rows import Record, Row
from ...results.section import Section
from ...spec import parse
from ..trained import check_axes
from .attempts import (
    QUICK_DIVISOR,
    Attempt,
    find_selected_row,
    get_trivial_score,
    list_attempts,
    list_uptrainings,
    resolve_attempt,
)
from .problem import Baselines, LearnKeys, Problem
from .reach import compute_reach_score
from .shortcuts import compute_baselines, fit_shortcuts, make_columns
from .step_cost import estimate_flops, guess
from .training_rows import COLUMNS, UPTRAINING_COLUMNS, fill_row, make_curves
from .uptraining import (
    UNCHANGED,
    UPTRAINING_KEYS,
    check_uptraining,
    convert_model,
    count_uptraining_steps,
    is_original,
    make_original_case,
    restore_original,
)

if TYPE_CHECKING:
    from ...bench.case import Case
    from .learners import Learner
    from .loop import TrainingSetup

DEVICES = "cpu", "cuda"
SECTION = Section(name="ability", task="ability", title="Ability", layout="ability", x="seq_len", y="accuracy")


def make_task(problem: Problem) -> Task:
    """The task of a problem, which ``measure`` selects by the problem's name."""
    return Task(
        name=problem.name,
        words=(problem.name,),
        keys=problem.keys,
        plan=partial(plan, problem),
        judge=partial(judge, problem),
        chain=identify_chain,
        guess=partial(guess, problem),
        blocks=problem.recipe.model == "sequence",
        home=problem.draw,
        columns=COLUMNS | UPTRAINING_COLUMNS,
        sections=(SECTION,),
    )


def plan(problem: Problem, request: TaskRequest) -> Iterator[tuple[Group, int | None]]:
    """A group for each attempt at each length, so that an interrupted run has the same attempts of all mechanisms."""
    check_axes(request, devices=DEVICES)
    keys: LearnKeys = request.keys
    recipe = problem.recipe
    if keys.architecture == "recurrent" and recipe.model != "sequence":
        raise UsageError(f"{problem.name}: architecture recurrent is for sequence to sequence only")
    if keys.seeds_between is not None and not keys.seeds_between[0] < keys.seeds_between[1]:
        raise UsageError(f"{problem.name}: seeds_between must be two increasing scores, got {list(keys.seeds_between)}")
    check_uptraining(problem, keys, request.names)
    heads = keys.heads or recipe.heads
    if recipe.d_model % heads:
        raise UsageError(f"{problem.name}: heads={heads} does not divide the model's width, {recipe.d_model}")
    key_values = {name: value for name, value in keys if value != type(keys).model_fields[name].default}
    key_values |= {"seeds": keys.seeds, "examples": keys.examples}
    if folder := getattr(keys, "data", None):
        key_values["data_digest"] = digest_files(folder)
    if request.quick and keys.seconds is not None:
        key_values["seconds"] = keys.seconds / QUICK_DIVISOR
    elif request.quick:
        key_values["steps"] = max(1, (keys.steps or recipe.steps) // QUICK_DIVISOR)
    trainings = list_attempts(problem, keys, quick=request.quick, variants=request.names)
    for attempt in chain(trainings, list_uptrainings(keys, quick=request.quick)):
        for point in request.grid.combine("threads", "seq_len", dtypes={}):
            length = point["seq_len"]
            for n in (length, *keys.test_len):
                problem.check(keys, n)
            if keys.shortest is not None and keys.shortest > length:
                raise UsageError(f"{problem.name}: shortest={keys.shortest} is above the length, {length}")
            config = CaseConfig(
                **point,
                max_len=max(length, *keys.test_len, 0) + 1,  # an answer has an end token
                heads=heads,
                head_dim=recipe.d_model // heads,
                causal=recipe.model == "decoder",
                inputs=attempt.label,
            )
            attempt_keys = select_keys(key_values, attempt)
            for of_blocks in [False] * request.variants + [True] * request.blocks:
                yield request.make_group(config, of_blocks=of_blocks, **attempt_keys), None


def judge(problem: Problem, case: Case, row: Row, report_stage: Callable[..., None]) -> Record:
    """Train a model with the settings of the attempt, and test it. Raises `NotNeeded`, or `Unchanged` if the run has a
    row of it with these settings."""
    from .alignment import compute_alignment
    from .checkpoint import write_model
    from .learners import make_learner
    from .loop import TrainingSetup, draw

    keys, config = case.keys, case.group.config
    attempt = Attempt(**dict(keys.attempt))
    row.seed, row.mode = case.group.sampling.seed + attempt.index, "train"
    if attempt.kind == "uptrain":
        return _uptrain(problem, case, row, attempt, report_stage)
    baselines = compute_baselines(problem, keys, config.seq_len)
    reach_score = compute_reach_score(problem, case)
    earlier, variant = list_earlier(problem, case), str(case.variant)
    options: dict[str, Any] = {"baselines": baselines, "reach_score": reach_score}
    rate, steps = resolve_attempt(attempt, earlier, problem, keys, variant, **options)
    if is_trained(case, {"learning_rate": rate} | ({} if steps is None else {"budget": steps})):
        raise Unchanged
    learner = make_learner(problem, keys, case.variant, length=config.max_len, seed=row.seed)
    setup = TrainingSetup(
        problem=problem,
        keys=keys,
        length=config.seq_len,
        index=row.seed,
        rate=rate,
        trivial_score=get_trivial_score(problem, baselines),
        steps=steps,
        device=config.device,
    )
    record = _train(case, row, learner, setup, report_stage)
    fitted = fit_shortcuts(problem, keys, config.seq_len, setup.index, row.steps or 0)
    row.extra |= make_columns(baselines, fitted, problem.metric)
    row.extra |= {"train.attempt": attempt.kind, "train.reach": reach_score}
    if problem.recipe.model == "sequence" and not attempt.index:
        record.samples["alignment"] = compute_alignment(learner, draw(setup, "test", 1, 0), config.device)
    if is_original(case) and (folder := scratch.get_folder()):
        write_model(checkpoints.model_path_of(folder, case.digest), learner.model)
    return record


def _uptrain(problem: Problem, case: Case, row: Row, attempt: Attempt, report_stage: Callable[..., None]) -> Record:
    """Make a model from the original's of the same seed, train it further, and test it."""
    from .learners import SEED_STRIDE, make_learner
    from .loop import TrainingSetup

    keys, config, seed = case.keys, case.group.config, case.group.sampling.seed + attempt.index
    assert attempt.conversion is not None
    assert attempt.share is not None
    original_case = make_original_case(case, attempt)
    variant = str(original_case.variant)
    earlier = list_earlier(problem, original_case)
    original_row = find_selected_row(earlier, attempt.index, problem, keys, variant)
    if original_row and is_trained(
        case,
        {"learning_rate": original_row.extra["train.learning_rate"], "original": original_row.extra["train.score"]},
    ):
        raise Unchanged
    learner, source = (
        make_learner(problem, keys, spec, length=config.max_len, seed=seed)
        for spec in (case.variant, original_case.variant)
    )
    original = restore_original(source, original_row, f"{variant}, seed {seed}")
    convert_model(source.model, learner.model, attempt.conversion, seed=seed * SEED_STRIDE)
    chance, majority = (float(original.extra[f"train.{name}"] or 0.0) for name in ("chance", "majority"))
    setup = TrainingSetup(
        problem=problem,
        keys=keys,
        length=config.seq_len,
        index=seed,
        rate=float(original.extra["train.learning_rate"] or 0.0),
        trivial_score=get_trivial_score(problem, Baselines(chance=chance, majority=majority)),
        steps=count_uptraining_steps(attempt.share, original.steps or 0),
        device=config.device,
        uptrained=f"{original.case_key}, {attempt.conversion}",
        first_step=original.steps or 0,
    )
    record = _train(case, row, learner, setup, report_stage)
    conversion = UNCHANGED if case.kv_heads == original_case.kv_heads else attempt.conversion
    row.extra |= {"train.attempt": attempt.kind, "train.conversion": conversion, "train.share": attempt.share}
    row.extra |= {"train.chance": chance, "train.majority": majority, "train.original": original.extra["train.score"]}
    return record


def _train(case: Case, row: Row, learner: Learner, setup: TrainingSetup, report_stage: Callable[..., None]) -> Record:
    """Train and test a model; fill in the columns of all attempts."""
    from ...bench.measuring.prepared_case import EVALUATING
    from .loop import Trainer

    path = checkpoints.path_of(folder, case.digest) if (folder := scratch.get_folder()) else None
    result = Trainer(learner, setup, path).run(lambda: report_stage(EVALUATING))
    row.parameters, row.state_bytes = learner.parameters, learner.count_state(setup.length)
    row.extra = {f"train.{part}": count for part, count in learner.parts.items()}
    row.extra |= {"train.reference": learner.reference, "train.size": learner.size, "train.batch": setup.batch}
    row.extra |= {"train.learning_rate": setup.rate, "train.jobs": scratch.get_jobs(), "train.test_len": setup.length}
    row.extra["train.flops"] = estimate_flops(setup.problem, case) * result.progress.step
    fill_row(row, result, setup)
    return Record(row, make_curves(result))


def list_earlier(problem: Problem, case: Case) -> list[tuple[Attempt, Row]]:
    """The attempts before this one, of the same mechanism, task and length, that the run has rows of. Of a case that is
    no attempt, all."""
    rows, earlier = read_rows(), []
    for attempt in list_attempts(problem, case.keys, quick=False) if rows else ():
        key = replace(case, group=make_group(case.group, attempt)).key
        if key == case.key:
            break
        if key in rows:
            earlier.append((attempt, rows[key]))
    return earlier


def is_trained(case: Case, settings: Mapping[str, float | int | str | None]) -> bool:
    """Whether the run has a training of a case that had these settings (columns without ``train.``)."""
    row = read_rows().get(case.key)
    return row is not None and row.status == "ok" and all(row.extra[f"train.{k}"] == x for k, x in settings.items())


def read_rows() -> dict[str, Row]:
    """The rows of the run so far, by their keys."""
    from ...results.shards import list_shards
    from ...results.store import read

    folder = scratch.get_folder()
    if folder is None or not list_shards(folder):
        return {}
    return {record.row.case_key: record.row for record in read(folder, on_damage=lambda damage: None)}


def identify_chain(case: Case) -> Hashable:
    """The mechanism, task and length of a case, whose attempts depend on earlier ones; of uptraining, the original."""
    keys = case.keys
    variant = str(parse(keys.uptrained_from)) if dict(keys.attempt)["kind"] == "uptrain" else str(case.variant)
    return variant, make_group(case.group, Attempt(kind="grid"))


def make_group(group: Group, attempt: Attempt) -> Group:
    """The group of another attempt."""
    keys = select_keys(dict(group.keys), attempt)
    return replace(group, config=replace(group.config, inputs=attempt.label), keys=tuple(sorted(keys.items())))


def select_keys(key_values: Mapping[str, Any], attempt: Attempt) -> dict[str, Any]:
    """The keys that an attempt depends on, with its own."""
    is_uptrained = attempt.kind == "uptrain"
    selected = {name: x for name, x in key_values.items() if is_uptrained or name not in UPTRAINING_KEYS}
    return selected | {"attempt": attempt.pairs}
