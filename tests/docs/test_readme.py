"""README: its Python and its mechanism run, its commands parse, and it lists all mechanisms."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from doc_blocks import ROOT, read_blocks
from shell import Done, run

from efficient_attn.variants import CATALOGUE

README = ROOT / "README.md"
PYTHON = [block.text for block in read_blocks(README) if block.language == "python"]
COMMANDS = [words for block in read_blocks(README) if block.language == "console" for words in block.commands]


def _find(mark: str, texts: list[str]) -> str:
    (text,) = [text for text in texts if mark in text]
    return text


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the README's mechanism."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "my_attn.py").write_text(_find("@ea.register", PYTHON))
    return folder


def _command(words: list[str], folder: Path, *more: str) -> Done:
    return run(*words[1:], *more, cwd=folder)


@pytest.mark.slow
def test_the_python_runs(tmp_path: Path) -> None:
    code = "\n".join(text for text in PYTHON if "@ea.register" not in text)
    (tmp_path / "use.py").write_text(code + "\nassert out.shape == (1, 8, 1, 64)\n")
    done = run("use.py", cwd=tmp_path)
    assert done.code == 0, done.err


@pytest.mark.slow
@pytest.mark.sampled(3)
def test_the_mechanism_passes_the_conformance_tests(example: Path) -> None:
    (words,) = [words for words in COMMANDS if "check" in words]
    done = _command(words, example)
    assert done.code == 0, done.out + done.err
    assert "sink_window:" in done.out


def test_the_mechanism_is_short() -> None:
    code = _find("@ea.register", PYTHON)
    assert all(len(part.strip().splitlines()) <= 15 for part in code.split("@ea.register"))


@pytest.mark.slow
@pytest.mark.sampled(3)
def test_the_mechanism_runs_in_a_suite(example: Path) -> None:
    (words,) = [words for words in COMMANDS if "--plugin" in words and "run" in words]
    done = _command(words, example, "--quick", "--seq-len", "64", "--out", "run")
    assert done.code == 0, done.err
    assert "sink_window:window=128" in done.out
    assert (example / "run/report.html").is_file()


@pytest.mark.slow
def test_its_commands_parse() -> None:
    for words in COMMANDS:
        arguments = words[words.index("&&") + 1 :] if "&&" in words else words
        while "&&" in arguments:
            arguments = arguments[arguments.index("&&") + 1 :]
        if arguments[0].endswith("efficient-attn"):
            assert run(*arguments[1:], "--help", cwd=ROOT).code == 0, shlex.join(words)


def test_every_mechanism_is_listed() -> None:
    text = README.read_text()
    assert [e.name for e in CATALOGUE if f"`{e.name}" not in text] == []
