"""The einsum formula in each engine's docstring, executed and compared with its oracle."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import efficient_attn as ea
from efficient_attn.contract.mechanism import Attention
from efficient_attn.patterns import Band, Geometry
from efficient_attn.variants.hashed.reformer import Reformer
from efficient_attn.variants.low_rank.linformer import Linformer
from efficient_attn.variants.low_rank.nystromformer import Nystromformer

N, D = 12, 4
CAUSAL = torch.ones(N, N).tril().bool()
Names = Callable[[Any, Tensor, Tensor], dict[str, Any]]


def formula(cls: type) -> str:
    """The indented lines of the docstring: Python code."""
    return "\n".join(re.findall(r"^    (\w.*)$", inspect.getdoc(cls) or "", re.MULTILINE))


def pattern_names(attn: Any, q: Tensor, k: Tensor) -> dict[str, Any]:
    i = torch.arange(N)
    return {"p": CAUSAL & attn.pattern.allows(i[:, None], i, Geometry(N, N, 0, True))}


def landmark_names(attn: Any, q: Tensor, k: Tensor) -> dict[str, Any]:
    q_, k_ = (x.unflatten(2, (3, -1)).mean(3) for x in (q, k))
    return {"q_": q_, "k_": k_, "pinv": torch.linalg.pinv}


ENGINES: list[tuple[str, type, bool, Names]] = [
    ("full", ea.SoftmaxAttention, True, lambda attn, q, k: {"p": CAUSAL}),
    ("sliding_window:window=3", ea.SparseAttention, True, pattern_names),
    ("bigbird:window=1:n_global=1:n_random=1:block_size=2", ea.SparseAttention, True, pattern_names),
    ("linear", ea.LinearAttention, True, lambda attn, q, k: {"p": CAUSAL, "phi": lambda x: F.elu(x) + 1}),
    (
        "linformer:rank=3:share=heads",
        Linformer,
        False,
        lambda attn, q, k: {"E": attn.by_keys[0], "F": attn.by_values[0]},
    ),
    (
        "nystromformer:n_landmarks=3:n_iterations=24",
        Nystromformer,
        False,
        landmark_names,
    ),
    (
        "reformer:n_hashes=2:bucket_size=3",
        Reformer,
        True,
        lambda attn, q, k: {"p": attn._sort_rounds(k, ea.Mask()).visible_pairs(True).unflatten(0, q.shape[:2])},
    ),
]


def draw(attn: Attention) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, 3, N, width, generator=g, dtype=torch.float64) for width in (D, D, 5))
    return q, (q if "reformer" in attn.label else k), v


@pytest.mark.parametrize(("spec", "engine", "causal", "names"), ENGINES, ids=[e[0].partition(":")[0] for e in ENGINES])
def test_the_docstrings_formula_equals_the_oracle(spec: str, engine: type, causal: bool, names: Names) -> None:
    attn = ea.create(spec, backend="dense", dims=ea.Dims(heads=3, head_dim=D, max_len=N)).double()
    assert isinstance(attn, engine)
    q, k, v = draw(attn)
    known = {"einsum": torch.einsum, "normalize": F.normalize, "inf": inf, "D": D, "q": q, "k": k, "v": v}
    known |= names(attn, q, k)
    text = formula(engine)
    assert text.count("einsum(") == text.count("\n") + 1 == 2
    exec(text, known)
    torch.testing.assert_close(known["out"], attn(q, k, v, ea.Mask(causal=causal)), rtol=0, atol=1e-9)


def test_a_wrong_formula_is_detected() -> None:
    attn = ea.SparseAttention(Band(0, 3))
    q, k, v = draw(attn)
    known = {"einsum": torch.einsum, "inf": inf, "D": D + 1, "q": q, "k": k, "v": v, **pattern_names(attn, q, k)}
    exec(formula(ea.SparseAttention), known)
    assert (known["out"] - attn(q, k, v, ea.Mask(causal=True))).abs().max() > 1e-3
