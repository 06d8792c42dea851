"""What is said of the machine beside every run."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest
import torch

from efficient_attn.bench import environment as module
from efficient_attn.bench.environment import environment


def test_the_environment_can_be_kept_and_names_what_matters() -> None:
    found = environment()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["torch"] == torch.__version__
    assert found["python"] == platform.python_version()
    assert found["threads_default"] == torch.get_num_threads()
    assert 1 <= found["usable_cores"] <= found["cores"]
    assert found["packages"]["efficient-attn"]
    assert len(found["gpus"]) == torch.cuda.device_count()


def test_the_machine_is_one_word_that_stays() -> None:
    first = environment()["machine"]
    assert first == environment()["machine"]
    assert first
    assert not any(c.isspace() for c in first)


def test_variables_that_change_timings_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setenv("SECRET_TOKEN", "x")
    found = environment()["variables"]
    assert found["OMP_NUM_THREADS"] == "3"
    assert found.keys() <= set(module.VARIABLES)
    assert "MKL_NUM_THREADS" not in found


def test_outside_a_checkout_there_is_no_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "__file__", str(tmp_path / "environment.py"))
    assert environment()["git"] is None


def test_without_git_there_is_no_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert environment()["git"] is None


def test_a_package_that_is_not_there_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACKAGES", ("no-such-package",))
    assert environment()["packages"] == {"no-such-package": None}
