"""Masks: dense masks compared with a loop over pairs, used fields, and validation."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from efficient_attn.contract.mask import Mask
from efficient_attn.errors import UnsupportedError, UsageError

CPU = torch.device("cpu")


@st.composite
def packed_masks(draw: st.DrawFn) -> tuple[list[int], Mask]:
    lengths = draw(st.lists(st.integers(0, 4), max_size=5))
    return lengths, Mask(draw(st.booleans()), cu_seqlens=torch.tensor([0, *accumulate(lengths)]))


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, int, Mask]:
    batch, n, m = draw(st.integers(1, 3)), draw(st.integers(1, 6)), draw(st.integers(1, 6))

    def lengths(limit: int) -> Tensor | None:
        values = st.lists(st.integers(0, limit), min_size=batch, max_size=batch)
        return draw(st.none() | values.map(torch.tensor))

    rows = st.lists(st.lists(st.booleans(), min_size=m, max_size=m), min_size=batch, max_size=batch)
    mask = Mask(
        draw(st.booleans()),
        lengths(m),
        key_mask=draw(st.none() | rows.map(torch.tensor)),
        query_start=draw(st.none() | st.integers(-8, 8)),
        query_lengths=lengths(n),
    )
    return batch, n, m, mask


def is_allowed(mask: Mask, b: int, i: int, j: int, n: int, m: int) -> bool:
    position = i + (m - n if mask.query_start is None else mask.query_start)
    return (
        (not mask.causal or j <= position)
        and (mask.key_lengths is None or j < int(mask.key_lengths[b]))
        and (mask.key_mask is None or bool(mask.key_mask[b, j]))
        and (mask.query_lengths is None or i < int(mask.query_lengths[b]))
    )


@settings(max_examples=100, deadline=None)
@given(cases(), st.data())
def test_rows_equals_a_slice_of_the_dense_mask(case: tuple[int, int, int, Mask], data: st.DataObject) -> None:
    _, n, m, mask = case
    start = data.draw(st.integers(0, n - 1))
    selection = slice(start, data.draw(st.integers(start + 1, n)))
    rows = mask.rows(selection, n, m).dense(selection.stop - selection.start, m)
    assert torch.equal(rows, mask.dense(n, m)[:, :, selection])


@settings(max_examples=100, deadline=None)
@given(cases(), st.data())
def test_rows_by_index_equal_those_of_the_dense_mask(case: tuple[int, int, int, Mask], data: st.DataObject) -> None:
    batch, n, m, mask = case
    rows = torch.tensor(sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1))))
    selected = mask.rows(rows, n, m)
    selected.check(batch, len(rows), m, CPU)
    assert torch.equal(selected.dense(len(rows), m), mask.dense(n, m)[:, :, rows])
    start = m - n if mask.query_start is None else mask.query_start
    assert selected.positions(len(rows), m).tolist() == (rows + start).tolist()
    assert selected.span(len(rows), m) == (int(rows[0]) + start, int(rows[-1]) + start + 1)
    assert mask.span(n, m) == (start, start + n)


def test_queries_at_positions_have_no_start() -> None:
    mask = Mask(query_positions=torch.tensor([5, 0, 9]))
    assert (mask.used, mask.holds_tensors, mask.span(3, 10)) == ({"query_positions"}, True, (0, 10))
    with pytest.raises(UnsupportedError, match=r"^Mask: queries at query_positions are not consecutive"):
        mask.start(3, 10)
    for wrong in (torch.tensor([0.5]), torch.tensor([[1]]), [1, 2]):
        with pytest.raises(UsageError, match="query_positions must be an integer tensor of shape"):
            Mask(query_positions=wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="query_positions cannot be combined with query_start"):
        Mask(query_start=1, query_positions=torch.tensor([0]))
    with pytest.raises(UsageError, match="cannot be combined with query_positions"):
        Mask(cu_seqlens=torch.tensor([0, 3]), query_positions=torch.tensor([0]))
    with pytest.raises(UsageError, match=r"query_positions must have shape \[2\], got \[3\]"):
        mask.check(1, 2, 10, CPU)


@settings(max_examples=150, deadline=None)
@given(cases())
def test_dense_equals_a_loop_over_pairs(case: tuple[int, int, int, Mask]) -> None:
    batch, n, m, mask = case
    mask.check(batch, n, m, CPU)
    dense = mask.dense(n, m).expand(batch, 1, n, m)
    for b in range(batch):
        expected = [[is_allowed(mask, b, i, j, n, m) for j in range(m)] for i in range(n)]
        assert dense[b, 0].tolist() == expected


@settings(max_examples=60, deadline=None)
@given(packed_masks())
def test_dense_of_packed_sequences_is_block_diagonal(case: tuple[list[int], Mask]) -> None:
    lengths, mask = case
    blocks = [Mask(mask.causal).dense(length, length)[0, 0] for length in lengths]
    expected = torch.block_diag(*blocks).reshape(sum(lengths), -1) if sum(lengths) else torch.ones(0, 0)
    assert mask.dense(sum(lengths), sum(lengths))[0, 0].int().tolist() == expected.int().tolist()


def test_the_last_query_is_aligned_with_the_last_key() -> None:
    assert Mask(causal=True).dense(2, 4)[0, 0].int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert Mask(causal=True).dense(4, 2)[0, 0].int().tolist() == [[0, 0], [0, 0], [1, 0], [1, 1]]
    assert Mask(causal=True, query_start=0).dense(2, 4)[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0]]


def test_padding_does_not_change_query_positions() -> None:
    padded = Mask(causal=True, key_lengths=torch.tensor([3])).dense(2, 4)
    assert padded[0, 0].int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 0]]
    assert Mask(key_lengths=torch.tensor([3])).start(2, 4) == 2
    assert Mask(query_start=-7).start(2, 4) == -7


def test_the_default_mask_allows_all_pairs_without_tensors() -> None:
    mask = Mask()
    assert mask.dense(3, 5).all()
    assert mask.key_valid(5) is None
    assert mask.query_valid(3) is None
    assert not mask.pads_keys
    assert mask.used == frozenset()


def test_key_mask_and_key_lengths_are_combined() -> None:
    mask = Mask(key_lengths=torch.tensor([2]), key_mask=torch.tensor([[False, True, True]]))
    valid = mask.key_valid(3)
    assert valid is not None
    assert valid.tolist() == [[False, True, False]]
    assert mask.pads_keys


def test_used_has_the_fields_that_are_set() -> None:
    lengths = torch.tensor([1])
    assert Mask(causal=True, query_start=0).used == {"causal", "query_start"}
    assert Mask(key_lengths=lengths, query_lengths=lengths).used == {"key_lengths", "query_lengths"}
    assert Mask(cu_seqlens=lengths).used == {"cu_seqlens"}


def test_used_has_fields_of_subclasses() -> None:
    @dataclass(frozen=True, eq=False)
    class Extended(Mask):
        _: KW_ONLY
        segments: Tensor | None = None

    assert Extended(segments=torch.tensor([1])).used == {"segments"}
    assert Extended().used == frozenset()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_lengths_can_have_any_integer_dtype(dtype: torch.dtype) -> None:
    mask = Mask(key_lengths=torch.tensor([2, 0], dtype=dtype))
    mask.check(2, 1, 3, CPU)
    valid = mask.key_valid(3)
    assert valid is not None
    assert valid.sum(1).tolist() == [2, 0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"causal": 1}, "causal must be True or False, not int"),
        ({"causal": None}, "causal must be True or False, not NoneType"),
        ({"key_lengths": [1, 2]}, "key_lengths must be an integer tensor"),
        ({"key_lengths": torch.tensor([1.0])}, "key_lengths must be an integer tensor"),
        ({"key_lengths": torch.tensor([[1]])}, r"key_lengths must be an integer tensor of shape \[B\]"),
        ({"key_lengths": torch.tensor([True])}, "key_lengths must be an integer tensor"),
        ({"query_lengths": torch.tensor(1)}, "query_lengths must be an integer tensor"),
        ({"key_mask": torch.ones(1, 3)}, "key_mask must be a bool tensor"),
        ({"key_mask": torch.ones(3, dtype=torch.bool)}, r"bool tensor of shape \[B, M\]"),
        ({"query_start": 1.0}, "query_start must be a whole number, not 1.0"),
        ({"query_start": True}, "query_start must be a whole number, not True"),
        ({"cu_seqlens": [0, 3]}, r"cu_seqlens must be an integer tensor of shape \[S \+ 1\]"),
        ({"cu_seqlens": torch.tensor([0.0, 3.0])}, "cu_seqlens must be an integer tensor"),
        ({"cu_seqlens": torch.tensor([[0, 3]])}, "cu_seqlens must be an integer tensor"),
        ({"cu_seqlens": torch.tensor([], dtype=torch.long)}, "cu_seqlens must be an integer tensor"),
    ],
)
def test_wrong_types_are_refused_by_the_constructor(fields: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Mask(**fields)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("key_lengths", torch.tensor([3])),
        ("key_mask", torch.ones(1, 3, dtype=torch.bool)),
        ("query_start", 0),
        ("query_lengths", torch.tensor([3])),
    ],
)
def test_cu_seqlens_cannot_be_combined_with_other_fields(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"cu_seqlens defines the sequences and cannot be combined with {name}$"):
        Mask(cu_seqlens=torch.tensor([0, 3]), **{name: value})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (Mask(key_lengths=torch.tensor([1, 5])), r"key_lengths must lie in \[0, 4\], got \[1, 5\]"),
        (Mask(key_lengths=torch.tensor([-1, 4])), r"key_lengths must lie in \[0, 4\], got \[-1, 4\]"),
        (Mask(query_lengths=torch.tensor([1, 4])), r"query_lengths must lie in \[0, 3\]"),
        (Mask(key_lengths=torch.tensor([1])), r"key_lengths must have shape \[2\], got \[1\]"),
        (Mask(query_lengths=torch.tensor([1, 1, 1])), r"query_lengths must have shape \[2\], got \[3\]"),
        (Mask(key_mask=torch.ones(2, 3, dtype=torch.bool)), r"key_mask must have shape \[2, 4\], got \[2, 3\]"),
        (
            Mask(key_lengths=torch.ones(2, dtype=torch.long, device="meta")),
            "key_lengths is on meta, the queries on cpu",
        ),
        (Mask(cu_seqlens=torch.tensor([0, 3])), "cu_seqlens needs B = 1 and N = M, got B = 2, N = 3, M = 4"),
    ],
)
def test_check_refuses_wrong_sizes(mask: Mask, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mask.check(2, 3, 4, CPU)


def test_fields_after_key_lengths_are_keyword_only() -> None:
    with pytest.raises(TypeError):
        Mask(True, None, None)  # pyright: ignore[reportCallIssue]
