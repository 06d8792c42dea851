"""Invalid input: exit code 2 and one line with the location and the nearest valid choice; no file is overwritten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

SUITE = 'title = "T"\nmeasure = ["forward"]\n{}[[variant]]\nname = "full"\n'

# arguments, and what the line must hold; "@name" is a file made by `_files`
WRONG: dict[str, tuple[str, tuple[str, ...]]] = {
    "no verb": ("", ("VERB",)),
    "verb": ("rnu quickstart", ("'rnu'", "did you mean 'run'?")),
    "flag of list": ("list --jsonn", ("list", "'--jsonn'", "did you mean '--json'?")),
    "family": ("list --family sparce", ("family 'sparce'", "did you mean 'sparse'?")),
    "mechanism to describe": ("info linaer", ("'linaer'", "did you mean 'linear'?")),
    "option to describe": ("info sliding_window:windw=3", ("sliding_window", "'windw'", "did you mean 'window'?")),
    "picture's kind": ("info sliding_window --picture a.gif", ("--picture", "'a.gif'", ".png, .svg or .pdf")),
    "picture without a kind": ("list --picture png", ("--picture", "'png'", ".png, .svg or .pdf")),
    "picture of no pattern": ("info linear --picture a.png", ("info", "linear", "no pattern")),
    "picture of no patterns": ("list --family linear --picture a.png", ("list", "linear", "pattern")),
    "picture below a file": ("info sliding_window --picture @fine.toml/a.png", ("fine.toml", "cannot be written")),
    "file to check": ("check gone.py", ("gone.py", "no such file")),
    "file to check that is no Python": ("check @broken.py", ("broken.py", "SyntaxError", "line 1")),
    "file to check without a mechanism": ("check @empty.py", ("empty.py registers no mechanism", "@ea.register")),
    "class to check that is none": ("check @other.py", ("register('zz')", "Other does not derive from ea.Attention")),
    "plugin with a wrong name inside": ("list --plugin @unknown.py", ("NameError", "unknown.py, line 2")),
    "run to report": ("report gone", ("gone", "no run here")),
    "suite": ("plan quikstart", ("suite 'quikstart'", "did you mean 'quickstart'?")),
    "suite file": ("run gone.toml --out out", ("gone.toml", "no such file")),
    "malformed TOML": ("run @malformed.toml --out out", ("malformed.toml", "not valid TOML", "line 3")),
    "suite that is not text": ("run @binary.toml --out out", ("binary.toml", "not valid TOML")),
    "key in a suite": ("run @key.toml --out out", ("key.toml: top level", "'roundz'", "did you mean 'rounds'?")),
    "negative length": ("run @negative.toml --out out", ("negative.toml: axes.seq_len.0", "-64")),
    "zero length": ("run @zero.toml --out out", ("zero.toml: axes.seq_len.1", "got 0")),
    "axis flag": ("run quickstart --seq-lenn 64 --out out", ("run", "'--seq-lenn'", "did you mean '--seq-len'?")),
    "flag that does not exist": ("recommend --padding 64", ("recommend", "'--padding'", "recommend --help")),
    "flag with another name": ("recommend --length 64", ("'--length'", "did you mean '--seq-len'?")),
    "argument too many": ("info linear more", ("info", "unexpected argument 'more'")),
    "negative length flag": ("run quickstart --seq-len -64 --out out", ("--seq-len", "'-64'", "at least 1")),
    "zero length flag": ("run quickstart --seq-len 64,0 --out out", ("--seq-len", "'0'", "at least 1")),
    "length in words": ("run quickstart --seq-len 1kk --out out", ("--seq-len", "'1kk'")),
    "zero threads": ("run quickstart --threads 0 --out out", ("--threads", "'0'")),
    "causal": ("run quickstart --causal maybe --out out", ("--causal", "'maybe'")),
    "seed": ("run quickstart --seed -1 --out out", ("--seed", "-1")),
    "device": ("run quickstart --device cudda --out out", ("--device", "'cudda'", "did you mean 'cuda'?")),
    "dtype": ("run quickstart --dtype float23 --out out", ("--dtype", "'float23'", "did you mean 'float32'?")),
    "mechanism": ("run quickstart --variant liner --out out", ("quickstart", "'liner'", "did you mean 'linear'?")),
    "option value": ("run quickstart --variant sliding_window:window=few --out out", ("window='few'", "int")),
    "plugin": ("list --plugin gone.py", ("gone.py", "no such file")),
    "plugin module": ("list --plugin no_such_module_zz", ("no_such_module_zz", "import failed", "ModuleNotFoundError")),
    "plugin that fails": ("list --plugin @failing.py", ("failing.py", "import failed", "ModuleNotFoundError")),
    "plugin that says much": ("list --plugin @wordy.py", ("wordy.py", "ValueError: one two")),
    "plugin that is no Python": ("list --plugin @broken.py", ("broken.py", "SyntaxError")),
    "folder below a file": ("run @fine.toml --out @fine.toml/out", ("fine.toml", "cannot be written", "--out")),
    "folder that is not empty": ("run @fine.toml --out .", ("not empty", "choose another --out", "--resume")),
    "folder without a run": ("run @fine.toml --resume --out .", ("no run to resume", "choose another --out")),
    "timeout of nothing": ("run quickstart --timeout 0 --out out", ("--timeout", "'0'", "above 0")),
    "timeout in words": ("run quickstart --timeout 1m --out out", ("--timeout", "'1m'")),
    "memory in words": ("run quickstart --memory-limit lots --out out", ("--memory-limit", "'lots'", "8GB")),
    "unit of memory": ("run quickstart --memory-limit 8GX --out out", ("--memory-limit", "'8GX'", "512MiB")),
    "budget in words": ("run quickstart --memory-budget lots --out out", ("--memory-budget", "'lots'", "8GB")),
    "budget of a suite": ("run @budget.toml --out out", ("budget.toml: memory_budget", "'lots'", "8GB")),
    "budget without decoding": (
        "run @fine.toml --memory-budget 1GB --out out",
        ("--memory-budget", "has no task with this key"),
    ),
    "start method": (
        "run quickstart --start-method forkservr --out out",
        ("did you mean 'forkserver'?",),
    ),
    "retry without a run": ("run quickstart --retry-failed --out out", ("--retry-failed", "--resume")),
    "cache": ("plan quickstart --cache lukewarm", ("--cache", "'lukewarm'", "warm")),
    "compiled": ("plan quickstart --compiled perhaps", ("--compiled", "'perhaps'")),
    "device of the doctor": ("doctor --device cudda", ("--device", "'cudda'", "did you mean 'cuda'?")),
    "base to compare": ("compare gone . --json", ("gone", "no run here")),
    "file to compare": ("compare gone.json .", ("gone.json", "No such file")),
    "file that is no benchmark": ("compare @list.json .", ("list.json", "not pytest-benchmark's JSON")),
    "margin": ("compare . . --margin 2", ("--margin", "'2'", "below 1")),
    "confidence": ("compare . . --confidence 1", ("--confidence", "'1'", "between 0 and 1")),
    "what to compare by": ("compare . . --by latncy", ("'latncy'", "did you mean 'latency'?")),
    "form of a comparison": ("compare . . --format markdwn", ("'markdwn'", "did you mean 'markdown'?")),
    "export's form": ("report . --export pytest=a.json", ("--export", "'pytest'", "'pytest-benchmark'")),
    "export without a file": ("report . --export github-action", ("--export", "github-action=FILE")),
    "export of several": ("report . . --export github-action=a.json", ("--export", "one RUN")),
    "published without runs": ("report --published .", ("holds no runs", "the folder that holds the runs' folders")),
    "published elsewhere": ("report . --published --out out", ("--published", "one folder of runs")),
    "model": ("run swap --model smollm3 --out out", ("--model smollm3", "smollm2", "nor a folder")),
    "model without weights": ("plan swap --model .", ("--model .", "has no config (config.json)")),
    "model's positions": ("run swap --model minilm --seq-len 600 --out out", ("512 positions", "600 is too long")),
    "model without a task": ("run @fine.toml --model minilm --out out", ("--model", "has no task with this key")),
    "text": ("run swap --text gone.txt --out out", ("--text gone.txt", "no such file", "sotu")),
    "text that is none": ("run swap --text @binary.toml --out out", ("binary.toml", "no text in UTF-8")),
    "data": ("run @papers.toml --data gone --out out", ("matching: gone/new_aan_pairs.train.tsv", "no such file")),
    "data without a task": ("run @fine.toml --data . --out out", ("--data", "has no task with this key")),
    "data of a task that reads files": ("plan @reviews.toml", ("imdb", "give the folder aclImdb: --data DIR")),
    "scope": ("run swap --set scope=layers --out out", ("--set: scope", "'layers'", "did you mean 'layer'?")),
    "no draws": ("run swap --set draws=0 --out out", ("--set", "draws", "greater than or equal to 1")),
    "encoder to be asked": (
        "run retrieval --model minilm --seq-len 512 --out out",
        ("--model minilm", "not for its kind, encoder", "give a decoder"),
    ),
    "haystack without room": ("run retrieval --seq-len 64 --out out", ("seq_len 64 is too short", "at least 448")),
    "haystack of little text": ("run retrieval --text @failing.py --out out", ("0 of its documents", "768 tokens")),
    "needles": ("plan retrieval --set needles=singel", ("--set: needles", "'singel'", "did you mean 'single'?")),
    "activations of wrong shape": ("run quickstart --activations @wrong.npz --out out", ("wrong.npz", "[5, 8]")),
}


def _files(folder: Path) -> None:
    texts = {
        "malformed.toml": 'title = "T"\nmeasure = ["forward"]\naxes = {\n',
        "key.toml": SUITE.format("roundz = 3\n"),
        "negative.toml": SUITE.format("axes = { seq_len = [-64] }\n"),
        "zero.toml": SUITE.format("axes = { seq_len = [64, 0] }\n"),
        "budget.toml": SUITE.format('memory_budget = "lots"\n'),
        "papers.toml": SUITE.replace("forward", "matching").format("axes = { seq_len = [16] }\n"),
        "reviews.toml": SUITE.replace("forward", "imdb").format("axes = { seq_len = [16] }\n"),
        "fine.toml": SUITE.format("axes = { seq_len = [16] }\n"),
        "failing.py": "import no_such_module_zz\n",
        "wordy.py": "raise ValueError('one\\ntwo')\n",
        "broken.py": "def f(:\n",
        "empty.py": "",
        "other.py": "import efficient_attn as ea\n@ea.register('zz', family='full')\nclass Other: ...\n",
        "unknown.py": "\nno_such_name\n",
        "list.json": "[]",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "binary.toml").write_bytes(b"\xff\xfe\x00")
    x = np.ones((5, 8), "float32")
    np.savez(folder / "wrong.npz", q=x, k=x, v=x)


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in folder.rglob("*")}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("line", "message"), WRONG.values(), ids=WRONG)
def test_bad_input_gets_one_line_and_exit_code_2(
    line: str, message: tuple[str, ...], command: Any, tmp_path: Path
) -> None:
    _files(tmp_path)
    before = _contents(tmp_path)
    done = command(*line.replace("@", "").split(), PYTHONDONTWRITEBYTECODE="1")
    assert done.code == 2, done.err
    assert done.out == ""
    assert done.err.count("\n") == 1, done.err
    assert done.err.startswith("efficient-attn")
    for piece in message:
        assert piece in done.err
    assert _contents(tmp_path) == before
