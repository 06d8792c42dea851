"""The mask of a batch with padding, and the rows on which a call is verified."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ...contract.mask import Mask
from ...contract.mechanism import Attention
from ...contract.shapes import Sample, Shape
from ...contract.traits import Input
from ...errors import UnsupportedError
from ..case import Case


class CheckedRows(NamedTuple):
    """Some query rows of a call, as their increasing indices in its output, with all keys that they may depend on."""

    rows: Tensor
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


def select_rows(sample: Sample, mask: Mask, rows: Tensor, sides: Mapping[str, Input]) -> list[CheckedRows]:
    """Some rows, in one part; those of packed sequences in a part for each sequence."""
    n, m = sample.q.shape[2], sample.k.shape[2]
    if mask.cu_seqlens is None:
        return [CheckedRows(rows, _slice_sample(sample, rows, slice(None), sides), mask.rows(rows, n, m))]
    parts = []
    for first, end in pairwise(mask.cu_seqlens.tolist()):
        in_sequence = rows[(rows >= first) & (rows < end)]
        if len(in_sequence):
            own_mask = Mask(causal=mask.causal).rows(in_sequence - first, end - first, end - first)
            parts.append(
                CheckedRows(in_sequence, _slice_sample(sample, in_sequence, slice(first, end), sides), own_mask)
            )
    return parts


def supports_positions(attn: Attention, sample: Sample) -> bool:
    """Whether a reference computes rows at ``Mask.query_positions``; those of plug-ins may need consecutive queries."""
    n = min(2, sample.q.shape[2])  # a few keys, because a packed batch may be longer than the mechanism supports
    rows = torch.arange(n, device=sample.q.device)
    mask = Mask(causal=attn.traits.causal, query_positions=rows)
    try:
        with torch.no_grad():
            q, k, v, inputs = _slice_sample(sample, rows, slice(0, n), attn.traits.inputs)
            attn(q, k, v, mask, **inputs)
    except UnsupportedError:
        return False
    return True


def _slice_sample(sample: Sample, queries: Tensor | slice, keys: slice, sides: Mapping[str, Input]) -> Sample:
    q, k, v, inputs = sample
    cut = {name: x[:, :, queries if sides[name].side == "query" else keys] for name, x in inputs.items()}
    return Sample(q[:, :, queries], k[:, :, keys], None if v is None else v[:, :, keys], cut)


def split_queries(sample: Sample, mask: Mask, cut: int, sides: Mapping[str, Input]) -> list[tuple[slice, Sample, Mask]]:
    """The queries before and from ``cut`` on, each with all keys. Not for packed sequences."""
    n, m = sample.q.shape[2], sample.k.shape[2]
    spans = slice(0, cut), slice(cut, n)
    return [(span, _slice_sample(sample, span, slice(None), sides), mask.rows(span, n, m)) for span in spans]
