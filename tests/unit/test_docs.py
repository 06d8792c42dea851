"""The documentation's examples run, its commands parse, and its links resolve."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from pathlib import Path

import nbformat
import pytest
import tiny_suites
from nbclient import NotebookClient
from shell import Done, run

import efficient_attn as ea

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")] + sorted(
    ROOT.glob("docs/**/*.md")
)


def _blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)


def _command(line: str, folder: Path) -> Done:
    return run(*shlex.split(line, comments=True)[1:], cwd=folder)


@cache
def _help(verb: str) -> str:
    done = _command(f"efficient-attn {verb} --help", ROOT)
    assert done.code == 0, verb
    return done.out


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the README's mechanism."""
    folder = tmp_path_factory.mktemp("readme")
    (code,) = [block for block in _blocks(ROOT / "README.md", "python") if "@ea.register" in block]
    (folder / "my_attn.py").write_text(code)
    return folder


def test_the_readmes_python_runs(tmp_path: Path) -> None:
    (code,) = [block for block in _blocks(ROOT / "README.md", "python") if "@ea.register" not in block]
    (tmp_path / "use.py").write_text(code + "\nassert out.shape == (1, 8, 1, 64)\n")
    done = run("use.py", cwd=tmp_path)
    assert done.code == 0, done.err


@pytest.mark.parametrize("document", ["reference/masks.md", "reference/decoding.md"])
def test_the_python_of_a_page_runs(document: str, tmp_path: Path) -> None:
    code = "\n".join(_blocks(ROOT / "docs" / document, "python"))  # later blocks continue earlier ones
    (tmp_path / "use.py").write_text(code)
    done = run("use.py", cwd=tmp_path)
    assert done.code == 0, done.err


def test_the_notebook_runs(tmp_path: Path) -> None:
    """All cells run in a new kernel, and the notebook in git has no outputs, which could be outdated."""
    book = nbformat.read(ROOT / "docs/tutorial/first-run.ipynb", as_version=4)
    nbformat.validate(book)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert not [cell for cell in code if cell.outputs or cell.execution_count]
    NotebookClient(book, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = {
        cell.id: "".join(str(output.get("text", output.get("data"))) for output in cell.outputs) for cell in code
    }
    assert "retention" in outputs["registry"]
    assert float(ast.literal_eval(outputs["own"])["text/plain"]) < 1e-5
    assert "<table" in outputs["run"]
    assert "image/png" in outputs["plot"]
    assert "reproduced" in outputs["claims"]
    assert "linear" in outputs["recommend"] or "disturbed by other programs" in outputs["recommend"]
    assert (tmp_path / "first_run/report.html").is_file()
    rows = ea.load(tmp_path / "first_run")
    assert set(rows["status"]) <= {"ok", "skipped", "unsupported"}


def test_the_recommendation_example_runs(tmp_path: Path) -> None:
    (code,) = _blocks(ROOT / "docs/how-to/choose-a-mechanism.md", "python")
    (tmp_path / "use.py").write_text(code)
    done = run(tmp_path / "use.py", cwd=ROOT)
    assert done.code == 0, done.err
    assert "gqa" in done.out


def test_the_trained_model_examples_run(tmp_path: Path) -> None:
    from efficient_attn.errors import NotInstalled
    from efficient_attn.integrations.model_info import BUNDLED_MODELS

    try:
        BUNDLED_MODELS["smollm2"].find()
    except NotInstalled as error:
        pytest.skip(str(error))
    code = "\n".join(_blocks(ROOT / "docs/how-to/evaluate-trained-models.md", "python"))
    (tmp_path / "use.py").write_text(code + "\nassert text.shape[1] == ids.shape[1] + 8\nassert state_bytes > 0\n")
    done = run("use.py", cwd=tmp_path)
    assert done.code == 0, done.err


def test_the_task_example_runs(tmp_path: Path) -> None:
    page = ROOT / "docs/tutorial/add-a-task.md"
    (task, reading), (suite,) = _blocks(page, "python"), _blocks(page, "toml")
    (tmp_path / "rounding.py").write_text(task)
    (tmp_path / "rounding.toml").write_text(suite)
    for line in "".join(_blocks(page, "console")).splitlines():
        done = _command(line, tmp_path)
        assert done.code == 0, done.err
    (tmp_path / "use.py").write_text(f"{reading}\nassert rows['rounding.error'].between(1e-5, 1e-2).sum() == 6\n")
    done = run("use.py", cwd=tmp_path)
    assert done.code == 0, done.err


def test_the_growth_claims_example_is_planned() -> None:
    (suite,) = _blocks(ROOT / "docs/concepts/growth.md", "toml")
    cases = tiny_suites.plan(suite)
    assert [(case.variant, case.group.of_blocks) for case in cases] == [
        *(("full", False), ("sliding_window:window=64", False)),
        *(("gru", True), ("sliding_window:window=64", True)),
    ]
    assert all(case.keys.find_claim(case.variant) for case in cases)


def test_the_training_task_example_runs(tmp_path: Path) -> None:
    page = ROOT / "docs/concepts/training-tasks.md"
    (problem,), (suite,) = _blocks(page, "python"), _blocks(page, "toml")
    (tmp_path / "greeting.py").write_text(problem)
    (tmp_path / "greeting.toml").write_text(suite)
    for line in _blocks(page, "console")[-1].splitlines():
        done = _command(line, tmp_path)
        assert done.code == 0, done.err
    assert "greeting, length 16" in done.out
    assert "sliding_window:window=8  at chance: no answer within its reach" in done.out
    assert "greeting, length 16" in (tmp_path / "greeted/report.md").read_text()


def test_every_training_task_is_in_the_docs() -> None:
    from efficient_attn.tasks import TABLE

    trained = [name for name, target in TABLE.items() if ".problem_table:" in target]
    text = (ROOT / "docs/concepts/training-tasks.md").read_text()
    assert [name for name in trained if f"| `{name}` |" not in text] == []
    assert trained


def test_the_masks_table_has_every_field() -> None:
    from efficient_attn.contract.mechanism import MASK_FIELDS

    rows = [line for line in (ROOT / "docs/reference/masks.md").read_text().splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`([a-z_]+)`", row.split(" | ")[0])} == MASK_FIELDS


def test_the_readmes_mechanism_passes_the_conformance_tests(example: Path) -> None:
    done = _command("efficient-attn check my_attn.py", example)
    assert done.code == 0, done.out + done.err
    assert "sink_window:" in done.out


def test_the_readmes_mechanism_is_short() -> None:
    (code,) = [block for block in _blocks(ROOT / "README.md", "python") if "@ea.register" in block]
    assert all(len(part.strip().splitlines()) <= 15 for part in code.split("@ea.register"))


def test_the_readmes_mechanism_runs_in_a_suite(example: Path) -> None:
    (line,) = [c for b in _blocks(ROOT / "README.md", "console") for c in b.splitlines() if "--plugin" in c]
    done = _command(f"{line} --quick --seq-len 64 --out run", example)
    assert done.code == 0, done.err
    assert "sink_window:window=128" in done.out
    assert (example / "run/report.html").is_file()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_links_resolve(document: Path) -> None:
    targets = [t for t in re.findall(r"\]\(([^)\s]+)\)", document.read_text()) if not t.startswith("http")]
    assert [t for t in targets if not (document.parent / t.partition("#")[0]).exists()] == []
    anchors = [(document.parent / path if path else document, anchor) for path, _, anchor in map(_split, targets)]
    assert [(p.name, a) for p, a in anchors if a and p.suffix == ".md" and a not in _anchors(p)] == []


def _split(target: str) -> tuple[str, str, str]:
    return target.partition("#")


def _anchors(document: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_commands_parse(document: Path) -> None:
    """Every efficient-attn command that a document shows has a verb and options that exist."""
    commands = re.findall(
        r"^(?:.*&& \.venv/bin/)?(efficient-attn [a-z].*)$", "\n".join(_blocks(document, "console")), re.MULTILINE
    )
    for line in commands:
        words = shlex.split(line, comments=True)
        options = {w for w in words if w.startswith("--")}
        assert not {o for o in options if o not in _help(words[1])}, line


def test_every_mechanism_is_in_the_readme() -> None:
    from efficient_attn.variants import CATALOGUE

    text = (ROOT / "README.md").read_text()
    assert [e.name for e in CATALOGUE if f"`{e.name}" not in text] == []
