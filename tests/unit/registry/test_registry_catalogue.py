"""The catalogue of built-in mechanisms: names, families, sentences, and abilities."""

from __future__ import annotations

import subprocess
import sys

import pytest

import efficient_attn as ea
from efficient_attn import registry
from efficient_attn.contract.mechanism import Attention
from efficient_attn.variants import BACKEND_DTYPES, CATALOGUE, FAMILIES, Entry


def test_entries_have_a_class_docstring_family_and_sentence() -> None:
    for entry in CATALOGUE:
        cls = registry.class_of(entry.name)
        assert issubclass(cls, Attention)
        assert cls.__doc__, f"{entry.name} has no docstring"
        assert entry.family in FAMILIES
        assert entry.sentence.endswith(".")
        assert "dense" in cls.backends


def test_names_are_unique_and_in_the_order_of_the_catalogue() -> None:
    assert ea.names() == [e.name for e in CATALOGUE]
    assert len(set(ea.names())) == len(ea.names())


def test_names_can_be_filtered_by_family() -> None:
    assert sorted(n for f in FAMILIES for n in ea.names(family=f)) == sorted(ea.names())
    assert "sliding_window" in ea.names(family="sparse")
    with pytest.raises(ea.UsageError, match="unknown family 'sparce'; did you mean 'sparse'"):
        ea.names(family="sparce")


def test_names_do_not_import_torch() -> None:
    code = (
        "import sys, efficient_attn as ea; names = ea.names(); "
        "assert 'full' in names; sys.exit(bool({'torch', 'pandas', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_dtypes_of_backends_equal_those_of_the_classes() -> None:
    declared = {
        (entry.name, f"backend={backend}"): tuple(str(dtype).removeprefix("torch.") for dtype in dtypes)
        for entry in CATALOGUE
        for backend, dtypes in registry.class_of(entry.name).only_dtypes.items()
    }
    assert declared == BACKEND_DTYPES


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_abilities_in_the_catalogue_equal_the_traits(entry: Entry) -> None:
    traits = ea.info(entry.name).traits
    assert entry.able == {name for name in ("causal", "decode", "exact") if getattr(traits, name)}
