"""Make a task of a problem: plan its attempts, and train and test a model in a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ...bench.case_config import CaseConfig, Group
from ...bench.measuring import scratch
from ...bench.planning.request import TaskRequest
from ...bench.task import Task
from ...errors import UsageError
from ...results import checkpoints
from ...results.rows import Record, Row, finite_or_none
from ...results.section import Section
from ...results.stats import estimate_share
from ..trained import check_axes
from .attempts import QUICK_DIVISOR, Attempt, get_trivial_score, list_attempts, resolve_attempt
from .plateau import find_reference_step
from .problem import LearnKeys, Problem
from .reach import compute_lookback, compute_share_within, count_reach
from .shortcuts import compute_baselines, fit_shortcuts, make_columns
from .step_cost import estimate_flops, guess

if TYPE_CHECKING:
    from ...bench.case import Case
    from .loop import TrainingResult, TrainingSetup

METRIC_LABELS = {
    "accuracy": "accuracy",
    "exact": "share of whole sequences",
    "explained": "share of variance explained",
    "bits": "bits a token",
}
SHARE_METRICS = "accuracy", "exact"  # metrics that count correct answers

COLUMNS = {
    "train.learning_rate": "of AdamW, at its highest",
    "train.train_s": "seconds of training steps, validation not counted; on a CPU processor time of all threads",
    "train.step_ms": "the mean of a step",
    "train.jobs": "trainings at the same time, at most",
    "train.chance": "the score of a guess",
    "train.majority": "score of the most frequent answer",
    "train.shortcut": "computed score of the best simple method without attention",
    "train.way": "description of that method",
    "train.shortcut_*": "score of each such method, named by its description",
    "train.caveat": "what the task shows of models that are not better than the best such method",
    "train.note": "a remark about the examples",
    "train.reach": "score of correct answers where a window contains all needed tokens, and of chance elsewhere",
    "train.examples": "examples over which the score is averaged",
    "train.test_len": "length of the tests",
    "train.score": "by the metric, on tests",
    "train.tokens": "accuracy of single tokens, given those before, if the score counts whole sequences",
    "train.low": "the lower end of its 95% interval over examples",
    "train.high": "the upper end",
    "train.validation": "the last score on validation",
    "train.validation_error": "its standard error over examples",
    "train.steps_to_90": "steps to 90% of the final improvement over the trivial score, on validation",
    "train.s_to_90": "seconds of training to the same",
    "train.attempt": "grid, above or below (rates beyond it), given, best or more (further seeds)",
    "train.budget": "steps at most",
    "train.flops": "of all steps, forward and backward, estimated from parameters and pairs of queries and keys",
    "train.batch": "examples a step",
    "train.size": "width of the feed-forward part, fitted so that all have as many parameters",
    "train.attention": "parameters of attention",
    "train.mixer": "parameters except attention and embeddings",
    "train.embeddings": "parameters of embeddings",
    "train.reference": "parameters of the mechanism that all are fitted to",
    "train.at_*": "score at another length",
    "train.near_*": "accuracy for answers that need tokens at most so many positions back, and more than half as many",
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
    if keys.seeds_between is not None and not keys.seeds_between[0] < keys.seeds_between[1]:
        raise UsageError(f"{problem.name}: seeds_between must be two increasing scores, got {list(keys.seeds_between)}")
    heads = keys.heads or recipe.heads
    if recipe.d_model % heads:
        raise UsageError(f"{problem.name}: heads={heads} does not divide the model's width, {recipe.d_model}")
    key_values = {name: value for name, value in keys if value != type(keys).model_fields[name].default}
    key_values |= {"seeds": keys.seeds, "examples": keys.examples}
    if request.quick and keys.seconds is not None:
        key_values["seconds"] = keys.seconds / QUICK_DIVISOR
    elif request.quick:
        key_values["steps"] = max(1, (keys.steps or recipe.steps) // QUICK_DIVISOR)
    for attempt in list_attempts(problem, keys, quick=request.quick, variants=request.names):
        for point in request.grid.combine("threads", "seq_len"):
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
    earlier, variant = list_earlier(problem, case), str(case.variant)
    options: dict[str, Any] = {"baselines": baselines, "reach_score": reach_score}
    rate, steps = resolve_attempt(attempt, earlier, problem, keys, variant, **options)
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
    path = checkpoints.path_of(folder, case.digest) if (folder := scratch.get_folder()) else None
    training = Trainer(learner, setup, path)
    result = training.run(lambda: report_stage(EVALUATING))
    row.parameters, row.state_bytes = learner.parameters, learner.count_state(config.seq_len)
    row.extra = {f"train.{part}": count for part, count in learner.parts.items()}
    row.extra |= {"train.reference": learner.reference, "train.size": learner.size, "train.batch": setup.batch}
    row.extra |= {"train.attempt": attempt.kind, "train.learning_rate": rate, "train.jobs": scratch.get_jobs()}
    fitted = fit_shortcuts(problem, keys, config.seq_len, setup.index, result.progress.step)
    row.extra |= make_columns(baselines, fitted, problem.metric)
    row.extra |= {"train.reach": reach_score, "train.test_len": config.seq_len}
    row.extra["train.flops"] = estimate_flops(problem, case) * result.progress.step
    _fill_row(row, result, setup)
    samples = _make_curves(result)
    if problem.recipe.model == "sequence" and not attempt.index:
        samples["alignment"] = compute_alignment(learner, draw(setup, "test", 1, 0), config.device)
    return Record(row, samples)


def _fill_row(row: Row, result: TrainingResult, setup: TrainingSetup) -> None:
    progress, counts, metric = result.progress, result.counts, setup.problem.metric
    score = counts.score(metric)
    row.metric, row.loss, row.steps = METRIC_LABELS[metric], finite_or_none(counts.loss), progress.step
    if metric != "explained":
        row.accuracy = counts.score("exact" if metric == "exact" else "accuracy")
    row.stop_reason = progress.stopped
    reference = find_reference_step(progress.scores, metric, setup.trivial_score)
    row.extra |= {
        "train.train_s": progress.train_s,
        "train.step_ms": 1e3 * progress.train_s / max(1, progress.step),
        "train.budget": progress.steps,
        "train.examples": counts.examples,
        "train.score": finite_or_none(score),
        "train.tokens": counts.score("accuracy") if metric == "exact" else None,
        "train.validation": progress.scores[-1][1],
        "train.validation_error": finite_or_none(progress.score_error),
        "train.steps_to_90": None if reference is None else progress.scores[reference][0],
        "train.s_to_90": None if reference is None else progress.seconds[reference],
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


def compute_reach_score(problem: Problem, case: Case) -> float | None:
    """The score of a model with the mechanism's reach on the tests: correct within it, and chance beyond. None if the
    reach is not bounded or not known, or the distances of answers are not."""
    if not problem.windowed or (span := count_reach(case)) is None:
        return None
    max_distance = compute_lookback(span, case.keys.layers or problem.recipe.layers, problem.recipe.convolution)
    within = compute_share_within(problem, case.keys, case.group.config.seq_len, max_distance)
    chance = compute_baselines(problem, case.keys, case.group.config.seq_len).chance
    return within + (1 - within) * chance


def list_earlier(problem: Problem, case: Case) -> list[tuple[Attempt, Row]]:
    """The other attempts of the same mechanism, task and length that the run has rows of."""
    from ...results.shards import list_shards
    from ...results.store import read

    folder = scratch.get_folder()
    if folder is None or not list_shards(folder):
        return []
    attempts = list_attempts(problem, case.keys, quick=False)
    by_key = {replace(case, group=make_group(case.group, attempt)).key: attempt for attempt in attempts}
    by_key.pop(case.key, None)
    rows = [record.row for record in read(folder, on_damage=lambda damage: None)]
    return [(by_key[row.case_key], row) for row in rows if row.case_key in by_key]


def identify_chain(case: Case) -> str:
    """The mechanism, task and length of a case, whose attempts depend on earlier ones."""
    return replace(case, group=make_group(case.group, Attempt(kind="grid"))).key


def make_group(group: Group, attempt: Attempt) -> Group:
    """The group of another attempt."""
    keys = dict(group.keys) | {"attempt": tuple(vars(attempt).items())}
    return replace(group, config=replace(group.config, inputs=attempt.label), keys=tuple(sorted(keys.items())))
