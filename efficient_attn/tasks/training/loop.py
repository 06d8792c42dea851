"""The trainer: AdamW, clipped gradients, and a constant learning rate that decays once the score has levelled off. On
one thread results are bit-for-bit reproducible, also if training is interrupted and resumed.

The decay, over the last fifth of the steps, makes the result that of a schedule of this length, wherever training ends
(Hägele et al. 2024, arXiv:2405.18392); a cosine would need the number of steps in advance.
"""

import copy
import math
import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from torch.utils import deterministic

from ...bench.measuring.row_errors import InvalidResult
from ...layers.auxiliary_losses import collect_auxiliary_losses
from . import checkpoint, plateau
from .checkpoint import Progress
from .learners import NO_COUNTS, EvaluationCounts, Learner, compute_loss, count_correct
from .problem import Batch, LearnKeys, Problem, Split

WARMUP_SHARE = 0.05  # of the largest number of steps
DECAY_SHARE = 0.2  # of the steps, at the end
WEIGHT_DECAY = 0.01
BETAS = 0.9, 0.98
MAX_GRADIENT_NORM = 1.0  # of all gradients together
MAX_VALIDATIONS = 40  # evenly over the largest number of steps
TIMED_STEPS = 8  # to measure the time of a step, after a warm-up
filling: Any = deterministic  # whose setting is a property, which type checkers do not see
CUBLAS_WORKSPACE = ":4096:8"  # eight buffers of 4 MiB, as cuBLAS documents for equal results
LEVELLED_OFF = "levelled off"
SPLIT_SEEDS: dict[Split, int] = {"train": 1, "validation": 2, "test": 3}


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """What is trained. index: of the seed. trivial_score: of a model that has learned nothing. steps: at most, by
    default those of the keys. uptrained: what the model was made of, if it does not start from random weights; it is
    then trained for exactly so many steps. first_step: of the examples, if the original has seen earlier ones."""

    problem: Problem
    keys: LearnKeys
    length: int
    index: int
    rate: float
    trivial_score: float
    steps: int | None = None
    device: str = "cpu"
    uptrained: str = ""
    first_step: int = 0

    @property
    def batch(self) -> int:
        """Examples of a step."""
        return self.keys.batch or self.problem.recipe.batch

    @property
    def has_time_budget(self) -> bool:
        """Whether the keys limit training by seconds instead of steps."""
        return self.steps is None and self.keys.seconds is not None

    @property
    def description(self) -> str:
        """Identifies the training in a checkpoint."""
        budget = f"{self.steps} steps, {self.keys.seconds} s"
        budget += f", from step {self.first_step} of {self.uptrained}" if self.uptrained else ""
        return f"{self.problem.name} {self.length}, seed {self.index}, {self.rate!r}, batch {self.batch}, {budget}"


@dataclass(frozen=True)
class TrainingResult:
    """The result of training. counts: on the tests, at the length of training. at_length: at other lengths.
    within_distance: for answers at most so many positions back, and more than half as many."""

    progress: Progress
    counts: EvaluationCounts
    at_length: dict[int, EvaluationCounts]
    within_distance: dict[int, EvaluationCounts]


class Trainer:
    """Trains one model. path: of its checkpoint, from which training is resumed if it exists; None for none."""

    def __init__(self, learner: Learner, setup: TrainingSetup, path: Path | None = None) -> None:
        self.learner, self.setup, self.path = learner, setup, path
        parameters = learner.model.to(setup.device).parameters()
        self.optimizer = torch.optim.AdamW(
            parameters, lr=setup.rate, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True
        )
        self.saved_at = perf_counter()
        restored = checkpoint.restore(path, learner.model, self.optimizer, setup.description) if path else None
        self.progress = restored or Progress(self._choose_step_count())
        if setup.uptrained:
            self.progress.decay_from = math.ceil((1 - DECAY_SHARE) * self.progress.steps)
            self.progress.stopped = plateau.UPTRAINED
        if setup.has_time_budget and not restored:
            self.save()  # so that resumed training has the same number of steps

    def run(self, on_step: Callable[[], None] = lambda: None) -> TrainingResult:
        """Train and test. on_step: called before each step and batch of tests. Raises `InvalidResult` for a loss that
        is not finite."""
        with _use_deterministic_kernels(self.setup.device):
            return self._run(on_step)

    def _run(self, on_step: Callable[[], None]) -> TrainingResult:
        progress, setup = self.progress, self.setup
        # processor time does not grow beside other programs; that of an accelerator is not counted by the system
        read_clock = process_time if setup.device == "cpu" else perf_counter
        interval = math.ceil(progress.steps / (1 if setup.uptrained else MAX_VALIDATIONS))
        last_decay_from = math.ceil((1 - DECAY_SHARE) * progress.steps)
        while progress.step < self._count_steps() and progress.stopped != plateau.SOLVED:
            on_step()
            start = read_clock()
            progress.running.append(self._step(progress.step))
            progress.train_s += read_clock() - start
            progress.step += 1
            if progress.step % interval == 0 or progress.step in (self._count_steps(), last_decay_from):
                self._validate()
            if progress.step == last_decay_from and progress.decay_from is None and progress.stopped is None:
                progress.decay_from, progress.stopped = progress.step, self._judge_at_the_end()
            if perf_counter() - self.saved_at > setup.keys.checkpoint_s:
                self.save()
        if not progress.scores:  # without steps
            self._validate()
        self.save()
        keys = setup.keys
        counts, within_distance = self._evaluate("test", setup.length, keys.examples, on_step)
        others = [n for n in keys.test_len if n != setup.length]
        at_length = {n: self._evaluate("test", n, keys.examples, on_step)[0] for n in others}
        return TrainingResult(progress, counts, at_length, within_distance)

    def _judge_at_the_end(self) -> str:
        """Why training ends after the most steps: it cannot go on until noise is ruled out, so means decide."""
        scores, setup = self.progress.scores, self.setup
        if not plateau.has_learned(scores, setup.problem.metric, setup.trivial_score):
            return plateau.NOT_LEARNED
        rule = (scores, setup.problem.metric, setup.trivial_score, self.progress.steps)
        return LEVELLED_OFF if plateau.has_levelled_off(*rule, certainly=False) else plateau.STILL_IMPROVING

    def save(self) -> None:
        """Write the checkpoint, if there is a path. Raises `CheckpointNotSaved`."""
        if self.path:
            checkpoint.write(self.path, self.learner.model, self.optimizer, self.progress, self.setup.description)
        self.saved_at = perf_counter()

    def _count_steps(self) -> int:
        """The step at which training ends, as far as is known."""
        return count_steps(self.progress.steps, self.progress.decay_from)

    def _choose_step_count(self) -> int:
        """The number of steps. Seconds are converted by the measured time of some steps of a copy of the model."""
        setup, seconds = self.setup, self.setup.keys.seconds
        planned = setup.keys.steps or setup.problem.recipe.steps if setup.steps is None else setup.steps
        if not setup.has_time_budget or seconds is None:
            return planned
        timing_setup = replace(setup, keys=setup.keys.model_copy(update={"seconds": None}), steps=planned)
        timing_learner = replace(self.learner, model=copy.deepcopy(self.learner.model))
        timing_trainer, times = Trainer(timing_learner, timing_setup), []
        with torch.random.fork_rng(devices=()):
            for step in range(TIMED_STEPS + 1):
                start = perf_counter()
                timing_trainer._step(step)
                times.append(perf_counter() - start)
        return max(1, int(seconds / statistics.median(times[1:])))

    def _step(self, step: int) -> float:
        setup, model = self.setup, self.learner.model
        for group in self.optimizer.param_groups:
            group["lr"] = setup.rate * compute_rate_factor(step, self.progress.steps, self.progress.decay_from)
        model.train()
        batch = draw(setup, "train", setup.batch, setup.first_step + step)
        with collect_auxiliary_losses(model) as auxiliary:
            logits, targets = self.learner.predict(batch, setup.device)
        loss = compute_loss(logits, targets)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise InvalidResult(f"the loss is {value} at step {step + 1}, at learning rate {setup.rate:g}")
        self.optimizer.zero_grad(set_to_none=True)
        sum(auxiliary, loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
        self.optimizer.step()
        return value

    def _validate(self) -> None:
        """Record the mean loss since the last validation, and the score; end if it is perfect, or begin the decay."""
        progress, problem = self.progress, self.setup.problem
        if progress.running:
            progress.losses.append((progress.step, statistics.fmean(progress.running)))
        progress.running = []
        counts, _ = self._evaluate("validation", self.setup.length, max(1, self.setup.keys.examples // 2), lambda: None)
        if not math.isfinite(counts.loss):
            place = f"after step {progress.step}, at learning rate {self.setup.rate:g}"
            raise InvalidResult(f"the loss on validation is {counts.loss} {place}")
        score, metric = counts.score(problem.metric), problem.metric
        progress.scores.append((progress.step, score))
        progress.score_error = counts.standard_error
        progress.seconds.append(progress.train_s)
        solved = problem.recipe.solved
        if self.setup.uptrained:
            return  # the number of steps is fixed
        if score <= solved if metric == "bits" else score >= solved:
            progress.stopped = plateau.SOLVED
        elif progress.decay_from is None and plateau.has_levelled_off(
            progress.scores, metric, self.setup.trivial_score, progress.steps
        ):
            progress.decay_from, progress.stopped = progress.step, LEVELLED_OFF

    @torch.no_grad()
    def _evaluate(
        self, split: Split, length: int, count: int, on_step: Callable[[], None]
    ) -> tuple[EvaluationCounts, dict[int, EvaluationCounts]]:
        """The results on so many examples, and by the distance of the answer in powers of two, if it is known."""
        setup, counts, within_distance = self.setup, NO_COUNTS, {}
        self.learner.model.eval()
        for batch in split_batch(draw(setup, split, count, 0, length), setup.batch):
            on_step()
            logits, targets = self.learner.predict(batch, setup.device)
            batch_counts, is_correct = count_correct(logits, targets, setup.problem.metric)
            counts += batch_counts
            if batch.distance is not None:
                distance = torch.from_numpy(batch.distance)
                edges = 2 ** torch.log2(distance.clamp(min=1)).ceil().to(torch.int64)
                for edge in edges[distance >= 0].unique().tolist():
                    in_range = (edges == edge) & (distance >= 0)
                    n_correct = int(is_correct.cpu()[in_range].sum())
                    edge_counts = EvaluationCounts(int(in_range.sum()), n_correct)
                    within_distance[edge] = within_distance.get(edge, NO_COUNTS) + edge_counts
        return counts, dict(sorted(within_distance.items()))


@contextmanager
def _use_deterministic_kernels(device: str) -> Iterator[None]:
    """On a GPU some kernels sum in an order that changes from call to call; without them, equal training is equal to
    the bit, and a mechanism that has no other kernel fails with torch's message."""
    if device == "cpu":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)  # without which torch refuses matrix products
    before = torch.are_deterministic_algorithms_enabled(), filling.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    filling.fill_uninitialized_memory = False  # which would find reads of memory that nothing has written
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        filling.fill_uninitialized_memory = before[1]


def count_steps(most_steps: int, decay_from: int | None) -> int:
    """All steps of a training whose learning rate decays from a step, such that the decay takes a fifth of them."""
    return most_steps if decay_from is None else min(most_steps, math.ceil(decay_from / (1 - DECAY_SHARE)))


def compute_rate_factor(step: int, most_steps: int, decay_from: int | None = None) -> float:
    """The learning rate at a step relative to the highest: linear warm-up, constant, then linear decay."""
    factor = min(1.0, (step + 1) / max(1, int(WARMUP_SHARE * most_steps)))
    if decay_from is None or step < decay_from:
        return factor
    steps = count_steps(most_steps, decay_from)
    return min(factor, (steps - step) / (steps - decay_from))


def draw(setup: TrainingSetup, split: Split, count: int, step: int, length: int | None = None) -> Batch:
    """Examples, which depend only on the split, the step, and in training on the seed."""
    train = split == "train"
    seed = [SPLIT_SEEDS[split], setup.index if train else 0, step, length or setup.length]
    generator = np.random.default_rng(seed)
    if length is None:
        shortest = setup.keys.shortest or setup.length
        length = int(generator.integers(shortest, setup.length + 1)) if train else setup.length
    return setup.problem.draw(setup.keys, length, count, generator, split)


def split_batch(batch: Batch, size: int) -> Iterator[Batch]:
    """The examples in batches of a size."""
    for first in range(0, len(batch.inputs), size):
        rows = slice(first, first + size)
        yield Batch(*(None if x is None else x[rows] for x in vars(batch).values()))  # type: ignore[arg-type]
