"""Positions: formulas, invariances, layers with positions in calls and steps, and unsupported mechanisms."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import efficient_attn as ea
from efficient_attn.layers import positions as at
from efficient_attn.layers.positions import Alibi, Binary, Learned, Positions, Rotary, Sinusoidal

WIDTH, HEADS, LENGTH = 32, 4, 12


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


# -- encodings added to the input -----------------------------------------------------------------------------------


def test_sinusoidal_equals_the_papers_formula() -> None:
    rows = at.sinusoidal(torch.arange(50), 8)
    for pos in (0, 7, 49):
        for i in range(4):
            angle = pos / 10_000 ** (2 * i / 8)
            assert rows[pos, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert rows[pos, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)


@settings(deadline=None, max_examples=30)
@given(first=st.integers(0, 500), second=st.integers(0, 500), shift=st.integers(0, 500))
def test_dot_products_of_sinusoids_depend_on_distance_only(first: int, second: int, shift: int) -> None:
    rows = at.sinusoidal(torch.tensor([first, second, first + shift, second + shift]), 64)
    assert torch.isclose(rows[0] @ rows[1], rows[2] @ rows[3], rtol=0, atol=1e-9)


def test_similarity_of_sinusoids_decreases_with_distance() -> None:
    rows = at.sinusoidal(torch.arange(6), 64)
    similarity = rows[0] @ rows.T
    assert (similarity.diff() < 0).all()


def test_a_shift_of_sinusoids_is_a_linear_map() -> None:
    """One map for all positions: it is fitted to some and checked on others."""
    rows, shifted = at.sinusoidal(torch.arange(100), 8), at.sinusoidal(torch.arange(5, 105), 8)
    linear = torch.linalg.lstsq(rows[:40], shifted[:40]).solution
    torch.testing.assert_close(rows[40:] @ linear, shifted[40:], rtol=0, atol=1e-8)


def test_binary_gives_the_bits_of_positions() -> None:
    rows = at.binary(torch.tensor([0, 1, 6, 13]), 4)
    assert rows.tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0], [1, 0, 1, 1]]


@pytest.mark.parametrize("encoding", [Sinusoidal(8), Binary(8), Learned(8, max_len=40, seed=3)])
def test_start_shifts_positions(encoding: at.Encoding) -> None:
    x = torch.randn(2, 20, 8)
    torch.testing.assert_close(encoding(x)[:, 7:], encoding(x[:, 7:], start=7))
    assert encoding(x).dtype == x.dtype


def test_encodings_can_be_concatenated() -> None:
    x = torch.randn(2, 5, 3)
    out = Binary(4, how="concat")(x, start=9)
    assert torch.equal(out[..., :3], x)
    assert torch.equal(out[1, :, 3:], at.binary(torch.arange(9, 14), 4).float())


# -- positions of queries and keys ----------------------------------------------------------------------------------


@pytest.mark.parametrize("pairs", ["halves", "adjacent"])
@pytest.mark.parametrize("part", [1.0, 0.5])
def test_rotary_rotates_pairs_as_complex_numbers(pairs: str, part: float) -> None:
    x, start, stretch = draw(2, 3, 5, 8), 11, 2.5
    got = Rotary(part=part, stretch=stretch, pairs=pairs).place_queries(x, start)  # pyright: ignore
    rotated = int(8 * part)
    for i in range(rotated // 2):
        ends = (i, i + rotated // 2) if pairs == "halves" else (2 * i, 2 * i + 1)
        number = torch.complex(x[..., ends[0]], x[..., ends[1]])
        angle = torch.arange(start, start + 5).double() / stretch * 10_000 ** (-2 * i / rotated)
        want = number * torch.polar(torch.ones(5, dtype=torch.float64), angle)
        torch.testing.assert_close(torch.complex(got[..., ends[0]], got[..., ends[1]]), want)
    assert torch.equal(got[..., rotated:], x[..., rotated:])


@settings(deadline=None, max_examples=30)
@given(start=st.integers(0, 3000), distance=st.integers(0, 500), shift=st.integers(0, 3000))
def test_rotary_scores_depend_on_distance_only(start: int, distance: int, shift: int) -> None:
    q, k, rotary = draw(1, 1, 1, 16), draw(1, 1, 1, 16), Rotary()

    def score(first: int) -> Tensor:
        return (rotary.place_queries(q, first + distance) * rotary.place_keys(k, first)).sum()

    torch.testing.assert_close(score(start), score(start + shift), rtol=0, atol=1e-10)


@pytest.mark.parametrize("shift", [1, 100, 3000])
@pytest.mark.parametrize("variant", ["full", "sliding_window:window=3"])
def test_rotary_is_invariant_to_a_shift_of_all_positions(variant: str, shift: int) -> None:
    q, k, v, attn = draw(2, 4, 12, 8), draw(2, 4, 12, 8), draw(2, 4, 12, 8), ea.create(variant)
    for mask in (ea.Mask(), ea.Mask(causal=True)):
        original, shifted = (
            attn(Rotary().place_queries(q, at), Rotary().place_keys(k, at), v, mask) for at in (0, shift)
        )
        torch.testing.assert_close(original, shifted, rtol=0, atol=1e-10)
        assert (original - attn(q, k, v, mask)).abs().max() > 1e-3


def make(variant: str, positions: Positions | None, **options: object) -> ea.MultiHeadAttention:
    arguments = {"max_len": 64, "positions": positions, **options}
    return ea.MultiHeadAttention(WIDTH, HEADS, variant=variant, **arguments).double()  # pyright: ignore


@pytest.mark.parametrize(
    "variant", ["full", "sliding_window:window=3", "gqa:kv_heads=2", "attention_sinks:window=4:n_sink=2"]
)
def test_alibi_adds_a_bias_by_distance(variant: str) -> None:
    layer, x = make(variant, Alibi()), draw(2, LENGTH, WIDTH)
    assert layer.k_proj is not None
    assert layer.v_proj is not None
    q = layer.q_proj(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    k, v = (p(x).unflatten(-1, (layer.kv_heads, -1)).transpose(1, 2) for p in (layer.k_proj, layer.v_proj))
    k, v = (part.repeat_interleave(HEADS // layer.kv_heads, 1) for part in (k, v))
    slopes = torch.tensor([2.0 ** (-8 * (h + 1) / HEADS) for h in range(HEADS)], dtype=torch.float64)
    i = torch.arange(LENGTH)
    scores = q @ k.mT / 8**0.5 - slopes[:, None, None] * (i[:, None] - i)
    eye = torch.eye(LENGTH, dtype=torch.float64).expand(1, layer.kv_heads, -1, -1)
    queries = draw(1, HEADS, LENGTH, 8)
    # keys that each query attends to: those with nonzero weights
    seen = ea.create(variant)(queries, queries[:, : layer.kv_heads], eye, ea.Mask(causal=True))[0, 0] > 0
    want = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v
    want = layer.out_proj(want.transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x, mask=ea.Mask(causal=True)), want, rtol=0, atol=1e-12)


def test_alibi_is_accurate_at_far_positions_in_half_precision() -> None:
    """bfloat16 cannot represent position 5,000, so a bias computed from absolute positions would be inaccurate."""
    q, k, v = (torch.randn(1, 8, 64, 16).bfloat16() for _ in range(3))
    alibi, start = Alibi(), 5000
    placed = alibi.place_queries(q, start), alibi.place_keys(k, start), v
    got = ea.attention(*placed, mask=ea.Mask(causal=True)).float()
    i, slopes = torch.arange(64), at.slopes_of(8).float()
    scores = q.float() @ k.float().mT / 4 - slopes[:, None, None] * (i[:, None] - i)
    want = scores.masked_fill(i > i[:, None], -torch.inf).softmax(-1) @ v.float()
    assert (got - want).norm() / want.norm() < 0.02


def test_alibi_slopes_equal_the_papers() -> None:
    assert at.slopes_of(8).tolist() == [2.0**-h for h in range(1, 9)]
    twelve = [*(2.0**-h for h in range(1, 9)), *(2 ** (-(h + 0.5)) for h in range(4))]
    assert at.slopes_of(12).tolist() == pytest.approx(twelve)
    assert at.slopes_of(1).tolist() == [2.0**-8]


@pytest.mark.parametrize("positions", [Rotary(), Rotary(part=0.5, pairs="adjacent"), Alibi()])
@pytest.mark.parametrize("variant", ["full", "sliding_window:window=3", "gqa:kv_heads=2"])
@pytest.mark.parametrize("norm", [False, True])
def test_steps_equal_the_causal_forward_pass(variant: str, positions: Positions, norm: bool) -> None:
    layer, x = make(variant, positions, norm=norm, gated=norm), draw(2, LENGTH, WIDTH)
    want, rows = layer(x, mask=ea.Mask(causal=True)), []
    state = layer.init_state(2, LENGTH)
    for part in x.split([4, 1, 3, 4], 1):
        out, state = layer.step(part, state)
        rows.append(out)
    torch.testing.assert_close(torch.cat(rows, 1), want, rtol=0, atol=1e-12)
    assert state.length == LENGTH
    assert ea.state_bytes(state) > 0


@pytest.mark.parametrize("positions", [Rotary(), Alibi(), None])
@pytest.mark.parametrize("variant", ["full", "sliding_window:window=3", "gqa:kv_heads=2", "linear", "general"])
def test_rows_with_starts_equal_separate_sequences(variant: str, positions: Positions | None) -> None:
    if isinstance(positions, Alibi) and variant in ("linear", "general"):
        pytest.skip("they do not support Alibi")
    layer, x, starts = make(variant, positions, norm=True), draw(3, LENGTH, WIDTH), [0, 4, 6]
    state, rows = layer.init_state(3, LENGTH, starts=torch.tensor(starts)), []
    for part in x.split([7, 1, 3, 1], 1):
        out, state = layer.step(part, state)
        rows.append(out)
    for row, start in enumerate(starts):
        want = layer(x[row : row + 1, start:], mask=ea.Mask(causal=True))[0]
        torch.testing.assert_close(torch.cat(rows, 1)[row, start:], want, rtol=0, atol=1e-12)


class Counted(Positions):
    """Positions that depend on the absolute start."""

    def place_queries(self, q: Tensor, start: int) -> Tensor:
        return q * (start + 1)

    def place_keys(self, k: Tensor, start: int) -> Tensor:
        return k * (start + 1)


def test_absolute_positions_refuse_starts() -> None:
    with pytest.raises(ea.UnsupportedError, match="Counted does not support starts"):
        make("full", Counted()).init_state(1, LENGTH, starts=torch.tensor([1]))


@pytest.mark.parametrize("encoding", [Sinusoidal(8), Binary(8), Learned(8, max_len=40, seed=3)])
def test_encodings_count_from_the_start_of_each_row(encoding: at.Encoding) -> None:
    x, starts = torch.randn(2, 9, 8), torch.tensor([0, 3])
    out = encoding(x, 5, starts)
    torch.testing.assert_close(out[:1], encoding(x[:1], 5))
    torch.testing.assert_close(out[1:], encoding(x[1:], 2))


def test_mean_pool_kv_keeps_positions_norm_and_gate() -> None:
    layer = make("full", Rotary(part=0.5), norm=True, gated=True)
    grouped = ea.mean_pool_kv(layer, kv_heads=4)
    x = draw(2, LENGTH, WIDTH)
    torch.testing.assert_close(grouped(x), layer(x))
    assert ea.mean_pool_kv(layer, kv_heads=2).positions == layer.positions


def test_rotary_respects_the_start_of_queries() -> None:
    layer, x = make("full", Rotary()), draw(2, LENGTH, WIDTH)
    whole = layer(x, mask=ea.Mask(causal=True))
    rest = layer(x[:, 5:], x, ea.Mask(causal=True))
    torch.testing.assert_close(rest, whole[:, 5:], rtol=0, atol=1e-12)
    first = layer(x[:, :5], x, ea.Mask(causal=True, query_start=0))
    torch.testing.assert_close(first, whole[:, :5], rtol=0, atol=1e-12)


def test_norm_and_gate_equal_the_formula() -> None:
    layer, x = make("full", None, norm=True, gated=True), draw(2, 5, WIDTH)
    assert layer.k_proj is not None
    assert layer.v_proj is not None
    assert layer.q_norm is not None
    assert layer.output_gate_proj is not None
    torch.nn.init.normal_(layer.q_norm.weight)
    q, k, v = (p(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
    q, k = (part / (part.square().mean(-1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
    out = ((q * layer.q_norm.weight) @ k.mT / 8**0.5).softmax(-1) @ v
    want = layer.out_proj(out.transpose(1, 2).flatten(2) * torch.sigmoid(layer.output_gate_proj(x)))
    torch.testing.assert_close(layer(x), want, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("make_invalid", "message"),
    [
        (lambda: Sinusoidal(7), "an even width, got 7"),
        (lambda: Binary(3)(torch.zeros(1, 9, 3)), "position 8 has more than 3 bits"),
        (lambda: Learned(4, max_len=8)(torch.zeros(1, 3, 4), start=7), "there are 8 positions, got 9"),
        (lambda: Sinusoidal(8)(torch.zeros(1, 3, 4)), "made for a width of 8, x has 4"),
        (lambda: Sinusoidal(0), "width must be at least 1"),
        (lambda: Rotary(part=1.5), "part must be in"),
        (lambda: ea.MultiHeadAttention(6, 2, positions=Rotary()), "1 of 3 components cannot be rotated in pairs"),
        (lambda: ea.MultiHeadAttention(8, 2, positions=Rotary(part=0.3)), "0.3 of 4 components"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(make_invalid: object, message: str) -> None:
    with pytest.raises(ea.UsageError, match=message) as error:
        make_invalid()  # pyright: ignore
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("variant", "positions", "message"),
    [
        ("linear", Alibi(), "linear is not a softmax of dot products"),
        ("cosine", Alibi(), "cosine is not a softmax of dot products"),
        ("mla:latent_dim=8", Rotary(), "computes its own keys"),
    ],
)
def test_unsupported_positions_are_refused(variant: str, positions: Positions, message: str) -> None:
    with pytest.raises(ea.UnsupportedError, match=message):
        make(variant, positions)
    with pytest.raises(ea.UnsupportedError, match="needs a causal mask"):
        make("full", Alibi())(draw(1, 3, WIDTH))
