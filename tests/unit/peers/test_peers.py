"""The list of peers equals what the plug-ins register."""

from __future__ import annotations

import planted
import pytest

import efficient_attn as ea
from efficient_attn.peers import PEERS


@pytest.mark.parametrize("plugin", sorted({peer.plugin for peer in PEERS}))
def test_the_list_equals_what_a_plugin_registers(plugin: str) -> None:
    with planted.undone():
        found = ea.load_plugin(plugin)
    assert sorted(peer.name for peer in PEERS if peer.plugin == plugin) == sorted(found)
