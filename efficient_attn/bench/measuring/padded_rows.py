"""The mask of a batch with padding, and the rows on which a call is verified."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import NamedTuple

import torch

from ...contract.mask import Mask
from ...contract.shapes import Sample, Shape
from ...contract.traits import Input
from ..case import Case


class CheckedRows(NamedTuple):
    """Some query rows of a call, as their range in its output, with all keys that they may depend on."""

    rows: slice
    sample: Sample
    mask: Mask


def make_mask(case: Case, shape: Shape) -> Mask:
    """The case's mask; for a shape of another length than the case's, with lengths in proportion."""
    config, full_length = case.group.config, case.shape.n
    if config.fill == "full":
        return Mask(causal=config.causal)
    if config.fill == "packed":
        ends = [end * shape.n // full_length for end in accumulate(case.row_lengths, initial=0)]
        return Mask(causal=config.causal, cu_seqlens=torch.tensor(ends))  # on the host, which reads it
    lengths = torch.tensor([-(-length * shape.n // full_length) for length in case.row_lengths], device=config.device)
    return Mask(causal=config.causal, key_lengths=lengths, query_lengths=lengths)


def select_rows(sample: Sample, mask: Mask, rows: slice, sides: Mapping[str, Input]) -> CheckedRows:
    """Some rows; of packed sequences, those that belong to the same sequence as the first of them."""
    if mask.cu_seqlens is None:
        selected = _slice_sample(sample, rows, slice(None), sides)
        return CheckedRows(rows, selected, mask.rows(rows, sample.q.shape[2], sample.k.shape[2]))
    ends = mask.cu_seqlens.tolist()
    first, end = max(x for x in ends if x <= rows.start), min(x for x in ends if x > rows.start)
    rows, keys = slice(rows.start, min(rows.stop, end)), slice(first, end)
    sequence_mask = Mask(causal=mask.causal, query_start=rows.start - first)
    return CheckedRows(rows, _slice_sample(sample, rows, keys, sides), sequence_mask)


def _slice_sample(sample: Sample, queries: slice, keys: slice, sides: Mapping[str, Input]) -> Sample:
    q, k, v, inputs = sample
    cut = {name: x[:, :, queries if sides[name].side == "query" else keys] for name, x in inputs.items()}
    return Sample(q[:, :, queries], k[:, :, keys], None if v is None else v[:, :, keys], cut)
