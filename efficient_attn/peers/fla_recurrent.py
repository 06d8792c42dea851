"""flash-linear-attention's plain torch forms of recurrent states, against which its Triton kernels are tested.

Each has a form that processes one position after another, and most one in chunks, which takes whole chunks: shorter
sequences are padded with zeros at the end. All compute in float32, whatever the inputs. Keys of the delta rule are
normalized before, as in our mechanisms; the library's layers do so as well.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..contract import Dims, Growth, Mask
from ..errors import UnsupportedError
from ..registry import register
from ..variants.recurrent.delta_net import DeltaNet
from ..variants.recurrent.gated_delta_net import GatedDeltaNet
from ..variants.recurrent.gla import GLA
from ..variants.recurrent.kda import KDA
from ..variants.recurrent.recurrent_state import RecurrentAttention
from .hosting import FLA_DTYPES, LibraryForm, load_fla_operations

CHUNK_SIZE = 64  # positions a chunk
Form = Literal["chunk", "recurrent"]


@dataclass(frozen=True)
class _Forms:
    """The functions of an operation by form; head_first: whether its tensors are ``[B, H, N, ...]``, not ``[B, N, H,
    ...]``. gates: the names of its gates in the order of its arguments."""

    peer: str
    operation: str
    names: dict[str, str]
    gates: tuple[str, ...]
    head_first: bool = False


class _PeerRecurrent(LibraryForm):
    """A plain form of one of our recurrent states."""

    counterpart: ClassVar[Callable[..., RecurrentAttention]]
    forms: ClassVar[_Forms]
    only_dtypes: ClassVar = {"library": FLA_DTYPES}

    def __init__(self, *, form: Form = "chunk", dims: Dims = Dims()) -> None:
        by_channel = self.counterpart in (GLA, KDA)  # which need the width of their decays
        self._defined: RecurrentAttention
        super().__init__(self.counterpart(dims=dims) if by_channel else self.counterpart())
        if form not in self.forms.names:
            available = " and ".join(self.forms.names)
            raise UnsupportedError(f"{self.forms.peer}: the library has the form {available}, not {form}")
        self.form = form
        load_fla_operations(self.forms.peer, self.forms.operation)  # reports a missing library now

    @property
    def growth(self) -> Growth:
        memory = "O(N): the weights of all chunks' pairs" if self.form == "chunk" else "O(N): a state a position"
        return Growth("O(N)", memory, self._defined.growth.cost)

    @torch.compiler.disable  # its file is executed at the first call
    def compute(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor
    ) -> Tensor:
        n, forms = q.shape[2], self.forms
        recurrence = self._defined.recur(k, v, **inputs)
        tensors = {"q": q, "k": recurrence.k, "v": v, **inputs}
        tensors = {name: x.float() for name, x in tensors.items()}
        if self.form == "chunk" and (missing := -n % CHUNK_SIZE):
            tensors = {name: _pad(x, missing) for name, x in tensors.items()}
        if not forms.head_first:
            tensors = {name: x.transpose(1, 2) for name, x in tensors.items()}
        operations: Any = load_fla_operations(forms.peer, forms.operation)
        arguments = [tensors[name] for name in ("q", "k", "v", *forms.gates)]
        options = {"chunk_size": CHUNK_SIZE} if self.form == "chunk" else {}
        out, _ = getattr(operations, forms.names[self.form])(*arguments, **options)
        return (out if forms.head_first else out.transpose(1, 2))[:, :, :n].to(q.dtype)


def _pad(x: Tensor, missing: int) -> Tensor:
    """``[B, H, N, ...]`` with so many more positions of zeros."""
    return F.pad(x, (0, 0) * (x.ndim - 3) + (0, missing))


@register("peer_gla", family="recurrent")
class PeerGLA(_PeerRecurrent):
    """flash-linear-attention's naive gated linear attention, ``form="recurrent"`` only: compare it with `gla`."""

    counterpart: ClassVar = GLA
    forms: ClassVar = _Forms("peer_gla", "gla", {"recurrent": "naive_recurrent_gla"}, ("log_decay",))

    def __init__(self, *, form: Form = "recurrent", dims: Dims = Dims()) -> None:
        super().__init__(form=form, dims=dims)


@register("peer_delta_rule", family="recurrent")
class PeerDeltaRule(_PeerRecurrent):
    """flash-linear-attention's naive delta rule, in chunks or recurrent: compare it with `delta_net`."""

    counterpart: ClassVar = DeltaNet
    forms: ClassVar = _Forms(
        "peer_delta_rule",
        "delta_rule",
        {"chunk": "delta_rule_chunkwise", "recurrent": "delta_rule_recurrence"},
        ("beta",),
        head_first=True,
    )


@register("peer_gated_delta_rule", family="recurrent")
class PeerGatedDeltaRule(_PeerRecurrent):
    """flash-linear-attention's naive gated delta rule in chunks: compare it with `gated_delta_net`."""

    counterpart: ClassVar = GatedDeltaNet
    forms: ClassVar = _Forms(
        "peer_gated_delta_rule", "gated_delta_rule", {"chunk": "naive_chunk_gated_delta_rule"}, ("log_decay", "beta")
    )


@register("peer_kda", family="recurrent")
class PeerKDA(_PeerRecurrent):
    """flash-linear-attention's naive Kimi Delta Attention, in chunks or recurrent: compare it with `kda`."""

    counterpart: ClassVar = KDA
    forms: ClassVar = _Forms(
        "peer_kda", "kda", {"chunk": "naive_chunk_kda", "recurrent": "naive_recurrent_kda"}, ("log_decay", "beta")
    )
