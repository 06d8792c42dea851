"""Stacks of blocks: a bidirectional encoder, a causal decoder, and both together."""

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from ..contract import Mask
from ..errors import UsageError
from ..layers.weights import make_embedding, make_projection
from .blocks import Block, BlockState
from .config import Config, require


class Stack(nn.Module):
    """Base class of models that consist of blocks: tokens or rows in, rows ``[B, N, d_model]`` out.

    vocab: the number of tokens; None for a model of rows ``[B, N, d_model]``.
    """

    causal: bool

    def __init__(self, config: Config, *, vocab: int | None = None, cross: str | None = None) -> None:
        super().__init__()
        name = type(self).__name__
        if vocab is not None and vocab < 1:
            raise UsageError(f"{name}: vocab must be at least 1, got {vocab}")
        self.config, self.vocab = config, vocab
        self.embedding = None
        if vocab is not None:
            self.embedding = make_embedding(vocab, config.d_model, seed=config.seed, name="tokens")
        self.encoding = config.make_encoding()
        self.blocks = nn.ModuleList(
            Block(config, spec, config.seed + n, model=name, causal=self.causal, cross=cross)
            for n, spec in enumerate(config.specs)
        )
        self.norm = nn.LayerNorm(config.d_model) if config.norm == "pre" else None
        self.dropout = nn.Dropout(config.dropout)

    @property
    def layers(self) -> tuple[Block, ...]:
        """The blocks, in order."""
        return tuple(cast(Block, block) for block in self.blocks)

    def read(self, inputs: Tensor, start: int = 0, starts: Tensor | None = None) -> Tensor:
        """The input of the first block. starts: ``[B]``. Raises `UsageError` for unknown tokens and beyond max_len."""
        name = type(self).__name__
        if start + inputs.shape[1] > self.config.max_len:
            raise UsageError(f"{name}: {start + inputs.shape[1]} positions, max_len is {self.config.max_len}")
        if self.embedding is None:
            if inputs.ndim != 3 or inputs.shape[2] != self.config.d_model:
                raise UsageError(f"{name}: rows must be [B, N, {self.config.d_model}], got {list(inputs.shape)}")
            x = inputs
        else:
            check_tokens(name, inputs, self.embedding.num_embeddings)
            x = self.embedding(inputs)
        return self.dropout(x if self.encoding is None else self.encoding(x, start, starts))

    def finish(self, x: Tensor) -> Tensor:
        """The output of the last block after the final normalization, if there is one."""
        return x if self.norm is None else self.norm(x)


def check_tokens(name: str, tokens: Tensor, vocab: int) -> None:
    """Raise `UsageError` for tokens outside of the vocabulary. Traced tensors are not checked."""
    if tokens.ndim != 2 or tokens.is_floating_point():
        raise UsageError(f"{name}: tokens must be whole numbers [B, N], got {tokens.dtype} {list(tokens.shape)}")
    if tokens.numel() and not torch.compiler.is_compiling():
        low, high = (int(x) for x in tokens.aminmax())
        if low < 0 or high >= vocab:
            raise UsageError(f"{name}: token {low if low < 0 else high} is outside of a vocabulary of {vocab}")


class Encoder(Stack):
    """Blocks over a whole sequence (Vaswani et al. 2017, arXiv:1706.03762).

    Raises `UnsupportedError` for a mechanism that is causal only.
    """

    causal = False

    def forward(self, inputs: Tensor, mask: Mask | None = None) -> Tensor:
        """Tokens ``[B, N]`` or rows to rows ``[B, N, d_model]``. mask: of padding."""
        x = self.read(inputs)
        for block in self.layers:
            x = block(x, mask or Mask())
        return self.finish(x)


@dataclass(frozen=True)
class DecoderState:
    """The states of all blocks, the number of tokens so far, and the first position of each row."""

    blocks: tuple[BlockState, ...]
    length: int = 0
    starts: Tensor | None = None


class Decoder(Stack):
    """Causal blocks, and a map to the logits of the next token.

    cross: a spec for cross attention to a context. The first token is at the context's first position, unless the mask
    of the context has a query_start, so that a window depends neither on padding nor on the number of tokens. Raises
    `UnsupportedError` for a mechanism without causal masks, or, for cross attention, without contexts.
    """

    causal = True

    def __init__(self, config: Config, *, vocab: int, cross: str | None = None) -> None:
        super().__init__(config, vocab=vocab, cross=cross)
        self.head = make_projection(config.d_model, vocab, bias=False, seed=config.seed, name="head")

    def forward(
        self,
        tokens: Tensor,
        *,
        mask: Mask | None = None,
        context: Tensor | None = None,
        context_mask: Mask | None = None,
        at: Tensor | None = None,
    ) -> Tensor:
        """Tokens ``[B, N]`` to logits ``[B, N, vocab]``. mask: a causal one, for example of packed sequences.

        at: ``[B, N]`` bool, the T positions whose logits are needed. Only these are returned, ``[T, vocab]``, in order;
        the last feed-forward part and the head, which work position by position, leave out the others.
        """
        x, mask = self.read(tokens), mask or Mask(causal=True)
        context_mask = _place(context_mask, 0)
        if not mask.causal:
            raise UsageError("Decoder: the mask has to be causal")
        if at is not None and (at.shape != tokens.shape or at.dtype != torch.bool):
            raise UsageError(f"Decoder: at must be {list(tokens.shape)} bool, got {list(at.shape)} {at.dtype}")
        *first_layers, last_layer = self.layers
        for block in first_layers:
            x = block(x, mask, context, context_mask)
        x = last_layer(x, mask, context, context_mask, None if at is None else at.flatten().nonzero()[:, 0])
        return self.head(self.finish(x))

    def init_state(self, batch: int, max_len: int | None = None, starts: Tensor | None = None) -> DecoderState:
        """Empty states of all blocks. starts: ``[B]``, the first position of each row: tokens before it are padding.
        Raises `UnsupportedError` if a mechanism cannot decode, or does not support padding in decoding."""
        for block in self.layers:
            require("Decoder.step", block.attention.attn, "decode")
        length = self.config.max_len if max_len is None else max_len
        blocks = tuple(block.init_state(batch, length, starts) for block in self.layers)
        return DecoderState(blocks, starts=None if starts is None else starts.to(self.head.weight.device))

    def step(
        self, tokens: Tensor, state: DecoderState, *, context: Tensor | None = None, context_mask: Mask | None = None
    ) -> tuple[Tensor, DecoderState]:
        """The logits of T new tokens ``[B, T]``, and the state after them."""
        x, states = self.read(tokens, state.length, state.starts), []
        context_mask = _place(context_mask, state.length)
        for block, block_state in zip(self.layers, state.blocks, strict=True):
            x, next_state = block.step(x, block_state, context, context_mask)
            states.append(next_state)
        return self.head(self.finish(x)), replace(state, blocks=tuple(states), length=state.length + tokens.shape[1])


def _place(context_mask: Mask | None, start: int) -> Mask:
    """The context's mask for tokens from a position on."""
    mask = context_mask or Mask()
    return mask if mask.query_start is not None else replace(mask, query_start=start)


class EncoderDecoder(nn.Module):
    """An encoder of sources, and a decoder with cross attention to its output.

    cross: the mechanism of cross attention; ``decoder`` is the decoder's configuration, if different, with the same
    d_model.
    """

    def __init__(
        self,
        config: Config,
        *,
        source_vocab: int,
        target_vocab: int,
        cross: str = "full",
        decoder: Config | None = None,
    ) -> None:
        super().__init__()
        decoder = decoder or config
        if decoder.d_model != config.d_model:
            raise UsageError(f"EncoderDecoder: d_model is {config.d_model} in the encoder, {decoder.d_model} after it")
        self.encoder = Encoder(config, vocab=source_vocab)
        self.decoder = Decoder(decoder, vocab=target_vocab, cross=cross)

    def forward(
        self, source: Tensor, target: Tensor, source_lengths: Tensor | None = None, *, at: Tensor | None = None
    ) -> Tensor:
        """Sources ``[B, M]`` and targets ``[B, N]`` to logits ``[B, N, target vocab]``. source_lengths: ``[B]``. at: as
        of `Decoder`."""
        mask = Mask(key_lengths=source_lengths)
        return self.decoder(target, context=self.encoder(source, mask), context_mask=mask, at=at)

    def generate(self, source: Tensor, *, begin: int, steps: int, source_lengths: Tensor | None = None) -> Tensor:
        """Generate the most likely tokens ``[B, steps]`` after ``begin``, one after another."""
        mask = Mask(key_lengths=source_lengths)
        with torch.no_grad():
            context = self.encoder(source, mask)
            state = self.decoder.init_state(len(source), steps)
            token, tokens = source.new_full((len(source), 1), begin), []
            for _ in range(steps):
                logits, state = self.decoder.step(token, state, context=context, context_mask=mask)
                token = logits[:, -1:].argmax(-1)
                tokens.append(token)
        return torch.cat(tokens, 1)
