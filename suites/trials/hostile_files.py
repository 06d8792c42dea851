"""Files of a stranger: published runs, suites and pytest-benchmark files with replaced values, plug-ins that fail, and
flags. For `hostile_inputs.py`."""

from __future__ import annotations

import copy
import gzip
import json
import random
import tomllib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "results"
SUITES = Path(__file__).parents[1]
ROWS = 12  # of a run

MISSING = "(missing)"  # stands for a name that is removed
VALUES: list[Any] = [
    *(MISSING, MISSING),
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**62, 2**63, -(2**70), 10**400),
    *(0.0, -0.0, 0.5, 3.7, 1e-320, 1e-90, 1e20, 1e99, 1e308, -1e308),
    *(
        "",
        " ",
        "x",
        "0",
        "nan",
        "full",
        "-",
        "=1+1",
        "\u202e",
        "\x1b[2J",
        "<b>",
        "a/b",
        "../..",
        "%s{0}",
        "x" * 300_000,
    ),
    *([], [[]], [None], [0], [1e308, -1e308], [[1.0, "x"]], {}, {"": None}, {"a": {"b": []}}, [[[[1]]]]),
]
FLAG_VALUES = ["", "0", "-1", "x", "nan", "inf", "1e99", "9" * 5000, "2**9", "1,,2", "\u202e", "a" * 5000, "/dev/full"]
FLAGS = ("seq-len", "variant", "batch", "heads", "dtype", "threads", "part", "seed", "device", "set")
TOML_VALUES = ("9" * 5000, "[1, 2", '"x"', "1979-05-27", "[[]]", "0x10", "-1", "1e400", "inf", "[" * 10**5)
RUN_FILES = ("", "[" * 10**5, "{}", "null", '{"sessions": 3}')
MECHANISM = "import efficient_attn as ea\n@ea.register('mine')\nclass A(ea.Attention):\n    "
PLUGINS = [
    "import sys; sys.exit(5)",
    "raise SystemExit",
    "1 / 0",
    "def f(: pass",
    "class E(Exception):\n    def __str__(self): raise ValueError('no text')\nraise E()",
    "raise Exception('a\\nb' * 1000)",
    "import no_such_module_at_all",
    "def f(): f()\nf()",
    "\x00",
    "# -*- coding: nonsense -*-",
    "import efficient_attn as ea\nea.register('mine')(3)",
    "import efficient_attn as ea\nea.register('mine')(type('A', (), {}))",
    "import efficient_attn as ea\nea.register('full')(type('A', (ea.Attention,), {}))",
    f"{MECHANISM}traits = 5",
    f"{MECHANISM}@property\n    def traits(self): return {{}}[1]",
    f"{MECHANISM}def __init__(self, *, n=[]): super().__init__()",
    *(f"{MECHANISM}def __init__(self, **k): raise {error}" for error in ("KeyboardInterrupt", "SystemExit(5)", "E")),
    f"{MECHANISM}def __init__(self, **k): raise OSError(28, 'no')",
]


@dataclass(frozen=True)
class Input:
    """A folder with damaged files, and the command that is given them."""

    name: str
    command: list[str]


def make_input(rng: random.Random, folder: Path) -> Input:
    """Write damaged files into the folder, and choose a command for them."""
    makers = {_damage_run: 20, _damage_benchmark: 2, _damage_suite: 6, _damage_part: 1, _write_plugin: 6}
    makers[_damage_flags] = 4
    return rng.choices(list(makers), list(makers.values()))[0](rng, folder)


def _damage_run(rng: random.Random, folder: Path) -> Input:
    """A verb that reads a run, of which some values are replaced."""
    run = rng.choice([path for path in sorted(RESULTS.iterdir()) if (path / "rows.jsonl.gz").is_file()])
    lines = gzip.decompress((run / "rows.jsonl.gz").read_bytes()).decode().splitlines()
    rows = [json.loads(line) for line in _choose_neighbours(rng, lines)]
    session_file = json.loads((run / "run.json").read_text())
    names = [_damage_rows(rng, rows) for _ in range(rng.randint(0, 3))]
    names += [_replace_somewhere(rng, session_file, "run.json") for _ in range(rng.choice((0, 0, 1, 2)))]
    target = folder / "results" / run.name
    target.mkdir(parents=True)
    data = b"".join(_to_line(row) for row in rows)
    if rng.random() < 0.15:
        data, name = _damage_bytes(rng, data)
        names.append(name)
    compressed = rng.random() < 0.3
    (target / f"rows.jsonl{'.gz' if compressed else ''}").write_bytes(gzip.compress(data, 1) if compressed else data)
    text = json.dumps(session_file) if rng.random() < 0.95 else rng.choice(RUN_FILES)
    (target / "run.json").write_text(text)
    return Input(f"{run.name}: {'; '.join(names)}", _choose_verb(rng, f"results/{run.name}"))


def _choose_neighbours(rng: random.Random, lines: list[str]) -> list[str]:
    first = rng.randrange(max(1, len(lines) - ROWS))
    return lines[first : first + ROWS]


def _choose_verb(rng: random.Random, run: str) -> list[str]:
    figure = rng.choice(("speed", "memory", "front", "perplexity", "crossover", "error", "ability"))
    return rng.choice(
        [
            ["report", run],
            ["report", run, "--out", "report"],
            ["report", run, "--export", "pytest-benchmark=a.json"],
            ["report", run, "--export", "github-action=b.json"],
            ["report", run, "--export", "asv=asv"],
            ["report", "--published", "results"],
            ["compare", run, run, "--all"],
            ["compare", run, run, "--json"],
            ["recommend", run, "--seq-len", str(rng.choice((64, 1024, 8192)))],
            ["recommend", run, "--seq-len", "512", "--json"],
            ["plot", run, "--figure", figure, "--out", "figure.svg"],
            ["claims", run],
            ["runs", "results"],
            ["clean", "results"],
            ["publish", run, "--site", "site"],
            ["merge", run, "--out", "merged"],
            ["merge", run, run, "--out", "merged", "--json"],
        ]
    )


def _damage_rows(rng: random.Random, rows: list[dict[str, Any]]) -> str:
    """Replace a value of one row, or of all."""
    chosen = rows if rng.random() < 0.3 else [rng.choice(rows)]
    how = rng.random()
    table = "samples" if how < 0.25 else "extra" if how < 0.5 else ""
    names = rows[0].get(table) if table else rows[0]
    name = rng.choice(sorted((names if isinstance(names, dict) else {}).keys() - {"crc"}) or ["other"])
    value = _choose_value(rng, names.get(name) if isinstance(names, dict) else None)
    for row in chosen:
        target = row.get(table) if table else row
        if isinstance(target, dict) and value == MISSING:
            target.pop(name, None)
        elif isinstance(target, dict):
            target[name] = value
    return f"{table}.{name}={str(value)[:40]!r} in {len(chosen)}"


def _choose_value(rng: random.Random, present: Any) -> Any:
    """A value of any type, or in half of the cases one of the same type."""
    same = [value for value in VALUES if type(value) is type(present)]
    return copy.deepcopy(rng.choice(same if same and rng.random() < 0.5 else VALUES))


def _replace_somewhere(rng: random.Random, data: Any, name: str) -> str:
    """Replace a value at a random place of a tree."""
    while True:
        if not data:
            return f"{name}: nothing is left"
        keys = sorted(data) if isinstance(data, dict) else list(range(len(data)))
        key = rng.choice(keys)
        name = f"{name}.{key}"
        inner = data[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.8:
            data = inner
            continue
        data[key] = _choose_value(rng, inner)
        text = f"{name}={str(data[key])[:40]!r}"
        if data[key] == MISSING:
            del data[key]
        return text


def _to_line(row: Any) -> bytes:
    body = {name: value for name, value in row.items() if name != "crc"} if isinstance(row, dict) else row
    text = json.dumps(body)
    return f'{text[:-1]},"crc":{zlib.crc32(text.encode())}}}\n'.encode()


def _damage_bytes(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    deep = "[" * 10**5
    nested = f'{{"schema":9,"samples":{deep}'
    choices: list[tuple[str, Callable[[], bytes]]] = [
        ("random bytes", lambda: rng.randbytes(200_000)),
        ("nothing", lambda: b""),
        ("nested", lambda: data + f'{nested},"crc":{zlib.crc32((nested + "}").encode())}}}\n'.encode()),
        ("one long line", lambda: b"x" * 2**25),
        ("no end", lambda: data[:-20]),
        ("carriage returns", lambda: data.replace(b"\n", b"\r\n")),
        ("UTF-16", lambda: data.decode().encode("utf-16")),
    ]
    name, change = rng.choice(choices)
    return change(), name


def _damage_benchmark(rng: random.Random, folder: Path) -> Input:
    stats = {"mean": 1e-3, "median": 1e-3, "stddev": 1e-5, "rounds": 4, "data": [1e-3, 1.1e-3, 9e-4, 1e-3]}
    content = {
        "machine_info": {"cpu": {"brand_raw": "a", "count": 2}, "machine": "x"},
        "commit_info": {"id": "abc"},
        "benchmarks": [{"fullname": f"b{n}", "name": "b", "stats": dict(stats), "extra_info": {}} for n in range(3)],
        "datetime": "2026-11-24T10:00:00",
        "version": "5.0.0",
    }
    (folder / "base.json").write_text(json.dumps(content))
    names = [_replace_somewhere(rng, content, "") for _ in range(rng.randint(1, 2))]
    (folder / "new.json").write_text(json.dumps(content))
    return Input("; ".join(names), ["compare", *rng.sample(("base.json", "new.json"), 2), "--across-machines"])


def _damage_suite(rng: random.Random, folder: Path) -> Input:
    """A suite in which values, or lines of its text, are replaced."""
    path = rng.choice(sorted(SUITES.glob("*.toml")))
    text, names = path.read_text(), [path.name]
    if rng.random() < 0.7:
        content = tomllib.loads(text)
        content.pop("plugins", None)
        names += [_replace_somewhere(rng, content, "") for _ in range(rng.randint(1, 2))]
        lines = [f"{json.dumps(key)} = {_to_toml(value)}" for key, value in content.items()]
    else:
        lines = text.splitlines()
        at = rng.choice([n for n, line in enumerate(lines) if "=" in line and not line.startswith("#")])
        lines[at] = f"{lines[at].partition('=')[0]} = {rng.choice(TOML_VALUES)}"
        names.append(f"line {at + 1}: {lines[at][:60]}")
    (folder / "mine.toml").write_text("\n".join(lines))
    return Input("; ".join(names), ["plan", "mine.toml", *(["--json"] if rng.random() < 0.3 else [])])


def _damage_part(rng: random.Random, folder: Path) -> Input:
    """A part of a plan of no suite, so that it never runs."""
    digests = [f"{number:012x}" for number in range(8)]
    content = {"version": 1, "arguments": ["none.toml", "--seq-len", "64"], "part": 1, "of": 2}
    content |= {"cases": digests[:4], "order": digests}
    names = [_replace_somewhere(rng, content, "") for _ in range(rng.randint(1, 2))]
    data = json.dumps(content).encode()
    if rng.random() < 0.2:
        data, name = _damage_bytes(rng, data)
        names.append(name)
    (folder / "part.json").write_bytes(data)
    return Input("; ".join(names), ["run", "--plan-part", "part.json", "--out", "out"])


def _to_toml(value: Any) -> str:
    """A value in one line of TOML, which has no null."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_to_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_to_toml, value)) + "]"
    return '""' if value is None else json.dumps(value)


def _write_plugin(rng: random.Random, folder: Path) -> Input:
    text = rng.choice(PLUGINS)
    (folder / "mine.py").write_text(text)
    commands = [
        ["list", "--plugin", "mine.py"],
        ["info", "mine", "--plugin", "mine.py"],
        ["check", "mine", "--plugin", "mine.py"],
        ["plan", "quickstart", "--plugin", "mine.py", "--variant", "full,mine", "--seq-len", "64"],
    ]
    return Input(repr(text[-60:]), rng.choice(commands))


def _damage_flags(rng: random.Random, folder: Path) -> Input:
    value = rng.choice(FLAG_VALUES)
    choices = [
        ["plan", "quickstart", f"--{rng.choice(FLAGS)}", value],
        ["plan", "quickstart", "--seq-len", rng.choice(("9" * 18, "1" * 9, ",".join(map(str, range(1, 20000)))))],
        ["plan", value],
        ["info", value],
        ["check", value],
        ["recommend", "--seq-len", value],
        ["recommend", value],
        ["compare", value, value],
        ["report", value],
        ["publish", value, "--site", "site"],
        ["claims", "--check", value],
        ["new", value],
        [value],
    ]
    return Input("flags", rng.choice(choices))
