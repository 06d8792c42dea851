"""The multi-head layer: outputs, inputs of mechanisms, initial weights, and invalid arguments."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from shell import run
from torch import Tensor, nn

import efficient_attn as ea
from efficient_attn.contract.decode_state import KVCache
from efficient_attn.testing.tensor_comparison import assert_close, assert_same
from efficient_attn.variants.full.softmax_attention import SoftmaxAttention

WIDTH, HEADS, LENGTH = 24, 4, 10
VARIANTS = (*ea.names(), "random_feature:gated=true", "linformer:share=none", "sliding_window:window=3|global_tokens")


def make(variant: str | ea.Attention = "full", **options: object) -> ea.MultiHeadAttention:
    sizes = {"max_len": 16} if isinstance(variant, str) else {}
    return ea.MultiHeadAttention(WIDTH, HEADS, variant=variant, **{**sizes, **options}).double()  # pyright: ignore


def draw(batch: int = 2, length: int = LENGTH, *, seed: int = 0) -> Tensor:
    return torch.randn(batch, length, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mask_for(layer: ea.MultiHeadAttention) -> ea.Mask:
    return ea.Mask(causal=layer.attn.traits.causal)


class RecordsInputs(SoftmaxAttention):
    """Stores its inputs, one of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[str, Tensor] = {}

    @property
    def traits(self) -> ea.Traits:
        inputs = {
            "tilt": ea.Input("query", tail=(2, 3)),
            "turn": ea.Input("query", per_head=False, tail=(1,)),
            "gate": ea.Input("key"),
            "values": ea.Input("key", per_head=False),
        }
        return replace(super().traits, inputs=inputs)

    def run(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        self.given = {"q": q, "k": k, "v": v, **inputs}
        return super().run(q, k, v, mask)

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: KVCache, **inputs: Tensor) -> tuple[Tensor, KVCache]:
        out = super().advance(q, k, v, state)
        self.given = inputs
        return out


# -- outputs and steps ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_the_layer_equals_attention_of_each_head(kv_heads: int, bias: bool) -> None:
    layer = make(kv_heads=kv_heads, head_dim=5, value_dim=3, bias=bias)
    for p in layer.parameters():  # biases too
        nn.init.normal_(p, std=0.3, generator=torch.Generator().manual_seed(p.numel()))
    x, context = draw(), draw(length=7, seed=1)
    assert layer.k_proj is not None
    assert layer.v_proj is not None
    heads = []
    for h in range(HEADS):
        g = h // (HEADS // kv_heads)  # heads of one group are adjacent
        q = layer.q_proj(x)[..., 5 * h : 5 * h + 5]
        k = layer.k_proj(context)[..., 5 * g : 5 * g + 5]
        v = layer.v_proj(context)[..., 3 * g : 3 * g + 3]
        heads.append(torch.softmax(q @ k.mT / 5**0.5, -1) @ v)
    assert_close(layer(x, context), layer.out_proj(torch.cat(heads, -1)), "the layer head by head")


def test_parameters_have_names_and_shapes() -> None:
    layer = make("random_feature:gated=true", kv_heads=2, head_dim=5, value_dim=3)
    assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == {
        "q_proj.weight": (20, 24),
        "q_proj.bias": (20,),
        "k_proj.weight": (10, 24),
        "k_proj.bias": (10,),
        "v_proj.weight": (6, 24),
        "v_proj.bias": (6,),
        "out_proj.weight": (24, 12),
        "out_proj.bias": (24,),
        "gate_proj.weight": (2, 24),
        "gate_proj.bias": (2,),
    }
    assert layer.attn.dims == ea.Dims(heads=4, head_dim=5, kv_heads=2, value_dim=3, max_len=16)
    assert "24, heads=4, kv_heads=2" in repr(layer)


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_mechanisms_run_and_have_gradients(variant: str) -> None:
    layer = make(variant)
    out = layer(draw(), mask=mask_for(layer))
    assert out.shape == (2, LENGTH, WIDTH)
    out.square().sum().backward()
    named = [(name, p) for name, p in layer.named_parameters() if p.requires_grad]
    without_gradient = [name for name, p in named if p.grad is None or not p.grad.any()]
    fixed = {name for name, p in layer.named_parameters() if not p.requires_grad}
    selecting = [name for name, i in layer.attn.traits.inputs.items() if not i.gradient]
    assert fixed == {f"{name}_proj.{part}" for name in selecting for part in ("weight", "bias")}
    # an equal bias of all keys does not change a softmax, up to rounding
    assert not set(without_gradient) - {"k_proj.bias"}


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_equal_the_causal_forward_pass(variant: str, kv_heads: int) -> None:
    layer = make(variant)
    if not layer.attn.traits.decode or layer.kv_heads < kv_heads:
        pytest.skip("does not decode, or has fewer heads")
    layer, x = make(variant, kv_heads=kv_heads), draw()
    want, rows = layer(x, mask=ea.Mask(causal=True)), []
    state = layer.init_state(2, LENGTH)
    for part in x.split([4, 1, 3, 1, 1], dim=1):
        out, state = layer.step(part, state)
        rows.append(out)
    assert_close(torch.cat(rows, 1), want, variant)


def test_states_have_the_dtype_of_the_weights() -> None:
    layer = ea.MultiHeadAttention(WIDTH, HEADS).to(torch.bfloat16)
    state = layer.init_state(1, 4)
    assert state.keys.dtype == torch.bfloat16
    assert layer.init_state(1, 4, torch.float64).keys.dtype == torch.float64


def test_masks_are_passed_to_the_mechanism() -> None:
    layer, x = make(), draw()
    got = layer(x, mask=ea.Mask(key_lengths=torch.tensor([10, 6])))
    assert_close(got[1:], layer(x[1:], x[1:, :6]), "six of ten keys")
    packed = ea.Mask(causal=True, cu_seqlens=torch.tensor([0, 3, 10]))
    assert_close(layer(x[:1], mask=packed)[:, 3:], layer(x[:1, 3:], mask=ea.Mask(causal=True)), "packed")


# -- inputs of mechanisms --------------------------------------------------------------------------------------------


def test_inputs_are_projected_from_queries_or_keys() -> None:
    layer, x, context = make(RecordsInputs(), kv_heads=2), draw(), draw(length=7, seed=1)
    assert isinstance(layer.attn, RecordsInputs)
    layer(x, context)
    given = layer.attn.given
    assert {name: tuple(t.shape) for name, t in given.items()} == {
        "q": (2, 4, 10, 6),
        "k": (2, 2, 7, 6),
        "v": (2, 2, 7, 6),
        "tilt": (2, 4, 10, 2, 3),
        "turn": (2, 1, 10, 1),
        "gate": (2, 2, 7),
        "values": (2, 1, 7),
    }
    tilt = layer.get_submodule("tilt_proj")(x)
    assert_same(given["tilt"][1, 3, 5], tilt[1, 5, 18:24].view(2, 3), "the last head's tilt")
    assert_same(given["gate"][:, 1], layer.get_submodule("gate_proj")(context)[..., 1], "the second gate")
    layer.step(x[:, :3], layer.init_state(2, 4))
    assert layer.attn.given["values"].shape == (2, 1, 3)


def test_shared_queries_and_keys_have_one_projection() -> None:
    layer, x = make("reformer:bucket_size=4"), draw()
    assert layer.k_proj is None
    q = layer.q_proj(x).view(2, LENGTH, 4, 6).transpose(1, 2)
    assert layer.v_proj is not None
    v = layer.v_proj(x).view(2, LENGTH, 4, 6).transpose(1, 2)
    want = layer.out_proj(layer.attn(q, q, v).transpose(1, 2).reshape(2, LENGTH, 24))
    assert_close(layer(x, x), want, "reformer")
    with pytest.raises(ea.UnsupportedError, match=r"reformer.* uses its queries as keys, so it takes no context"):
        layer(x, draw(seed=1))


def test_latent_attention_has_no_value_projection() -> None:
    layer, x, context = make("mla:latent_dim=10:rotary_dim=2", value_dim=5), draw(), draw(length=7, seed=1)
    assert layer.v_proj is None
    assert layer.k_proj is not None
    latent = layer.k_proj(context)[:, None]
    assert latent.shape == (2, 1, 7, 12)
    q = layer.q_proj(x).view(2, LENGTH, 4, 6).transpose(1, 2)
    want = layer.out_proj(layer.attn(q, latent, None).transpose(1, 2).reshape(2, LENGTH, 20))
    assert_close(layer(x, context), want, "mla")


@pytest.mark.parametrize(
    ("variant", "kv_heads"),
    [("mqa", 1), ("mla", 1), ("gqa:kv_heads=2", 2), ("gqa", 4), ("full", 4), ("linformer:share=none", 4)],
)
def test_kv_heads_default_to_those_of_the_mechanism(variant: str, kv_heads: int) -> None:
    layer = make(variant)
    assert layer.kv_heads == layer.attn.dims.kv_heads == kv_heads


def test_an_instance_is_used_unchanged() -> None:
    attn = ea.create("performer:n_features=8", dims=ea.Dims(head_dim=6, kv_heads=2), seed=7)
    layer = make(attn)
    assert layer.attn is attn
    assert layer.kv_heads == 2
    assert attn.dims == ea.Dims(head_dim=6, kv_heads=2)


@pytest.mark.parametrize("variant", ["linformer", "performer:n_features=8", "random_blocks:block_size=2"])
def test_the_seed_is_passed_to_the_mechanism(variant: str) -> None:
    sizes = ea.Dims(heads=4, head_dim=6, kv_heads=4, value_dim=6, max_len=16)
    want = ea.create(variant, dims=sizes, seed=3).double().state_dict()
    assert want
    for kv_heads in (None, 4):
        got = make(variant, kv_heads=kv_heads, seed=3).attn.state_dict()
        assert all(torch.equal(got[name], x) for name, x in want.items())


# -- initial weights ---------------------------------------------------------------------------------------------


def test_initial_weights_depend_on_the_seed_only() -> None:
    torch.manual_seed(0)
    first = make("random_feature:gated=true", seed=3).state_dict()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    same, other = (make("random_feature:gated=true", seed=seed).state_dict() for seed in (3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(x, same[name]) for name, x in first.items())
    assert not any(torch.equal(x, other[name]) for name, x in first.items() if not name.endswith("bias"))


def test_initial_weights_are_xavier_uniform_and_uncorrelated() -> None:
    layer = ea.MultiHeadAttention(256, 4, kv_heads=2)
    weights = {n: p.detach() for n, p in layer.named_parameters() if n.endswith("weight")}
    for name, w in weights.items():
        bound = (6 / sum(w.shape)) ** 0.5
        assert 0.99 * bound < w.abs().max() <= bound, name
        assert abs(w.var() / (bound**2 / 3) - 1) < 0.02, name
    rows = [w.flatten()[: 128 * 256] for w in weights.values()]
    correlation = torch.corrcoef(torch.stack(rows)) - torch.eye(4)
    assert correlation.abs().max() < 0.03
    assert not any(p.any() for n, p in layer.named_parameters() if n.endswith("bias"))


# -- invalid arguments --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_model": 0}, "d_model and heads must be at least 1, got 0 and 4"),
        ({"heads": 0}, "d_model and heads must be at least 1, got 24 and 0"),
        ({"heads": 5}, "heads=5 does not divide d_model=24; give head_dim"),
        ({"head_dim": 0}, "head_dim must be a whole number of at least 1, not 0"),
        ({"value_dim": 0}, "value_dim must be a whole number of at least 1, not 0"),
        ({"kv_heads": 0}, "kv_heads must be a whole number of at least 1, not 0"),
        ({"kv_heads": 3}, "kv_heads=3 does not divide heads=4"),
        ({"variant": "mqa", "kv_heads": 2}, "mqa has one key-value head"),
        ({"variant": "gqa:kv_heads=3"}, "kv_heads=3 does not divide heads=4"),
        ({"variant": "linformer"}, "needs dims with max_len"),
        ({"variant": "fill"}, "did you mean 'full'"),
        ({"variant": ea.create("mqa"), "kv_heads": 2}, "mqa was created for kv_heads=1, the layer has 2"),
        ({"variant": ea.create("gqa:kv_heads=3")}, "kv_heads=3 does not divide heads=4"),
        (
            {"variant": ea.create("full", dims=ea.Dims(head_dim=8))},
            "full was created for head_dim=8, the layer has 6",
        ),
        (
            {"variant": ea.create("full", dims=ea.Dims(max_len=8)), "max_len": 9},
            "full was created for max_len=8, the layer has 9",
        ),
    ],
)
def test_invalid_sizes_are_reported(options: dict[str, object], message: str) -> None:
    with pytest.raises(ea.UsageError, match=message):
        ea.MultiHeadAttention(**{"d_model": 24, "heads": 4, **options})  # pyright: ignore


def test_heads_need_not_divide_the_width_if_head_dim_is_set() -> None:
    assert ea.MultiHeadAttention(24, 5, head_dim=6)(torch.zeros(1, 2, 24)).shape == (1, 2, 24)


def test_unsupported_kv_heads_are_refused() -> None:
    with pytest.raises(ea.UnsupportedError, match="reformer does not support fewer key-value heads than heads"):
        make("reformer", kv_heads=2)


def test_wrong_shapes_are_reported() -> None:
    layer = make()
    for x, got in ((torch.zeros(10, 24), "[10, 24]"), (torch.zeros(2, 10, 23), "[2, 10, 23]")):
        for call in (layer, lambda x: layer.step(x, layer.init_state(2, 16))):
            with pytest.raises(ea.UsageError, match=re.escape(f"x must be [B, length, 24], got {got}")):
                call(x)
    with pytest.raises(ea.UsageError, match=re.escape("context must be [2, length, 24], got [3, 10, 24]")):
        layer(draw(), draw(3))


# -- documentation --------------------------------------------------------------------------------------------------


@pytest.mark.sampled(6)
@pytest.mark.slow
@pytest.mark.parametrize("page", ["reference/layers", "how-to/build-models"])
def test_python_examples_of_the_docs_run(page: str, tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / f"docs/{page}.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks
    (tmp_path / "use.py").write_text("\n".join(blocks))
    done = run("use.py", cwd=tmp_path)
    assert done.code == 0, done.err
