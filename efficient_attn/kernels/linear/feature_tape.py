"""The derivative of a feature map, stretch by stretch."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .linear_config import Features, KeyInputs, LinearConfig, Stretch


class FeatureTape:
    """Differentiates a feature map stretch by stretch, and adds up the gradients of its parameters."""

    def __init__(self, config: LinearConfig) -> None:
        phi = config.phi
        self.config = config
        self._manual_backward = None if config.parameters or phi.positional else phi.back
        self.parameters = config.parameters
        self.grad_parameters: list[Tensor | None] = [None] * len(config.parameters)

    def record_queries(self, q: Tensor, rows: slice) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Features of the queries of these rows, and a function from their gradient to that of the queries."""
        x, _, backward = self._record(partial(self.config.queries, rows=rows), q[:, :, rows])
        return x, backward

    def record_keys(
        self, keys: KeyInputs, rows: slice
    ) -> tuple[Stretch, Callable[[Tensor], tuple[Tensor, Tensor | None]]]:
        """The stretch of these positions, and a function from the gradient of its features, weights included, to those
        of the keys and of the logarithms of their weights."""
        features = partial(self.config.keys, rows=rows, valid=keys.valid, logs=keys.logs)
        hidden = None if keys.valid is None else ~keys.valid[:, rows]
        y, a, backward = self._record(features, keys.k[:, rows], hidden)

        def backward_keys(grad_y: Tensor) -> tuple[Tensor, Tensor | None]:
            grad_a = None if a is None else (grad_y * y).sum(-1)  # y enters the output as e^a y
            return backward(grad_y, grad_a), grad_a

        return Stretch(y, self.config.widen(keys.v[:, rows]), a), backward_keys

    def record_both(
        self, q: Tensor, keys: KeyInputs, rows: slice
    ) -> tuple[Tensor, Stretch, Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor | None]]]:
        """`LinearConfig.both`, and a function from the gradients by both features to those by queries, by keys, and by
        the logarithms of keys' weights."""
        config, v = self.config, keys.v[:, rows]
        if not config.is_joined(q):
            x, backward_queries = self.record_queries(q, rows)
            (y, _, a), backward_keys = self.record_keys(keys, rows)
            return x, Stretch(y, v, a), lambda grad_x, grad_y: (backward_queries(grad_x), *backward_keys(grad_y))
        both, hidden = config.join(q, keys.k, rows), None if keys.valid is None else ~keys.valid[:, rows]
        if (manual_backward := self._manual_backward) is None:
            (x, y, a), follow = self._follow(partial(config.joined, q=q, keys=keys, rows=rows), both)
        else:
            wide = config.widen(both)
            features, logs = config.phi(wide)
            x, y, a = config.split((features, logs), q, keys, rows)

            def follow(grad_x: Tensor, grad_y: Tensor, grad_a: Tensor | None) -> Tensor:
                if hidden is not None:
                    grad_y = grad_y.masked_fill_(hidden[..., None], 0)
                by_logarithm = None  # that of queries cancels
                if grad_a is not None:
                    by_logarithm = torch.cat([grad_a.new_zeros(len(both) - len(grad_a), grad_a.shape[1]), grad_a])
                return manual_backward(wide, features, torch.cat([grad_x.flatten(0, 1), grad_y]), by_logarithm)

        def backward(grad_x: Tensor, grad_y: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
            grad_a = None if a is None else (grad_y * y).sum(-1)  # y enters the output as e^a y
            grads = follow(grad_x, grad_y, grad_a)
            grads = grads.to(q.dtype)
            return grads[: -len(keys.k)].view(q.shape), grads[-len(keys.k) :], grad_a

        return x, Stretch(y, v, a), backward

    def _record(
        self, features: Callable[[Tensor], Features], x: Tensor, hidden: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Callable[..., Tensor]]:
        """Features of x and their logarithms, and a function from gradients of these to the gradient of x. That
        function may be called once, when the features are no longer needed. hidden: positions without features."""
        if (manual_backward := self._manual_backward) is not None:
            y, a = features(x)

            def backward_manually(grad_y: Tensor, grad_a: Tensor | None = None) -> Tensor:
                if hidden is not None:
                    grad_y = grad_y.masked_fill_(hidden[..., None], 0)
                return manual_backward(self.config.widen(x), y, grad_y, grad_a)

            return y, a, backward_manually
        (y, a), backward = self._follow(features, x)
        return y, a, backward

    def _follow(self, features: Callable[[Tensor], Any], x: Tensor) -> tuple[Any, Callable[..., Tensor]]:
        """The results of a function of x, and a function from their gradients to that of x, by autograd."""
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            outputs = features(leaf)

        def backward(*grads: Tensor | None) -> Tensor:
            pairs = [(y, g) for y, g in zip(outputs, grads, strict=False) if y is not None and y.requires_grad]
            if not pairs:
                return torch.zeros_like(leaf)
            sources = [leaf, *self.parameters]
            grad_x, *parameter_grads = torch.autograd.grad(
                [y for y, _ in pairs], sources, [g for _, g in pairs], allow_unused=True, materialize_grads=True
            )
            for i, parameter_grad in enumerate(parameter_grads):
                total = self.grad_parameters[i]
                self.grad_parameters[i] = parameter_grad if total is None else total + parameter_grad
            return grad_x

        return [None if y is None else y.detach() for y in outputs], backward
