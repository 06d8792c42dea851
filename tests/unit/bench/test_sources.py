"""Sources of a mechanism: the files, and the digest, which depends on exactly these files."""

from __future__ import annotations

import shutil
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import tiny_suites
import torch

import efficient_attn as ea
from efficient_attn.bench import sources as module
from efficient_attn.bench.sources import FINDERS, PACKAGE, digest, fingerprint, sources, trace
from efficient_attn.contract.shapes import Shape
from efficient_attn.variants import CATALOGUE

HOMES = {entry.name: entry.target.partition(":")[0].partition(".")[2].replace(".", "/") + ".py" for entry in CATALOGUE}
DIMS = ea.Dims(heads=2, head_dim=8, value_dim=8, max_len=300)
LOOKUP_FILES = ("spec.py", "errors.py", *FINDERS)  # run when a mechanism is looked up, but not part of it


def _inside(files: tuple[Path, ...], package: Path = PACKAGE) -> set[str]:
    return {file.relative_to(package).as_posix() for file in files if file.is_relative_to(package)}


# -- files ---------------------------------------------------------------------------------------------------------

SHARED = {"contract/mechanism.py", "contract/mask.py", "kernels/dense.py", "errors.py", "kernels/__init__.py"}


@pytest.mark.parametrize(
    ("name", "expected", "absent"),
    [
        (
            "bigbird",
            {
                "variants/sparse/bigbird.py",
                "variants/sparse/sparse_attention.py",
                "patterns/draws.py",
                "patterns/facts.py",
            }
            | {
                f"kernels/sparse/{part}.py"
                for part in (
                    *("flex_backend", "gathered_blocks", "implementation_choice", "additive_masks", "masked_softmax"),
                    *("parts", "tile_plan", "tiles", "views"),
                )
            }
            | {"patterns/classics.py", "patterns/__init__.py", "kernels/softmax/merge.py"},
            {"kernels/linear", "kernels/hashed", "kernels/low_rank", "variants/linear", "feature_maps.py"},
        ),
        (
            "linear",
            {"kernels/native/scan.cpp", "kernels/native/registers.h", "kernels/native/building.py", "feature_maps.py"}
            | {"kernels/linear/sums.py", "kernels/linear/chunks.py", "variants/linear/linear_attention.py"},
            {"kernels/sparse", "kernels/hashed", "patterns", "kernels/native/decode.cpp", "variants/sparse"},
        ),
        ("full", {"kernels/native/decode.cpp", "patterns/pair_counts.py"}, {"patterns/draws.py", "kernels/sparse"}),
        ("reformer", {"kernels/hashed/lsh.py", "kernels/hashed/chunk_tiles.py"}, {"kernels/linear", "patterns"}),
        ("linformer", {"kernels/low_rank/projection.py"}, {"kernels/low_rank/landmarks.py", "kernels/sparse"}),
        ("mla", {"kernels/softmax/latent.py", "contract/decode_state.py"}, {"kernels/sparse", "kernels/linear"}),
    ],
)
def test_sources_are_the_imported_files_of_the_package(name: str, expected: set[str], absent: set[str]) -> None:
    files = _inside(sources(_class(name)))
    assert expected | SHARED <= files
    assert [file for file in files if any(file == a or file.startswith(f"{a}/") for a in absent)] == []
    assert files.isdisjoint({"__init__.py", "variants/__init__.py", "registry.py", "registry/__init__.py"})


@pytest.mark.parametrize("name", sorted(HOMES))
def test_all_executed_files_are_sources(name: str) -> None:
    """Executed files are traced at run time, in a forward and backward pass and in decoding."""
    ran: set[str] = set()
    cls = _class(name)  # before tracing, because imports execute files as well

    def note(frame: FrameType, _event: str, _argument: Any) -> None:
        ran.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        _use(name)
    finally:
        sys.setprofile(None)
    inside = {Path(file).relative_to(PACKAGE).as_posix() for file in ran if Path(file).is_relative_to(PACKAGE)}
    assert "contract/mechanism.py" in inside
    missed = inside - _inside(sources(cls))
    assert [file for file in missed if not any(fnmatch(file, name) for name in LOOKUP_FILES)] == []


def _class(name: str) -> type[ea.Attention]:
    return type(ea.create(name, dims=DIMS))


def _use(name: str) -> None:
    """A forward and a backward pass over 300 positions, a prefill and a step."""
    attn = ea.create(name, dims=DIMS)
    causal = attn.traits.causal
    q, k, v, inputs = attn.sample(Shape(1, 2, attn.kv_heads or 2, 300, 300, 8, 8), generator=torch.Generator())
    q.requires_grad_()
    attn(q, k, v, ea.Mask(causal=causal), **inputs).sum().backward()
    if attn.traits.decode:
        state = attn.init_state(1, 300, torch.float32, torch.device("cpu"))
        for part in (slice(0, 299), slice(299, 300)):
            rows = [x if x is None else x[:, :, part] for x in (q, k, v)]
            _, state = attn.step(*rows, state, **{name: x[:, :, part] for name, x in inputs.items()})


# -- the digest ----------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package."""
    return Path(shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__")))


def _digest_anew(start: Path, package: Path = PACKAGE) -> str:
    """The digest without cached contents, as in a new process."""
    for cached in (module._read_content, module._read, module._follow):
        cached.cache_clear()
    return digest(trace([start], package))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["bigbird", "linear", "reformer"])
def test_the_digest_depends_on_all_sources_and_no_other_file(name: str, copy: Path) -> None:
    start = copy / HOMES[name]
    files, before = trace([start], copy), _digest_anew(start, copy)
    assert before == fingerprint(_class(name))  # the location of the files does not matter
    for path in (p for p in copy.rglob("*") if p.suffix in (".py", ".cpp", ".h")):
        old = path.read_bytes()
        path.write_bytes(old + b"\n")
        module._read_content.cache_clear()
        assert (digest(trace([start], copy)) != before) == (path in files), path
        path.write_bytes(old)
    assert _digest_anew(start, copy) == before


def test_the_digest_ignores_changes_of_the_catalogue(copy: Path) -> None:
    start = copy / HOMES["bigbird"]
    before = _digest_anew(start, copy)
    for path in (p for name in FINDERS for p in copy.glob(name)):
        path.write_text(path.read_text() + "\nfrom efficient_attn.variants.linear import linear_attention\n")
    assert _digest_anew(start, copy) == before


def test_a_new_import_adds_its_files(copy: Path) -> None:
    start, before = copy / HOMES["full"], len(trace([copy / HOMES["full"]], copy))
    start.write_text(start.read_text() + "\ndef later():\n    from ...kernels.hashed import lsh\n")
    _digest_anew(start, copy)
    added = {"kernels/hashed/__init__.py", "kernels/hashed/lsh.py"}
    assert added <= _inside(trace([start], copy), copy)
    assert len(trace([start], copy)) == before + len(added)


def test_the_digest_depends_on_nested_headers(copy: Path) -> None:
    (copy / "kernels/native/registers.h").write_text('#include "more.h"\n')
    (copy / "kernels/native/more.h").write_text("// more\n")
    before = _digest_anew(copy / HOMES["linear"], copy)
    (copy / "kernels/native/more.h").write_text("// other\n")
    assert _digest_anew(copy / HOMES["linear"], copy) != before


def test_the_digest_ignores_the_order_of_files() -> None:
    files = sources(_class("bigbird"))
    assert digest(files) == digest(reversed(files)) == digest(sorted(files, key=lambda p: p.name))
    assert len(fingerprint(_class("bigbird"))) == 12


def test_sources_of_a_union_are_those_of_its_parts() -> None:
    strided, linear = _class("strided"), _class("linear")
    assert set(sources(strided, linear)) == {*sources(strided), *sources(linear)}
    assert fingerprint(strided, linear) == fingerprint(linear, strided) != fingerprint(strided)


# -- plug-ins ------------------------------------------------------------------------------------------------------

PLUGIN = """
import torch, numpy.linalg, efficient_attn as ea
{}

@ea.register("zz_mine", family="full")
class Mine(ea.SoftmaxAttention):
    "Exact attention."
"""


def _plugin(folder: Path, line: str = "", **sibling: str) -> Path:
    for name, text in {"mine": PLUGIN.format(line), **sibling}.items():
        path = folder / f"{name.replace('__in__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "mine.py"


def test_sources_of_a_plugin_are_its_file_and_its_imports(tmp_path: Path) -> None:
    files = trace([_plugin(tmp_path)])
    assert tmp_path / "mine.py" in files
    assert set(files) - {tmp_path / "mine.py"} == set(trace([PACKAGE / "variants/full/softmax_attention.py"]))


def test_a_registered_plugin_is_found_by_its_class(tmp_path: Path) -> None:
    with tiny_suites.isolated_registry():
        ea.load_plugin(str(_plugin(tmp_path)))
        assert sources(type(ea.create("zz_mine"))) == trace([tmp_path / "mine.py"])


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("import sibling", "sibling.py"),
        ("from sibling import x", "sibling.py"),
        ("def f():\n    import sibling as b", "sibling.py"),
        ("from .sibling import x", "sibling.py"),
        ("from . import sibling", "sibling.py"),
        ("import first", "sibling.py"),
        ("from efficient_attn.kernels import products", "kernels/products.py"),
        ("import efficient_attn.kernels.products", "kernels/products.py"),
        ("ea.MultiHeadAttention", "layers/multi_head.py"),
        ("ea.patterns.Blocks", "patterns/draws.py"),
        ("from efficient_attn import patterns\npatterns.sinks", "patterns/classics.py"),
        ("from efficient_attn.patterns import *", "patterns/classics.py"),
        ("getattr(ea, name)", "variants/sparse/sparse_attention.py"),
        ("ea.create('performer:n_features=8')", "variants/linear/performer.py"),
        ("ea.create(f'strided|performer:n_features={n}')", "variants/linear/performer.py"),
        ("importlib.import_module('efficient_attn.kernels.products')", "kernels/products.py"),
        ("HOME = 'efficient_attn.kernels.linear.sums:Sums'", "kernels/linear/sums.py"),
    ],
)
def test_imported_files_are_sources(line: str, file: str, tmp_path: Path) -> None:
    start = _plugin(tmp_path, line, sibling="x = 1", first="from sibling import x")
    files = trace([start])
    assert {tmp_path / file, PACKAGE / file} & set(files)
    before = _digest_anew(start)
    (tmp_path / "sibling.py").write_text("x = 2")
    assert (_digest_anew(start) != before) == (file == "sibling.py")


@pytest.mark.parametrize(
    "line",
    [
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import sibling",
        "import numpy as sibling",
        "from other.sibling import x",
        "'sibling'",
        "ea.create(sibling)",
    ],
)
def test_unused_files_next_to_a_plugin_are_not_sources(line: str, tmp_path: Path) -> None:
    files = trace([_plugin(tmp_path, line, sibling="x = 1", other__in__sibling="x = 1")])
    assert [file.name for file in files if not file.is_relative_to(PACKAGE)] == ["mine.py"]


def test_only_imported_files_of_a_plugin_package_are_sources(tmp_path: Path) -> None:
    files = {"__init__": "", "deep__in____init__": "", "deep__in__fast": "from ..tools import x", "tools": "x = 1"}
    start = _plugin(tmp_path / "theirs", "from theirs.deep import fast", **files, unused="x = 1")
    names = [file.relative_to(start.parent).as_posix() for file in trace([start]) if start.parent in file.parents]
    assert names == ["__init__.py", "deep/__init__.py", "deep/fast.py", "mine.py", "tools.py"]
