"""The registry: names, options, plug-ins, and error messages."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import efficient_attn as ea
from efficient_attn import registry
from efficient_attn.contract.shapes import Dims
from efficient_attn.patterns import Where
from efficient_attn.registry import entries
from efficient_attn.spec import parse
from efficient_attn.variants.full.softmax_attention import SoftmaxAttention

PLUGIN = '''
"""A plug-in."""
import efficient_attn as ea


@ea.register("{name}", family="full")
class Mine(ea.SoftmaxAttention):
    """My own mechanism.

    More words."""

    def __init__(self, *, strength: float = 1.0, note: str | None = None) -> None:
        super().__init__()
        self.strength, self.note = strength, note
'''


@pytest.fixture(autouse=True)
def isolated_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Registrations of a test are removed after it."""
    monkeypatch.setattr(entries, "_registrations", dict(entries._registrations))
    monkeypatch.setattr(entries, "_loaded_plugins", dict(entries._loaded_plugins))
    entries._find_entry_points.cache_clear()
    yield
    entries._find_entry_points.cache_clear()


def plugin(folder: Path, name: str = "mine", text: str = PLUGIN) -> str:
    path = folder / f"plugin_{name}.py"
    path.write_text(text.replace("{name}", name))
    return str(path)


class TestCreate:
    def test_options_can_be_text_or_keywords(self) -> None:
        for attn in (ea.create("sliding_window:window=5"), ea.create("sliding_window", window=5)):
            assert attn.spec == "sliding_window:window=5"
            assert attn.origin.options == {"window": 5}
        attn = ea.create("sliding_window:window=5", backend="blocks")
        assert (attn.spec, attn.backend) == ("sliding_window:window=5:backend=blocks", "blocks")

    def test_defaults_are_effective_but_not_in_the_spec(self) -> None:
        attn = ea.create("sliding_window")
        assert attn.spec == "sliding_window"
        assert attn.origin.options == {"window": 128}

    def test_dims_and_seed_are_set_on_the_instance(self) -> None:
        attn = ea.create("full", dims=Dims(heads=2), seed=9)
        assert (attn.dims, attn.seed) == (Dims(heads=2), 9)

    def test_origin_is_available_in_the_constructor(self) -> None:
        seen = []

        @ea.register("curious", family="full")
        class Curious(SoftmaxAttention):
            def __init__(self, *, width: int = 3, depth: int = 4) -> None:
                seen.append((self.spec, self.dims, self.seed, dict(self.origin.options)))
                super().__init__()

        attn = ea.create("curious:width=5:backend=dense", dims=Dims(heads=2), seed=9)
        assert seen == [("curious:width=5:backend=dense", Dims(heads=2), 9, {"width": 5, "depth": 4})]
        assert (attn.spec, attn.dims, attn.seed, attn.origin.options) == seen[0]
        assert attn.backend == "dense"

    def test_instances_made_without_the_registry_have_no_origin(self) -> None:
        attn = SoftmaxAttention()
        assert (attn.spec, attn.dims, attn.seed) == ("", Dims(), 0)
        assert attn.origin.options == {}
        attn.dims, attn.seed = Dims(heads=2), 9
        assert (attn.dims, attn.seed) == (Dims(heads=2), 9)
        assert (SoftmaxAttention().dims, SoftmaxAttention().seed) == (Dims(), 0)  # other instances are not affected

    @pytest.mark.parametrize(
        ("text", "options", "message"),
        [
            ("ful", {}, "unknown mechanism 'ful'; did you mean 'full'"),
            ("sliding_windows", {}, "did you mean 'sliding_window'"),
            ("zzz", {}, r"unknown mechanism 'zzz' \(choices: .*full"),
            ("sliding_window:windw=3", {}, "sliding_window: unknown option 'windw'; did you mean 'window'"),
            ("sliding_window:seed=3", {}, "unknown option 'seed'"),
            ("full:window=3", {}, "full: unknown option 'window'"),
            ("sliding_window:window=wide", {}, "option window='wide' does not fit int"),
            ("sliding_window:window=2.5", {}, "option window='2.5' does not fit int"),
            ("sliding_window", {"window": 2.5}, "option window=2.5 does not fit int"),
            ("sliding_window", {"window": "3"}, None),
            ("sliding_window", {"window": True}, "option window=True does not fit int"),
            ("sliding_window:window=-1", {}, "window must be 0 or more, not -1"),
            ("sliding_window:window=3", {"window": 4}, "option 'window' is given twice"),
            ("gqa:kv_heads=0", {}, "kv_heads must be at least 1, not 0"),
        ],
    )
    def test_invalid_specs_and_options_are_reported(
        self, text: str, options: dict[str, object], message: str | None
    ) -> None:
        if message is None:
            ea.create(text, **options)
            return
        with pytest.raises(ea.UsageError, match=message):
            ea.create(text, **options)

    def test_invalid_backends_are_reported(self) -> None:
        with pytest.raises(ea.UsageError, match="backend is given twice, as 'dense' and 'sdpa'"):
            ea.create("full:backend=dense", backend="sdpa")
        assert ea.create("full:backend=dense", backend="dense").backend == "dense"
        with pytest.raises(ea.UnsupportedError, match=r"full has no backend 'fast'|no backend 'fast'"):
            ea.create("full", backend="fast")
        anywhere = ea.SparseAttention(Where(lambda i, j: i == j))
        with pytest.raises(ea.UnsupportedError, match="'parts' is not available: a fact of the pattern does not"):
            anywhere.backend = "parts"

    @pytest.mark.parametrize(
        ("spec", "backend"), [("sliding_window:backend=windows", None), ("sliding_window", "windows")]
    )
    def test_old_names_of_backends_are_replaced_by_new_ones(self, spec: str, backend: str | None) -> None:
        attn = ea.create(spec, backend=backend)
        assert (attn.backend, attn.spec) == ("parts", "sliding_window:backend=parts")
        assert ea.info("sliding_window:backend=windows").spec == attn.spec
        assert ea.info("sliding_window").backends == ("adaptive", "parts", "blocks", "masked", "cpp", "flex", "dense")
        union = ea.create("sliding_window:window=1|sliding_window:window=2", backend="windows")
        assert union.backend == "parts"

    @pytest.mark.parametrize(
        ("text", "renamed"),
        [
            ("sliding_window:window=3:backend=windows", "sliding_window:window=3:backend=parts"),
            ("sliding_window:backend=blocks", "sliding_window:backend=blocks"),
            ("full:backend=windows", "full:backend=windows"),
            ("no_such_mechanism", "no_such_mechanism"),
            ("strided|fixed", "fixed|strided"),
        ],
    )
    def test_rename_backend_replaces_only_renamed_backends(self, text: str, renamed: str) -> None:
        assert str(registry.rename_backend(parse(text))) == renamed

    def test_options_that_contradict_dims_are_refused(self) -> None:
        with pytest.raises(ea.UsageError, match=r"kv_heads=2 disagrees with dims.kv_heads=4"):
            ea.create("gqa:kv_heads=2", dims=Dims(kv_heads=4))
        with pytest.raises(ea.UsageError, match="kv_heads=3 does not divide heads=8"):
            ea.create("gqa:kv_heads=3", dims=Dims(heads=8))
        with pytest.raises(ea.UsageError, match="mqa has one key-value head, dims set kv_heads=2"):
            ea.create("mqa", dims=Dims(kv_heads=2))


class TestUnion:
    def test_parts_are_sorted_in_the_spec(self) -> None:
        unsorted, ordered = (
            "sliding_window:window=3|sliding_window:window=1",
            "sliding_window:window=1|sliding_window:window=3",
        )
        assert ea.create(unsorted).spec == ea.create(ordered).spec == ordered

    @pytest.mark.parametrize(
        ("text", "options", "message"),
        [
            ("sliding_window|full", {}, "only patterns can be joined by '|'"),
            ("sliding_window:backend=blocks|sliding_window", {}, "without a backend"),
            ("sliding_window|sliding_window:window=3", {"window": 2}, "options of a union belong to its parts"),
            ("sliding_window|slidin_window", {}, "did you mean 'sliding_window'"),
        ],
    )
    def test_invalid_unions_are_reported(self, text: str, options: dict[str, object], message: str) -> None:
        with pytest.raises(ea.UsageError, match=message.replace("|", r"\|")):
            ea.create(text, **options)

    def test_info_describes_the_union(self) -> None:
        info = ea.info("sliding_window:window=3|sliding_window:window=9")
        assert (info.name, info.family, info.backend) == ("union", "sparse", "adaptive")


class TestInfo:
    def test_info_describes_the_instance(self) -> None:
        info = ea.info("gqa:kv_heads=2")
        assert (info.name, info.family, info.spec, info.options) == (
            "gqa",
            "shared_kv",
            "gqa:kv_heads=2",
            {"kv_heads": 2},
        )
        assert info.backends[:2] == ("sdpa", "flash")
        assert info.backends[-2:] == ("cpp", "dense")
        assert info.traits.exact
        assert info.parameters == 0
        assert info.source.endswith("gqa.py")
        assert "Ainslie" in info.doc

    @pytest.mark.parametrize("name", ea.names())
    def test_all_mechanisms_have_info(self, name: str) -> None:
        info = ea.info(name, dims=Dims(heads=4, head_dim=8, max_len=64))
        assert info.sentence
        assert info.growth.cost(64, 64, info.traits.causal) > 0


class TestRegister:
    def test_registered_names_can_be_created(self) -> None:
        @ea.register("mine_too", family="full")
        class Mine(SoftmaxAttention):
            """Mine, in one line.

            And more."""

        assert isinstance(ea.create("mine_too"), Mine)
        assert ea.info("mine_too").sentence == "Mine, in one line."
        assert "mine_too" in ea.names(family="full")

    def test_names_in_use_are_refused(self) -> None:
        with pytest.raises(ea.UsageError, match=r"the name 'full' is already used by efficient_attn\..*\.full:Full"):
            ea.register("full", family="full")(SoftmaxAttention)

    @pytest.mark.parametrize("name", ["a-b", "a:b", "a|b", "1a", "_a", "a b"])
    def test_names_invalid_in_specs_are_refused(self, name: str) -> None:
        with pytest.raises(ea.UsageError, match="a name is letters, digits and underscores"):
            ea.register(name, family="full")(SoftmaxAttention)

    def test_unknown_families_are_refused(self) -> None:
        with pytest.raises(ea.UsageError, match=r"register\('x'\): unknown family 'ful'; did you mean 'full'"):
            ea.register("x", family="ful")

    def test_options_that_are_not_keyword_only_are_refused(self) -> None:
        class Loose(SoftmaxAttention):
            def __init__(self, width: int = 3) -> None:
                super().__init__()

        ea.register("loose", family="full")(Loose)
        with pytest.raises(ea.UsageError, match="options must be keyword-only with defaults, 'width' is not"):
            ea.create("loose")


class TestPlugin:
    def test_load_plugin_registers_the_names_of_a_file(self, tmp_path: Path) -> None:
        assert ea.load_plugin(plugin(tmp_path)) == ["mine"]
        attn = ea.create("mine:strength=2:note=none")
        assert attn.origin.options == {"strength": 2.0, "note": None}
        assert attn.spec == "mine:note=none:strength=2.0"

    def test_a_plugin_can_be_loaded_twice(self, tmp_path: Path) -> None:
        path = plugin(tmp_path)
        assert ea.load_plugin(path) == ea.load_plugin(path) == ["mine"]

    def test_plugins_cannot_override_built_in_names(self, tmp_path: Path) -> None:
        with pytest.raises(ea.UsageError, match="the name 'linear' is already used"):
            ea.load_plugin(plugin(tmp_path, "linear"))

    def test_missing_and_broken_files_are_reported(self, tmp_path: Path) -> None:
        with pytest.raises(ea.UsageError, match=r"absent.py: no such file"):
            ea.load_plugin(str(tmp_path / "absent.py"))
        with pytest.raises(ea.UsageError, match="import failed: ZeroDivisionError: division by zero"):
            ea.load_plugin(plugin(tmp_path, "broken", "1 / 0"))
        with pytest.raises(ea.UsageError, match="import failed: ModuleNotFoundError"):
            ea.load_plugin("no_such_module_anywhere")


class TestEntryPoints:
    def advertise(self, monkeypatch: pytest.MonkeyPatch, name: str, target: str) -> None:
        points = [EntryPoint(name, target, entries.GROUP)]
        monkeypatch.setattr(entries, "entry_points", lambda group: points)

    def test_entry_points_add_mechanisms_of_other_packages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.advertise(monkeypatch, "theirs", "efficient_attn.variants.full.full:Full")
        assert "theirs" in ea.names()
        assert ea.create("theirs").spec == "theirs"

    def test_entry_points_cannot_override_built_in_names(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.advertise(monkeypatch, "linear", "efficient_attn.variants.full.full:Full")
        assert type(ea.create("linear")).__name__ == "Linear"

    def test_broken_entry_points_do_not_affect_other_mechanisms(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.advertise(monkeypatch, "theirs", "no_such_package:Thing")
        assert "theirs" in ea.names()
        with pytest.raises(ea.UsageError, match="theirs: the entry point no_such_package:Thing failed: ModuleNotFound"):
            ea.create("theirs")
        assert ea.create("full").spec == "full"
