"""Traits say in words what they claim, and what they do not."""

from __future__ import annotations

from dataclasses import fields

import efficient_attn as ea
from efficient_attn.contract.traits import PROMISES


def test_every_yes_or_no_has_a_meaning_for_both() -> None:
    flags = {f.name for f in fields(ea.Traits) if f.default is True or f.default is False}
    for value in (True, False):
        told = ea.Traits(**dict.fromkeys(flags, value)).meanings()
        assert told.keys() == flags
        assert all(claimed is value and said for claimed, said in told.values())
    assert set(PROMISES) <= flags


def test_what_is_not_promised_is_listed_in_words() -> None:
    assert ea.Traits().unclaimed == ()
    assert ea.Traits(decode=False, exact=False, positional=True).unclaimed == ("no decoding",)
    assert ea.Traits(padding=False, deterministic=False).unclaimed == ("no padding", "no bits that repeat")
