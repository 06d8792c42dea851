"""Cards of the families."""

from __future__ import annotations

from efficient_attn.report.site.families import read_families
from efficient_attn.variants import FAMILIES


def test_every_family_has_a_card_with_a_square_picture() -> None:
    cards = read_families()
    assert list(cards) == list(FAMILIES)
    for card in cards.values():
        lines = card.picture.split()
        assert {len(line) for line in lines} == {len(lines)} == {12}
        assert {depth for _, _, depth in card.cells} <= set("123")
        assert card.cells
