"""The trainer: AdamW, warm-up and cosine, clipped gradients; the same bits for the same seed on one thread, whether or
not it was stopped on the way."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from ...bench.measuring.output_comparison import Invalid
from . import checkpoint
from .checkpoint import Progress
from .learners import NOTHING, Learner, Marks, loss_of, mark
from .problem import Batch, LearnKeys, Problem, Split

WARM_UP = 0.1  # of the steps, in which the rate rises from nothing
WEIGHT_DECAY = 0.01
BETAS = 0.9, 0.98
CLIP = 1.0  # largest norm of all gradients together
LOOKS = 20  # at validation, at most, evenly over the steps
PACE_STEPS = 8  # that find how long one takes, after one that warms up
STREAMS: dict[Split, int] = {"train": 1, "validation": 2, "test": 3}  # seeds of their own


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be trained. index: of the seed; steps: by default as the keys say."""

    problem: Problem
    keys: LearnKeys
    length: int
    index: int
    rate: float
    steps: int | None = None
    device: str = "cpu"

    @property
    def batch(self) -> int:
        return self.keys.batch or self.problem.recipe.batch

    @property
    def by_the_clock(self) -> bool:
        """Whether seconds say how many steps there are."""
        return self.steps is None and self.keys.seconds is not None

    @property
    def words(self) -> str:
        """What a checkpoint has to be of."""
        budget = f"{self.steps} steps, {self.keys.seconds} s"
        return f"{self.problem.name} {self.length}, seed {self.index}, {self.rate!r}, batch {self.batch}, {budget}"


@dataclass(frozen=True)
class Trained:
    """How training ended. marks: on the tests, at the length that it was trained at; at: on those at other lengths;
    near: on those whose answer lies at most so far back."""

    progress: Progress
    marks: Marks
    at: dict[int, Marks]
    near: dict[int, Marks]


class Training:
    """One model on its way. path: of its checkpoint, if any is wanted; a checkpoint that is there is gone on from."""

    def __init__(self, learner: Learner, order: Order, path: Path | None = None) -> None:
        self.learner, self.order, self.path = learner, order, path
        self.optimizer = torch.optim.AdamW(
            learner.model.parameters(), lr=order.rate, betas=BETAS, weight_decay=WEIGHT_DECAY
        )
        self.saved = perf_counter()
        found = checkpoint.read(path, order.words) if path else None
        if found and checkpoint.restore(learner.model, self.optimizer, found[0]):
            self.progress = found[1]
            return
        self.progress = Progress(self._settle_steps())
        if order.by_the_clock:
            self.save()  # whoever goes on has as many

    def run(self, at: Callable[[], None] = lambda: None) -> Trained:
        """Train to the end, and test. at: told before every step. Raises `Invalid` where the loss is no number."""
        progress, order = self.progress, self.order
        every = math.ceil(progress.steps / LOOKS)
        while progress.step < progress.steps and progress.stopped is None:
            at()
            begun = perf_counter()
            progress.running.append(self._step(progress.step))
            progress.train_s += perf_counter() - begun
            progress.step += 1
            if progress.step % every == 0 or progress.step == progress.steps:
                self._look()
            if perf_counter() - self.saved > order.keys.checkpoint_s:
                self.save()
        self.save()
        return self._test(at)

    def save(self) -> None:
        """Keep what training goes on from, where that is wanted. Raises `NotSaved`."""
        if self.path:
            tensors = checkpoint.flatten(self.learner.model, self.optimizer)
            checkpoint.write(self.path, tensors, self.progress, self.order.words)
        self.saved = perf_counter()

    # -- underneath ----------------------------------------------------------------------------------------------------

    def _settle_steps(self) -> int:
        """All steps, before the first one: seconds become steps by how long some take, with a copy of the model that is
        thrown away."""
        order, seconds = self.order, self.order.keys.seconds
        planned = order.steps or order.keys.steps or order.problem.recipe.steps
        if not order.by_the_clock or seconds is None:
            return planned
        plain = replace(order, keys=order.keys.model_copy(update={"seconds": None}), steps=planned)
        copied = replace(self.learner, model=copy.deepcopy(self.learner.model))
        pace, taken = Training(copied, plain), []  # so far from the end rates are low: it does not go astray
        with torch.random.fork_rng(devices=()):
            for step in range(PACE_STEPS + 1):
                begun = perf_counter()
                pace._step(step)
                taken.append(perf_counter() - begun)
        return max(1, int(seconds / statistics.median(taken[1:])))

    def _step(self, step: int) -> float:
        """One step; its loss."""
        order, model = self.order, self.learner.model
        for group in self.optimizer.param_groups:
            group["lr"] = order.rate * schedule(step, self.progress.steps)
        model.train()
        logits, targets = self.learner.answer(draw(order, "train", order.batch, step), order.device)
        loss = loss_of(logits, targets)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise Invalid(f"the loss is {value} at step {step + 1}, at learning rate {order.rate:g}")
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        self.optimizer.step()
        return value

    def _look(self) -> None:
        """Note the mean loss since the last look and the score on validation; stop where there is nothing to learn."""
        progress, problem = self.progress, self.order.problem
        progress.losses.append((progress.step, statistics.fmean(progress.running)))
        progress.running = []
        marks, _ = self._examine("validation", self.order.length, max(1, self.order.keys.examples // 2), lambda: None)
        if not math.isfinite(marks.loss):
            told = f"the loss on validation is {marks.loss} after step {progress.step}"
            raise Invalid(f"{told}, at learning rate {self.order.rate:g}")
        score = marks.score(problem.metric)
        progress.scores.append((progress.step, score))
        solved = problem.recipe.solved
        if score <= solved if problem.metric == "bits" else score >= solved:
            progress.stopped = "solved"

    def _test(self, at: Callable[[], None]) -> Trained:
        keys = self.order.keys
        marks, near = self._examine("test", self.order.length, keys.examples, at)
        others = {n: self._examine("test", n, keys.examples, at)[0] for n in keys.test_len if n != self.order.length}
        return Trained(self.progress, marks, others, near)

    @torch.no_grad()
    def _examine(self, split: Split, length: int, count: int, at: Callable[[], None]) -> tuple[Marks, dict[int, Marks]]:
        """The marks of so many examples; and by how far back the answer lies, in powers of two, where that is known."""
        order, marks, near = self.order, NOTHING, {}
        self.learner.model.eval()
        for batch in split_up(draw(order, split, count, 0, length), order.batch):
            at()
            logits, targets = self.learner.answer(batch, order.device)
            found, right = mark(logits, targets)
            marks += found
            if batch.distance is not None:
                far = torch.from_numpy(batch.distance)
                edges = 2 ** torch.log2(far.clamp(min=1)).ceil().to(torch.int64)
                for edge in edges[far >= 0].unique().tolist():
                    here = (edges == edge) & (far >= 0)
                    own = Marks(int(here.sum()), int(right.cpu()[here].sum()), 0.0, 0, 0)
                    near[edge] = near.get(edge, NOTHING) + own
        return marks, dict(sorted(near.items()))


def schedule(step: int, steps: int) -> float:
    """The share of the learning rate at a step: up in a line, down in half a cosine."""
    warm = max(1, int(WARM_UP * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def draw(order: Order, split: Split, count: int, step: int, length: int | None = None) -> Batch:
    """Examples that depend on the split, the seed (of training alone), the step, and nothing else."""
    train = split == "train"
    seed = [STREAMS[split], order.index if train else 0, step, length or order.length]
    generator = np.random.default_rng(seed)
    if length is None:
        shortest = order.keys.shortest or order.length
        length = int(generator.integers(shortest, order.length + 1)) if train else order.length
    return order.problem.draw(order.keys, length, count, generator, split)


def split_up(batch: Batch, size: int) -> Iterator[Batch]:
    """Examples in parts that fit."""
    for first in range(0, len(batch.inputs), size):
        at = slice(first, first + size)
        yield Batch(*(None if x is None else x[at] for x in vars(batch).values()))  # type: ignore[arg-type]
