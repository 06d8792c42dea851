"""Peers of sparse attention: they equal their references, have no side effects, and refuse unsupported inputs."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pytest
import tiny_suites
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn import cli
from efficient_attn.bench.measuring.samples import verify_workload
from efficient_attn.bench.measuring.workload import Workload
from efficient_attn.testing import CHECKS, Check, Subject, run_check

pytestmark = pytest.mark.slow

MODULE = "efficient_attn.peers.sparse"
PACKAGES = {
    "peer_local_attention": ("local_attention", "local-attention"),
    "peer_longformer": ("transformers.models.longformer.modeling_longformer", "transformers"),
    "peer_bigbird": ("transformers.models.big_bird.modeling_big_bird", "transformers"),
}


@pytest.fixture(autouse=True)
def _loaded() -> Iterator[None]:
    with tiny_suites.isolated_registry():
        ea.load_plugin(MODULE)
        yield


@pytest.fixture
def installed() -> None:
    for package in ("local_attention", "transformers"):
        pytest.importorskip(package)


def _inputs(n: int, dtype: torch.dtype = torch.float32, *, heads: int = 3, width: int = 16) -> list[Tensor]:
    generator = torch.Generator().manual_seed(n)
    return [torch.randn(2, heads, n, width, generator=generator, dtype=dtype) for _ in range(3)]


def _with_gradients(attn: ea.Attention, tensors: list[Tensor], mask: ea.Mask) -> list[Tensor]:
    leaves = [x.clone().requires_grad_() for x in tensors]
    out = attn(*leaves, mask)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream)]


def _agree(peer: str, oracle: str, n: int, *, causal: bool = False, dtype: torch.dtype = torch.float32) -> None:
    """Assert that output and gradients equal the reference's, and that inputs are unchanged."""
    inputs, mask = _inputs(n, dtype), ea.Mask(causal=causal)
    before = [x.clone() for x in inputs]
    with torch.no_grad():
        ea.create(peer)(*inputs, mask)
    assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True)), "it wrote into its inputs"
    got = _with_gradients(ea.create(peer), inputs, mask)
    want = _with_gradients(ea.create(oracle, backend="dense"), inputs, mask)
    close = {"rtol": 1e-10, "atol": 1e-11} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, **close)


# multiples of the window and not, shorter than it, one more than it, a single position
LENGTHS = (1, 5, 8, 9, 16, 33, 48)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", LENGTHS)
def test_local_attention_equals_our_sliding_window(n: int, causal: bool, dtype: torch.dtype) -> None:
    _agree("peer_local_attention:window=8", "sliding_window:window=8", n, causal=causal, dtype=dtype)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("n_global", [0, 1, 3, 20])
@pytest.mark.parametrize("n", LENGTHS)
def test_longformer_equals_our_longformer(n: int, n_global: int) -> None:
    options = f"window=8:n_global={n_global}"
    _agree(f"peer_longformer:{options}", f"longformer:{options}", n)


@pytest.mark.usefixtures("installed")
def test_longformer_is_a_window_and_global_rows_and_columns() -> None:
    """The pairs, computed explicitly: |i - j| <= window, the first columns, the first rows."""
    (q, k, v), i = _inputs(50), torch.arange(50)
    seen = ((i[:, None] - i).abs() <= 4) | (i < 3) | (i[:, None] < 3)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    torch.testing.assert_close(ea.create("peer_longformer:window=4:n_global=3")(q, k, v), want, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("installed")
@pytest.mark.sampled
@pytest.mark.parametrize("weights", ["true", "false"])
@pytest.mark.parametrize(
    ("n", "block_size", "n_random", "dtype"),
    [
        (88, 8, 2, torch.float64),
        (88, 8, 2, torch.float32),
        (128, 16, 1, torch.float32),
        (768, 64, 3, torch.float32),
        (1024, 64, 3, torch.float32),  # plans of its own, which draw the last block as well
        (3072, 64, 3, torch.float32),
    ],
)
def test_bigbird_equals_its_reference(n: int, block_size: int, n_random: int, dtype: torch.dtype, weights: str) -> None:
    spec = f"peer_bigbird:block_size={block_size}:n_random={n_random}"
    _agree(f"{spec}:return_weights={weights}", spec, n, dtype=dtype)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("n", "twice"), [(768, 0), (1024, 6), (4096, 0)])
def test_bigbird_counts_some_blocks_twice(n: int, twice: int) -> None:
    attn = ea.create("peer_bigbird")
    counts = attn.block_counts(4, n)
    last = n // 64 - 1
    assert (counts[:, [0, last]] == 1).all()  # global rows
    assert (counts[:, :, [0, last]] >= 1).all()  # global columns
    for away in (-1, 0, 1):
        assert (counts.diagonal(away, 1, 2) >= 1).all()
    inner = counts[:, 2 : last - 1]
    assert (inner.sum(-1) == 8).all()  # three around, two global, three drawn
    assert not torch.equal(counts[0], counts[1])  # heads draw their own
    assert (counts > 1).sum() == twice == (counts[:, :, last] > 1).sum()
    assert (counts.sum((1, 2)) * 64 * 64 == attn.pairs(n, n, False)).all()


@pytest.mark.usefixtures("installed")
def test_only_bigbirds_weights_are_on_the_meta_device() -> None:
    q, k, v = _inputs(768)
    whole, lean = (ea.create(f"peer_bigbird:return_weights={w}")(q, k, v) for w in ("true", "false"))
    assert torch.equal(whole, lean)


@pytest.mark.usefixtures("installed")
def test_bigbird_draws_from_its_seed_and_restores_numpys_generator() -> None:
    q, k, v = _inputs(88)
    one, other = (ea.create("peer_bigbird:block_size=8:n_random=2", seed=seed) for seed in (0, 1))
    np.random.seed(7)
    want = np.random.random(3)
    np.random.seed(7)
    out = one(q, k, v)
    with pytest.raises(ea.UnsupportedError):
        one(q[:, :, :16], k[:, :, :16], v[:, :, :16])
    assert (np.random.random(3) == want).all()
    assert torch.equal(out, one(q, k, v))
    assert torch.equal(out, one.eval()(q, k, v))  # a mechanism is the same in training and out of it
    assert not torch.allclose(out, other(q, k, v))


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("spec", PACKAGES)
def test_a_peer_has_no_state(spec: str) -> None:
    """No parameters, no submodules, no random numbers drawn."""
    state = torch.get_rng_state()
    attn = ea.create(spec)
    attn(*_inputs(768))
    assert torch.equal(state, torch.get_rng_state())
    assert not list(attn.parameters())
    assert list(attn.children()) == []


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("window", [1, 7, 40])
@pytest.mark.parametrize("n", [1, 6, 7, 8, 50])
def test_pairs_equal_ours(n: int, window: int) -> None:
    for causal in (False, True):
        ours, peer = ea.create("sliding_window", window=window), ea.create("peer_local_attention", window=window)
        assert peer.pairs(n, n, causal) == ours.pairs(n, n, causal)
        assert (peer.pairs_computed(n, n, causal) or 0) >= ours.pairs(n, n, causal)  # type: ignore[operator]
    for n_global in (0, 2, 60):
        ours, peer = (ea.create(name, window=window, n_global=n_global) for name in ("longformer", "peer_longformer"))
        assert peer.pairs(n, n, False) == ours.pairs(n, n, False)
        assert (peer.pairs_computed(n, n, False) or 0) >= ours.pairs(n, n, False)  # type: ignore[operator]


@pytest.mark.sampled(6)
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.name)
def test_local_attention_passes_all_conformance_tests(check: Check) -> None:
    outcome = run_check(check, Subject("peer_local_attention:window=7"))
    assert outcome.status in ("passed", "not_claimed"), outcome.reason


REFUSED = {
    "causal Longformer": ("peer_longformer", 64, {"causal": True}, torch.float32, "causal"),
    "causal BigBird": ("peer_bigbird", 768, {"causal": True}, torch.float32, "causal"),
    "Longformer in float64": ("peer_longformer", 64, {}, torch.float64, "softmax is float32"),
    "padding": ("peer_local_attention", 64, {"key_lengths": torch.tensor([3, 4])}, torch.float32, "padding"),
    "BigBird, no multiple": ("peer_bigbird", 770, {}, torch.float32, "a multiple of 64"),
    "BigBird, too short": ("peer_bigbird", 704, {}, torch.float32, "more than 704, not 704"),
    "BigBird, too many drawn": ("peer_bigbird:n_random=20", 4096, {}, torch.float32, "cannot draw"),
}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("spec", "n", "mask", "dtype", "message"), REFUSED.values(), ids=REFUSED)
def test_unsupported_inputs_are_refused_in_one_line(
    spec: str, n: int, mask: dict[str, object], dtype: torch.dtype, message: str
) -> None:
    with pytest.raises(ea.UnsupportedError, match=message) as caught:
        ea.create(spec)(*_inputs(n, dtype), ea.Mask(**mask))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("installed")
def test_values_of_another_width() -> None:
    q, k, v = _inputs(64)
    assert ea.create("peer_local_attention:window=16")(q, k, v[..., :5]).shape == (2, 3, 64, 5)
    with pytest.raises(ea.UnsupportedError, match="as wide as keys"):
        ea.create("peer_longformer:window=16")(q, k, v[..., :5])


@pytest.mark.parametrize("option", ["local_attention:window=0", "longformer:window=0", "longformer:n_global=-1"])
def test_options_out_of_range(option: str) -> None:
    with pytest.raises(ea.UsageError, match=r"^peer_"):
        ea.create(f"peer_{option}")


@pytest.mark.parametrize("option", ["n_random=0", "block_size=0"])
def test_bigbirds_options_out_of_range(option: str) -> None:
    with pytest.raises(ea.UsageError, match=r"^peer_bigbird: .* must be at least 1"):
        ea.create(f"peer_bigbird:{option}")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("mode", ["forward", "forward_backward"])
@pytest.mark.parametrize("spec", PACKAGES)
def test_it_passes_verification(spec: str, mode: str) -> None:
    """BigBird is too short at the length at which gradients are usually compared."""
    assert verify_workload(Workload(tiny_suites.case(spec, mode, seq_len=1024)))[0] < 1e-5


@pytest.mark.parametrize(("peer", "module", "package"), [(p, *names) for p, names in PACKAGES.items()])
def test_a_missing_library_is_reported_with_the_command_to_install_it(
    peer: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # what is None there cannot be imported
    line = rf"^{peer} needs the package {package}: pip install 'efficient-attn\[peers\]'$"
    with pytest.raises(ea.UsageError, match=line):
        ea.create(peer)


def test_the_suite_without_its_library_ends_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "local_attention", None)
    assert cli.main(["plan", "sparse_peers"]) == 2
    assert "peer_local_attention needs the package local-attention" in capsys.readouterr().err
