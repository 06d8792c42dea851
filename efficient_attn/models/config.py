"""The configuration of a transformer model, as a value."""

from dataclasses import dataclass
from typing import Literal

from ..contract import Attention, Traits
from ..errors import UnsupportedError, UsageError
from ..layers.positions import Alibi, Binary, Encoding, Learned, Positions, Rotary, Sinusoidal

WIDTHS = range(2, 5)  # of the convolution before attention


@dataclass(frozen=True, kw_only=True)
class Config:
    """attention: a spec for all layers, or one for each; ``cycle`` repeats a shorter list.

    hidden: the inner width of the feed-forward part, four times d_model unless given. positions: the kind of positions.
    norm: before each part, or after its residual sum. convolution: the width, 2 to 4, of a depthwise causal convolution
    before attention, 0 for none. dropout: of what each part adds, in training. checkpointed: whether blocks store only
    their inputs and recompute the rest for gradients, which costs one more forward pass (Chen et al. 2016,
    arXiv:1604.06174). seed: of all weights; layer n uses ``seed + n``.

    Raises `UsageError` for inconsistent sizes.
    """

    d_model: int = 64
    heads: int = 4
    layers: int = 6
    attention: str | tuple[str, ...] = "full"
    cycle: bool = False
    kv_heads: int | None = None
    hidden: int | None = None
    positions: Literal["rotary", "alibi", "sinusoidal", "binary", "learned"] | None = "rotary"
    norm: Literal["pre", "post"] = "pre"
    activation: Literal["gelu", "relu"] = "gelu"
    convolution: int = 0
    dropout: float = 0.0
    checkpointed: bool = False
    max_len: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("d_model", "heads", "layers", "max_len"):
            if getattr(self, name) < 1:
                raise UsageError(f"Config: {name} must be at least 1, got {getattr(self, name)}")
        if self.heads > self.d_model or self.d_model % self.heads:
            raise UsageError(f"Config: heads={self.heads} does not divide d_model={self.d_model}")
        if self.convolution and self.convolution not in WIDTHS:
            raise UsageError(f"Config: convolution is 0, or from 2 to 4, got {self.convolution}")
        if not 0 <= self.dropout < 1:
            raise UsageError(f"Config: dropout must be in [0, 1), got {self.dropout}")
        if not isinstance(self.attention, str):
            object.__setattr__(self, "attention", tuple(self.attention))
        self.specs  # noqa: B018  (raises unless there is one for each layer)

    @property
    def specs(self) -> tuple[str, ...]:
        """The spec of each layer."""
        if isinstance(self.attention, str):
            return (self.attention,) * self.layers
        n_given = len(self.attention)
        if n_given == self.layers or (self.cycle and 0 < n_given < self.layers):
            return tuple(self.attention[n % n_given] for n in range(self.layers))
        hint = "; cycle=True repeats them" if 0 < n_given < self.layers else ""
        raise UsageError(f"Config: attention names {n_given} mechanisms for {self.layers} layers{hint}")

    @property
    def placing(self) -> Positions | None:
        """The positions that layers apply to queries and keys."""
        return {"rotary": Rotary(), "alibi": Alibi()}.get(self.positions or "")

    def make_encoding(self) -> Encoding | None:
        """The encoding added to the input of the first layer."""
        if self.positions == "learned":
            return Learned(self.d_model, max_len=self.max_len, seed=self.seed)
        encoding_class = {"sinusoidal": Sinusoidal, "binary": Binary}.get(self.positions or "")
        return encoding_class(self.d_model) if encoding_class else None


def require(model: str, attn: Attention, *traits: str) -> None:
    """Raise `UnsupportedError` for a mechanism without the traits that a model needs."""
    meanings = attn.traits.meanings()
    for name in traits:
        has, meaning = meanings[name]
        if not has:
            requirement = Traits.__dataclass_fields__[name].metadata[True]
            raise UnsupportedError(f"{model} needs a mechanism that {requirement}; {attn.label}: {meaning}")
