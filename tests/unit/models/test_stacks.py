"""Encoders and decoders: compared with torch's, all mechanisms, steps, and invalid arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import efficient_attn as ea
from efficient_attn.models.blocks import Block
from efficient_attn.models.config import Config
from efficient_attn.models.stacks import Decoder, Encoder, EncoderDecoder

SIZES: dict[str, Any] = {"d_model": 16, "heads": 4, "layers": 2, "hidden": 24, "max_len": 32}
CAUSAL = [name for name in ea.names() if name not in ("linformer", "nystromformer")]
CAUSAL_ONLY = tuple(
    n for n in CAUSAL if not ea.create(n, dims=ea.Dims(heads=4, head_dim=4, max_len=32)).traits.bidirectional
)
CROSS = [
    *(
        name
        for name in ea.names()
        if name not in (*CAUSAL_ONLY, "vertical_slash", "nystromformer", "reformer", "sigmoid")
    ),
    "sigmoid:length=8",  # without a length its bias counts padded keys as well
    *("sliding_window:window=1", "luong_local:window=1", "longformer:window=1:n_global=1", "strided:stride=3"),
]


def randomise(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.double()


def copy_attention(module: ea.MultiHeadAttention, torch_module: nn.MultiheadAttention) -> None:
    maps = [module.q_proj, module.k_proj, module.v_proj]
    torch_module.in_proj_weight.copy_(torch.cat([m.weight for m in maps]))  # pyright: ignore
    torch_module.in_proj_bias.copy_(torch.cat([m.bias for m in maps]))  # pyright: ignore
    torch_module.out_proj.load_state_dict(module.out_proj.state_dict())


@torch.no_grad()
def copy_block(module: Block, torch_module: Any) -> None:
    copy_attention(module.attention, torch_module.self_attn)
    if module.cross is not None:
        copy_attention(module.cross, torch_module.multihead_attn)
    torch_module.linear1.load_state_dict(module.feed_forward.inner.state_dict())
    torch_module.linear2.load_state_dict(module.feed_forward.outer.state_dict())
    for number, norm in enumerate(module.norms, 1):
        getattr(torch_module, f"norm{number}").load_state_dict(norm.state_dict())


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_encoder_equals_torchs(norm: str, activation: str) -> None:
    model: Any = randomise(Encoder(Config(**SIZES, positions=None, norm=norm, activation=activation)))  # pyright: ignore
    layer = nn.TransformerEncoderLayer(
        16, 4, 24, dropout=0, activation=activation, batch_first=True, norm_first=norm == "pre"
    )
    last = nn.LayerNorm(16) if norm == "pre" else None
    torch_module: Any = nn.TransformerEncoder(layer, 2, norm=last, enable_nested_tensor=False).double()
    for block, other in zip(model.blocks, torch_module.layers, strict=True):
        copy_block(block, other)
    if last is not None:
        torch_module.norm.load_state_dict(model.norm.state_dict())
    x = torch.randn(2, 9, 16, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([9, 6])
    hidden = torch.arange(9) >= lengths[:, None]
    want, got = torch_module(x, src_key_padding_mask=hidden), model(x, ea.Mask(key_lengths=lengths))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    gradients = [torch.autograd.grad(out.cos().sum(), x)[0] for out in (got, want)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_decoder_with_a_context_equals_torchs(norm: str) -> None:
    config = Config(**SIZES, positions=None, norm=norm)  # pyright: ignore
    model: Any = randomise(Decoder(config, vocab=11, cross="full"))
    layer = nn.TransformerDecoderLayer(
        16, 4, 24, dropout=0, activation="gelu", batch_first=True, norm_first=norm == "pre"
    )
    last = nn.LayerNorm(16) if norm == "pre" else None
    torch_module: Any = nn.TransformerDecoder(layer, 2, norm=last).double()
    for block, other in zip(model.blocks, torch_module.layers, strict=True):
        copy_block(block, other)
    if last is not None:
        torch_module.norm.load_state_dict(model.norm.state_dict())
    tokens, context = torch.randint(11, (2, 7)), torch.randn(2, 5, 16, dtype=torch.float64)
    later = torch.ones(7, 7).triu(1).bool()
    rows = torch_module(model.embedding(tokens), context, tgt_mask=later, tgt_is_causal=True)
    want = rows @ model.head.weight.T
    torch.testing.assert_close(model(tokens, context=context), want, rtol=0, atol=1e-12)


def make(attention: str | tuple[str, ...], **options: Any) -> Decoder:
    config = Config(**{**SIZES, "attention": attention, **options})
    return Decoder(config, vocab=11).double()


@pytest.mark.parametrize("positions", ["rotary", "sinusoidal", "binary", "learned", None])
@pytest.mark.parametrize("convolution", [0, 3])
def test_steps_equal_the_forward_pass_with_any_positions(positions: str | None, convolution: int) -> None:
    check_steps(make("full", positions=positions, convolution=convolution))


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_mechanisms_train_and_decode_in_a_decoder(name: str) -> None:
    model = make(name, positions="sinusoidal")
    tokens = torch.randint(11, (2, 12))
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    if model.blocks[0].attention.attn.traits.decode:  # pyright: ignore
        check_steps(model)


def check_steps(model: Decoder) -> None:
    for block in model.blocks:
        if block.convolution is not None:  # pyright: ignore
            nn.init.normal_(block.convolution.weight)  # pyright: ignore
    tokens = torch.randint(11, (2, 12))
    want, rows, state = model(tokens), [], model.init_state(2)
    for part in tokens.split([5, 1, 3, 3], 1):
        logits, state = model.step(part, state)
        rows.append(logits)
    torch.testing.assert_close(torch.cat(rows, 1), want, rtol=0, atol=1e-11)
    assert state.length == 12
    assert ea.state_bytes(state) > 0


def test_logits_do_not_depend_on_later_tokens() -> None:
    model, tokens = make("full", convolution=4), torch.randint(11, (2, 12))
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 11
    torch.testing.assert_close(model(changed)[:, :7], model(tokens)[:, :7], rtol=0, atol=1e-13)


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_logits_at_some_positions_equal_those_among_all(norm: str, checkpointed: bool) -> None:
    config = Config(**SIZES, norm=norm, checkpointed=checkpointed, convolution=2)  # pyright: ignore
    model: Any = randomise(EncoderDecoder(config, source_vocab=7, target_vocab=11))
    source, target = torch.randint(7, (3, 8)), torch.randint(11, (3, 6))
    at = torch.tensor([[0, 1, 0, 0, 1, 1], [0] * 6, [1, 0, 0, 0, 0, 0]]).bool()
    n_rows: list[int] = []
    for layer in (model.decoder.head, model.decoder.blocks[0].feed_forward, model.decoder.blocks[1].feed_forward):
        layer.register_forward_hook(lambda _, __, out: n_rows.append(out.shape[:-1].numel()))
    both = model(source, target, at=at), model(source, target)[at]
    parameters = list(model.parameters())
    results = [[logits, *torch.autograd.grad(logits.cos().sum(), parameters)] for logits in both]
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    assert n_rows[:3] == [18, 4, 4], "the last feed-forward part and the head compute only these"
    assert model.decoder(target, context=torch.zeros(3, 1, 16).double(), at=at & False).shape == (0, 11)


def test_layers_can_have_different_mechanisms_and_seeds() -> None:
    model = make(("linear", "full"), layers=2)
    assert [block.attention.attn.label for block in model.blocks] == ["linear", "full"]  # pyright: ignore
    assert Config(**{**SIZES, "layers": 4, "attention": ("linear", "full"), "cycle": True}).specs[2:] == (
        "linear",
        "full",
    )
    seeds = [block.attention.attn.seed for block in make("performer", seed=5).blocks]  # pyright: ignore
    assert seeds == [5, 6]


def test_equal_configs_give_equal_models_and_keep_torchs_rng_state() -> None:
    before = torch.get_rng_state()
    first, second = make("performer", positions="learned"), make("performer", positions="learned")
    assert torch.equal(before, torch.get_rng_state())
    for name, x in first.state_dict().items():
        assert torch.equal(x, second.state_dict()[name]), name
    other = make("performer", positions="learned", seed=9)
    other.load_state_dict(first.state_dict())
    tokens = torch.randint(11, (1, 9))
    assert torch.equal(first(tokens), other(tokens))


@pytest.mark.parametrize("exact", ["full", "sliding_window:window=5"])
@pytest.mark.parametrize("recurrent", ["gated_delta_net", "kda"])
@pytest.mark.parametrize("share", [3, 7])
def test_hybrids_decode_as_they_read(share: int, recurrent: str, exact: str) -> None:
    """Three or seven recurrent layers for each of exact attention: steps give the rows of the forward pass, and a
    prefix those of the prefix."""
    config = Config(**SIZES | {"layers": share + 1}, attention=(recurrent,) * share + (exact,), positions=None)
    assert [spec.partition(":")[0] for spec in config.specs].count(recurrent) == share
    model: Any = randomise(Decoder(config, vocab=11))
    tokens = torch.randint(11, (2, 20))
    want, state = model(tokens), model.init_state(2)
    rows = []
    for part in tokens.split((7, 1, 1, 11), 1):
        logits, state = model.step(part, state)
        rows.append(logits)
    torch.testing.assert_close(torch.cat(rows, 1), want, rtol=0, atol=1e-9)
    torch.testing.assert_close(model(tokens[:, :9]), want[:, :9], rtol=0, atol=1e-9)


@pytest.mark.parametrize("cross", CROSS)
def test_targets_depend_on_sources_and_not_on_padding(cross: str) -> None:
    config = Config(**SIZES)
    model: Any = randomise(EncoderDecoder(config, source_vocab=7, target_vocab=11, cross=cross))
    source, target, lengths = torch.randint(7, (2, 8)), torch.randint(11, (2, 6)), torch.tensor([8, 5])
    got = model(source, target, lengths)
    torch.testing.assert_close(got[1:], model(source[1:, :5], target[1:]), rtol=0, atol=1e-12)
    changed = source.clone()
    changed[0, 0] = (changed[0, 0] + 1) % 7
    assert (model(changed, target, lengths)[0] - got[0]).abs().max() > 1e-4
    written = model.generate(source, begin=1, steps=6, source_lengths=lengths)
    inputs = torch.cat([torch.ones(2, 1, dtype=torch.long), written[:, :-1]], 1)
    assert torch.equal(model(source, inputs, lengths).argmax(-1), written)


def test_a_window_over_a_context_starts_with_it() -> None:
    """So that the first token sees the context's beginning, whatever the lengths of the two and of what is batched."""
    config = Config(**{**SIZES, "layers": 1})
    model: Any = randomise(Decoder(config, vocab=11, cross="sliding_window:window=2"))
    tokens, context = torch.randint(11, (1, 6)), torch.randn(1, 9, 16, dtype=torch.float64)
    rows = model(tokens, context=context)
    for position in range(9):
        changed = context.clone()
        changed[:, position] += 1.0
        is_changed = (model(tokens, context=changed) - rows).abs().amax(-1)[0] > 1e-9
        assert is_changed.tolist() == [abs(token - position) <= 2 for token in range(6)]
    later = model(tokens, context=context, context_mask=ea.Mask(query_start=3))
    assert not torch.equal(later, rows), "a mask's own start is kept"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "heads=3 does not divide d_model=16"),
        ({"heads": 32}, "heads=32 does not divide d_model=16"),
        ({"attention": ("full",) * 3}, "3 mechanisms for 2 layers"),
        ({"attention": ("full",), "layers": 2}, "cycle=True repeats them"),
        ({"attention": ()}, "0 mechanisms for 2 layers"),
        ({"convolution": 5}, "from 2 to 4, got 5"),
        ({"dropout": 1.0}, "dropout must be in"),
        ({"layers": 0}, "layers must be at least 1"),
    ],
)
def test_invalid_configs_are_reported_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ea.UsageError, match=message) as error:
        Config(**{**SIZES, **options})
    assert "\n" not in str(error.value)


def test_invalid_calls_are_reported() -> None:
    model = make("full")
    for tokens, message in (
        (torch.tensor([[0, 11]]), "token 11 is outside of a vocabulary of 11"),
        (torch.tensor([[-1]]), "token -1 is outside"),
        (torch.zeros(1, 3), "whole numbers"),
        (torch.zeros(1, 33, dtype=torch.long), "33 positions, max_len is 32"),
    ):
        with pytest.raises(ea.UsageError, match=message):
            model(tokens)
    for at in (torch.ones(1, 2, dtype=torch.bool), torch.ones(1, 1)):
        with pytest.raises(ea.UsageError, match=r"at must be \[1, 1\] bool, got \[1, "):
            model(torch.tensor([[1]]), at=at)
    with pytest.raises(ea.UsageError, match="mask has to be causal"):
        model(torch.tensor([[1]]), mask=ea.Mask())
    with pytest.raises(ea.UsageError, match=r"rows must be \[B, N, 16\]"):
        Encoder(Config(**SIZES))(torch.zeros(1, 2, 5))
    with pytest.raises(ea.UsageError, match="d_model is 16 in the encoder, 32 after it"):
        EncoderDecoder(Config(**SIZES), source_vocab=2, target_vocab=2, decoder=Config(d_model=32))


def test_unsupported_mechanisms_and_positions_are_reported() -> None:
    for make_invalid, message in (
        (lambda: make("linformer"), "Decoder needs a mechanism that takes causal masks; linformer.*no causal masks"),
        (lambda: Encoder(Config(**SIZES, attention="retention")), "Encoder needs .* retention"),
        (lambda: Decoder(Config(**SIZES), vocab=3, cross="reformer"), "reformer"),
        (lambda: Encoder(Config(**SIZES, positions="alibi"))(torch.zeros(1, 2, 16)), "needs a causal mask"),
        (lambda: Decoder(Config(**SIZES, attention="linear", positions="alibi"), vocab=3), "does not support Alibi"),
    ):
        with pytest.raises(ea.UnsupportedError, match=message):
            make_invalid()
