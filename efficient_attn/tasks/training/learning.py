"""From a problem to a task: which attempts are planned, and how a worker carries one out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from ...bench.config import Cell, Place
from ...bench.measuring import scratch
from ...bench.planning.request import Asked
from ...bench.task import Guess, Task
from ...errors import UsageError
from ...results import checkpoints
from ...results.rows import Record, Row, finite
from ...results.section import Section
from ...results.stats import share_of
from ..trained import check_places
from .attempts import QUICK_STEPS, Attempt, NotNeeded, list_attempts, settle, shorten
from .problem import Baselines, LearnKeys, Problem

if TYPE_CHECKING:
    from ...bench.case import Case
    from ...instruments.roofline import Ceiling
    from .loop import Trained

STEP_S = 4e-3  # of a step, however small: some hundred small operations, forward, backward and AdamW
PACE = 0.6  # of a matrix product's rate that small models reach
LOOKS = 1.25  # times the time of the steps: validation and tests
METRICS = {
    "accuracy": "accuracy",
    "exact": "share of whole sequences",
    "explained": "share of variance explained",
    "bits": "bits a token",
}
SHARES = "accuracy", "exact"  # metrics that count right ones

COLUMNS = {
    "train.learning_rate": "of AdamW, at its highest",
    "train.train_s": "seconds of training steps, validation not counted",
    "train.step_ms": "the mean of a step",
    "train.chance": "the score of a guess",
    "train.majority": "that of the one answer that is most often right",
    "train.shortcut": "that of the cheap way that the task allows, computed",
    "train.way": "the cheap way",
    "train.examples": "of which the score is the mean",
    "train.test_len": "length of the tests",
    "train.score": "by the metric, on tests",
    "train.low": "the lower end of its 95% interval over examples",
    "train.high": "the upper end",
    "train.validation": "the last score on validation",
    "train.attempt": "grid, beyond, longer or best",
    "train.budget": "steps that were planned",
    "train.batch": "examples a step",
    "train.size": "the model's free width, fitted so that all have as many parameters",
    "train.attention": "parameters of attention",
    "train.mixer": "parameters of all else but embeddings",
    "train.embeddings": "parameters of embeddings",
    "train.reference": "parameters of the mechanism that all are fitted to",
    "train.at_*": "score at another length",
    "train.near_*": "accuracy where the answer lies at most so many positions back, and more than half as many",
}


def make_task(problem: Problem) -> Task:
    """The task of a problem: ``measure`` asks for it by the problem's name."""
    return Task(
        name=problem.name,
        words=(problem.name,),
        keys=problem.keys,
        plan=partial(plan, problem),
        judge=partial(judge, problem),
        guess=partial(guess, problem),
        blocks=problem.recipe.model == "sequence",
        home=problem.draw,
        columns=COLUMNS,
        sections=(
            Section(name="ability", task="ability", title="Ability", layout="ability", x="seq_len", y="accuracy"),
        ),
    )


def plan(problem: Problem, asked: Asked) -> Iterator[tuple[Cell, int | None]]:
    """A cell for each attempt at each length: so mechanisms are trained in turns, and a run that is stopped early has
    as much of each."""
    check_places(asked)
    keys: LearnKeys = asked.keys
    recipe = problem.recipe
    if keys.architecture == "recurrent" and recipe.model != "sequence":
        raise UsageError(f"{problem.name}: architecture recurrent is for sequence to sequence only")
    told = {name: value for name, value in keys if value != type(keys).model_fields[name].default}
    told |= {"seeds": keys.seeds, "examples": keys.examples}
    if asked.quick and keys.seconds is not None:
        told["seconds"] = keys.seconds / QUICK_STEPS
    elif asked.quick:
        told["steps"] = shorten(keys.steps or recipe.steps)
    for attempt in list_attempts(problem, keys, quick=asked.quick):
        for at in asked.grid.combine("threads", "seq_len"):
            length = at["seq_len"]
            for n in (length, *keys.test_len):
                problem.check(keys, n)
            if keys.shortest is not None and keys.shortest > length:
                raise UsageError(f"{problem.name}: shortest={keys.shortest} is above the length, {length}")
            place = Place(
                **at,
                max_len=max(length, *keys.test_len, 0) + 1,  # an answer has its end too
                heads=recipe.heads,
                head_dim=recipe.d_model // recipe.heads,
                causal=recipe.model == "decoder",
                inputs=attempt.words,
            )
            for of_blocks in [False] * asked.variants + [True] * asked.blocks:
                yield asked.cell(place, of_blocks=of_blocks, **told, attempt=tuple(vars(attempt).items())), None


def judge(problem: Problem, case: Case, row: Row, at: Callable[..., None]) -> Record:
    """Train a model as the attempt says, and test it; or say why that would tell nothing new."""
    from ...bench.measuring.jobs import JUDGING
    from ...integrations.model_info import NotInstalled
    from .alignment import find_alignment
    from .learners import make_learner
    from .loop import Order, Training, draw

    keys, place = case.keys, case.cell.place
    attempt = Attempt(**dict(keys.attempt))
    row.seed, row.mode = case.cell.effort.seed + attempt.index, "train"
    try:
        told = find_baselines(problem, keys, place.seq_len)
        reach = find_reach(problem, case)
        rate, steps = settle(attempt, list_earlier(problem, case), problem, told, reach)
    except (NotNeeded, NotInstalled) as error:
        row.status, row.reason = "skipped", str(error)
        return Record(row)
    learner = make_learner(problem, keys, case.variant, length=place.max_len, seed=row.seed)
    order = Order(
        problem=problem, keys=keys, length=place.seq_len, index=row.seed, rate=rate, steps=steps, device=place.device
    )
    path = checkpoints.path_of(folder, case.digest) if (folder := scratch.folder()) else None
    training = Training(learner, order, path)
    trained = training.run(lambda: at(JUDGING))
    row.parameters, row.state_bytes = learner.parameters, learner.count_state(place.seq_len)
    row.extra = {f"train.{part}": count for part, count in learner.parts.items()}
    row.extra |= {"train.reference": learner.reference, "train.size": learner.size, "train.batch": order.batch}
    row.extra |= {"train.attempt": attempt.kind, "train.learning_rate": rate}
    shortcut = reach if told.shortcut is None else told.shortcut
    way = "all that lies within reach of its keys" if told.shortcut is None and reach is not None else told.way
    row.extra |= {"train.chance": told.chance, "train.majority": told.majority, "train.shortcut": shortcut}
    row.extra |= {"train.way": way or None, "train.test_len": place.seq_len}
    _tell(row, trained, problem)
    samples = _curves(trained)
    if problem.recipe.model == "sequence" and not attempt.index:
        samples["alignment"] = find_alignment(learner, draw(order, "test", 1, 0), place.device)
    return Record(row, samples)


def _tell(row: Row, trained: Trained, problem: Problem) -> None:
    """What came of it, as the row's columns."""
    progress, marks = trained.progress, trained.marks
    score = marks.score(problem.metric)
    row.metric, row.loss, row.steps = METRICS[problem.metric], finite(marks.loss), progress.step
    if problem.metric != "explained":
        row.accuracy = marks.whole / marks.rows if problem.metric == "exact" else marks.right / max(1, marks.asked)
    row.stop_reason = progress.stopped or "the budget of steps"
    row.extra |= {
        "train.train_s": progress.train_s,
        "train.step_ms": 1e3 * progress.train_s / max(1, progress.step),
        "train.budget": progress.steps,
        "train.examples": marks.rows,
        "train.score": finite(score),
        "train.validation": progress.scores[-1][1] if progress.scores else None,
    }
    if problem.metric in SHARES:
        _, row.extra["train.low"], row.extra["train.high"] = share_of(round(score * marks.rows), marks.rows)
    row.extra |= {f"train.at_{n}": finite(other.score(problem.metric)) for n, other in trained.at.items()}
    row.extra |= {f"train.near_{edge}": other.right / other.asked for edge, other in trained.near.items()}


def _curves(trained: Trained) -> dict[str, Any]:
    """By step: the mean loss since the one before, and the score on validation."""
    progress = trained.progress
    return {
        "steps": [step for step, _ in progress.scores],
        "loss": [value for _, value in progress.losses],
        "validation": [value for _, value in progress.scores],
    }


@cache
def find_baselines(problem: Problem, keys: LearnKeys, length: int) -> Baselines:
    """Computed once in a worker."""
    return problem.baselines(keys, length)


def find_reach(problem: Problem, case: Case) -> float | None:
    """Of a task whose answers lie at known distances, the best that a model of one mechanism's reach could score: what
    lies within it, and chance beyond. None where its reach is not bounded, or not known."""
    from .reach import count_reach, look_back, share_within

    if not problem.windowed or (span := count_reach(case)) is None:
        return None
    far = look_back(span, case.keys.layers or problem.recipe.layers, problem.recipe.convolution)
    within = share_within(problem, case.keys, case.cell.place.seq_len, far)
    chance = find_baselines(problem, case.keys, case.cell.place.seq_len).chance
    return within + (1 - within) * chance


def list_earlier(problem: Problem, case: Case) -> list[Row]:
    """The run's rows so far of the other attempts at this: of cases that differ in nothing else."""
    from ...results.shards import shards
    from ...results.store import read

    folder = scratch.folder()
    if folder is None or not shards(folder):
        return []
    attempts = list_attempts(problem, case.keys, quick=False)
    others = {replace(case, cell=make_cell(case.cell, attempt)).key for attempt in attempts} - {case.key}
    rows = [record.row for record in read(folder, damaged=lambda damage: None)]
    return [row for row in rows if row.case_key in others]


def make_cell(cell: Cell, attempt: Attempt) -> Cell:
    """The cell of an attempt, like another one's."""
    keys = dict(cell.keys) | {"attempt": tuple(vars(attempt).items())}
    return replace(cell, place=replace(cell.place, inputs=attempt.words), keys=tuple(sorted(keys.items())))


def guess(problem: Problem, case: Case, best: Ceiling) -> Guess:
    """The steps of attempts that will surely be made."""
    from ...bench.planning.cost_estimate import CALLS

    keys, recipe, place = case.keys, problem.recipe, case.cell.place
    attempt = Attempt(**dict(keys.attempt))
    if attempt.kind in ("beyond", "longer"):
        return Guess(0.0, 0, 0)
    tokens, width = (keys.batch or recipe.batch) * place.seq_len, recipe.d_model
    layers = (keys.layers or recipe.layers) * (2 if recipe.model == "sequence" else 1)
    parameters = layers * 12 * width**2 + width * problem.outputs(keys)
    work = 6 * tokens * parameters
    if not case.cell.of_blocks:
        attn = case.create()
        pairs = attn.growth.cost(place.seq_len, place.seq_len, place.causal)
        work += 12 * (keys.batch or recipe.batch) * layers * width * pairs
    step = STEP_S * layers + work / best.gemm_flops_per_s / PACE
    seconds = LOOKS * (keys.seconds or (keys.steps or recipe.steps) * step)
    return Guess(seconds / CALLS, 0, 16 * parameters + 40 * tokens * width * layers)
