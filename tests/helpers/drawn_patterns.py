"""Hypothesis strategies for pattern facts."""

from __future__ import annotations

from hypothesis import strategies as st

from efficient_attn.patterns import Band, Keys, Queries


@st.composite
def bands(draw: st.DrawFn) -> Band:
    lo = draw(st.none() | st.integers(-9, 9))
    hi = draw(st.none() | st.integers(lo or 0, (lo or 0) + 9)) if lo is None or lo < 0 else lo + draw(st.integers(0, 9))
    return Band(lo, hi, draw(st.integers(1, 5)))


@st.composite
def columns(draw: st.DrawFn) -> Keys:
    first, width = draw(st.integers(0, 5)), draw(st.integers(1, 4))
    return Keys(first, first + width, draw(st.none() | st.integers(first + width, 12)))


queries = st.builds(Queries, st.integers(1, 9))
