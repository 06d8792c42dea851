"""Left padding in compiled code: a graph break, for which torch's compiler is loaded only where code is compiled."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import efficient_attn as ea

CREATE_ALL = """
import sys
import torch
import efficient_attn as ea
from efficient_attn.variants import CATALOGUE

x, valid = torch.randn(1, 4, 24, 8), torch.arange(24)[None] >= 5
for name in (entry.name for entry in CATALOGUE):
    attn = ea.create(name, dims=ea.Dims(heads=4, head_dim=8, max_len=32))
    if name in ("bigbird", "fixed"):
        attn(x, x, x, ea.Mask(causal=True, key_mask=valid))
print("torch._dynamo" in sys.modules)
"""


def test_creating_mechanisms_does_not_load_the_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", CREATE_ALL], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["False"]


@pytest.mark.parametrize("name", ["bigbird:window=8:n_global=4:n_random=1:block_size=8", "fixed:stride=8:summary=2"])
def test_compiled_calls_with_left_padding_equal_eager_ones(name: str) -> None:
    attn = ea.create(name, dims=ea.Dims(heads=2, head_dim=8, max_len=64))
    q, k, v = (torch.randn(3, 2, 50, 8) for _ in range(3))
    compiled = torch.compile(attn, backend="eager")
    for starts in ((7, 0, 7), (0, 0, 0), (1, 30, 50)):
        mask = ea.Mask(causal=True, key_mask=torch.arange(50) >= torch.tensor(starts)[:, None])
        torch.testing.assert_close(compiled(q, k, v, mask), attn(q, k, v, mask))
