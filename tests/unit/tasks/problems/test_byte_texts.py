"""Texts as padded bytes."""

from __future__ import annotations

from efficient_attn.tasks.problems.byte_texts import PAD, pad_texts


def test_texts_are_cut_and_padded() -> None:
    tokens, lengths = pad_texts([b"abcdef", b"\x00\xff", b"", b"abc"], 3)
    assert tokens.tolist() == [[97, 98, 99], [0, 255, PAD], [PAD] * 3, [97, 98, 99]]
    assert lengths.tolist() == [3, 2, 1, 3]
    assert pad_texts([], 3)[0].shape == (0, 3)
