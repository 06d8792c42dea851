"""The mask of a batch whose rows are not full, and what its oracle is asked about a few of their positions."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from ..contract.mask import Mask
from ..contract.shapes import Sample, Shape, Values
from .case import Case


class Rows(NamedTuple):
    """Some query rows of a call, by their place in its output, with all keys that they may have to do with."""

    place: slice
    q: Tensor
    k: Tensor
    v: Values
    mask: Mask


def make_mask(case: Case, shape: Shape) -> Mask:
    """The case's causality, and where its rows end; at another length than the case's, in proportion."""
    place, whole = case.cell.place, case.shape.n
    if place.fill == "full":
        return Mask(causal=place.causal)
    if place.fill == "packed":
        ends = [end * shape.n // whole for end in accumulate(case.row_lengths, initial=0)]
        return Mask(causal=place.causal, cu_seqlens=torch.tensor(ends))  # read by the host, so it lies there
    lengths = torch.tensor([-(-length * shape.n // whole) for length in case.row_lengths], device=place.device)
    return Mask(causal=place.causal, key_lengths=lengths, query_lengths=lengths)


def take_rows(sample: Sample, mask: Mask, place: slice) -> Rows:
    """The rows at a place, alone; of packed sequences those that belong to the first one there."""
    q, k, v, _ = sample
    if mask.cu_seqlens is None:
        wanted = mask.query_lengths
        wanted = None if wanted is None else (wanted - place.start).clamp(0, place.stop - place.start)
        start = k.shape[2] - q.shape[2] + place.start
        return Rows(place, q[:, :, place], k, v, replace(mask, query_start=start, query_lengths=wanted))
    ends = mask.cu_seqlens.tolist()
    first, end = max(x for x in ends if x <= place.start), min(x for x in ends if x > place.start)
    place, own = slice(place.start, min(place.stop, end)), slice(first, end)
    alone = Mask(causal=mask.causal, query_start=place.start - first)
    return Rows(place, q[:, :, place], k[:, :, own], None if v is None else v[:, :, own], alone)
