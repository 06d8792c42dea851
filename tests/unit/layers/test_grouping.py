"""Pooling of key-value heads: exact cases, pooled and random weights, kept properties, and refused layers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import efficient_attn as ea
from efficient_attn.layers.grouping import PoolingMethod
from efficient_attn.registry import entries
from efficient_attn.testing.tensor_comparison import assert_close, assert_same
from efficient_attn.variants.full.softmax_attention import SoftmaxAttention

WIDTH, HEADS, LENGTH = 24, 8, 10
CLOSE = 1e-12
VARIANTS = ("full", "gqa", "sliding_window:window=3", "linear", "performer:n_features=8", "random_feature:gated=true")
VARIANTS += ("retention", "random_blocks:block_size=2", "linformer", "linformer:share=none", "nystromformer")
VARIANTS += ("sliding_window:window=3|global_tokens",)


def make_layer(variant: str = "full", *, weights: int = 0, **options: object) -> ea.MultiHeadAttention:
    """A layer whose parameters are all nonzero."""
    layer = ea.MultiHeadAttention(WIDTH, HEADS, **{"variant": variant, "max_len": 16, "head_dim": 5, **options})  # pyright: ignore
    g = torch.Generator().manual_seed(weights)
    for p in layer.double().parameters():
        nn.init.normal_(p, std=0.3, generator=g)
    return layer


def equalize_groups(layer: ea.MultiHeadAttention, kv_heads: int) -> ea.MultiHeadAttention:
    """Give the heads of each of `kv_heads` groups the same weights: those of the group's last head."""
    by_head = ["k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"]
    by_head += [n for n, p in layer.named_parameters() if n.startswith(("gate_proj", "attn.")) and len(p) > 1]
    with torch.no_grad():
        for p in map(layer.get_parameter, by_head):
            heads = p.unflatten(0, (kv_heads, layer.kv_heads // kv_heads, -1))
            p.copy_(heads[:, -1:].expand_as(heads).reshape(p.shape))
    return layer


def draw(batch: int = 2, *, seed: int = 0) -> Tensor:
    return torch.randn(batch, LENGTH, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def steps(layer: ea.MultiHeadAttention, x: Tensor) -> Tensor:
    state, rows = layer.init_state(len(x), LENGTH), []
    for part in x.split([4, 1, 3, 1, 1], dim=1):
        out, state = layer.step(part, state)
        rows.append(out)
    return torch.cat(rows, 1)


@pytest.mark.parametrize("how", ["mean", "first"])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("variant", VARIANTS)
def test_pooling_equal_heads_is_exact(variant: str, kv_heads: int, how: PoolingMethod) -> None:
    layer, x = equalize_groups(make_layer(variant), kv_heads), draw()
    grouped = ea.mean_pool_kv(layer, kv_heads, how=how)
    assert grouped.kv_heads == grouped.attn.kv_heads == kv_heads
    assert grouped.get_parameter("k_proj.weight").shape == (kv_heads * 5, WIDTH)
    traits = layer.attn.traits
    for causal in traits.directions:
        mask = ea.Mask(causal=causal)
        assert_close(grouped(x, mask=mask), layer(x, mask=mask), f"{variant}, causal={causal}", tolerance=CLOSE)
    if traits.decode:
        assert_close(steps(grouped, x), layer(x, mask=ea.Mask(causal=True)), f"{variant}, steps", tolerance=CLOSE)


# -- pooled weights ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_pooled_weights_are_the_mean_or_first_of_adjacent_heads(kv_heads: int) -> None:
    layer = make_layer("random_feature:gated=true", value_dim=3)
    mean, first = (ea.mean_pool_kv(layer, kv_heads, how=how) for how in ("mean", "first"))
    size = HEADS // kv_heads
    for part, width in (("k_proj", 5), ("v_proj", 3), ("gate_proj", 1)):
        for kind in ("weight", "bias"):
            name = f"{part}.{kind}"
            for g in range(kv_heads):
                rows = slice(g * width, (g + 1) * width)
                heads = layer.get_parameter(name).split(width)[g * size : (g + 1) * size]
                assert_close(mean.get_parameter(name)[rows], sum(heads) / size, f"mean of {name}")  # pyright: ignore
                assert_same(first.get_parameter(name)[rows], heads[0], f"first of {name}")


def test_length_projections_of_linformer_are_pooled_by_head() -> None:
    layer = make_layer("linformer:share=none:rank=3")
    grouped = ea.mean_pool_kv(layer, 2)
    for name in ("attn.by_keys", "attn.by_values"):
        old, new = layer.get_parameter(name), grouped.get_parameter(name)
        assert new.shape == (2, 3, 16)
        assert_close(new[1], (old[4] + old[5] + old[6] + old[7]) / 4, name)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([(8, 4, 2), (8, 4, 1), (8, 2, 1), (12, 6, 3), (12, 6, 2), (6, 3, 1)]), st.integers(0, 2**40))
def test_pooling_in_two_steps_equals_pooling_at_once(heads: tuple[int, int, int], seed: int) -> None:
    many, some, few = heads
    for how in ("mean", "first"):
        layer = ea.MultiHeadAttention(12, many, head_dim=3, seed=seed).double()
        once = ea.mean_pool_kv(layer, few, how=how)
        twice = ea.mean_pool_kv(ea.mean_pool_kv(layer, some, how=how), few, how=how)
        for name, p in once.named_parameters():
            assert_close(twice.get_parameter(name), p, name, tolerance=CLOSE)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**40), st.sampled_from([4, 2, 1]), st.permutations(range(HEADS)))
def test_mean_pooling_ignores_the_order_of_heads_in_a_group(seed: int, kv_heads: int, order: list[int]) -> None:
    """Means of a group do not depend on its order, and a group of query heads reads the same keys."""
    group = HEADS // kv_heads
    within = [h for g in range(kv_heads) for h in order if h // group == g]
    layer = make_layer(weights=seed % 1000)
    shuffled = make_layer(weights=seed % 1000)
    with torch.no_grad():
        for name in ("q_proj", "k_proj", "v_proj"):
            for kind in ("weight", "bias"):
                p = shuffled.get_parameter(f"{name}.{kind}")
                p.copy_(p.unflatten(0, (HEADS, 5))[within].flatten(0, 1))
        shuffled.out_proj.weight.copy_(shuffled.out_proj.weight.unflatten(1, (HEADS, 5))[:, within].flatten(1))
    x = draw(1, seed=seed)
    assert_close(shuffled(x), layer(x), "shuffled heads", tolerance=CLOSE)
    got, want = (ea.mean_pool_kv(module, kv_heads)(x) for module in (shuffled, layer))
    assert_close(got, want, "pooled shuffled heads", tolerance=CLOSE)


def test_pooling_to_the_same_number_of_heads_is_exact() -> None:
    for variant in ("full", "reformer:bucket_size=4", "mqa", "mla"):
        layer, x = make_layer(variant), draw()
        assert_same(ea.mean_pool_kv(layer, layer.kv_heads)(x), layer(x), variant)


def test_mean_pooling_is_closer_than_first_and_random() -> None:
    """Similar heads are closer to their mean than to the first of them, and unrelated to random weights."""
    layer, x = equalize_groups(make_layer(), 2), draw(16)
    with torch.no_grad():
        for name in ("k_proj", "v_proj"):
            weight = layer.get_parameter(f"{name}.weight")
            weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1), dtype=weight.dtype)
    pooled = [ea.mean_pool_kv(layer, 2, how=how)(x) for how in ("mean", "first", "random")]
    mean, first, random = (float((out - layer(x)).norm().detach()) for out in pooled)
    assert 0 < mean < first < random / 2


# -- random weights ------------------------------------------------------------------------------------------------


def test_random_projections_depend_on_the_seed_only() -> None:
    layer = make_layer()
    before = torch.get_rng_state()
    first, same, other = (ea.mean_pool_kv(layer, 2, how="random", seed=s) for s in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    for name, p in first.named_parameters():
        assert_same(same.get_parameter(name), p, name)
        assert torch.equal(other.get_parameter(name), p) == (name not in ("k_proj.weight", "v_proj.weight")), name
    assert not any(first.get_parameter(f"{name}.bias").any() for name in ("k_proj", "v_proj"))
    assert all(torch.equal(first.get_parameter(n), layer.get_parameter(n)) for n in ("q_proj.weight", "out_proj.bias"))


def test_random_projections_have_xavier_variance_and_are_new() -> None:
    """They differ from the layer's initial weights of the same seed."""
    layer = ea.MultiHeadAttention(256, 4, seed=3)
    for kv_heads in (4, 2):
        grouped = ea.mean_pool_kv(layer, kv_heads, how="random", seed=3)
        for name in ("k_proj.weight", "v_proj.weight"):
            new, old = grouped.get_parameter(name).detach(), layer.get_parameter(name).detach()
            assert abs(new.var() / (2 / sum(new.shape)) - 1) < 0.02
            assert torch.corrcoef(torch.stack([new.flatten(), old[: len(new)].flatten()]))[0, 1].abs() < 0.02


def test_random_pools_weights_of_the_mechanism_by_mean() -> None:
    layer = make_layer("linformer:share=none:rank=3")
    mean, random = (ea.mean_pool_kv(layer, 2, how=how) for how in ("mean", "random"))
    assert_same(random.get_parameter("attn.by_keys"), mean.get_parameter("attn.by_keys"), "by_keys")


# -- kept properties ------------------------------------------------------------------------------------------------


def test_the_original_layer_is_unchanged_and_shares_no_memory() -> None:
    layer = make_layer("performer:n_features=8")
    before = {name: x.clone() for name, x in layer.state_dict().items()}
    for how in ("mean", "first", "random"):
        for kv_heads in (8, 2):
            grouped = ea.mean_pool_kv(layer, kv_heads, how=how)
            with torch.no_grad():
                for x in (*grouped.parameters(), *grouped.buffers()):
                    x.zero_()
            assert all(torch.equal(x, before[name]) for name, x in layer.state_dict().items())
    assert layer.kv_heads == layer.attn.kv_heads == 8


@pytest.mark.parametrize("how", ["mean", "first", "random"])
def test_dtypes_mode_and_frozen_flags_are_kept(how: PoolingMethod) -> None:
    assert ea.mean_pool_kv(ea.MultiHeadAttention(16, 4, dropout=0.25), 2, how=how).attn.dropout == 0.25
    layer = make_layer("linformer:share=none").to(torch.bfloat16).eval()
    layer.attn.float()  # an adapter may keep a part in another dtype
    frozen = {"k_proj.weight", "out_proj.bias", "attn.by_keys"}
    for name in frozen:
        layer.get_parameter(name).requires_grad_(False)
    grouped = ea.mean_pool_kv(layer, 2, how=how)
    assert not any(part.training for part in grouped.modules())
    assert {n for n, p in grouped.named_parameters() if not p.requires_grad} == frozen
    for name, p in grouped.named_parameters():
        assert isinstance(p, nn.Parameter)
        assert p.dtype == (torch.float32 if name.startswith("attn") else torch.bfloat16), name


class WithTable(SoftmaxAttention):
    """Has a buffer that is not in the state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(3), persistent=False)


@pytest.mark.parametrize("how", ["mean", "random"])
def test_the_device_is_kept(monkeypatch: pytest.MonkeyPatch, how: PoolingMethod) -> None:
    monkeypatch.setattr(entries, "_registrations", {})
    ea.register("tabled", family="full")(WithTable)
    grouped = ea.mean_pool_kv(make_layer("tabled").to("meta"), 2, how=how)
    assert {x.device.type for x in (*grouped.parameters(), *grouped.buffers())} == {"meta"}


@pytest.mark.parametrize("how", ["mean", "random"])
def test_layers_without_biases_stay_without_biases(how: PoolingMethod) -> None:
    grouped = ea.mean_pool_kv(make_layer(bias=False), 2, how=how)
    assert {n for n, _ in grouped.named_parameters()} == {f"{p}_proj.weight" for p in ("q", "k", "v", "out")}


def test_pooled_layers_have_gradients() -> None:
    grouped = ea.mean_pool_kv(make_layer("random_feature:gated=true"), 2)
    grouped(draw(), mask=ea.Mask(causal=True)).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in grouped.parameters())


def test_options_random_features_and_backend_are_kept() -> None:
    layer = make_layer("performer:n_features=8", seed=3)
    layer.attn.redraw(99)  # pyright: ignore
    layer.attn.backend = "dense"
    grouped = ea.mean_pool_kv(layer, 2)
    assert grouped.attn.label == "performer:n_features=8"
    assert_same(grouped.get_buffer("attn.directions"), layer.get_buffer("attn.directions"), "directions")
    assert (grouped.attn.backend, grouped.attn.seed) == ("dense", 3)
    assert grouped.attn.dims == replace(layer.attn.dims, kv_heads=2)


def test_random_blocks_are_kept() -> None:
    layer, other = (
        equalize_groups(make_layer("random_blocks:block_size=2"), 2),
        make_layer("random_blocks:block_size=2"),
    )
    other.load_state_dict(layer.state_dict() | {"attn.seeds": layer.get_buffer("attn.seeds") + 5})
    x, mask = draw(), ea.Mask(causal=True)
    assert not torch.allclose(other(x, mask=mask), layer(x, mask=mask))
    assert_close(ea.mean_pool_kv(other, 2)(x, mask=mask), other(x, mask=mask), "drawn blocks", tolerance=CLOSE)


@pytest.mark.parametrize(("variant", "label"), [("gqa:kv_heads=4", "gqa:kv_heads=2"), ("gqa", "gqa"), ("full", "full")])
def test_the_kv_heads_option_is_updated(variant: str, label: str) -> None:
    grouped = ea.mean_pool_kv(make_layer(variant), 2)
    assert (grouped.attn.label, grouped.kv_heads) == (label, 2)


def test_modules_of_torch_can_be_pooled() -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double()
    x = draw()
    assert_close(ea.mean_pool_kv(module, HEADS)(x), module(x, x, x)[0], "as many heads", tolerance=CLOSE)
    want = ea.mean_pool_kv(ea.MultiHeadAttention.from_torch(module), 2)(x)
    assert_same(ea.mean_pool_kv(module, 2)(x), want, "two heads")


# -- refused layers ------------------------------------------------------------------------------------------------


class ByHead(SoftmaxAttention):
    """Has a tensor for each key-value head without a rule to pool it."""

    def __init__(self, *, learned: bool = False, dims: ea.Dims = ea.Dims()) -> None:
        super().__init__()
        x = torch.ones(3, dims.kv_heads or 1)
        self.mine = nn.Parameter(x) if learned else None
        self.register_buffer("drawn", None if learned else x.mT.contiguous())


@pytest.mark.parametrize(("learned", "name"), [(True, "mine"), (False, "drawn")])
def test_unknown_tensors_per_head_are_refused(monkeypatch: pytest.MonkeyPatch, learned: bool, name: str) -> None:
    monkeypatch.setattr(entries, "_registrations", {})
    ea.register("by_head", family="full")(ByHead)
    layer = make_layer(f"by_head:learned={str(learned).lower()}")
    with pytest.raises(ea.UnsupportedError, match=f"attn.{name} of by_head:learned=.* there is no rule to pool it"):
        ea.mean_pool_kv(layer, 2)


def test_ungrouped_or_unregistered_mechanisms_are_refused() -> None:
    with pytest.raises(ea.UnsupportedError, match=r"reformer.* does not support fewer key-value heads than heads"):
        ea.mean_pool_kv(make_layer("reformer"), 2)
    unregistered = ea.MultiHeadAttention(WIDTH, HEADS, variant=ByHead())
    with pytest.raises(ea.UnsupportedError, match=r"ByHead cannot be created again: it was"):
        ea.mean_pool_kv(unregistered, 2)


@pytest.mark.parametrize("kv_heads", [3, 0, -1, 16])
def test_kv_heads_that_do_not_divide_are_refused(kv_heads: int) -> None:
    with pytest.raises(ea.UsageError, match=f"kv_heads={kv_heads} does not divide the layer's 8"):
        ea.mean_pool_kv(make_layer(), kv_heads)
    with pytest.raises(ea.UsageError, match="kv_heads=2 does not divide the layer's 1"):
        ea.mean_pool_kv(make_layer("mqa"), 2)


def test_unknown_pooling_methods_are_refused() -> None:
    with pytest.raises(ea.UsageError, match="mean_pool_kv: unknown how 'median'"):
        ea.mean_pool_kv(make_layer(), 2, how="median")  # pyright: ignore
