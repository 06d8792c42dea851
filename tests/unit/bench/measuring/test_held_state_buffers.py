"""Buffers that can be reached from objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from efficient_attn.bench.measuring.held_state import checksum_buffers, find_buffers

SIZE = 5000 * 4
UNRELATED = torch.ones(SIZE)  # a global, which functions of this module refer to


def _make() -> Tensor:
    return torch.ones(SIZE // 4)


def _in_closure() -> Callable[[], Tensor]:
    hidden = _make()
    return lambda: hidden


def _in_default(hidden: Tensor | None = None) -> Callable[..., Any]:
    hidden = _make()

    def function(kept: Tensor = hidden) -> int:
        return len(kept) + len(UNRELATED)

    return function


@dataclass
class Slotted:
    __slots__ = ("x",)
    x: Any


class Holder:
    def __init__(self, x: Any) -> None:
        self.x = x

    def method(self) -> Any:
        return self.x


def _in_module() -> nn.Module:
    module = nn.Module()
    module.register_buffer("hidden", _make())
    return module


def _in_cycle() -> Holder:
    holder = Holder(_make())
    holder.x = [holder.x, holder]
    return holder


HIDING_PLACES: dict[str, Callable[[], Any]] = {
    "tensor": _make,
    "view": lambda: _make()[10:20],
    "dict of lists": lambda: {"k": [(1, [_make()])]},
    "attribute": lambda: Holder(_make()),
    "slot": lambda: Slotted(_make()),
    "bound method": lambda: Holder(_make()).method,
    "closure": _in_closure,
    "default": _in_default,
    "partial": lambda: partial(len, _make()),
    "buffer": _in_module,
    "generator": lambda: (x for x in [_make()]),
    "cycle": _in_cycle,
    "numpy": lambda: Holder(np.ones(SIZE, dtype=np.uint8)),
    "numpy of a tensor": lambda: [_make().numpy(), "text"],
    "bytearray": lambda: Holder(bytearray(SIZE)),
}


@pytest.mark.parametrize("place", HIDING_PLACES)
def test_each_buffer_is_found_once(place: str) -> None:
    hidden = HIDING_PLACES[place]()
    assert list(find_buffers(hidden).values()) == [SIZE]
    assert find_buffers(hidden, [hidden, hidden]) == find_buffers(hidden)


def test_views_of_one_storage_count_once() -> None:
    x = _make()
    assert find_buffers([x, x[:5], x.view(2, -1), x.numpy()]) == {x.data_ptr(): SIZE}
    assert sum(find_buffers(x, x.clone()).values()) == 2 * SIZE


def test_globals_modules_and_classes_are_not_followed() -> None:
    assert not find_buffers(_in_closure, torch, Holder, test_views_of_one_storage_count_once)


@pytest.mark.parametrize("kind", ["tensor", "numpy", "bytearray"])
def test_checksums_change_with_the_contents(kind: str) -> None:
    holder = HIDING_PLACES[kind]()
    buffers = find_buffers(holder)
    before = checksum_buffers(buffers)
    assert checksum_buffers(buffers) == before
    if isinstance(holder, Holder):
        holder.x[SIZE - 1] = 7
    else:
        holder.data[-1] = 7  # without a new version
    after = checksum_buffers(buffers)
    assert after.keys() == before.keys()
    assert after != before


def test_empty_tensors_have_no_contents() -> None:
    assert checksum_buffers(find_buffers(torch.ones(0))) == {}
