"""Make a task of a problem: plan its attempts, and train and test a model in a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from ...bench.case_config import CaseConfig, Group
from ...bench.measuring import scratch
from ...bench.planning.request import TaskRequest
from ...bench.task import Guess, Task
from ...errors import UsageError
from ...results import checkpoints
from ...results.rows import Record, Row, finite_or_none
from ...results.section import Section
from ...results.stats import estimate_share
from ..trained import check_axes
from .attempts import QUICK_DIVISOR, Attempt, list_attempts, resolve_attempt
from .problem import Baselines, LearnKeys, Problem
from .reach import compute_lookback, compute_share_within, count_reach

if TYPE_CHECKING:
    from ...bench.case import Case
    from ...instruments.roofline import Roofline
    from .loop import TrainingResult

STEP_OVERHEAD_S = 4e-3  # least seconds of a step for each layer: forward, backward and AdamW
GEMM_EFFICIENCY = 0.6  # share of a matrix product's rate that small models reach
EVALUATION_FACTOR = 1.25  # time with validation and tests, relative to that of the steps
METRIC_LABELS = {
    "accuracy": "accuracy",
    "exact": "share of whole sequences",
    "explained": "share of variance explained",
    "bits": "bits a token",
}
SHARE_METRICS = "accuracy", "exact"  # metrics that count correct answers

COLUMNS = {
    "train.learning_rate": "of AdamW, at its highest",
    "train.train_s": "seconds of training steps, validation not counted",
    "train.step_ms": "the mean of a step",
    "train.jobs": "trainings at the same time, at most, which lengthens steps",
    "train.chance": "the score of a guess",
    "train.majority": "score of the most frequent answer",
    "train.shortcut": "computed score of a shortcut that the task allows",
    "train.way": "description of the shortcut",
    "train.examples": "examples over which the score is averaged",
    "train.test_len": "length of the tests",
    "train.score": "by the metric, on tests",
    "train.low": "the lower end of its 95% interval over examples",
    "train.high": "the upper end",
    "train.validation": "the last score on validation",
    "train.attempt": "grid, beyond, longer or best",
    "train.budget": "steps that were planned",
    "train.batch": "examples a step",
    "train.size": "width of the feed-forward part, fitted so that all have as many parameters",
    "train.attention": "parameters of attention",
    "train.mixer": "parameters except attention and embeddings",
    "train.embeddings": "parameters of embeddings",
    "train.reference": "parameters of the mechanism that all are fitted to",
    "train.at_*": "score at another length",
    "train.near_*": "accuracy for answers at most so many positions back, and more than half as many",
}


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
        columns=COLUMNS,
        sections=(SECTION,),
    )


def plan(problem: Problem, request: TaskRequest) -> Iterator[tuple[Group, int | None]]:
    """A group for each attempt at each length, so that an interrupted run has the same attempts of all mechanisms."""
    check_axes(request)
    keys: LearnKeys = request.keys
    recipe = problem.recipe
    if keys.architecture == "recurrent" and recipe.model != "sequence":
        raise UsageError(f"{problem.name}: architecture recurrent is for sequence to sequence only")
    key_values = {name: value for name, value in keys if value != type(keys).model_fields[name].default}
    key_values |= {"seeds": keys.seeds, "examples": keys.examples}
    if request.quick and keys.seconds is not None:
        key_values["seconds"] = keys.seconds / QUICK_DIVISOR
    elif request.quick:
        key_values["steps"] = max(1, (keys.steps or recipe.steps) // QUICK_DIVISOR)
    for attempt in list_attempts(problem, keys, quick=request.quick):
        for point in request.grid.combine("threads", "seq_len"):
            length = point["seq_len"]
            for n in (length, *keys.test_len):
                problem.check(keys, n)
            if keys.shortest is not None and keys.shortest > length:
                raise UsageError(f"{problem.name}: shortest={keys.shortest} is above the length, {length}")
            config = CaseConfig(
                **point,
                max_len=max(length, *keys.test_len, 0) + 1,  # an answer has an end token
                heads=recipe.heads,
                head_dim=recipe.d_model // recipe.heads,
                causal=recipe.model == "decoder",
                inputs=attempt.label,
            )
            key_values["attempt"] = tuple(vars(attempt).items())
            for of_blocks in [False] * request.variants + [True] * request.blocks:
                yield request.make_group(config, of_blocks=of_blocks, **key_values), None


def judge(problem: Problem, case: Case, row: Row, report_stage: Callable[..., None]) -> Record:
    """Train a model with the settings of the attempt, and test it. Raises `NotNeeded`."""
    from ...bench.measuring.prepared_case import EVALUATING
    from .alignment import compute_alignment
    from .learners import make_learner
    from .loop import Trainer, TrainingSetup, draw

    keys, config = case.keys, case.group.config
    attempt = Attempt(**dict(keys.attempt))
    row.seed, row.mode = case.group.sampling.seed + attempt.index, "train"
    baselines = compute_baselines(problem, keys, config.seq_len)
    reach_score = compute_reach_score(problem, case)
    rate, steps = resolve_attempt(attempt, list_earlier_rows(problem, case), problem, baselines, reach_score)
    learner = make_learner(problem, keys, case.variant, length=config.max_len, seed=row.seed)
    setup = TrainingSetup(
        problem=problem, keys=keys, length=config.seq_len, index=row.seed, rate=rate, steps=steps, device=config.device
    )
    path = checkpoints.path_of(folder, case.digest) if (folder := scratch.get_folder()) else None
    training = Trainer(learner, setup, path)
    result = training.run(lambda: report_stage(EVALUATING))
    row.parameters, row.state_bytes = learner.parameters, learner.count_state(config.seq_len)
    row.extra = {f"train.{part}": count for part, count in learner.parts.items()}
    row.extra |= {"train.reference": learner.reference, "train.size": learner.size, "train.batch": setup.batch}
    row.extra |= {"train.attempt": attempt.kind, "train.learning_rate": rate, "train.jobs": scratch.get_jobs()}
    shortcut, way = baselines.shortcut, baselines.way
    if shortcut is None and reach_score is not None:
        shortcut, way = reach_score, "all that lies within reach of its keys"
    row.extra |= {"train.chance": baselines.chance, "train.majority": baselines.majority, "train.shortcut": shortcut}
    row.extra |= {"train.way": way or None, "train.test_len": config.seq_len}
    _fill_row(row, result, problem)
    samples = _make_curves(result)
    if problem.recipe.model == "sequence" and not attempt.index:
        samples["alignment"] = compute_alignment(learner, draw(setup, "test", 1, 0), config.device)
    return Record(row, samples)


def _fill_row(row: Row, result: TrainingResult, problem: Problem) -> None:
    progress, counts, metric = result.progress, result.counts, problem.metric
    score = counts.score(metric)
    row.metric, row.loss, row.steps = METRIC_LABELS[metric], finite_or_none(counts.loss), progress.step
    if metric != "explained":
        row.accuracy = counts.score("exact" if metric == "exact" else "accuracy")
    row.stop_reason = progress.stopped or "the budget of steps"
    row.extra |= {
        "train.train_s": progress.train_s,
        "train.step_ms": 1e3 * progress.train_s / max(1, progress.step),
        "train.budget": progress.steps,
        "train.examples": counts.examples,
        "train.score": finite_or_none(score),
        "train.validation": progress.scores[-1][1] if progress.scores else None,
    }
    if metric in SHARE_METRICS:
        share = estimate_share(round(score * counts.examples), counts.examples)
        row.extra["train.low"], row.extra["train.high"] = share.low, share.high
    row.extra |= {f"train.at_{n}": finite_or_none(other.score(metric)) for n, other in result.at_length.items()}
    row.extra |= {f"train.near_{edge}": near.correct / near.targets for edge, near in result.within_distance.items()}


def _make_curves(result: TrainingResult) -> dict[str, Any]:
    """By step of a validation: the mean loss since the previous one, and the score."""
    progress = result.progress
    return {
        "steps": [step for step, _ in progress.scores],
        "loss": [value for _, value in progress.losses],
        "validation": [value for _, value in progress.scores],
    }


@cache
def compute_baselines(problem: Problem, keys: LearnKeys, length: int) -> Baselines:
    """The baselines, computed once in a worker."""
    return problem.baselines(keys, length)


def compute_reach_score(problem: Problem, case: Case) -> float | None:
    """The best score of a model with the mechanism's reach: correct within it, and chance beyond. None if the reach is
    not bounded or not known, or the distances of answers are not."""
    if not problem.windowed or (span := count_reach(case)) is None:
        return None
    max_distance = compute_lookback(span, case.keys.layers or problem.recipe.layers, problem.recipe.convolution)
    within = compute_share_within(problem, case.keys, case.group.config.seq_len, max_distance)
    chance = compute_baselines(problem, case.keys, case.group.config.seq_len).chance
    return within + (1 - within) * chance


def list_earlier_rows(problem: Problem, case: Case) -> list[Row]:
    """The run's rows so far of the other attempts of the same mechanism, task and length."""
    from ...results.shards import list_shards
    from ...results.store import read

    folder = scratch.get_folder()
    if folder is None or not list_shards(folder):
        return []
    attempts = list_attempts(problem, case.keys, quick=False)
    other_keys = {replace(case, group=make_group(case.group, attempt)).key for attempt in attempts} - {case.key}
    rows = [record.row for record in read(folder, on_damage=lambda damage: None)]
    return [row for row in rows if row.case_key in other_keys]


def identify_chain(case: Case) -> str:
    """The mechanism, task and length of a case, whose attempts depend on earlier ones."""
    return replace(case, group=make_group(case.group, Attempt(kind="grid"))).key


def make_group(group: Group, attempt: Attempt) -> Group:
    """The group of another attempt."""
    keys = dict(group.keys) | {"attempt": tuple(vars(attempt).items())}
    return replace(group, config=replace(group.config, inputs=attempt.label), keys=tuple(sorted(keys.items())))


def guess(problem: Problem, case: Case, best: Roofline) -> Guess:
    """The estimated cost of training; zero for attempts that are only needed after failures."""
    from ...bench.planning.cost_estimate import CALLS

    keys, recipe, config = case.keys, problem.recipe, case.group.config
    attempt = Attempt(**dict(keys.attempt))
    if attempt.kind in ("beyond", "longer"):
        return Guess(0.0, 0, 0)
    tokens, width = (keys.batch or recipe.batch) * config.seq_len, recipe.d_model
    layers = (keys.layers or recipe.layers) * (2 if recipe.model == "sequence" else 1)
    parameters = layers * 12 * width**2 + width * problem.outputs(keys)
    work = 6 * tokens * parameters
    if not case.group.of_blocks:
        attn = case.create()
        pairs = attn.growth.cost(config.seq_len, config.seq_len, config.causal)
        work += 12 * (keys.batch or recipe.batch) * layers * width * pairs
    step = STEP_OVERHEAD_S * layers + work / best.gemm_flops_per_s / GEMM_EFFICIENCY
    seconds = EVALUATION_FACTOR * (keys.seconds or (keys.steps or recipe.steps) * step)
    return Guess(seconds / CALLS, 0, 16 * parameters + 40 * tokens * width * layers)
