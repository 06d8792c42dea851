"""Short sequences: all positions together, in as few torch calls as possible.

    causal: out = (X Y^T * w) V / divisor,  w_ij = e^(a_j - r_i) for keys up to i,  r_i the largest a so far, else 0
    bidirectional: out = X (Y^T V) / divisor                          X [Bh, G N, F],  Y [Bh, M, F],  V [Bh, M, E]

Cutting into stretches saves memory, of which a short call needs little, and costs more torch calls than its products
take time. Here batch and heads are cut, if there are many: models in training have many short sequences. Causal rows
are multiplied with all keys, which is cheapest for few keys; if a map has a `PairKernel`, products of its few features
are formed instead of X Y^T, also in bidirectional calls. Features are recomputed in the backward pass, as for long
sequences.
"""

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, cast

import torch
from torch import Tensor

from ...feature_maps import PairKernel
from ...shared_caches import shared_cache
from ..derivatives import KernelFunction, differentiate_once
from ..softmax.softmax_kernel import cut_range
from ..step_sizes import limit_elements
from . import scan
from .feature_tape import FeatureTape
from .linear_config import MAX_FEATURE_ELEMENTS, KeyInputs, LinearConfig, SavedRows, divide
from .sums import KERNEL, dot_rows, exponentiate, pair_gradients, relative_weights, zero_if_infinite

MAX_LENGTH = 512  # positions on either side
MAX_LENGTH_CUT = 128  # where lanes go group by group, or C++ is faster


def is_short(config: LinearConfig, q: Tensor, keys: KeyInputs, causal: bool, *, weighted: bool) -> bool:
    """Whether a call with queries ``q [Bh, G, N, D]`` and keys ``[Bh, M, D]`` should use `attend_short`. weighted:
    whether keys have weights in addition to their features.

    What exists at a time, the features of a side or the products of a causal call, must fit the cache as a stretch
    does, or on a GPU a part of its memory; many short lanes are processed in groups that do. That pays as long as a
    call's products are no more than a stretch's, or are those of a kernel. A scan in C++ is faster from
    `MAX_LENGTH_CUT` on; ``backend=cpp`` always scans.
    """
    n, m = q.shape[2], keys.k.shape[1]
    if (config.native and causal) or torch.compiler.is_compiling():
        return False
    if config.decays and not (causal and 0 <= config.start <= m - n):
        return False  # weights are relative to a row's own position, which has to be that of a key
    call = _ShortCall.make(config, causal, weighted=weighted)
    n_lanes = _count_lanes(call, q, keys.k)
    if n_lanes == 0 or max(n, m) > MAX_LENGTH:
        return False
    if call.kernel is not None or max(n, m) <= MAX_LENGTH_CUT:
        return True
    return len(q) <= n_lanes and not (causal and scan.is_native(config, q, keys))


@dataclass(frozen=True, eq=False)
class _ShortCall:
    """A call besides its tensors. rates: of the decay of each key-value head, if that is the only weight of keys.
    kernel: forms the products, from the features of ``config.phi``."""

    config: LinearConfig
    causal: bool
    rates: tuple[float, ...] = ()
    kernel: PairKernel | None = None

    @classmethod
    def make(cls, config: LinearConfig, causal: bool, rates: tuple[float, ...] = (), *, weighted: bool) -> "_ShortCall":
        """The call, with the map's kernel if keys have no weights."""
        kernel = None if weighted else config.phi.kernel
        return cls(config if kernel is None else replace(config, phi=kernel.base), causal, rates, kernel)

    @property
    def forms_pairs(self) -> bool:
        """Whether the products of all pairs are formed."""
        return self.causal or self.kernel is not None

    def compute_weights(self, a: Tensor | None, q: Tensor, keys: KeyInputs) -> Tensor | None:
        """Weights of pairs besides their products, from the logarithms ``a [Bh, M]``, as `weigh` multiplies them."""
        config, n, m = self.config, q.shape[2], keys.k.shape[1]
        dtype = config.widen(q[:0]).dtype
        if self.rates:
            return compute_decays(self.rates, config.start, n, m, dtype, q.device)
        if a is not None:
            return exponentiate(_compute_log_weights(a, config, n).to(dtype))[:, None]
        return keys.valid[:, None, None] if self.kernel is not None and keys.valid is not None else None

    def weigh(self, products: Tensor, weights: Tensor | None, group: int) -> Tensor:
        """Products ``[Bh, G N, M]`` multiplied by their weights, in place; 0 for later keys of a causal call."""
        lanes, rows, m = products.shape
        heads = len(self.rates) or group
        square = products.view(lanes * group // heads, heads, rows // group, m)
        if weights is not None:
            square.mul_(weights)
        if self.causal and not self.rates:
            square.tril_(self.config.start)
        return products


def _count_lanes(call: _ShortCall, q: Tensor, k: Tensor) -> int:
    """How many of the ``Bh`` lanes fit the cache together, or on a GPU a part of its memory."""
    most = limit_elements(q, MAX_FEATURE_ELEMENTS)
    group, n, m = q.shape[1], q.shape[2], k.shape[1]
    features = group * max(n, m) * call.config.phi.width(k.shape[2])
    return most // max(1, features, group * n * m if call.forms_pairs else 0)


def _cut_lanes(call: _ShortCall, q: Tensor, k: Tensor) -> list[slice]:
    """Groups of lanes, which start at a first head if heads have tables."""
    multiple = len(call.rates) or 1
    return list(cut_range(len(q), max(1, _count_lanes(call, q, k) // multiple) * multiple))


def attend_short(
    config: LinearConfig, q: Tensor, keys: KeyInputs, causal: bool, rates: tuple[float, ...] = ()
) -> Tensor:
    """Linear attention ``[Bh, G, N, E]`` of a short call. causal: query i sees keys up to ``config.start + i``. rates:
    of the decay of each key-value head, with a single query head each, if that is the only weight of keys."""
    call = _ShortCall.make(config, causal, rates, weighted=keys.logs is not None or config.phi.scaled)
    keys = keys._replace(logs=None) if rates else keys
    outputs = _ShortFunction.apply(call, q, *keys, *config.parameters)
    return cast(tuple[Tensor, Tensor | None], outputs)[0]


class _ShortFunction(KernelFunction):
    @staticmethod
    def forward(
        call: _ShortCall, q: Tensor, k: Tensor, v: Tensor, valid: Any, logs: Any, *parameters: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        keys, parts = KeyInputs(k, v, valid, logs), _cut_lanes(call, q, k)
        if len(parts) == 1:  # without a copy
            out, total = _attend(call, q, keys)
            return out if call.config.wide_rows else out.to(q.dtype), total
        out, totals = call.config.make_rows(q, call.config.widen(v[:0])), []
        for lanes in parts:
            out[lanes], total = _attend(call, q[lanes], keys.lanes(lanes))
            totals.append(total)
        return out, torch.cat(totals) if call.config.divisor else None

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.call, q, k, v, valid, logs, *_ = inputs
        out, totals = output
        ctx.save_for_backward(q, k, v, valid, logs, out, totals)
        if totals is not None:
            ctx.mark_non_differentiable(totals)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (grad, _), gradients = grads, partial(_gradients, ctx.call)
        return None, *differentiate_once(KERNEL, gradients, grad, *ctx.saved_tensors)


def _attend(call: _ShortCall, q: Tensor, keys: KeyInputs) -> tuple[Tensor, Any]:
    """Rows, and their sums of weights where they are divided by these."""
    config = call.config
    x, _ = config.queries(q, slice(0, q.shape[2]))
    y, values, a = config.stretch(keys, slice(0, keys.k.shape[1]))
    rows = x.flatten(1, 2)
    if call.forms_pairs:
        products = rows @ y.mT
        products = products if call.kernel is None else call.kernel.value(products)
        call.weigh(products, call.compute_weights(a, q, keys), q.shape[1])
        top, total = products @ values, products.sum(-1, keepdim=True) if config.divisor else None
    else:
        y = y if a is None else y * _relative_weights(a).to(y.dtype)
        top, total = rows @ (y.mT @ values), dot_rows(rows, y.sum(1)) if config.divisor else None
    saved = divide(config, top, total, top)
    return top.view(*q.shape[:3], -1), None if saved is None else saved.view(*q.shape[:3], 1)


def _gradients(call: _ShortCall, grad: Tensor, *saved: Any) -> tuple[Tensor | None, ...]:
    """Gradients by all arguments of `_ShortFunction` from q on."""
    q, *key_tensors, out, totals = saved
    config, keys, tape = call.config, KeyInputs(*key_tensors), FeatureTape(call.config)
    parts = _cut_lanes(call, q, keys.k)
    if len(parts) == 1:
        grads, grad_a = _lane_gradients(tape, call, q, keys, SavedRows(grad, out, *config.divisors(totals)))
        grads = (g.to(x.dtype) for g, x in zip(grads, (q, keys.k, keys.v), strict=True))
        grad_logs = None if keys.logs is None or grad_a is None else grad_a.to(keys.logs.dtype)
        return *grads, None, grad_logs, *tape.grad_parameters
    grad_q, grad_k, grad_v = (torch.empty_like(x) for x in (q, keys.k, keys.v))
    grad_logs = None if keys.logs is None else torch.empty_like(keys.logs)
    for lanes in parts:
        divisors = config.divisors(None if totals is None else totals[lanes])
        saved_rows = SavedRows(grad[lanes], out[lanes], *divisors)
        grads, grad_a = _lane_gradients(tape, call, q[lanes], keys.lanes(lanes), saved_rows)
        grad_q[lanes], grad_k[lanes], grad_v[lanes] = grads
        if grad_logs is not None and grad_a is not None:
            grad_logs[lanes] = grad_a
    return grad_q, grad_k, grad_v, None, grad_logs, *tape.grad_parameters


def _lane_gradients(
    tape: FeatureTape, call: _ShortCall, q: Tensor, keys: KeyInputs, saved_rows: SavedRows
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]:
    query_rows = slice(0, q.shape[2])
    x, backward_q = tape.record_queries(q, query_rows)
    (y, values, a), backward_k = tape.record_keys(keys, slice(0, keys.k.shape[1]))
    grad_tops, grad_totals = saved_rows.divide_backward(query_rows)
    rows, grad_tops = x.flatten(1, 2), grad_tops.flatten(1, 2)
    grad_totals = None if grad_totals is None else grad_totals.flatten(1, 2)
    if call.forms_pairs:
        weights, dots = call.compute_weights(a, q, keys), rows @ y.mT
        products = call.weigh(dots if call.kernel is None else call.kernel.value(dots), weights, q.shape[1])
        grad_v = products.mT @ grad_tops
        grad_products = call.weigh(pair_gradients(grad_tops, grad_totals, values), weights, q.shape[1])
        if call.kernel is not None:
            grad_products.mul_(call.kernel.slope(dots))
        grad_x, grad_y = grad_products @ y, grad_products.mT @ rows
    else:
        scale = None if a is None else _relative_weights(a).to(y.dtype)
        weighted = y if scale is None else y * scale
        grad_x, grad_kv = grad_tops @ (weighted.mT @ values).mT, rows.mT @ grad_tops
        grad_y, grad_v = values @ grad_kv.mT, weighted @ grad_kv
        if grad_totals is not None:
            grad_x.addcmul_(grad_totals, weighted.sum(1)[:, None])
            grad_y.add_(grad_totals.mT @ rows)
        grad_y = grad_y if scale is None else grad_y.mul_(scale)
    grad_k, grad_a = backward_k(grad_y)
    return (backward_q(grad_x.view(x.shape)), grad_k, grad_v), grad_a


@shared_cache
@lru_cache(maxsize=8)  # all layers of a model have the same; a training batch may have one of several lengths
def compute_decays(
    rates: tuple[float, ...], start: int, n: int, m: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Weights e^(-rate distance) ``[H, N, M]`` of keys up to each query, 0 for later ones, cached for the next call as
    a tensor that any later mode may use."""
    with torch.inference_mode(False), torch.no_grad():
        distance = torch.arange(start, start + n, device=device)[:, None] - torch.arange(m, device=device)
        logs = torch.tensor(rates, dtype=torch.float64)[:, None, None].to(device) * -distance
        return logs.masked_fill_(distance < 0, float("-inf")).exp_().to(dtype)


def _compute_log_weights(a: Tensor, config: LinearConfig, n: int) -> Tensor:
    """Logarithms ``[Bh, N, M]`` of weights relative to the largest so far, or to that of a row's own position if they
    decay with distance. Those of later keys, which may be large, are not used."""
    positions = torch.arange(config.start, config.start + n, device=a.device).clamp_(0, a.shape[1] - 1)
    reference = (a if config.decays else a.cummax(1)[0])[:, positions]
    return a[:, None] - zero_if_infinite(reference)[..., None]


def _relative_weights(a: Tensor) -> Tensor:
    """Weights ``[Bh, M, 1]`` from logarithms, relative to the largest."""
    return relative_weights(a, a.amax(1, keepdim=True))[..., None]
