"""The list of peers equals what the plug-ins register."""

from __future__ import annotations

import pytest
import tiny_suites

import efficient_attn as ea
from efficient_attn.peers import PEERS


@pytest.mark.parametrize("plugin", sorted({peer.plugin for peer in PEERS}))
def test_the_list_has_what_a_plugin_registers(plugin: str) -> None:
    with tiny_suites.isolated_registry():
        found = ea.load_plugin(plugin)
    assert sorted(peer.name for peer in PEERS if peer.plugin == plugin) == sorted(found)
