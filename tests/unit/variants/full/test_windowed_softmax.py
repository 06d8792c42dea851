"""Windows of mechanisms that change the weights of softmax: the formulas over fewer keys, and states of fixed size."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.contract.decode_state import state_bytes

DIMS = ea.Dims(heads=6, kv_heads=2, head_dim=16, value_dim=12)
NAMES = "differential:norm=false", "forgetting", "sigmoid"


def draw(n: int, m: int) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(n + m)
    sizes = (2, 6, n, 16), (2, 2, m, 16), (2, 2, m, 12)
    tensors = [torch.randn(*size, generator=generator, dtype=torch.float64) for size in sizes]
    return tensors, -torch.rand(2, 2, m, generator=generator, dtype=torch.float64)


def define(attn: ea.Attention, tensors: list[Tensor], gates: Tensor, allowed: Tensor, count: int) -> Tensor:
    """The formula with all N x M weights. allowed: ``[N, M]``. count: the keys of a query in the middle."""
    name = attn.label.partition(":")[0]
    q, (k, v) = tensors[0], (x.repeat_interleave(3, 1) for x in tensors[1:])
    hidden = torch.zeros(allowed.shape).masked_fill(~allowed, -math.inf)
    if name == "sigmoid":
        return (q @ k.mT / 4 - math.log(count)).sigmoid() * allowed @ v
    if name == "forgetting":
        sums = gates.cumsum(-1).repeat_interleave(3, 1)
        rows = sums[..., k.shape[2] - q.shape[2] :]
        return (q @ k.mT / 4 + rows[..., None] - sums[:, :, None] + hidden).softmax(-1) @ v
    a, b, c, d = attn.vectors.detach()  # type: ignore[misc]
    weight = math.exp(float(a @ b)) - math.exp(float(c @ d)) + 0.8
    pairs = zip(q.chunk(2, -1), k.chunk(2, -1), strict=True)
    first, second = ((x @ y.mT / math.sqrt(8) + hidden).softmax(-1) for x, y in pairs)
    return (first - weight * second) @ v


@pytest.mark.parametrize("window", [0, 9, 130])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n", "m"), [(300, 300), (45, 300)])
@pytest.mark.parametrize("name", NAMES)
def test_the_result_is_the_formula_over_the_keys_of_the_window(
    name: str, n: int, m: int, causal: bool, window: int
) -> None:
    attn = ea.create(f"{name}:window={window}", dims=DIMS).double()
    if causal not in attn.traits.directions:
        return
    tensors, gates = draw(n, m)
    distances = torch.arange(m - n, m)[:, None] - torch.arange(m)
    allowed = (distances.abs() <= window) & ((distances >= 0) | (not causal))
    want = define(attn, tensors, gates, allowed, window * (1 if causal else 2) + 1)
    inputs = {"log_forget": gates} if name == "forgetting" else {}
    got = attn(*tensors, ea.Mask(causal=causal), **inputs)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-7 if name.startswith("diff") else 1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_queries_beyond_the_reach_of_the_last_key_have_zeros(name: str) -> None:
    attn, (tensors, gates) = ea.create(f"{name}:window=5", dims=DIMS), draw(4, 30)
    leaves = [x.requires_grad_() for x in tensors]
    inputs = {"log_forget": gates} if name == "forgetting" else {}
    out = attn(*leaves, ea.Mask(causal=True, query_start=33), **inputs)  # key 29 is within reach of 33 and 34
    assert (out[:, :, :2] != 0).all()
    assert not out[:, :, 2:].any()
    out.sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in leaves)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_has_the_keys_of_the_window_only(name: str) -> None:
    attn, (tensors, gates) = ea.create(f"{name}:window=5", dims=DIMS).double(), draw(40, 40)
    inputs = {"log_forget": gates} if name == "forgetting" else {}
    whole = attn(*tensors, ea.Mask(causal=True), **inputs)
    sizes = []
    for max_len in (40, 4000):
        state, outputs = attn.init_state(2, max_len, torch.float64), []
        for first, last in ((0, 17), (17, 18), (18, 19), (19, 31), (31, 40)):
            part = {key: x[:, :, first:last] for key, x in inputs.items()}
            q, k, v = (x[:, :, first:last] for x in tensors)
            out, state = attn.step(q, k, v, state, **part)
            outputs.append(out)
        torch.testing.assert_close(torch.cat(outputs, 2), whole, rtol=0, atol=1e-11)
        sizes.append(state_bytes(state))
    assert sizes[0] == sizes[1] <= 6 * 2 * 2 * (16 + 12 + 1) * 8


def test_a_window_counts_keys() -> None:
    for name in ("differential", "forgetting", "sigmoid"):
        with pytest.raises(ea.UsageError, match="window must be 0 or more"):
            ea.create(f"{name}:window=-1", dims=DIMS)
        assert ea.create(f"{name}:window=5", dims=DIMS).pairs(10, 10, True) == 45
