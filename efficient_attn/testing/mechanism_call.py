"""The tensors and the mask of a call, which checks change, run, decode and differentiate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ..contract.mask import Mask
from ..contract.mechanism import Attention
from ..contract.shapes import Values
from ..errors import make_deprecated_alias
from .tensor_comparison import describe

Side = Literal["query", "key"]
Run = Callable[["Call", Attention], Tensor]


@dataclass(frozen=True)
class Call:
    """The tensors of a call by name, the side that each belongs to, and the mask. Immutable: methods return new calls.

    Names are q, k, v (absent if a mechanism takes none) and those of the mechanism's further inputs.
    """

    tensors: Mapping[str, Tensor]
    sides: Mapping[str, Side]
    mask: Mask

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def run(self, attn: Attention) -> Tensor:
        """Run the forward pass."""
        q, k, v, inputs = self._arguments()
        try:
            out = attn(q, k, v, self.mask, **inputs)
            if out is None:  # from an overridden forward
                raise TypeError("forward returned None instead of an output; is a return missing?")
            return out
        except Exception as error:
            error.add_note(f"q {list(q.shape)}, k {list(k.shape)}, {q.dtype}, {describe(self.mask)}")
            raise

    def step(self, attn: Attention, state: Any) -> tuple[Tensor, Any]:
        """Run one decode step with all positions of this call."""
        q, k, v, inputs = self._arguments()
        return attn.step(q, k, v, state, **inputs)

    def absorb(self, attn: Attention, state: Any) -> Any:
        """Absorb all positions of this call, and return the state."""
        keys = {name: x for name, x in self.tensors.items() if self.sides[name] == "key"}
        return attn.absorb(keys.pop("k"), keys.pop("v", None), state, **keys)

    def steps(
        self, attn: Attention, state: Any, sizes: Iterable[int], start: int = 0
    ) -> Iterator[tuple[slice, Tensor, Any]]:
        """Decode the positions from start on in steps of these sizes: yield positions, output and state of each."""
        for size in sizes:
            positions = slice(start, start + size)
            out, state = self.both(positions).step(attn, state)
            yield positions, out, state
            start += size

    def _arguments(self) -> tuple[Tensor, Tensor, Values, dict[str, Tensor]]:
        inputs = dict(self.tensors)
        return inputs.pop("q"), inputs.pop("k"), inputs.pop("v", None), inputs

    def under(self, mask: Mask) -> Call:
        """The same call with another mask."""
        return replace(self, mask=mask)

    def change(self, fn: Callable[[Tensor], Tensor], side: Side | None = None) -> Call:
        """Apply fn to the tensors ``[B, heads, length, ..]`` of one side or both; a tensor used twice stays shared."""
        results = {id(x): fn(x) for name, x in self.tensors.items() if side in (None, self.sides[name])}
        changed = {name: results[id(x)] for name, x in self.tensors.items() if side in (None, self.sides[name])}
        return self.with_(**changed)

    def scale(self, factor: Tensor | float) -> Call:
        """Multiply q, k and v by a factor; further inputs, which may have a range, stay as they are."""
        return self.with_(**{name: x * factor for name, x in self.tensors.items() if name in ("q", "k", "v")})

    def with_(self, **tensors: Tensor) -> Call:
        """The same call with some of its tensors replaced."""
        new = {**self.tensors, **tensors}
        if self.shares_qk and "k" in tensors:
            new["q"] = new["k"]
        elif self.shares_qk and "q" in tensors:
            new["k"] = new["q"]
        return replace(self, tensors=new)

    @property
    def shares_qk(self) -> bool:
        """Whether one tensor is both queries and keys, as the sampler of some mechanisms draws them."""
        return self.tensors["q"] is self.tensors["k"]

    tied = make_deprecated_alias("tied", "shares_qk")

    def queries(self, rows: slice | Tensor) -> Call:
        """The same call with only these queries; the mask is unchanged."""
        return self.change(lambda x: x[:, :, rows], "query")

    def keys(self, columns: slice | Tensor) -> Call:
        """The same call with only these keys; the mask is unchanged."""
        return self.change(lambda x: x[:, :, columns], "key")

    def both(self, positions: slice) -> Call:
        """The same call with only these positions of queries and keys; the mask is unchanged."""
        return self.change(lambda x: x[:, :, positions])

    def leaves(self, *names: str) -> Call:
        """The same call with copies of its tensors, or only of those with these names, that require a gradient."""
        chosen = {name: self[name] for name in names} or self.tensors
        copies = {id(x): x.detach().clone().requires_grad_() for x in chosen.values()}
        return self.change(lambda x: copies.get(id(x), x))

    def gradients(
        self,
        attn: Attention,
        rows: slice = slice(None),
        *,
        run: Run | None = None,
        incoming: float = 1.0,
        names: Sequence[str] | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the output, and the gradients of a randomly weighted sum of its rows by each parameter and by each
        tensor that requires one, or by all tensors if none does. The weights are the same in every call.

        rows: those that are summed. run: computes the output, by default `Call.run`. incoming: the size of the weights.
        names: tensors that require a gradient, perhaps none, instead.
        """
        needed = any(x.requires_grad for x in self.tensors.values()) if names is None else not names
        call = self if needed else self.leaves(*names or ())
        out = (run or Call.run)(call, attn)
        weight = incoming * torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        inputs = {name: x for name, x in (*call.tensors.items(), *attn.named_parameters()) if x.requires_grad}
        if not out.requires_grad:  # it depends on none of them, such as the inputs of a selection
            return out, {name: torch.zeros_like(x) for name, x in inputs.items()}
        total, tensors = (out * weight.to(out))[:, :, rows].sum(), list(inputs.values())
        grads = torch.autograd.grad(total, tensors, allow_unused=True, materialize_grads=True)
        return out.detach(), dict(zip(inputs, grads, strict=True))
