"""Patterns through flex_attention: block masks equal the pattern, and outputs equal the reference.

Without a GPU flex_attention is traced as for its kernels and then run eagerly. That uses the mask function only, so the
tables of blocks, which the kernels use, are tested separately.
"""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from efficient_attn.contract.mask import Mask
from efficient_attn.kernels.dense import softmax_attention
from efficient_attn.kernels.sparse import flex_backend
from efficient_attn.patterns import Band, Geometry, Keys, Pattern, Where, global_tokens, random_blocks, sliding_window

CPU = torch.device("cpu")
PATTERNS = (
    sliding_window(5),
    Pattern((Band(0, 60),)),
    Pattern((Band(0, 40, 8),)),
    Band(-3, 3) | Keys(0, 2),
    Band(0, 6) | Keys(5, 7, 9),
    Pattern((Where(lambda i, j: (i + j) % 7 == 0),)),
    Pattern((Keys(30, 31),)),
    global_tokens(3) | Band(0, 20),
    random_blocks(2, 4, 1),
)


def pairs_of(pattern: Pattern, g: Geometry) -> Tensor:
    """``[N, M]`` bool: the pairs that pattern and causality allow."""
    i, j = torch.arange(g.n)[:, None] + g.start, torch.arange(g.m)
    pairs = pattern.allows(i, j, g).expand(g.n, g.m)
    return pairs & (j <= i) if g.causal else pairs


def list_blocks(mask: Any, kind: str, side: str) -> list[list[int]]:
    """The blocks of one of the mask's tables, as lists."""
    counts, entries = getattr(mask, f"{kind}{side}_num_blocks"), getattr(mask, f"{kind}{side}_indices")
    if counts is None:
        return []
    assert counts.dtype == entries.dtype == torch.int32
    assert entries.is_contiguous()
    return [row[:count] for row, count in zip(entries[0, 0].tolist(), counts[0, 0].tolist(), strict=True)]


def computed_pairs(mask: Any, side: str, batch: int = 0) -> Tensor:
    """``[N, M]`` bool: the pairs that a kernel computes with the tables of one side."""
    (n, m), size = mask.seq_lengths, mask.BLOCK_SIZE[0]
    qi, ki = torch.arange(n, dtype=torch.int32)[:, None], torch.arange(m, dtype=torch.int32)  # what the kernels pass
    allowed = mask.mask_mod(torch.tensor(batch), torch.tensor(0), qi, ki).expand(n, m)
    seen = torch.zeros(n, m, dtype=torch.bool)
    for kind in ("", "full_"):
        for block, others in enumerate(list_blocks(mask, kind, side)):
            assert others == sorted(set(others))
            for other in others:
                a, b = (block, other) if side == "kv" else (other, block)
                part = (slice(a * size, (a + 1) * size), slice(b * size, (b + 1) * size))
                assert seen[part].numel()
                assert not seen[part].any()
                seen[part] = True if kind else allowed[part]
    return seen


def tables_of(mask: Any) -> list[Tensor]:
    return [x for x in vars(mask).values() if isinstance(x, Tensor)]


# -- block masks ---------------------------------------------------------------------------------------------------

CASES = (
    st.sampled_from(PATTERNS), st.integers(1, 90), st.integers(1, 90), st.sampled_from([None, 0, -20, -200, 50]),
    st.booleans(), st.sampled_from([1, 4, 16]),
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(*CASES)
def test_tables_contain_exactly_the_allowed_pairs(
    pattern: Pattern, n: int, m: int, start: int | None, causal: bool, size: int
) -> None:
    g = Geometry(n, m, m - n if start is None else start, causal)
    mask = flex_backend.block_mask(pattern, g, device=CPU, size=size)
    assert torch.equal(computed_pairs(mask, "kv"), pairs_of(pattern, g))
    assert torch.equal(computed_pairs(mask, "q"), pairs_of(pattern, g))
    partial, full = list_blocks(mask, "", "kv"), list_blocks(mask, "full_", "kv") or [[] for _ in range(-(-n // size))]
    for row, (some, whole) in enumerate(zip(partial, full, strict=True)):
        first, last = g.start + row * size, g.start + min((row + 1) * size, n) - 1
        assert sorted(some + whole) == pattern.key_blocks(first, last, size, g)


@settings(max_examples=50, deadline=None)
@given(*CASES)
def test_padded_masks_have_partial_blocks_only(
    pattern: Pattern, n: int, m: int, start: int | None, causal: bool, size: int
) -> None:
    g = Geometry(n, m, m - n if start is None else start, causal)
    valid = torch.rand(2, m, generator=torch.Generator().manual_seed(n)) < 0.7
    mask = flex_backend.block_mask(pattern, g, device=CPU, size=size, valid=valid)
    assert mask.full_kv_indices is None
    assert mask.full_q_indices is None
    for b in range(2):
        assert torch.equal(computed_pairs(mask, "kv", b), pairs_of(pattern, g) & valid[b])


def test_inner_blocks_of_a_window_are_full() -> None:
    mask = flex_backend.block_mask(sliding_window(64), Geometry(160, 160, 0, True), device=CPU, size=16)
    assert list_blocks(mask, "full_", "kv")[-1] == [6, 7, 8]
    assert list_blocks(mask, "", "kv")[-1] == [5, 9]  # a ragged block of keys would be partial too


@pytest.mark.parametrize(("n", "m"), [(60, 64), (64, 60)])
def test_ragged_blocks_are_never_full(n: int, m: int) -> None:
    mask = flex_backend.block_mask(sliding_window(100), Geometry(n, m, 0, False), device=CPU, size=16)
    full = {(row, b) for row, blocks in enumerate(list_blocks(mask, "full_", "kv")) for b in blocks}
    assert full == {(row, b) for row in range(n // 16) for b in range(m // 16)}


def test_full_and_partial_tables_have_the_same_layout() -> None:
    mask = flex_backend.block_mask(sliding_window(40), Geometry(200, 150, 0, False), device=CPU, size=16)
    for side in ("kv", "q"):  # the decoding kernel reads both with the strides of the partial one
        some, whole = getattr(mask, f"{side}_indices"), getattr(mask, f"full_{side}_indices")
        assert (some.shape, some.stride()) == (whole.shape, whole.stride())


def test_rows_without_keys_have_a_table_entry() -> None:
    mask = flex_backend.block_mask(sliding_window(2), Geometry(32, 32, -100, True), device=CPU, size=16)
    assert mask.kv_num_blocks.tolist() == [[[0, 0]]]
    assert mask.kv_indices.shape == (1, 1, 2, 1)  # the kernels read the first entry before they count


def test_block_mask_of_a_long_window_needs_little_memory() -> None:
    g = Geometry(1 << 16, 1 << 16, 0, True)
    tracemalloc.start()
    mask = flex_backend.block_mask(sliding_window(1000), g, device=CPU)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    rows = g.n // flex_backend.BLOCK_SIZE
    assert len(tables_of(mask)) == 8
    assert max(x.numel() for x in tables_of(mask)) <= 8 * rows
    assert peak < 4 << 20, peak


def test_equal_block_masks_share_their_tables() -> None:
    g, valid = Geometry(64, 64, 0, False), torch.ones(1, 64, dtype=torch.bool)
    for padding in (None, valid):
        first, again = (flex_backend.block_mask(sliding_window(5), g, device=CPU, valid=padding) for _ in range(2))
        assert all(a is b for a, b in zip(tables_of(first), tables_of(again), strict=True))


def test_tables_made_in_inference_mode_are_normal_tensors() -> None:
    with torch.inference_mode():
        mask = flex_backend.block_mask(sliding_window(5), Geometry(65, 64, 0, False), device=CPU)
        rule = flex_backend._make_traceable(random_blocks(2, 4, 7), Geometry(65, 64, 0, False), CPU)
    (fact,) = rule.facts
    assert isinstance(fact, flex_backend._DrawnBlocks)
    assert len(fact.tables) == 2
    assert not any(x.is_inference() for x in (*tables_of(mask), *fact.tables))


# -- numbers -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def traces() -> Iterator[CompileCounterWithBackend]:
    """flex_attention compiled as for CUDA, with a backend that counts graphs and runs them eagerly."""
    counter = CompileCounterWithBackend("eager")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", partial(torch.compile, backend=counter))
        flex_backend.compile_flex_attention.cache_clear()
        yield counter
    flex_backend.compile_flex_attention.cache_clear()


def draw(n: int, m: int, *, dtype: torch.dtype = torch.float32, device: str = "cpu", width: int = 16) -> list[Tensor]:
    generator = torch.Generator().manual_seed(n * m)
    sizes = ((2, 4, n, width), (2, 2, m, width), (2, 2, m, 24))
    return [torch.randn(size, generator=generator).to(device, dtype) for size in sizes]


def reference(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, mask: Mask) -> Tensor:
    n, m = q.shape[2], k.shape[2]
    g = Geometry(n, m, mask.start(n, m), mask.causal)
    allowed = mask.dense(n, m, device=q.device) & pairs_of(pattern, g).to(q.device)
    return softmax_attention(q, k, v, allowed, scale=0.3)


def masks(device: str = "cpu") -> list[Mask]:
    holes = torch.arange(77, device=device) % 3 > 0
    return [
        Mask(),
        Mask(causal=True),
        Mask(causal=True, query_start=-20),  # rows that see no key
        Mask(causal=True, key_lengths=torch.tensor([77, 0], device=device)),
        Mask(key_lengths=torch.tensor([30, 77], device=device), key_mask=torch.stack([holes, ~holes])),
    ]


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.usefixtures("traces")
@pytest.mark.parametrize(
    ("pattern", "mask"), [(p, masks()[2]) for p in PATTERNS] + [(PATTERNS[3], mask) for mask in masks()]
)
def test_output_equals_reference(pattern: Pattern, mask: Mask) -> None:
    q, k, v = draw(90, 77)
    with torch.no_grad():
        out = flex_backend.attend(q, k, v, pattern, mask, 0.3)
    torch.testing.assert_close(out, reference(q, k, v, pattern, mask))


@pytest.mark.usefixtures("traces")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_output_of_other_dtypes_equals_reference(dtype: torch.dtype) -> None:
    q, k, v = draw(90, 77, dtype=dtype)
    with torch.no_grad():
        out = flex_backend.attend(q, k, v, PATTERNS[3], Mask(causal=True), 0.3)
    assert out.dtype == dtype
    close = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(out, reference(q, k, v, PATTERNS[3], Mask(causal=True)), **close)


@pytest.mark.usefixtures("traces")
def test_narrow_heads_are_supported() -> None:
    q, k, v = draw(50, 50, width=8)
    with torch.no_grad():
        out = flex_backend.attend(q, k, v[..., :5], PATTERNS[0], Mask(), 0.3)
    assert out.shape == (2, 4, 50, 5)
    torch.testing.assert_close(out, reference(q, k, v[..., :5], PATTERNS[0], Mask()))


@pytest.mark.usefixtures("traces")
def test_rows_without_keys_are_zero() -> None:
    q, k, v = draw(90, 77)
    with torch.no_grad():
        out = flex_backend.attend(q, k, v, PATTERNS[0], Mask(causal=True, query_start=-20), 0.3)
    assert not out[:, :, :20].any()
    assert out[:, :, 20].all()


@pytest.mark.usefixtures("traces")
def test_backward_pass_is_unsupported_on_cpu() -> None:
    q, k, v = draw(90, 77)
    with pytest.raises(Exception, match="does not support backward on CPU"):
        flex_backend.attend(q.requires_grad_(), k, v, PATTERNS[0], Mask(), 0.3)


@pytest.mark.sampled(6)
@pytest.mark.slow
def test_kernels_are_compiled_once_per_pattern_and_geometry(traces: CompileCounterWithBackend) -> None:
    def compiled(call: Callable[[], object]) -> int:
        before = traces.frame_count
        with torch.no_grad():
            call()
        return traces.frame_count - before

    def attend(start: int, pattern: Pattern, lengths: list[int] | None = None) -> Tensor:
        mask = Mask(query_start=start, key_lengths=None if lengths is None else torch.tensor(lengths))
        return flex_backend.attend(*draw(33, 35), pattern, mask, 0.3)

    assert compiled(lambda: attend(0, sliding_window(3))) == 1
    assert compiled(lambda: attend(0, sliding_window(3))) == 0
    assert compiled(lambda: attend(0, sliding_window(3), [35, 1])) == 1
    assert compiled(lambda: attend(0, sliding_window(3), [2, 3])) == 0  # lengths are not part of the kernel
    assert compiled(lambda: [attend(s, sliding_window(3)) for s in range(1, 11)]) == 10  # more than torch's limit of 8
    assert compiled(lambda: attend(0, Band(0, 3) | Keys(0, 1))) == 1


# -- imports and CUDA ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_importing_the_backend_does_not_import_flex_attention() -> None:
    imported = "'torch.nn.attention.flex_attention' in sys.modules"
    code = f"import sys, efficient_attn.kernels.sparse.flex_backend; print({imported})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device: these are flex_attention's real kernels"
)
@pytest.mark.parametrize("pattern", [sliding_window(150), Band(0, 40) | Keys(0, 3), random_blocks(2, 32, 1)], ids=str)
@pytest.mark.parametrize("shape", [(1, 300), (300, 300), (512, 256), (200, 513)], ids=str)
def test_cuda_output_and_gradients_equal_reference(pattern: Pattern, shape: tuple[int, int]) -> None:
    n, m = shape
    lengths = torch.tensor([m, 0], device="cuda")
    for mask in (Mask(), Mask(causal=True), Mask(causal=True, query_start=-20), Mask(key_lengths=lengths)):
        grads = []
        for run in (lambda *x: flex_backend.attend(*x, 0.3), reference):
            tensors = [x.requires_grad_() for x in draw(n, m, device="cuda", width=32)]
            out = run(*tensors, pattern, mask)
            grads.append([out, *torch.autograd.grad(out.square().sum(), tensors)])
        for got, wanted in zip(*grads, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)
