"""Left padding: positions count from the first valid key of each row."""

from __future__ import annotations

import torch

from ...contract.mask import Mask
from ..check import check
from ..subject import Subject
from ..tensor_comparison import assert_close, describe
from .padding import find_trimmed_causalities

LENGTHS = (300, 300), (17, 300), (1, 150)  # N and M, beyond several blocks of the kernels
PADDINGS = (0, 37, 131, 37, 5)  # keys before the first valid one, no multiples of a block, two equal
HOLE = 3  # keys after the first valid one of a row: another one that is hidden


@check(needs="padding")
def left_padding(subject: Subject) -> None:
    """A row with left padding equals the row alone without it, in forward and backward passes, also with holes and
    padding at the end, which do not change positions."""
    paddings = subject.lengths(*PADDINGS)
    for causal in subject.causalities if subject.attn.absolute else find_trimmed_causalities(subject):
        for n, m in LENGTHS if subject.traits.cross else LENGTHS[:1]:
            shape = subject.shape(n, m, batch=len(PADDINGS), kv_heads=subject.kv_head_counts[-1])
            attn, oracle, call = subject.make(shape), subject.oracle(shape), subject.draw(shape)
            keys = torch.arange(m, device=subject.device)
            valid = (keys >= paddings[:, None]) & (keys != paddings[:, None] + HOLE)
            lengths = subject.lengths(m, m - 9, m - 2, m - 70, m) if subject.traits.rows_alone else None
            mask = Mask(causal=causal, key_mask=valid, key_lengths=lengths)
            out = call.under(mask).run(attn)
            for row, first in enumerate(PADDINGS):
                start = first if n == m else 0
                alone = call.change(lambda x, row=row: x[row : row + 1])
                alone = alone.both(slice(first, None)) if n == m else alone.keys(slice(first, None))
                row_lengths = None if lengths is None else lengths[row : row + 1] - first
                row_mask = Mask(causal=causal, key_mask=valid[row : row + 1, first:], key_lengths=row_lengths)
                want = alone.under(row_mask).run(oracle)
                label = f"row {row}, {first} keys of padding before it, N={n}, M={m}, {describe(mask)}"
                assert_close(out[row : row + 1, :, start:], want, label)
