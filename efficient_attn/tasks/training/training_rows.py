"""The columns of a training's row, and its curves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...results.rows import Row, finite_or_none
from ...results.stats import estimate_share
from .plateau import find_reference_step

if TYPE_CHECKING:
    from .loop import TrainingResult, TrainingSetup

METRIC_LABELS = {
    "accuracy": "accuracy",
    "exact": "share of whole sequences",
    "explained": "share of variance explained",
    "bits": "bits a token",
}
NORMAL_95 = 1.96  # standard errors on each side of a 95% interval
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
    "train.attempt": "grid, above or below (rates beyond it), given, best or more (further seeds), or uptrain",
    "train.budget": "steps at most",
    "train.flops": "of all steps, forward and backward, estimated from parameters and pairs of queries and keys",
    "train.batch": "examples a step",
    "train.size": "width of the feed-forward part, fitted so that all have as many parameters, except with uptraining",
    "train.attention": "parameters of attention",
    "train.mixer": "parameters except attention and embeddings",
    "train.embeddings": "parameters of embeddings",
    "train.reference": "parameters of the mechanism that all are fitted to",
    "train.at_*": "score at another length",
    "train.near_*": "accuracy for answers that need tokens at most so many positions back, and more than half as many",
}
UPTRAINING_COLUMNS = {
    "train.conversion": "of uptraining: how heads were pooled, mean, first or random; none with as many heads",
    "train.share": "of the original's steps, for which a model was trained further",
    "train.original": "score on tests of the model that it was made from",
}


def fill_row(row: Row, result: TrainingResult, setup: TrainingSetup) -> None:
    """Fill in what training and tests gave."""
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
    ends = (score + sign * NORMAL_95 * counts.standard_error for sign in (-1, 1))
    if metric in SHARE_METRICS:
        ends = estimate_share(round(score * counts.examples), counts.examples).ends
    row.extra["train.low"], row.extra["train.high"] = map(finite_or_none, ends)
    row.extra |= {f"train.at_{n}": finite_or_none(other.score(metric)) for n, other in result.at_length.items()}
    row.extra |= {f"train.near_{edge}": near.correct / near.targets for edge, near in result.within_distance.items()}


def make_curves(result: TrainingResult) -> dict[str, Any]:
    """By step of a validation: the mean loss since the previous one, and the score."""
    progress = result.progress
    return {
        "steps": [step for step, _ in progress.scores],
        "loss": [value for _, value in progress.losses],
        "validation": [value for _, value in progress.scores],
    }
