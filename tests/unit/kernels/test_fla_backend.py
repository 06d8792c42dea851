"""Whether flash-linear-attention's kernels can run here, and the forms of its functions."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import naive_fla
import pytest
import torch

from efficient_attn.kernels import fla_backend


@pytest.fixture(autouse=True)
def _uncached() -> Iterator[None]:
    for function in (fla_backend.why_no_library, fla_backend.why_no_gate_gradients):
        function.cache_clear()
    yield
    for function in (fla_backend.why_no_library, fla_backend.why_no_gate_gradients):
        function.cache_clear()


def _fail(name: str) -> None:
    raise ImportError(f"{name}: needs a newer triton")


@pytest.mark.parametrize(
    ("missing", "version", "load", "reason"),
    [
        ((), "0.6.0", lambda name: None, None),
        ((), "1.0", lambda name: None, None),
        (("triton",), "0.6.0", lambda name: None, "need triton: pip install fla-core triton"),
        (("fla", "triton"), "0.6.0", lambda name: None, "need fla and triton"),
        ((), "0.5.2", lambda name: None, "needs fla-core 0.6 or newer, not 0.5.2"),
        ((), "0.6.0", _fail, "cannot be imported: fla.ops: needs a newer triton"),
    ],
)
def test_what_is_missing_is_named(
    missing: tuple[str, ...], version: str, load: Any, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else "found")
    monkeypatch.setattr(fla_backend, "version", lambda name: version)
    monkeypatch.setattr(importlib, "import_module", load)
    got = fla_backend.why_no_library()
    assert (got is None) if reason is None else (got and reason in got)


@pytest.mark.parametrize(
    ("hopper", "newer", "refused"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_gradients_of_gates_depend_on_triton(
    hopper: bool, newer: bool, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {"IS_NVIDIA_HOPPER": hopper, "TRITON_ABOVE_3_4_0": True, "TRITON_ABOVE_3_7_1": newer}
    monkeypatch.setattr(importlib, "import_module", lambda name: SimpleNamespace(**flags))
    assert bool(fla_backend.why_no_gate_gradients()) == refused


def test_the_flags_of_the_library_exist() -> None:
    """They are read from its sources, which cannot be imported without Triton."""
    package = importlib.util.find_spec("fla")
    if not package or not package.submodule_search_locations:
        pytest.skip("fla-core is not installed")
    text = "".join(path.read_text("utf-8") for path in naive_fla.list_sources("utils"))
    assert "IS_NVIDIA_HOPPER = " in text
    assert all(f"TRITON_ABOVE_{x} = " in text for x in ("3_4_0", "3_7_1"))
    refusal = "".join(path.read_text("utf-8") for path in naive_fla.list_sources("ops", "common"))
    assert "if g is not None and IS_NVIDIA_HOPPER and TRITON_ABOVE_3_4_0 and not TRITON_ABOVE_3_7_1:" in refusal


def test_an_argument_that_the_library_lacks_is_detected() -> None:
    pytest.importorskip("fla")
    tensors = dict.fromkeys("qkv", torch.zeros(1, 4, 2, 8))
    naive_fla.check_arguments("simple_gla", "chunk_simple_gla", tensors | {"g_gamma": torch.zeros(2)})
    for wrong in ({"gamma": torch.zeros(2)}, {"head_first": True}, {"g": torch.zeros(1, 2, 4)}):
        with pytest.raises(AssertionError):
            naive_fla.check_arguments("simple_gla", "chunk_simple_gla", tensors | wrong)
    with pytest.raises(AssertionError):
        naive_fla.check_arguments("gla", "chunk_gla", tensors)  # without its gates
