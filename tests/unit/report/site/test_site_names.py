"""Names of files, machines and mechanisms."""

from __future__ import annotations

import re

import hostile

from efficient_attn.report.formatting import shorten_text
from efficient_attn.report.site.site_names import make_name, name_machines, split_label


def test_names_are_plain_and_unique() -> None:
    names = [make_name(text) for text in [*hostile.HOSTILE, "a-b", "ab"]]
    assert len(set(names)) == len(set(hostile.HOSTILE)) + 2
    assert all(re.fullmatch(r"[a-z0-9-]{8,49}", name) for name in names)


def test_machines_with_the_same_name_are_numbered() -> None:
    machines = ["AMD-Zen4-2c-24GiB#5d0574", "AMD-Zen4-2c-48GiB#aaaaaa", "Intel-EmeraldRapids-1c-24GiB#1bcbb1", "x" * 99]
    assert name_machines([*machines, None, machines[0]]) == {
        machines[0]: "AMD Zen 4 (2 cores) #1",
        machines[1]: "AMD Zen 4 (2 cores) #2",
        machines[2]: "Intel Emerald Rapids (1 core)",
        machines[3]: "x" * 47 + "\u2026",
    }
    assert shorten_text("abcdef", 4) == "abc\u2026"


def test_labels_are_split_into_names_and_options() -> None:
    assert split_label("bigbird:n_global=64:window=128") == ("bigbird", "n_global=64, window=128")
    assert split_label("full") == ("full", "")
    assert split_label("a:x=1|b|c:y=2:z=3") == ("a | b | c", "x=1 | y=2, z=3")
    assert split_label("") == ("", "")
