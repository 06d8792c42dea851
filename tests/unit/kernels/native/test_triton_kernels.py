"""The kernels of decode steps in Triton: exact states and rows for any sizes, and code for GPUs.

They run on a GPU, or in Triton's interpreter on the processor: see suites/trials/README.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from triton_runs import DEVICE, DTYPES, ROUNDING, compiles_kernels, draw, runs_kernels

from efficient_attn.feature_maps import FeatureMap, elu_plus_one, relu, scaled_identity
from efficient_attn.kernels.gated import recurrence
from efficient_attn.kernels.gated.stretch import Inputs
from efficient_attn.kernels.linear import decode_step, sums
from efficient_attn.kernels.linear.linear_config import KeyInputs, LinearConfig, replace_zero_by_one
from efficient_attn.kernels.linear.sums import Sums
from efficient_attn.kernels.native import triton_step
from efficient_attn.variants.linear.linear_attention import away_from_zero

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # in branches that are not used

STATE_ROUNDING = 2e-6  # of sums and states, relative to sums of absolute values
MAPS = [
    relu,
    elu_plus_one,
    scaled_identity,
    FeatureMap(lambda x: torch.cat([x.sigmoid(), -x], -1), lambda width: 2 * width),
]
DIVISORS = None, replace_zero_by_one, away_from_zero
WIDTHS = st.sampled_from([1, 2, 7, 16, 33, 64, 80, 128, 200, 256])
SIZES = st.tuples(st.integers(1, 3), st.sampled_from([1, 2, 3, 5]), WIDTHS, WIDTHS)  # heads, group, D, E


def _assert_near(got: Tensor, exact: Tensor, size: Tensor, tolerance: float) -> None:
    """size: the result with absolute values, whose rounding the result has where it cancels."""
    error = (got.double() - exact).abs()
    smallest = torch.finfo(got.dtype).smallest_normal * torch.finfo(got.dtype).eps  # numbers below it are zero
    assert bool((error <= tolerance * size + smallest).all()), float((error / (size + smallest)).max())


class _Exact:
    """A step in float64 with the definition's own operations, and the same with absolute values."""

    def __init__(self, config: LinearConfig, past: Sums) -> None:
        self.config, self.reference = config, past.reference
        self.kv, self.z = (torch.stack([x.double(), x.double().abs()]) for x in past[:2])

    def step(self, q: Tensor, k: Tensor, v: Tensor, logs: Tensor | None) -> tuple[Tensor, Tensor]:
        x, y = (self.config.phi(t.double())[0] for t in (q, k))
        carry = weight = q.new_ones(len(k), dtype=torch.float64)
        if logs is not None and self.reference is not None:
            a = logs[:, 0]
            newest = a if self.config.decays else torch.maximum(a, self.reference)
            base = newest.masked_fill(newest.isinf(), 0)
            carry, weight, self.reference = (self.reference - base).exp(), (a - base).exp(), newest
        y = y * weight[:, None, None]
        pair = y.mT * v.double()
        self.kv = self.kv * carry[:, None, None] + torch.stack([pair, pair.abs()])
        self.z = self.z * carry[:, None] + torch.stack([y[:, 0], y[:, 0].abs()])
        top, size = (r.flatten(1, 2) @ s for r, s in zip((x, x.abs()), self.kv, strict=True))
        if self.config.divisor is not None:
            total = x.flatten(1, 2) @ self.z[0][..., None]
            total_size = x.abs().flatten(1, 2) @ self.z[1][..., None]
            divisor = self.config.divisor(total)
            top, size = top / divisor, (size + top.abs() / divisor.abs() * total_size) / divisor.abs()
        return top.unflatten(1, (-1, 1)), size.unflatten(1, (-1, 1))


@runs_kernels
@settings(max_examples=40, deadline=None)
@given(
    sizes=SIZES,
    phi=st.sampled_from(MAPS),
    divisor=st.sampled_from(DIVISORS),
    dtype=st.sampled_from(DTYPES),
    weights=st.sampled_from(["none", "weights", "decays"]),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 30.0]),
    seed=st.integers(0, 99),
)
@example((2, 3, 128, 128), elu_plus_one, replace_zero_by_one, torch.bfloat16, "none", 1.0, 0)
@example((1, 64, 5, 256), relu, replace_zero_by_one, torch.float16, "weights", 0.0, 1)
def test_sums_and_rows_equal_exact_ones(
    sizes: tuple[int, int, int, int],
    phi: FeatureMap,
    divisor: Any,
    dtype: torch.dtype,
    weights: str,
    scale: float,
    seed: int,
) -> None:
    """Three steps from no keys, each like the step in torch too."""
    heads, group, width, columns = sizes
    config = LinearConfig(phi, divisor, decays=weights == "decays")
    past = sums.make_sums(config, heads, width, columns, torch.empty(0, device=DEVICE), weighted=weights != "none")
    plain, exact = Sums(*(None if x is None else x.clone() for x in past)), _Exact(config, past)
    addresses = past.kv.data_ptr(), past.z.data_ptr()
    for i in range(3):
        shapes = (heads, group, 1, width), (heads, 1, width), (heads, 1, columns)
        q, k, v = draw(seed + i, *shapes, dtype=dtype, scale=1.0)
        k, v = (k.float() * scale).to(dtype), v / 100  # float16 holds all rows
        logs = None if weights == "none" else draw(seed + 50 + i, (heads, 2), dtype=torch.float64, scale=5.0)[0][:, :1]
        if weights == "weights" and i < 2:
            logs = torch.full_like(logs, float("-inf")) if scale == 0 else logs
        before = None if past.reference is None else past.reference.clone()
        out, after = sums._step_in_triton(config, q, KeyInputs(k, v, None, logs), past)
        assert before is None or torch.equal(past.reference, before)  # earlier references stay as they are
        plain_out, plain = decode_step.step(config, q, KeyInputs(k, v, None, logs), plain)
        rows, size = exact.step(q, k, v, logs)
        assert (out.dtype, out.shape) == (plain_out.dtype, plain_out.shape)
        _assert_near(out, rows, size, ROUNDING[dtype] + STATE_ROUNDING * scale)  # of exponentials, also in torch
        _assert_near(out, plain_out.double(), size, ROUNDING[dtype])
        past = after
        assert (past.kv.data_ptr(), past.z.data_ptr()) == addresses  # in place, as in torch
        _assert_near(past.kv, plain.kv.double(), exact.kv[1], STATE_ROUNDING)
        _assert_near(past.kv, exact.kv[0], exact.kv[1], STATE_ROUNDING * max(scale, 1))
        if divisor is not None:
            _assert_near(past.z, exact.z[0], exact.z[1], STATE_ROUNDING * max(scale, 1))
        if past.reference is not None:
            torch.testing.assert_close(past.reference, plain.reference, rtol=0, atol=0)


@runs_kernels
@settings(max_examples=30, deadline=None)
@given(
    sizes=SIZES,
    dtype=st.sampled_from(DTYPES),
    gate=st.sampled_from(["none", "head", "channel"]),
    delta=st.booleans(),
    seed=st.integers(0, 99),
)
@example((2, 3, 128, 128), torch.bfloat16, "channel", True, 0)
def test_states_of_recurrences_equal_exact_ones(
    sizes: tuple[int, int, int, int], dtype: torch.dtype, gate: str, delta: bool, seed: int
) -> None:
    heads, group, width, columns = sizes
    state = torch.zeros(heads, width, columns, device=DEVICE)
    plain, exact, size = state.clone(), state.double(), state.double()
    for i in range(3):
        shapes = (heads, group, 1, width), (heads, 1, width), (heads, 1, columns)
        q, k, v = draw(seed + i, *shapes, dtype=dtype)
        k = k / max(width, 1) ** 0.5
        g = -draw(seed + 50 + i, (heads, 1, width if gate == "channel" else 1), dtype=torch.float32)[0].abs()
        b = torch.sigmoid(draw(seed + 70 + i, (heads, 1), dtype=dtype)[0])
        inputs = Inputs(q, k, v, None if gate == "none" else g, b if delta else None)
        out = triton_step.step_state(*inputs, state)
        plain_out, plain = recurrence.step(inputs, plain)
        x, y, values, factor, beta = (None if t is None else t.double() for t in inputs)
        if factor is not None:
            exact, size = (s * factor.mT.exp() for s in (exact, size))
        update, update_size = values, values.abs()
        if beta is not None:
            update = beta[..., None] * (values - y @ exact)
            update_size = beta[..., None] * (values.abs() + y.abs() @ size)
        exact, size = exact + y.mT * update, size + y.mT.abs() * update_size
        rows, row_size = (r.flatten(1, 2) @ s * width**-0.5 for r, s in ((x, exact), (x.abs(), size)))
        assert (out.dtype, out.shape) == (plain_out.dtype, plain_out.shape)
        _assert_near(state, exact, size, STATE_ROUNDING)
        _assert_near(out.flatten(1, 2), rows, row_size, ROUNDING[dtype])
        _assert_near(out, plain_out.double(), row_size.unflatten(1, (-1, 1)), ROUNDING[dtype])


@runs_kernels
def test_numbers_that_are_not_finite_stay_in_their_rows() -> None:
    for phi in MAPS[:3]:
        config = LinearConfig(phi, replace_zero_by_one)
        q, k, v = draw(0, (2, 2, 1, 5), (2, 1, 5), (2, 1, 3), dtype=torch.float32)
        q[0, 1, 0, 2] = v[1, 0, 1] = float("nan")
        k[1, 0, 3] = float("inf")
        outs = []
        for step in (decode_step._step_in_triton, decode_step.step):
            past = sums.make_sums(config, 2, 5, 3, v[:0], weighted=False)
            outs.append(step(config, q, KeyInputs(k, v), past)[0])
        torch.testing.assert_close(*outs, equal_nan=True)


COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from efficient_attn.kernels.native import triton_kernels

TYPES = dict.fromkeys(("features", "columns", "group", "width", "logs_stride", "reference_stride"), "i32")
TYPES |= {"scale": "fp32", "q": "*bf16", "v": "*fp16", "log_decay": "*fp32", "beta": "*bf16", "out": "*bf16"}
TYPES |= dict.fromkeys(("logs", "reference", "next_reference"), "*fp64")
TYPES |= dict.fromkeys(("kv", "z", "state", "k", "totals"), "*fp32")


def build(kernel, **constants):
    signature = {name: "constexpr" if name in constants else TYPES[name] for name in kernel.arg_names}
    indexed = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    for capability in (80, 90):
        built = triton.compile(ASTSource(kernel, signature, indexed, {}), target=GPUTarget("cuda", capability, 32))
        assert "bar.sync" in built.asm["ptx"]


missing = dict.fromkeys(("logs", "reference", "next_reference", "totals"))
build(triton_kernels.step_sums, MAP=1, WEIGHTED=False, DECAYS=False, SUMS_WEIGHTS=True, DIVIDES=True,
      BLOCK_F=16, BLOCK_E=256, BLOCK_G=4, **missing)
build(triton_kernels.step_sums, MAP=2, WEIGHTED=True, DECAYS=False, SUMS_WEIGHTS=True, DIVIDES=False,
      BLOCK_F=64, BLOCK_E=64, BLOCK_G=1)
build(triton_kernels.step_state, DECAYS=True, BY_CHANNEL=True, DELTA=True, BLOCK_D=256, BLOCK_E=16, BLOCK_G=64)
"""


@compiles_kernels
def test_kernels_compile_for_gpus(tmp_path: Path) -> None:
    """To machine code, which needs no GPU; the interpreter accepts what the compiler refuses."""
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", COMPILE], env=environment, check=True, timeout=300)
