"""Side effects are attributed to the case that causes them, in its creation, its turn or its plug-in's import."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator

import pytest
import tiny_suites
import torch
import torch.nn.functional as F
from inline_measurement import measure_cases, measure_variants, watch_timing
from torch import Tensor

import efficient_attn as ea
from efficient_attn.bench.measuring.turn_guard import TurnGuard, guard_creation, is_built_in
from efficient_attn.errors import UsageError
from efficient_attn.instruments import integrity
from efficient_attn.instruments.global_state import GlobalStateChanged


@pytest.fixture(autouse=True)
def _isolated_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(integrity, "blamed", {})
    with tiny_suites.isolated_registry():
        yield
    torch.backends.cuda.enable_flash_sdp(True)


def _disable_flash() -> None:
    torch.backends.cuda.enable_flash_sdp(False)


@pytest.mark.parametrize(
    ("variant", "names", "built_in"),
    [
        ("full", ["full"], True),
        ("sliding_window:window=4", ["sliding_window"], True),
        ("sliding_window:window=2|strided:stride=4", ["sliding_window", "strided"], True),
        ("zz_own", ["zz_own"], False),
    ],
)
def test_built_in_mechanisms_are_known(variant: str, names: list[str], built_in: bool) -> None:
    tiny_suites.register_modified("zz_own")
    case = tiny_suites.case(variant)
    assert (sorted(case.variant.names), is_built_in(case)) == (names, built_in)


def test_a_mechanism_cannot_take_the_name_of_a_built_in_one() -> None:
    class Full(ea.SoftmaxAttention):
        """Claims to be the baseline."""

    Full.__module__, Full.__qualname__ = "efficient_attn.variants.full.full", "Full"
    with pytest.raises(UsageError, match="the name 'full' is already used"):
        ea.register("full", family="full")(Full)


def test_creation_may_draw_random_numbers_but_not_change_settings() -> None:
    case = tiny_suites.case()
    with guard_creation(case):
        torch.rand(3)
    with pytest.raises(GlobalStateChanged, match="turned the flash kernel"), guard_creation(case):
        _disable_flash()
    assert torch.backends.cuda.flash_sdp_enabled()


def test_changes_are_undone_after_another_error() -> None:
    def fail() -> None:
        _disable_flash()
        raise KeyError("first")

    with pytest.raises(KeyError, match="first"), guard_creation(tiny_suites.case()):
        fail()
    assert torch.backends.cuda.flash_sdp_enabled()


def test_replacements_are_attributed_to_the_turn_of_a_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_suites.register_modified("zz_own")
    integrity.record_integrity()
    guard = TurnGuard([tiny_suites.case("zz_own"), tiny_suites.case()], single_thread=True)
    guard.start()
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *given, **options: given[0])
    guard.threads.stop_clock()
    with pytest.raises(GlobalStateChanged, match=r"it replaced torch.nn.functional.scaled_dot_product_attention by"):
        guard.after_sample(0)
    for index in (0, 1):
        guard.threads.stop_clock()
        guard.after_sample(index)


def test_a_thread_that_works_after_its_calls_is_rejected() -> None:
    guard = TurnGuard([tiny_suites.case()], single_thread=True)
    guard.start()
    returned, worked, ending = threading.Event(), threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: [returned.wait(), sum(range(500_000)), worked.set(), ending.wait()])
    thread.start()
    guard.threads.stop_clock()
    returned.set()  # only now, as the thread could be done before a busy machine gets to stop_clock
    worked.wait()
    with pytest.raises(GlobalStateChanged, match=r"its threads worked for [0-9.]+ ms after its calls had returned"):
        guard.after_sample(0)
    ending.set()
    thread.join()


def _register(name: str, create: Callable[[], object], compute: Callable[[], object] = lambda: None) -> str:
    """Register exact attention with side effects."""

    class Affected(ea.SoftmaxAttention):
        """Exact attention with side effects."""

        def __init__(self) -> None:
            super().__init__()
            create()

        def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
            compute()
            return super().compute(q, k, v, mask, **inputs)

    ea.register(name, family="full")(Affected)
    return name


def test_a_switch_that_creation_turns_off_only_affects_its_own_case() -> None:
    is_planned = False
    name = _register("zz_switch", lambda: _disable_flash() if is_planned else None)
    cases = tiny_suites.plan(variants=[name, "full"])
    is_planned = True  # planning, usually in another process, also creates an instance
    own, full = measure_cases(cases)
    assert (own.row.status, full.row.status) == ("invalid", "ok")
    assert "turned the flash kernel of scaled_dot_product_attention off" in (own.row.reason or "")
    assert "flash" in (full.row.kernels or "")


def test_a_switch_that_is_turned_off_in_a_process_run_only_affects_its_own_case(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_timing = watch_timing(monkeypatch)
    name = _register("zz_switch", lambda: None, lambda: _disable_flash() if is_timing() else None)
    full, own, linear = measure_variants("full", name, "linear")
    assert own.row.status == "invalid"
    assert "turned the flash kernel" in (own.row.reason or "")
    assert [(r.row.status, r.row.speedup is not None) for r in (full, linear)] == [("ok", True)] * 2


def test_blamed_mechanisms_are_invalid() -> None:
    integrity.blamed[tiny_suites.register_modified("zz_own")] = "when its plug-in was imported, it did"
    own, full = measure_variants("zz_own", "full")
    assert (own.row.status, own.row.reason) == ("invalid", "when its plug-in was imported, it did")
    assert full.row.status == "ok"


def test_a_thread_that_disturbs_the_others_ends_its_case_and_the_process_run_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ending, is_timing = threading.Event(), watch_timing(monkeypatch)
    threads: list[threading.Thread] = []

    def burn() -> None:
        while not ending.is_set():
            pass

    def start_thread() -> None:
        if is_timing() and not threads:  # a thread of the preparation would be from before all cases, see below
            threads.append(threading.Thread(target=burn, daemon=True))
            threads[0].start()

    name = _register("zz_burns", lambda: None, start_thread)
    try:
        full, own = measure_variants("full", name)
    finally:
        ending.set()
        for thread in threads:
            thread.join()
    assert threads
    # here the repeated run has the same process, in which the thread is then one from before all cases
    assert own.row.status == "invalid"
    assert re.search("a thread that it started|its threads worked for", (own.row.reason or ""))
    assert full.row.reason is None or "a thread from before all cases worked for" in full.row.reason


def test_a_case_whose_thread_still_works_after_preparation_is_invalid() -> None:
    ending = threading.Event()
    threads: list[threading.Thread] = []

    def start_thread() -> None:
        if not threads:
            threads.append(threading.Thread(target=lambda: [None for _ in iter(ending.is_set, True)], daemon=True))
            threads[0].start()

    name = _register("zz_burns", lambda: None, start_thread)
    try:
        own, full = measure_variants(name, "full")
    finally:
        ending.set()
        for thread in threads:
            thread.join()
    assert own.row.status == "invalid"
    assert "still worked after its calls had returned" in (own.row.reason or "")
    assert full.row.status in ("ok", "invalid")  # as above
