"""Independent bugs of the linear and low-rank families."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from efficient_attn.contract.mask import Mask
from efficient_attn.feature_maps import FeatureMap
from efficient_attn.kernels.dense import expand_heads, widen
from efficient_attn.kernels.linear.sums import Sums
from efficient_attn.kernels.low_rank.landmarks import iterate_inverse, landmark_weights, segment_means
from efficient_attn.kernels.low_rank.projection import project
from efficient_attn.kernels.softmax.sdpa import attend_fused

from .independent import hosted
from .planting import Mutant

BUGS: list[Mutant] = []
linear, relu_linear, performer = hosted(BUGS, "linear"), hosted(BUGS, "relu_linear"), hosted(BUGS, "performer")
retention, random_feature = hosted(BUGS, "retention"), hosted(BUGS, "random_feature")
cosformer, taylor = hosted(BUGS, "cosformer"), hosted(BUGS, "taylor")
linformer, nystromformer = hosted(BUGS, "linformer"), hosted(BUGS, "nystromformer")


# -- linear ------------------------------------------------------------------------------------------------------------


@linear("half_sums", "in half precision a state is rounded to it after each step: shows after many", "wide_state")
def _(cls: Any) -> dict[str, Any]:
    def advance(self: Any, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> tuple[Tensor, Any]:
        out, state = cls.advance(self, q, k, v, state)
        if self.backend == "dense" or q.element_size() > 2:
            return out, state
        rounded = [s._replace(kv=s.kv.to(q.dtype).float(), z=s.z.to(q.dtype).float()) for s in state.sums]
        return out, replace(state, sums=tuple(rounded))

    return {"advance": advance, "why_no_starts": lambda self: cls.why_no_starts(self)}


@linear(
    "rows_in_blocks",
    "causal rows are computed in blocks of 256 heads of a batch, the rest of them not at all",
    "sizes_and_pairs",
)
def _(cls: Any) -> dict[str, Any]:
    def compute(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        out, rows = cls.compute(self, q, k, v, mask), q.shape[0] * q.shape[1]
        if rows <= 256 or not mask.causal:
            return out
        computed = torch.arange(rows, device=q.device) < rows // 256 * 256
        return (out.flatten(0, 1) * computed[:, None, None]).view_as(out)

    return {"compute": compute}


def _add_epsilon(total: Tensor) -> Tensor:
    return total + 1e-6


@relu_linear("epsilon_in_the_divisor", "divisors have 1e-6 added: shows for small queries and keys", "extreme_values")
def _(cls: Any) -> dict[str, Any]:
    def divisor(self: Any) -> Any:
        return cls.divisor.fget(self) if self.backend == "dense" else _add_epsilon

    return {"divisor": property(divisor)}


def _exponentials(directions: Tensor, x: Tensor) -> Tensor:
    x = x * x.shape[-1] ** -0.25
    exponents = x @ directions.to(x.dtype).mT - x.square().sum(-1, keepdim=True) / 2
    return exponents.exp() * len(directions) ** -0.5


@performer(
    "plain_exponentials",
    "positive features are exponentials without a common factor: zero for large inputs",
    "large_inputs",
)
def _(cls: Any) -> dict[str, Any]:
    def feature_map(self: Any) -> FeatureMap:
        if self.backend == "dense" or self.kind != "positive":
            return cls.feature_map.fget(self)
        return FeatureMap(partial(_exponentials, self.directions), lambda width: len(self.directions))

    def why_not(self: Any, backend: str) -> str | None:
        return "the same backends as without the bug" if backend == "cpp" else cls.why_not(self, backend)

    return {"feature_map": property(feature_map), "why_not": why_not}


@retention("decay_once_a_step", "a longer step decays the state as if it had one position", "decode_sizes")
def _(cls: Any) -> dict[str, Any]:
    def advance(self: Any, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> tuple[Tensor, Any]:
        positions, had_past = q.shape[2], state.length > 0
        out, state = cls.advance(self, q, k, v, state)
        if self.backend == "dense" or positions == 1 or not had_past:
            return out, state
        rates = self.rates(q.shape[1]).to(q.device).view(k.shape[1], -1).repeat(len(q), 1).unbind(1)
        late = []
        for past, rate in zip(state.sums, rates, strict=True):
            excess = (rate * (positions - 1)).exp().to(past.kv.dtype)
            late.append(Sums(past.kv * excess[:, None, None], past.z * excess[:, None], past.reference))
        return out, replace(state, sums=tuple(late))

    return {"advance": advance, "why_no_starts": lambda self: cls.why_no_starts(self)}


@random_feature(
    "gates_of_hidden_keys", "with gated= the gates of keys that a mask hides decay the sums", "other_options"
)
def _(cls: Any) -> dict[str, Any]:
    def key_weights(self: Any, k: Tensor, valid: Tensor | None, **inputs: Tensor) -> Any:
        return cls.key_weights(self, k, valid if self.backend == "dense" else None, **inputs)

    return {"key_weights": key_weights}


@cosformer("absorbed_from_zero", "absorbed keys have the positions of an empty state", "absorb_into_filled")
def _(cls: Any) -> dict[str, Any]:
    def absorb(self: Any, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> Any:
        if self.backend == "dense":
            return cls.absorb(self, k, v, state)
        return replace(cls.absorb(self, k, v, replace(state, length=0)), length=state.length + k.shape[2])

    return {"absorb": absorb}


@taylor(
    "wide_in_float32", "float64 of more than 64 components is computed in float32, to save memory", "sizes_and_pairs"
)
def _(cls: Any) -> dict[str, Any]:
    def compute(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        if q.dtype != torch.float64 or q.shape[3] <= 64:
            return cls.compute(self, q, k, v, mask)
        return cls.compute(self, q.float(), k.float(), v.float(), mask).double()

    return {"compute": compute}


# -- low rank ----------------------------------------------------------------------------------------------------------


@linformer(
    "whole_blocks_of_keys", "beyond 1,024 keys those after the last whole block of 1,024 are left out", "long_sequence"
)
def _(cls: Any) -> dict[str, Any]:
    def compute(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        m = k.shape[2]
        last = m // 1024 * 1024 if m > 1024 else m
        return cls.compute(self, q, k[:, :, :last], v[:, :, :last], mask)

    return {"compute": compute}


@linformer("values_mixed_as_keys", "with share=heads values are mixed by the matrix of keys", "other_options")
def _(cls: Any) -> dict[str, Any]:
    def compute(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        if self.by_values is None or len(self.by_keys) > 1:
            return cls.compute(self, q, k, v, mask)
        return attend_fused(q, *project(self._select_projections(k)[0], k, v))

    return {"compute": compute}


@linformer(
    "projection_kept_in_eval",
    "in eval mode without gradients the matrix is that of the first such call",
    "updated_parameters",
)
def _(cls: Any) -> dict[str, Any]:
    def compute(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        if self.training or torch.is_grad_enabled() or self.by_values is not None:
            return cls.compute(self, q, k, v, mask)
        matrix = self.__dict__.setdefault("_kept", self.by_keys.detach().clone())
        return attend_fused(q, *project(matrix[..., : k.shape[2]], k, v))

    return {"compute": compute}


@nystromformer("holes_at_the_end", "keys that key_mask hides are taken to be the last ones", "equals_oracle")
def _(cls: Any) -> dict[str, Any]:
    def compute(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        valid = mask.key_valid(k.shape[2])
        if mask.key_mask is not None and valid is not None:
            mask = replace(mask, key_mask=None, key_lengths=valid.sum(1))
        return cls.compute(self, q, k, v, mask)

    return {"compute": compute}


@nystromformer("query_lengths_ignored", "without padded keys padded queries belong to the means", "sizes_and_pairs")
def _(cls: Any) -> dict[str, Any]:
    def compute(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        return cls.compute(self, q, k, v, mask if mask.pads_keys else replace(mask, query_lengths=None))

    return {"compute": compute}


def _invert_by_common_norm(a: Tensor, steps: int) -> Tensor:
    size = a.abs()
    norm = size.sum(-2).amax() * size.sum(-1).amax()
    return iterate_inverse(a, a.mT / norm, steps)


@nystromformer(
    "norm_of_the_batch",
    "the pseudo-inverse begins with the largest norm of all rows and heads of a batch",
    "head_independence",
)
def _(cls: Any) -> dict[str, Any]:
    def compute(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        dtype, (q, k, v) = q.dtype, (self._widen_for_inverse(x) for x in (q, k, v))
        valid = mask.key_valid(k.shape[2])
        q_marks = segment_means(q, mask.query_valid(q.shape[2]), self._n_landmarks)
        k_marks = segment_means(k, valid, self._n_landmarks)
        k_marks = k_marks._replace(means=expand_heads(k_marks.means, q.shape[1]))
        weights = landmark_weights(q_marks, k_marks, q.shape[-1] ** -0.5)
        visible, present = (None if x is None else x[:, None, None] for x in (valid, k_marks.present))
        context = attend_fused(q_marks.means.to(q.dtype), k, v, allowed=visible)
        values = (_invert_by_common_norm(weights, self._n_iterations) @ widen(context)).to(q.dtype)
        return attend_fused(q, k_marks.means.to(q.dtype), values, allowed=present).to(dtype)

    return {"compute": compute}
