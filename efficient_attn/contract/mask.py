"""Masks: causality, padding and alignment as one value that every mechanism interprets in the same way."""

from dataclasses import KW_ONLY, dataclass, fields, replace
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor

from ..errors import UnsupportedError, UsageError

INTEGER_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
INTEGER_FIELDS = {"key_lengths": "[B]", "query_lengths": "[B]", "query_positions": "[N]", "cu_seqlens": "[S + 1]"}


@dataclass(frozen=True, eq=False)
class Mask:
    """Which keys each query may see.

    Query i is at position ``query_start + i``, by default ``M - N + i``: the last query is aligned with the last key
    (bottom-right). Padding at the end never changes that.

    causal: a query sees only keys at positions up to its own. key_lengths: ``[B]`` integers in [0, M]; row b has that
    many valid keys, the rest is padding at the end. key_mask: ``[B, M]`` bool, True for valid keys; combined with
    key_lengths. Where it begins with False, all positions of the row count from its first valid key on (left padding),
    which matters to mechanisms that depend on absolute positions; later holes move nothing. query_start: the position
    of the first query, which may be negative.
    query_lengths: ``[B]`` integers in [0, N]; output rows from there on are zero. cu_seqlens: ``[S + 1]`` increasing
    integers from 0 to N: S sequences concatenated in a batch of one, N = M. Sequence s has the positions from
    ``cu_seqlens[s]`` to before ``cu_seqlens[s + 1]``, possibly none, and gets the result that it would get alone:
    positions start from 0 in each. Can only be combined with ``causal``. The host reads it in every call, which
    synchronizes a CUDA device unless it is in CPU memory.

    query_positions: ``[N]`` integers, the position of each query, for references (``backend="dense"``) only, which
    compute single rows of a longer call with it. Cannot be combined with ``query_start`` or ``cu_seqlens``.

    A query that sees no key gives zeros. The contents of padded keys and values never matter. Lengths and masks of the
    wrong type raise `UsageError` here, those of the wrong size or range when they are used.
    """

    causal: bool = False
    key_lengths: Tensor | None = None
    _: KW_ONLY
    key_mask: Tensor | None = None
    query_start: int | None = None
    query_lengths: Tensor | None = None
    cu_seqlens: Tensor | None = None
    query_positions: Tensor | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.causal, bool):
            raise UsageError(f"Mask: causal must be True or False, not {type(self.causal).__name__}")
        start = self.query_start
        if start is not None and (isinstance(start, bool) or not isinstance(start, int)):
            raise UsageError(f"Mask: query_start must be a whole number, not {start!r}")
        if self.holds_tensors:
            self._check_tensor_fields()

    def _check_tensor_fields(self) -> None:
        for name, shape in INTEGER_FIELDS.items():
            x = getattr(self, name)
            if x is not None and not (isinstance(x, Tensor) and x.dtype in INTEGER_DTYPES and x.ndim == 1):
                raise UsageError(f"Mask: {name} must be an integer tensor of shape {shape}")
        mask = self.key_mask
        if mask is not None and not (isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.ndim == 2):
            raise UsageError("Mask: key_mask must be a bool tensor of shape [B, M], True where the key is valid")
        if self.cu_seqlens is not None:
            if not len(self.cu_seqlens):
                raise UsageError("Mask: cu_seqlens must be an integer tensor of shape [S + 1]")
            if others := self.used - {"causal", "cu_seqlens"}:
                raise UsageError(f"Mask: cu_seqlens defines the sequences and cannot be combined with {min(others)}")
        if self.query_positions is not None and self.query_start is not None:
            raise UsageError("Mask: query_positions cannot be combined with query_start")

    @property
    def used(self) -> frozenset[str]:
        """The names of the fields that are set; a mechanism refuses those that it does not support."""
        return frozenset(f.name for f in fields(self) if getattr(self, f.name) is not f.default)

    @property
    def pads_keys(self) -> bool:
        """Whether any key may be padding."""
        return self.key_lengths is not None or self.key_mask is not None

    @property
    def holds_tensors(self) -> bool:
        """Whether it has tensors, which are checked in every call."""
        if self.pads_keys or self.query_lengths is not None:
            return True
        return self.cu_seqlens is not None or self.query_positions is not None

    def start(self, n: int, m: int) -> int:
        """The position of the first of n queries over m keys. Raises `UnsupportedError` if `query_positions` are set,
        which need not be consecutive."""
        if self.query_positions is not None:
            raise UnsupportedError("Mask: queries at query_positions are not consecutive, so that they have no start")
        return m - n if self.query_start is None else self.query_start

    def positions(self, n: int, m: int, *, device: torch.device | str = "cpu") -> Tensor:
        """``[N]``, the position of each of n queries over m keys."""
        if self.query_positions is not None:
            return self.query_positions.to(device)
        return torch.arange(n, device=device) + self.start(n, m)

    def span(self, n: int, m: int) -> tuple[int, int]:
        """The positions of the first query and after the last one."""
        if self.query_positions is not None and n:
            return int(self.query_positions.min()), int(self.query_positions.max()) + 1
        start = self.start(n, m)
        return start, start + n

    def rows(self, selection: slice | Tensor, n: int, m: int) -> Self:
        """The mask of some of n queries, over the same m keys. Not for packed sequences. selection: a slice, or the
        increasing indices of the queries, for references only."""
        lengths = self.query_lengths
        if isinstance(selection, Tensor) and len(selection) == 1:
            selection = slice(int(selection), int(selection) + 1)  # which all backends support
        if isinstance(selection, Tensor):
            lengths = None if lengths is None else (selection.to(lengths.device) < lengths[:, None]).sum(1)
            positions = self.positions(n, m, device=selection.device)[selection]
            return replace(self, query_start=None, query_positions=positions, query_lengths=lengths)
        size = selection.stop - selection.start
        lengths = None if lengths is None else (lengths - selection.start).clamp(0, size)
        return replace(self, query_start=self.start(n, m) + selection.start, query_lengths=lengths)

    def key_valid(self, m: int) -> Tensor | None:
        """``[B, M]`` bool, True where a key is not padding; None when there is no padding."""
        valid = self.key_mask
        if self.key_lengths is not None:
            in_length = _mask_lengths(self.key_lengths, m)
            valid = in_length if valid is None else valid & in_length
        return valid

    def query_valid(self, n: int) -> Tensor | None:
        """``[B, N]`` bool, True for valid output rows; None if all are."""
        return None if self.query_lengths is None else _mask_lengths(self.query_lengths, n)

    def packed_lengths(self, n: int) -> list[int]:
        """The lengths of the sequences that `cu_seqlens` packs into n positions, all n in one without it. Raises
        `UsageError` where they do not fit."""
        if self.cu_seqlens is None:
            return [n]
        ends = self.cu_seqlens.tolist()
        lengths = [end - start for start, end in pairwise(ends)]
        if ends[0] != 0 or ends[-1] != n or min(lengths, default=0) < 0:
            ends_text = str(ends) if len(ends) <= 10 else f"{ends[:5]} .. {ends[-5:]}"
            raise UsageError(f"Mask: cu_seqlens must rise from 0 to N = {n}, got {ends_text}")
        return lengths

    def dense(self, n: int, m: int, *, device: torch.device | str = "cpu") -> Tensor:
        """``[B or 1, 1, N, M]`` bool, True where query i may see key j. Needs N x M memory."""
        allowed = torch.ones(1, 1, n, m, dtype=torch.bool, device=device)
        if self.cu_seqlens is not None:
            self.check(1, n, m, torch.device(device))
            lengths = torch.tensor(self.packed_lengths(n), device=device, dtype=torch.int64)
            sequence = torch.arange(len(lengths), device=device).repeat_interleave(lengths)
            allowed = allowed & (sequence[:, None] == sequence)
        if self.causal and (self.query_positions is not None or self.start(n, m) < m - 1):
            allowed = allowed & (torch.arange(m, device=device) <= self.positions(n, m, device=device)[:, None])
        for valid, shape in ((self.key_valid(m), (-1, 1, 1, m)), (self.query_valid(n), (-1, 1, n, 1))):
            if valid is not None:
                allowed = allowed & valid.to(device).view(shape)
        return allowed

    def check(self, batch: int, n: int, m: int, device: torch.device) -> None:
        """Raise `UsageError` where a field does not fit q ``[B, H, N, D]`` and k ``[B, Hkv, M, D]``."""
        for name, limit in (("key_lengths", m), ("query_lengths", n)):
            lengths = getattr(self, name)
            if lengths is not None:
                _check_tensor(name, lengths, (batch,), device)
                in_range = ((lengths >= 0) & (lengths <= limit)).all()
                if device.type != "cpu" or torch.compiler.is_compiling():  # reading it would stall, or break the graph
                    torch.ops.aten._assert_async.msg(in_range, f"Mask: {name} must lie in [0, {limit}]")
                elif not in_range:
                    raise UsageError(f"Mask: {name} must lie in [0, {limit}], got {lengths.tolist()}")
        if self.key_mask is not None:
            _check_tensor("key_mask", self.key_mask, (batch, m), device)
        if self.query_positions is not None:
            _check_tensor("query_positions", self.query_positions, (n,), device)
        if self.cu_seqlens is not None and (batch != 1 or n != m):
            raise UsageError(f"Mask: cu_seqlens needs B = 1 and N = M, got B = {batch}, N = {n}, M = {m}")


MASK_FIELDS = frozenset(f.name for f in fields(Mask))
EVERYTHING, CAUSAL = Mask(), Mask(causal=True)  # created once: creating one takes a microsecond


def _mask_lengths(lengths: Tensor, size: int) -> Tensor:
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def _check_tensor(name: str, tensor: Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    if tuple(tensor.shape) != shape:
        raise UsageError(f"Mask: {name} must have shape {list(shape)}, got {list(tensor.shape)}")
    if tensor.device != device:
        raise UsageError(f"Mask: {name} is on {tensor.device}, the queries on {device}")


def zero_invalid(x: Tensor, valid: Tensor | None) -> Tensor:
    """``x [B, heads, length, ..]``, with zeros where ``valid [B, length]`` is False."""
    return x if valid is None else x.masked_fill(~valid[:, None, :].reshape(len(x), 1, -1, *[1] * (x.ndim - 3)), 0)
