"""Mechanisms that flash-linear-attention has kernels for: when the backend ``fla`` runs, and what it supports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from ..contract import Attention, CallFacts, Mask, Shape, Traits
from ..errors import UnsupportedError
from ..kernels import fla_backend
from ..kernels.custom_ops import in_functorch_transform
from ..kernels.derivatives import wants_gradient
from ..kernels.half_precision import HALF_DTYPES


class FlaAttention(Attention):
    """A mechanism with the backend ``fla``: flash-linear-attention's kernels, for whole causal sequences on CUDA.

    Without a requested backend they run where they can, in half precision; they multiply float32 in TF32, so that it
    must be requested. All other calls, and decode steps, run the mechanism's first backend. Heads of a group get copies
    of their keys, unless a kernel knows groups. A subclass lists ``fla`` in `backends`, and asks `runs_fla` in its
    `compute`.
    """

    only_on: ClassVar[Mapping[str, str]] = {"fla": "cuda"}
    only_dtypes: ClassVar[Mapping[str, tuple[torch.dtype, ...]]] = {"fla": fla_backend.DTYPES}
    limited = frozenset({"fla"})
    fla_padding: ClassVar[bool] = True  # whether the kernels support hidden keys, because zeros have no weight
    gated_by_head: ClassVar[bool] = False  # whether each head may have decays that depend on the input

    def why_no_kernel(self) -> str | None:
        """Why the library has no kernel for this instance with its options; None if it has."""
        return None

    def why_not(self, backend: str) -> str | None:
        if backend == "fla":
            return self.why_no_kernel() or fla_backend.why_no_library()
        return super().why_not(backend)

    def narrow(self, traits: Traits) -> Traits:
        """The traits, without what the kernels do not support if they were requested."""
        if self.requested_backend != "fla":
            return traits
        padding = traits.padding and self.fla_padding
        return replace(traits, bidirectional=False, cross=False, decode=False, padding=padding)

    @property
    def compiles(self) -> bool:
        return self.requested_backend == "fla"

    def compiles_on(self, device: str) -> bool:
        return self.compiles or (device == "cuda" and self.requested_backend is None and self.why_not("fla") is None)

    def what_runs(self, shape: Shape, **call: Unpack[CallFacts]) -> tuple[str, int | None]:
        is_padded, causal = call.get("padded", False), call["causal"]
        plain = causal and shape.n == shape.m and not call.get("stepwise") and (self.fla_padding or not is_padded)
        if self._selects_fla(shape, plain, call["dtype"], call["device"], gradient=call["gradient"]):
            return "fla", self.pairs_computed(shape.n, shape.m, causal)
        return super().what_runs(shape, **call)

    def runs_fla(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> bool:
        """Whether the kernels compute a call. Raises `UnsupportedError` where they were requested and cannot."""
        if self.requested_backend != "fla" and (self.requested_backend is not None or q.device.type != "cuda"):
            return False
        shape = Shape(*q.shape[:2], *k.shape[1:2], *q.shape[2:3], *k.shape[2:3], *q.shape[3:], *v.shape[3:])
        gradient = wants_gradient(q, k, v, *inputs.values(), *self.parameters())
        if self.requested_backend == "fla":
            if reason := self._why_not_call(shape, gradient=gradient):
                raise UnsupportedError(f"{self.label}: {reason}")
            return True
        plain = mask.causal and shape.n == shape.m and mask.start(shape.n, shape.m) == 0
        plain = plain and (self.fla_padding or not mask.pads_keys)
        return self._selects_fla(shape, plain, q.dtype, q.device, gradient=gradient)

    def _selects_fla(
        self, shape: Shape, plain: bool, dtype: torch.dtype, device: torch.device, *, gradient: bool
    ) -> bool:
        """Whether the kernels run without having been requested. plain: a whole causal sequence."""
        if self.requested_backend is not None or device.type != "cuda" or not plain or shape.n < 2:
            return False
        if _is_followed_by_torch() or dtype not in HALF_DTYPES or dtype not in self.only_dtypes["fla"]:
            return False
        return self.why_not("fla") is None and self._why_not_call(shape, gradient=gradient) is None

    def _why_not_call(self, shape: Shape, *, gradient: bool) -> str | None:
        """Why the kernels, which are installed, do not support sizes or the gradient of a call."""
        if _is_followed_by_torch():
            return "flash-linear-attention's kernels can neither be compiled by torch nor transformed by torch.func"
        widths = shape.head_dim, shape.value_dim
        if max(widths) > fla_backend.MAX_WIDTH or any(width % 2 for width in widths):
            most = fla_backend.MAX_WIDTH
            return f"flash-linear-attention's kernels need even widths of heads up to {most}, not {max(widths)}"
        if shape.batch * shape.heads > fla_backend.MAX_HEADS:
            return f"flash-linear-attention's kernels support a batch of up to {fla_backend.MAX_HEADS:,} heads in all"
        return fla_backend.why_no_gate_gradients() if gradient and self.gated_by_head else None


def _is_followed_by_torch() -> bool:
    """Whether the call is compiled or exported, or transformed by torch.func."""
    return torch.compiler.is_compiling() or in_functorch_transform()
