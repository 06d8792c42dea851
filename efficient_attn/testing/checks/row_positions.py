"""Left padding: positions count from the first valid key of each row."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ...contract.mask import Mask
from ..check import check
from ..mechanism_call import Call
from ..subject import Subject
from ..tensor_comparison import GRADIENT_TOLERANCES, assert_close, describe
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
            call = call.leaves() if subject.traits.gradient else call
            keys = torch.arange(m, device=subject.device)
            valid = (keys >= paddings[:, None]) & (keys != paddings[:, None] + HOLE)
            lengths = subject.lengths(m, m - 9, m - 2, m - 70, m) if subject.traits.rows_alone else None
            mask = Mask(causal=causal, key_mask=valid, key_lengths=lengths)
            # queries before a row's first key are compared where they can be computed alone, at negative positions
            keeps_queries = n < m or subject.traits.rows_alone or (subject.traits.cross and not subject.attn.absolute)
            got, want = call.under(mask).run(attn), []
            for row, first in enumerate(PADDINGS):
                row_lengths = None if lengths is None else lengths[row : row + 1] - first
                row_mask = Mask(causal=causal, key_mask=valid[row : row + 1, first:], key_lengths=row_lengths)
                single = call.change(lambda x, row=row: x[row : row + 1])
                if keeps_queries:
                    row_mask = replace(row_mask, query_start=m - n - first)
                    want.append(single.keys(slice(first, None)).under(row_mask).run(oracle))
                else:
                    out = single.both(slice(first, None)).under(row_mask).run(oracle)
                    want.append(F.pad(out, (0, 0, first, 0)))
            compared = keys[:n] >= (0 if keeps_queries else paddings[:, None])
            rows = compared.expand(len(PADDINGS), n)[:, None, :, None]
            label = f"rows with {PADDINGS} keys of padding before them, N={n}, M={m}, {describe(mask)}"
            _compare_with_gradients(subject, call, got * rows, torch.cat(want) * rows, label)


def _compare_with_gradients(subject: Subject, call: Call, got: Tensor, want: Tensor, label: str) -> None:
    assert_close(got, want, label)
    if subject.traits.gradient:
        weights = torch.linspace(-1, 1, want.numel(), dtype=want.dtype, device=want.device).view_as(want)
        sources = list({id(x): x for x in call.tensors.values()}.values())
        grads = [
            torch.autograd.grad((x * weights).sum(), sources, allow_unused=True, materialize_grads=True)
            for x in (got, want)
        ]
        for x, y in zip(*grads, strict=True):
            assert_close(x, y, f"gradients, {label}", tolerance=GRADIENT_TOLERANCES[subject.dtype])
