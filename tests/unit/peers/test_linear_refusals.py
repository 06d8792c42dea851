"""Peers of linear, low-rank and hashed attention: random numbers, refusals, and their suite."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
from linear_peers import PACKAGES, create, draw, loaded, skip_unless_installed
from tiny_suites import load_suite
from torch import Tensor

import efficient_attn as ea
from efficient_attn import cli
from efficient_attn.bench.planning.plan import make_plan
from efficient_attn.contract.shapes import Shape

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),  # of theirs
]


@pytest.fixture(autouse=True)
def _loaded() -> Iterator[None]:
    with loaded():
        yield


@pytest.fixture
def installed() -> None:
    skip_unless_installed()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("spec", PACKAGES)
def test_draws_depend_on_the_seed_and_leave_torchs_generator_unchanged(
    spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(5)
    want = torch.rand(3)
    torch.manual_seed(5)
    inputs = draw(512, spec=spec)
    one, other = (create(spec, seed=seed) for seed in (0, 1))
    out = one(*inputs)
    with pytest.raises(ea.UnsupportedError):
        one(*(x[..., :2] if x is inputs[2] else x for x in inputs), ea.Mask(key_lengths=torch.tensor([3, 4])))
    assert torch.equal(torch.rand(3), want)
    assert capsys.readouterr().out == ""
    assert torch.equal(out, one(*inputs))
    assert torch.equal(out, one.train()(*inputs))
    assert torch.equal(out, one.eval()(*inputs))
    drawn = spec in ("peer_performer", "peer_linformer", "peer_reformer")
    assert torch.equal(out, other(*inputs)) != drawn


@pytest.mark.usefixtures("installed")
def test_only_learned_tensors_are_parameters() -> None:
    for spec in PACKAGES:
        attn = create(spec)
        assert list(attn.children()) == []
        sizes = {name: tuple(p.shape) for name, p in attn.named_parameters()}
        assert sizes == ({"proj_k": (1024, 256), "proj_v": (1024, 256)} if spec == "peer_linformer" else {})
    drawn = create("peer_linformer").proj_k
    assert isinstance(drawn, Tensor)
    assert 0.9 / 16 < drawn.abs().max() <= 1 / 16


@pytest.mark.usefixtures("installed")
def test_costs_and_pairs() -> None:
    for spec in PACKAGES:
        cost = create(spec).growth.cost
        assert 1.8 < cost(8192, 8192, False) / cost(4096, 4096, False) < 2.6
    assert create("peer_reformer").pairs_computed(4096, 4096, False) == 4 * 4096 * 128
    assert create("peer_reformer", backend="dense").pairs_computed(256, 256, False) == 256**2


CAUSAL, PADDED = {"causal": True}, {"key_lengths": torch.tensor([3, 4])}
REFUSED = {
    "causal Linformer": ("peer_linformer", 64, CAUSAL, torch.float32, "causal"),
    "causal Nystromformer": ("peer_nystromformer", 64, CAUSAL, torch.float32, "causal"),
    "no multiple of the bucket": ("peer_linear_transformer:bucket_size=8", 9, CAUSAL, torch.float32, "multiple of 8"),
    "Performer in float16": ("peer_performer", 64, {}, torch.float16, "underflow in float16"),
    "longer than made for": ("peer_linformer", 1025, {}, torch.float32, "created for max_len=1024, got 1025 keys"),
    "no multiple of landmarks": ("peer_nystromformer", 65, {}, torch.float32, "multiple of 64, not 65"),
    "Nystromformer in bfloat16": ("peer_nystromformer", 128, {}, torch.bfloat16, "cannot multiply torch.bfloat16"),
    "no multiple of two buckets": ("peer_reformer", 192, {}, torch.float32, "multiple of 128, not 192"),
    "causal Reformer in bfloat16": ("peer_reformer", 128, CAUSAL, torch.bfloat16, "come out 4 times too large"),
    "padding": ("peer_reformer", 128, PADDED, torch.float32, "padding"),
}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("spec", "n", "mask", "dtype", "message"), REFUSED.values(), ids=REFUSED)
def test_unsupported_inputs_are_refused_in_one_line(
    spec: str, n: int, mask: dict[str, object], dtype: torch.dtype, message: str
) -> None:
    with pytest.raises(ea.UnsupportedError, match=message) as caught:
        create(spec)(*draw(n, dtype, spec=spec), ea.Mask(**mask))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("installed")
def test_causal_reformer_in_half_precision_is_refused_only_where_it_is_wrong() -> None:
    """The refused output is wrong: the first query sees only itself, so that its output must be its value."""
    q, _, v = draw(128, torch.bfloat16)
    attn = create("peer_reformer")
    out, _, _ = attn._lsh[True](q.flatten(0, 1), v.flatten(0, 1))  # type: ignore[operator]
    assert (out[:, 0].norm(dim=-1) > 3.9 * v.flatten(0, 1)[:, 0].norm(dim=-1)).all()
    for spec, mask in (("peer_reformer", ea.Mask()), ("peer_reformer:n_hashes=1", ea.Mask(causal=True))):
        got, want = (create(spec, backend=b)(q, q, v, mask) for b in ("library", "dense"))
        assert (got.double() - want.double()).norm() / want.double().norm() < 0.04


@pytest.mark.usefixtures("installed")
def test_performers_gradients_in_bfloat16_are_refused_where_they_are_inaccurate() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(1, 3, 40, 64, generator=generator).bfloat16() for _ in range(3)]
    attn = ea.create("peer_performer", dims=ea.Dims(head_dim=64)).to(torch.bfloat16)
    attn(*inputs)
    wanting = [x.requires_grad_() for x in inputs]
    with pytest.raises(ea.UnsupportedError, match="gradients off by 4% and more at D > 32"):
        attn(*wanting)
    with torch.no_grad():
        attn(*wanting)
    narrow = create("peer_performer").to(torch.bfloat16)(*(x[..., :16] for x in wanting))
    assert narrow.requires_grad


@pytest.mark.usefixtures("installed")
def test_queries_and_keys_are_shared() -> None:
    attn, (q, k, v) = create("peer_reformer:bucket_size=8"), draw(32)
    torch.testing.assert_close(attn(q, q.clone(), v), attn(q, q, v))
    for backend in ("library", "dense"):
        attn.backend = backend
        with pytest.raises(ea.UnsupportedError, match="k must equal q"):
            attn(q, k, v)
    sample = attn.sample(Shape(1, 2, 2, 32, 32, 16, 16), generator=torch.Generator().manual_seed(0))
    assert sample.q is sample.k


@pytest.mark.usefixtures("installed")
def test_values_of_another_width() -> None:
    q, k, v = draw(128)
    assert create("peer_performer")(q, k, v[..., :5]).shape == (2, 3, 128, 5)
    for spec in set(PACKAGES) - {"peer_performer"}:
        with pytest.raises(ea.UnsupportedError, match="as wide as keys"):
            create(spec)(q, q if "reformer" in spec else k, v[..., :5])


@pytest.mark.parametrize(
    "option",
    [
        *("linear_transformer:bucket_size=0", "performer:n_features=0", "linformer:rank=0"),
        *("nystromformer:n_landmarks=0", "reformer:n_hashes=0", "reformer:bucket_size=0"),
    ],
)
def test_options_out_of_range(option: str) -> None:
    with pytest.raises(ea.UsageError, match=rf"^peer_{option.partition(':')[0]}: "):
        create(f"peer_{option}")


@pytest.mark.parametrize(("spec", "needs"), [("peer_performer", "head_dim"), ("peer_linformer", "max_len")])
def test_required_dims(spec: str, needs: str) -> None:
    with pytest.raises(ea.UsageError, match=f"^{spec}: needs dims with {needs}"):
        ea.create(spec)


@pytest.mark.parametrize(("peer", "module", "package"), [(p, *names) for p, names in PACKAGES.items()])
def test_a_missing_library_is_reported_with_the_command_to_install_it(
    peer: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # makes the import fail
    line = rf"^{peer} needs the package {package}: pip install 'efficient-attn\[peers\]'$"
    with pytest.raises(ea.UsageError, match=line):
        create(peer)


def test_the_suite_without_its_library_ends_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, PACKAGES["peer_linear_transformer"][0], None)
    assert cli.main(["plan", "linear_peers"]) == 2
    assert "peer_linear_transformer needs the package linear-attention-transformer" in capsys.readouterr().err


@pytest.mark.usefixtures("installed")
def test_each_part_of_the_suite_has_its_peer_as_baseline() -> None:
    cases = make_plan(load_suite("linear_peers"))
    parts = {(c.group.part, c.group.baseline) for c in cases}
    assert len(parts) == 9
    assert all(baseline is not None and baseline.startswith("peer_") for _, baseline in parts)
    assert {c.variant for c in cases if c.group.config.causal} == {
        *("linear", "peer_linear_transformer:bucket_size=1", "peer_linear_transformer:bucket_size=64"),
        *("retention", "peer_simple_gla", "peer_fla_linear"),
        *("performer:n_features=256", "peer_performer:n_features=256"),
        *("reformer:bucket_size=64:n_hashes=4", "peer_reformer:bucket_size=64:n_hashes=4"),
    }
