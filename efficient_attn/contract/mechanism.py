"""The contract of mechanisms: one call signature, declared traits, and a dense reference implementation."""

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Self, Unpack, cast

import torch
from torch import Tensor, nn

from ..errors import UnsupportedError, UsageError
from .autocast import attach_zero_gradient, is_autocast_enabled, run_under_autocast, step_under_autocast
from .budget import Budget
from .call_checks import AcceptedCall, check_dropout, check_dtype, find_accepted
from .decode_state import cache_dtype
from .left_padding import run_each_start
from .mask import CAUSAL, EVERYTHING, MASK_FIELDS, Mask, zero_invalid
from .origin import HasOrigin, Origin
from .packed_sequences import run_each_sequence
from .row_starts import advance_from_starts, make_state
from .shapes import CallFacts, Device, Sample, Shape, Values, draw_sample, estimate_workspace_bytes, make_zero_queries
from .traits import Growth, Traits


class Attention(HasOrigin, nn.Module):
    """Base class of every mechanism. A subclass provides `oracle`, `compute`, `traits` and `growth`.

    `forward` checks the call against the traits, zeroes padded inputs, runs the backend and zeroes padded output rows,
    so that mechanisms contain only their mathematics.
    """

    backends: ClassVar[tuple[str, ...]] = ("dense",)  # in order of preference; "dense" is the reference implementation
    renamed: ClassVar[Mapping[str, str]] = {}  # former names of backends, and their present names
    only_on: ClassVar[Mapping[str, str]] = {}  # the type of device of backends that run on one only
    only_dtypes: ClassVar[Mapping[str, tuple[torch.dtype, ...]]] = {}  # of backends that do not support all dtypes
    limited: ClassVar[frozenset[str]] = frozenset()  # backends with fewer traits, which are tested where requested only
    known_mask_fields: ClassVar[frozenset[str]] = MASK_FIELDS
    _backend: str | None = None
    _dropout: float = 0.0
    _default_backend: str | None = None
    accepted_calls: tuple[AcceptedCall, ...] = ()  # the last calls that passed the checks

    def __init__(self) -> None:  # so that the constructor's signature shows no options
        super().__init__()

    @classmethod
    def made_from(cls, origin: Origin, /, *, backend: str | None = None, **arguments: Any) -> Self:
        """An instance with its origin, which is set before its constructor runs. arguments: of the constructor."""
        attn = cls.__new__(cls)
        attn.origin = origin
        attn.__init__(**arguments)
        attn.backend = backend
        return attn

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        """The options that fit the mechanism to a budget. Raises `UnsupportedError` without such a rule."""
        raise UnsupportedError(f"{cls.__name__} has no rule that fits it to a budget")

    # -- what a mechanism declares ------------------------------------------------------------------------------
    @property
    def traits(self) -> Traits:
        """What this instance, with its options, supports."""
        raise UnsupportedError(f"{type(self).__name__} declares no traits")

    @property
    def growth(self) -> Growth:
        """How its time and memory grow, and the work that it does."""
        raise UnsupportedError(f"{type(self).__name__} declares no growth")

    @property
    def kv_heads(self) -> int | None:
        """The number of key-value heads that this instance requires; None if it accepts any."""
        return self.dims.kv_heads

    @property
    def key_dim(self) -> int | None:
        """The width of k if it differs from that of q, else None."""
        return None

    def shape_of(self, q: Tensor, k: Tensor, v: Values) -> Shape:
        """The sizes of a call. Raises `UsageError` for tensors that do not fit together."""
        return Shape.of(q, k, v)

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        """The dense definition of the result, simple instead of fast."""
        raise UnsupportedError(f"{type(self).__name__} has no reference implementation")

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        """The fast implementation, with the same result as `oracle`."""
        raise UnsupportedError(f"{type(self).__name__} has no fast form")

    def run(self, q: Tensor, k: Tensor, v: Values, mask: Mask, **inputs: Tensor) -> Tensor:
        """Run the selected backend, `oracle` or `compute`, without the checks of `forward`."""
        run = self.oracle if self.backend == "dense" else self.compute
        return run(q, k, cast(Tensor, v), mask, **inputs)  # mechanisms without `Traits.values` take None as well

    def masks_itself(self, q: Tensor, k: Tensor, v: Values, mask: Mask) -> bool:
        """Whether `run` takes the padding or packed sequences of a call as they are: it never reads what is padding,
        and gives zeros in the rows that the mask leaves out."""
        return False

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> Any:
        """The decode state for up to max_len positions; raises `UnsupportedError` without decoding."""
        raise UnsupportedError(f"{self.label} has no decode state")

    @property
    def absolute(self) -> bool:
        """Whether results depend on positions beyond distances, which then count from the first valid key of a row."""
        return self.traits.positional

    def why_no_starts(self) -> str | None:
        """Why `advance` does not respect its state's ``starts``, so that rows that begin at different positions have
        states and steps of their own; None where it does."""
        return "its decode steps do not support padding"

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> tuple[Tensor, Any]:
        """The output of new positions and the state after them; raises `UnsupportedError` without decoding."""
        raise UnsupportedError(f"{self.label} cannot decode")

    def absorb(self, k: Tensor, v: Values, state: Any, **inputs: Tensor) -> Any:
        """Add T keys and values, and the inputs that belong to keys, to the state without computing outputs."""
        zero_queries, query_inputs = make_zero_queries(k, self.dims, self.traits.inputs)
        return advance_from_starts(self.advance, zero_queries, k, v, state, {**inputs, **query_inputs})[1]

    def pairs(self, n: int, m: int, causal: bool) -> int | None:
        """Query-key pairs of one head with a weight by definition; None if the mechanism has no pairs."""
        return None

    def pairs_computed(self, n: int, m: int, causal: bool) -> int | None:
        """Pairs of one head that the fast implementation computes; None if unknown."""
        return None

    def what_runs(self, shape: Shape, **call: Unpack[CallFacts]) -> tuple[str, int | None]:
        """The backend that computes a call, after any choice by shape and device, and the pairs that it computes."""
        return self.backend, self.pairs_computed(shape.n, shape.m, call["causal"])

    def dense_pairs(self, n: int, m: int) -> int:
        """Pairs of one head that the reference computes: all, unless it is cheaper."""
        return n * m

    def workspace_bytes(self, shape: Shape, itemsize: int, *, causal: bool, training: bool) -> int:
        """Estimated bytes of a call beyond inputs and output, of matrices N x M if ``growth.memory`` has N^2. training:
        with gradients; for thousands of positions, the estimate and the output are then within a factor of five of the
        peak."""
        stores_pairs = type(self).growth is not Attention.growth and "N^2" in self.growth.memory
        dense = self.backend == "dense" or stores_pairs
        return estimate_workspace_bytes(shape, itemsize, dense=dense, training=training)

    def clamped_rows(self, q: Tensor, k: Tensor, v: Values, mask: Mask, **inputs: Tensor) -> int | None:
        """The number of rows whose sum of weights is too close to zero to divide by; None if weights have one sign."""
        return None

    def why_not(self, backend: str) -> str | None:
        """Why this instance cannot run on one of its class's backends; None if it can."""
        return None

    def why_not_dtype(self, dtype: torch.dtype) -> str | None:
        """Why the selected backend does not support a dtype; None if it does."""
        supported = self.only_dtypes.get(self.backend, (dtype,))
        message = f"backend {self.backend!r} takes {' and '.join(map(str, supported))} only, not {dtype}"
        return None if dtype in supported else message

    def auxiliary_loss(self, q: Tensor, k: Tensor, mask: Mask, **inputs: Tensor) -> Tensor | None:
        """The loss that trains inputs without a gradient of the output (`Input.gradient`); None if there are none."""
        return None

    # -- what users call ----------------------------------------------------------------------------------------
    @property
    def compiles(self) -> bool:
        """Whether a call with new sizes is compiled first, which takes seconds and is not part of its time."""
        return False

    def compiles_on(self, device: str) -> bool:
        """`compiles`, for calls on a type of device."""
        return self.compiles

    @property
    def backend(self) -> str:
        """The selected backend: the requested one, or the first that supports this instance."""
        if self._backend is None and self._default_backend is None:  # torch.compile does not support cached_property
            self._default_backend = next(b for b in self.backends if self.why_not(b) is None)
        return cast(str, self._backend or self._default_backend)

    @property
    def requested_backend(self) -> str | None:
        """The requested backend; None where calls may choose one."""
        return self._backend

    @backend.setter
    def backend(self, name: str | None) -> None:
        if name is not None:
            name = self.renamed.get(name, name)
            if name not in self.backends:
                raise UnsupportedError(f"{self.label} has no backend {name!r} (it has: {', '.join(self.backends)})")
            if reason := self.why_not(name):
                raise UnsupportedError(f"{self.label}: backend {name!r} is not available: {reason}")
        self._backend = name

    @property
    def dropout(self) -> float:
        """The probability of dropping a weight in training, with torch's generator. Needs `Traits.dropout`."""
        return self._dropout

    @dropout.setter
    def dropout(self, p: float) -> None:
        if not 0 <= p <= 1:
            raise UsageError(f"{self.label}: dropout is a probability from 0 to 1, not {p}")
        check_dropout(self, self.traits, p)
        self._dropout = float(p)

    @property
    def dropping(self) -> float:
        """The probability of dropping a weight in the present mode: `dropout` in training, else 0."""
        return self._dropout if self.training else 0.0

    def forward(self, q: Tensor, k: Tensor, v: Values, mask: Mask | None = None, **inputs: Tensor) -> Tensor:
        """Compute attention. q ``[B, H, N, D]``, k ``[B, Hkv, M, D]``, v ``[B, Hkv, M, E]``; returns ``[B, H, N, E]``.

        v is None for mechanisms that compute values from k (``Traits.values``). Packed sequences (``Mask.cu_seqlens``)
        cost one call for each distinct length. Under autocast tensors and output have its dtype. Raises `UsageError`
        for tensors that do not fit, and `UnsupportedError` for features that the traits do not declare.
        """
        if is_autocast_enabled(q):
            return run_under_autocast(partial(Attention.forward, self), q, k, v, mask, inputs=inputs)
        mask = EVERYTHING if mask is None else mask
        _, shape, traits, is_plain = find_accepted(self, q, k, v, mask, inputs)
        tensors = (q, k) if v is None else (q, k, v)
        if is_plain:
            return attach_zero_gradient(self, self.run(q, k, v, mask), *tensors)
        sources = () if traits.gradient else (*tensors, *inputs.values(), *self.parameters())
        if torch.is_grad_enabled() and any(x.requires_grad for x in sources):
            raise UnsupportedError(f"{self.label} has no gradient; call it under torch.no_grad()")
        if q.numel() and shape.m and self.masks_itself(q, k, v, mask):
            return attach_zero_gradient(self, self.run(q, k, v, mask, **inputs), *tensors)
        if mask.cu_seqlens is not None:
            return run_each_sequence(partial(Attention.forward, self), q, k, v, mask, inputs)
        if shape.m == 0 or q.numel() == 0:
            return attach_zero_gradient(self, q.new_zeros(shape.batch, shape.heads, shape.n, shape.value_dim), *tensors)
        if mask.key_mask is not None and self.absolute:
            run_each = run_each_start
            if torch.compiler.is_compiling() or "torch._dynamo" in sys.modules:  # compiled code may call this
                from .graph_break import run_outside_graph as run_each
            trimmed = run_each(partial(Attention.forward, self), q, k, v, mask, inputs, traits)
            if trimmed is not None:
                return trimmed
        valid = {"key": mask.key_valid(shape.m), "query": mask.query_valid(shape.n)}
        # a weight of zero does not undo an overflow, so padding is blanked first
        q, k = zero_invalid(q, valid["query"]), zero_invalid(k, valid["key"])
        v = v if v is None else zero_invalid(v, valid["key"])
        inputs = {name: zero_invalid(x, valid[traits.inputs[name].side]) for name, x in inputs.items()}
        out = attach_zero_gradient(self, self.run(q, k, v, mask, **inputs), *tensors)
        return zero_invalid(out, valid["query"])

    def init_state(
        self,
        batch: int,
        max_len: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        starts: Tensor | None = None,
    ) -> Any:
        """An empty decode state for up to ``max_len`` positions. Raises `UnsupportedError` without the decode trait.

        starts: ``[B]`` integers, the first position of each row (left padding): earlier positions are never seen, and
        their outputs are zeros. Where `why_no_starts` gives a reason, rows with equal starts form a state.
        """
        if not self.traits.decode:
            raise UnsupportedError(f"{self.label} cannot decode step by step")
        check_dtype(self, dtype)
        if batch < 1 or max_len < 1:
            raise UsageError(f"init_state: batch and max_len must be at least 1, got {batch} and {max_len}")
        new_state = partial(self.new_state, dtype=dtype, device=torch.device(device))
        return make_state(self, new_state, batch, max_len, starts, device)

    def step(self, q: Tensor, k: Tensor, v: Values, state: Any, **inputs: Tensor) -> tuple[Tensor, Any]:
        """Attend from T >= 1 new positions to all so far; returns ``[B, H, T, E]`` and the next state.

        The rows equal those of the causal forward pass. The given state may be updated in place: use the returned one.
        Under autocast a cache keeps its own dtype, in which attention is computed; the output has autocast's.
        """
        if is_autocast_enabled(q):
            return step_under_autocast(self.step, q, k, v, state, inputs=inputs, dtype=cache_dtype(state))
        if q.ndim == k.ndim == 4 and not (n := q.shape[2]) == (m := k.shape[2]) > 0:
            raise UsageError(f"step: q, k and v must have the same T >= 1 new positions, got {n} and {m}")
        find_accepted(self, q, k, v, CAUSAL, inputs)
        return advance_from_starts(self.advance, q, k, v, state, inputs)

    def sample(
        self, shape: Shape, *, generator: torch.Generator, dtype: torch.dtype = torch.float32, device: Device = "cpu"
    ) -> Sample:
        """Draw inputs of a shape: unit Gaussians, the same on every device. Mechanisms with other needs override it."""
        return draw_sample(shape, self.traits.inputs, generator=generator, dtype=dtype, device=device)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "accepted_calls": ()}  # a copy has served no calls

    def extra_repr(self) -> str:
        """Its name, backend and dropout, for ``print``."""
        return f"{self.label}, backend={self.backend}" + (f", dropout={self.dropout}" if self.dropout else "")
