"""Suite files: valid ones are loaded, and each mistake gives an error of one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_suites
from tiny_suites import load_suite

from efficient_attn import registry
from efficient_attn.bench.planning.plan import Overrides, make_plan
from efficient_attn.bench.planning.suite import check_keys
from efficient_attn.errors import UsageError
from efficient_attn.resources import list_suite_names

HEAD = 'title = "T"\nmeasure = ["forward"]\n'
TAIL = '[[variant]]\nname = "full"\n'
PART = '[[part]]\nname = "p"\n'

# The text of each invalid suite, and what the error must contain: the position and, if there is one, a suggestion.
WRONG = {
    "top-level key": (HEAD + "roundz = 8\n" + TAIL, ["top level", "'roundz'", "did you mean 'rounds'?"]),
    "misspelt title": (HEAD.replace("title", "titel") + TAIL, ["top level", "'titel'", "did you mean 'title'?"]),
    "axis": (HEAD + "axes = { seq_lenn = [64] }\n" + TAIL, ["axes", "'seq_lenn'", "did you mean 'seq_len'?"]),
    "dim": (HEAD + "dims = { head = 2 }\n" + TAIL, ["dims", "'head'", "did you mean 'heads'?"]),
    "variant key": (HEAD + TAIL + "option = {}\n", ["variant.0", "'option'", "did you mean 'options'?"]),
    "part key": (HEAD + TAIL + PART + "measur = []\n", ["part.0", "'measur'", "did you mean 'measure'?"]),
    "axis of a part": (HEAD + TAIL + PART + "axes = { hreads = [1] }\n", ["part.0.axes", "did you mean 'threads'?"]),
    "dim of a part": (HEAD + TAIL + PART + "dims = { bach = 1 }\n", ["part.0.dims", "did you mean 'batch'?"]),
    "variant of a part": (HEAD + PART + '[[part.variant]]\nnam = "full"\n', ["part.0.variant.0", "mean 'name'?"]),
    "design key": (HEAD + TAIL + "[design]\npoins = 8\n", ["design", "'poins'", "did you mean 'points'?"]),
    "design of a part": (HEAD + TAIL + PART + "design = { seeed = 1 }\n", ["part.0.design", "did you mean 'seed'?"]),
    "design of nothing": (HEAD + TAIL + "[design]\nseed = 1\n", ["design.points is missing"]),
    "one point": (HEAD + TAIL + "[design]\npoints = 1\n", ["design.points", "got 1"]),
    "no operations": (HEAD + TAIL + "[design]\npoints = 8\nmost_flops = 0\n", ["design.most_flops", "got 0"]),
    "shape key": (HEAD + TAIL + "[[shapes]]\nhead = 2\n", ["shapes.0", "'head'", "did you mean 'heads'?"]),
    "shape of a part": (HEAD + TAIL + PART + "shapes = [{ seqlen = 2 }]\n", ["part.0.shapes.0", "mean 'seq_len'?"]),
    "no shapes": (HEAD + "shapes = []\n" + TAIL, ["shapes"]),
    "shape of zero": (HEAD + "shapes = [{ batch = 0 }]\n" + TAIL, ["shapes.0.batch", "got 0"]),
    "axis next to shapes": (
        HEAD + "shapes = [{ seq_len = 8 }]\naxes = { seq_len = [8] }\n" + TAIL,
        ["shapes set seq_len, so axes and dims may not"],
    ),
    "dim of a part next to shapes": (
        HEAD + "shapes = [{ heads = 2 }, { batch = 2 }]\n" + TAIL + PART + "dims = { batch = 3 }\n",
        ["part 'p': shapes set batch"],
    ),
    "design next to shapes": (
        HEAD + "shapes = [{ heads = 2 }]\n" + TAIL + PART + "design = { points = 8 }\n",
        ["part 'p': a design chooses from axes"],
    ),
    "fill": (HEAD + 'axes = { fill = ["haff"] }\n' + TAIL, ["axes.fill.0", "did you mean 'half'?"]),
    "block key": (HEAD + TAIL + '[[block]]\nnam = "gru"\n', ["block.0", "'nam'", "did you mean 'name'?"]),
    "block of a part": (HEAD + PART + '[[part.block]]\nname = "gru"\noption = {}\n', ["part.0.block.0", "'options'"]),
    "blocks by another name": (HEAD + TAIL + PART + '[[part.blok]]\nname = "gru"\n', ["part.0", "mean 'block'?"]),
    "no blocks": (HEAD + "block = []\n" + TAIL, ["block"]),
    "block next to a variant": (
        HEAD + PART + '[[part.variant]]\nname = "full"\n[[part.block]]\nname = "gru"\n',
        ["part 'p' has a block, but speed measures mechanisms only; remove it"],
    ),
    "block of a task without": (HEAD + PART + '[[part.block]]\nname = "gru"\n', ["'p'", "no variant"]),
    "measure": (HEAD.replace("forward", "forwrd") + TAIL, ["measure.0", "'forwrd'", "did you mean 'forward'?"]),
    "dtype": (HEAD + 'axes = { dtype = ["float23"] }\n' + TAIL, ["axes.dtype.0", "did you mean 'float32'?"]),
    "device": (HEAD + 'axes = { device = ["cpu", "cudda"] }\n' + TAIL, ["axes.device.1", "did you mean 'cuda'?"]),
    "negative length": (HEAD + "axes = { seq_len = [64, -5] }\n" + TAIL, ["axes.seq_len.1", "-5"]),
    "zero length": (HEAD + "axes = { seq_len = [0] }\n" + TAIL, ["axes.seq_len.0", "got 0"]),
    "length as text": (HEAD + 'axes = { seq_len = ["64"] }\n' + TAIL, ["axes.seq_len.0", "'64'"]),
    "length as truth": (HEAD + "axes = { seq_len = [true] }\n" + TAIL, ["axes.seq_len.0", "True"]),
    "length alone": (HEAD + "axes = { seq_len = 64 }\n" + TAIL, ["axes.seq_len", "64"]),
    "no lengths": (HEAD + "axes = { seq_len = [] }\n" + TAIL, ["axes.seq_len"]),
    "zero heads": (HEAD + "dims = { heads = 0 }\n" + TAIL, ["dims.heads", "got 0"]),
    "one round": (HEAD + "rounds = 1\n" + TAIL, ["rounds", "got 1"]),
    "no budget": (HEAD + "budget_s = 0\n" + TAIL, ["budget_s", "got 0"]),
    "infinite budget": (HEAD + "budget_s = inf\n" + TAIL, ["budget_s", "got inf"]),
    "infinite time limit": (HEAD + "timeout_s = inf\n" + TAIL, ["timeout_s", "got inf"]),
    "memory budget": (HEAD + 'memory_budget = "16GX"\n' + TAIL, ["memory_budget: '16GX' is not a size such as 8GB"]),
    "no memory budget": (HEAD + "memory_budget = 0\n" + TAIL, ["memory_budget: '0' is not a size"]),
    "memory budget of truth": (HEAD + "memory_budget = true\n" + TAIL, ["memory_budget: 'True' is not a size"]),
    "negative seed": (HEAD + "seed = -1\n" + TAIL, ["seed", "-1"]),
    "no title": (HEAD.partition("\n")[2] + TAIL, ["title is missing"]),
    "no measure": ('title = "T"\n' + TAIL, ["'all'", "no measure"]),
    "no variant": (HEAD, ["'all'", "no variant"]),
    "empty measure": (HEAD.replace('"forward"', "") + TAIL, ["measure"]),
    "part without measure": ('title = "T"\n' + TAIL + PART, ["'p'", "no measure"]),
    "part without variant": (HEAD + PART, ["'p'", "no variant"]),
    "malformed TOML": ("title = \n", ["not valid TOML", "line 1"]),
    "key given twice": (HEAD + HEAD, ["not valid TOML"]),
}


@pytest.mark.parametrize(("text", "pieces"), WRONG.values(), ids=WRONG)
def test_an_invalid_suite_gives_a_one_line_error(text: str, pieces: list[str], tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        load_suite(tiny_suites.write_suite(tmp_path, text, "mine.toml"))
    line = str(error.value)
    assert line.startswith("mine.toml: ")
    assert "\n" not in line
    assert len(line) < 300
    for piece in pieces:
        assert piece in line


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b'title = "\xff\xfe"\n')
    with pytest.raises(UsageError, match=r"mine\.toml: not valid TOML"):
        load_suite(str(path))


def test_an_unknown_suite_gives_a_suggestion() -> None:
    with pytest.raises(UsageError, match="unknown suite 'quikstart'; did you mean 'quickstart'"):
        load_suite("quikstart")


def test_a_missing_suite_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.toml: no such file"):
        load_suite(str(tmp_path / "nowhere.toml"))


@pytest.mark.parametrize("name", list_suite_names())
def test_built_in_suites_are_valid_and_have_a_title(name: str) -> None:
    with tiny_suites.isolated_registry():
        loaded = load_suite(name)
    assert loaded.name == name
    assert loaded.suite.title
    assert loaded.suite.description


def test_a_loaded_suite_has_its_name_and_text(tmp_path: Path) -> None:
    loaded = load_suite(tiny_suites.write_suite(tmp_path, tiny_suites.TINY, "mine.toml"))
    assert (loaded.name, loaded.text) == ("mine", tiny_suites.TINY)


PARTS = """
title    = "Parts"
measure  = ["forward"]
baseline = "full"
axes     = { seq_len = [64, 128], causal = [true] }
dims     = { heads = 4, head_dim = 32 }
[[variant]]
name = "full"
[[part]]
name = "plain"
[[part]]
name     = "own"
measure  = ["decode"]
baseline = "linear"
axes     = { seq_len = [16] }
dims     = { heads = 2 }
[[part.variant]]
name = "linear"
"""


def test_parts_inherit_keys_of_the_top_level() -> None:
    plain, own = tiny_suites.parse(PARTS).suite.parts()
    assert (plain.measure, plain.baseline, [v.name for v in plain.variant or ()]) == (("forward",), "full", ["full"])
    assert (plain.axes.seq_len, plain.axes.causal, plain.dims.heads) == ((64, 128), (True,), 4)
    assert (own.measure, own.baseline, [v.name for v in own.variant or ()]) == (("decode",), "linear", ["linear"])
    assert (own.axes.seq_len, own.axes.causal) == ((16,), (True,))  # merged key by key
    assert (own.dims.heads, own.dims.head_dim) == (2, 32)


def test_blocks_of_a_part_replace_those_of_the_top_level() -> None:
    text = """
title   = "Layers"
measure = ["complexity"]
variant = [{ name = "full" }]
[[block]]
name = "gru"
[[part]]
name = "as above"
[[part]]
name = "own"
[[part.block]]
name    = "convolution"
options = { kernel = 5 }
"""
    above, own = tiny_suites.parse(text).suite.parts()
    assert ([v.name for v in above.variant or ()], [v.name for v in above.block or ()]) == (["full"], ["gru"])
    assert own.variant is None
    assert [(v.name, v.options) for v in own.block or ()] == [("convolution", {"kernel": 5})]


@pytest.mark.parametrize(("size", "count"), [('"16GB"', 16 * 10**9), ('"512 MiB"', 2**29), ("2e9", 2 * 10**9)])
def test_a_memory_budget_is_parsed_as_a_size(size: str, count: int) -> None:
    text = tiny_suites.TINY.replace("rounds ", f"memory_budget = {size}\nrounds ")
    ((task,),) = tiny_suites.parse(text).task_keys
    assert check_keys(task.target, task.keys, "here").memory_budget == count
    ((task,),) = tiny_suites.parse().task_keys
    assert check_keys(task.target, task.keys, "here").memory_budget is None


def test_a_suite_without_parts_is_one_grid() -> None:
    (only,) = tiny_suites.parse().suite.parts()
    assert only.axes.seq_len == (16,)


PLUGIN = """
import efficient_attn as ea

@ea.register("zz_suite_plugin", family="full")
class Mine(ea.SoftmaxAttention):
    "Exact attention, once more."
"""


def test_plugin_files_are_found_relative_to_the_suite(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    text = tiny_suites.TINY.replace("rounds ", 'plugins = ["mine.py"]\nrounds ')
    with tiny_suites.isolated_registry():
        cases = make_plan(load_suite(tiny_suites.write_suite(tmp_path, text)), Overrides(variants=["zz_suite_plugin"]))
        assert [c.variant for c in cases] == ["zz_suite_plugin"]


def test_plugins_may_be_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib" / "zz_package").mkdir(parents=True)
    (tmp_path / "lib" / "zz_package" / "mine.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path / "lib")
    text = tiny_suites.TINY.replace("rounds ", 'plugins = ["zz_package.mine"]\nrounds ')
    for _ in range(2):  # also after the registry was reset
        with tiny_suites.isolated_registry():
            cases = make_plan(
                load_suite(tiny_suites.write_suite(tmp_path, text)), Overrides(variants=["zz_suite_plugin"])
            )
            assert registry.plugins()[-1] == "zz_package.mine"  # workers load it as well
            assert [c.variant for c in cases] == ["zz_suite_plugin"]


@pytest.mark.parametrize(("plugin", "message"), [("gone.py", r"gone\.py: no such file"), ("zz_gone.mine", "zz_gone")])
def test_a_missing_plugin_is_refused(plugin: str, message: str, tmp_path: Path) -> None:
    text = tiny_suites.TINY.replace("rounds ", f'plugins = ["{plugin}"]\nrounds ')
    with pytest.raises(UsageError, match=message):
        load_suite(tiny_suites.write_suite(tmp_path, text))
