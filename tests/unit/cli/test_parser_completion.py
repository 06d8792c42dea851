"""Completion scripts: they are valid in bash and complete verbs, options, mechanisms, suites and files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from efficient_attn.cli import main


def _print_script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["--print-completion", shell])
    assert stop.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_a_script_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = _print_script(shell, capsys)
    assert "efficient-attn" in script
    names = () if shell == "tcsh" else ("sliding_window", "quickstart")  # tcsh completes files instead
    assert all(word in script for word in ("recommend", "fail-on-regression", *names))


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("rec", {"recommend"}),
        ("run quicks", {"quickstart"}),
        ("info long", {"longformer"}),
        ("compare --fail", {"--fail-on-regression", "--fail-if-blind"}),
        ("plot --figure cross", {"crossover"}),
        ("check my_at", {"my_attn.py"}),
        ("check perf", {"performer"}),
        ("run my_s", {"my_suite.toml"}),
        ("report res", {"results"}),
    ],
)
def test_bash_completes(typed: str, completed: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "completion.bash").write_text(_print_script("bash", capsys))
    for name in ("my_attn.py", "my_suite.toml"):
        (tmp_path / name).touch()
    (tmp_path / "results").mkdir()
    words = ["efficient-attn", *typed.split()]
    script = f"""
        source ./completion.bash
        COMP_WORDS=({" ".join(words)}) COMP_CWORD={len(words) - 1} COMP_LINE="{" ".join(words)}"
        _shtab_efficient_attn efficient-attn {words[-1]} {words[-2]}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert set(done.stdout.split()) == completed, done.stderr


def test_the_command_to_install_shtab_is_in_the_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["--print-completion", "bash"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "python -m pip install shtab" in error


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--print-completion", "fish"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_help_imports_neither_torch_nor_shtab() -> None:
    """So that it answers at once."""
    code = "import sys; from efficient_attn.cli import main\ntry: main(['run', '--help'])\nexcept SystemExit: pass\n"
    code += "print(*(m for m in ('torch', 'pandas', 'pydantic', 'rich', 'shtab') if m in sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert "examples:" in done.stdout
    assert done.stderr.split() == []
