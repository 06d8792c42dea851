"""The mask of a batch with padding, and the rows on which it is verified."""

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
    """Some query rows of a call, by their index in its output, with all keys that they may depend on."""

    row: slice
    sample: Sample
    mask: Mask


def make_mask(case: Case, shape: Shape) -> Mask:
    """The case's causality, and where its rows end; at another length than the case's, in proportion."""
    place, whole = case.group.config, case.shape.n
    if place.fill == "full":
        return Mask(causal=place.causal)
    if place.fill == "packed":
        ends = [end * shape.n // whole for end in accumulate(case.row_lengths, initial=0)]
        return Mask(causal=place.causal, cu_seqlens=torch.tensor(ends))  # on the host, which reads it
    lengths = torch.tensor([-(-length * shape.n // whole) for length in case.row_lengths], device=place.device)
    return Mask(causal=place.causal, key_lengths=lengths, query_lengths=lengths)


def select_rows(sample: Sample, mask: Mask, place: slice, sides: Mapping[str, Input]) -> CheckedRows:
    """The rows at a position; of packed sequences, those of the first one there."""
    if mask.cu_seqlens is None:
        cut_sample = _slice_mask(sample, place, slice(None), sides)
        return CheckedRows(place, cut_sample, mask.rows(place, sample.q.shape[2], sample.k.shape[2]))
    ends = mask.cu_seqlens.tolist()
    first, end = max(x for x in ends if x <= place.start), min(x for x in ends if x > place.start)
    place, row_keys = slice(place.start, min(place.stop, end)), slice(first, end)
    alone = Mask(causal=mask.causal, query_start=place.start - first)
    return CheckedRows(place, _slice_mask(sample, place, row_keys, sides), alone)


def _slice_mask(sample: Sample, queries: slice, keys: slice, sides: Mapping[str, Input]) -> Sample:
    q, k, v, inputs = sample
    cut = {name: x[:, :, queries if sides[name].side == "query" else keys] for name, x in inputs.items()}
    return Sample(q[:, :, queries], k[:, :, keys], None if v is None else v[:, :, keys], cut)
