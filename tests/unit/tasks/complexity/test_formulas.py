"""Formulas of claims: values equal Python's; anything invalid is refused quickly with one line."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efficient_attn.errors import UsageError
from efficient_attn.tasks.complexity import formulas
from efficient_attn.tasks.complexity.formulas import evaluate

KNOWN = {"N": 4096, "D": 64, "H": 8, "C": 2, "k": 3}
N, D, H, C, K = KNOWN.values()

PAPERS = {
    "N^2 D": N**2 * D,
    "N^2*D": N**2 * D,
    "N^2 + N D": N**2 + N * D,
    "N sqrt(N) D": N * 64 * D,
    "N log(N) D": N * 12 * D,
    "k N D^2": K * N * D**2,
    "3 (D^2 + D^2)": 6 * D**2,
    "3(D)": 3 * D,
    "N(D + H)": N * (D + H),
    "(N + 1)(D + 1)": (N + 1) * (D + 1),
    "sqrt(N)(D)": 64 * D,
    "11 D^2 + D": 11 * D**2 + D,
    "N^2 D / C": N**2 * D / 2,
    "256 N + N D + 256 D": 256 * N + N * D + 256 * D,
    "1.5 N": 1.5 * N,
    "  N  ": N,
    "1": 1,
    # powers bind more tightly than products, from the right; products and quotients are evaluated from the left
    "2 N^2": 2 * N**2,
    "N^C^k": float(N) ** 8,
    "(N^C)^k": float(N) ** 6,
    "N D^C": N * D**2,
    "N/C D": N / 2 * D,
    "N/(C D)": N / (2 * D),
    "sqrt(N)^2": N,
    "N^(1/2)": 64,
    "N + D H": N + D * H,
}


@pytest.mark.parametrize("text", PAPERS)
def test_formulas_from_papers_have_pythons_values(text: str) -> None:
    assert evaluate(text, KNOWN) == pytest.approx(PAPERS[text], rel=1e-12)


ATOMS = st.sampled_from([*KNOWN, "2", "3", "1.5"])
OPERATORS = st.sampled_from([" + ", " * ", " / "])
FORMULAS = st.recursive(
    ATOMS,
    lambda inner: (
        st.tuples(inner, OPERATORS, inner).map(lambda x: f"({x[0]}{x[1]}{x[2]})")
        | inner.map(lambda x: f"sqrt({x})")
        | ATOMS.map(lambda x: f"({x})^2")
    ),
    max_leaves=6,
)


@given(FORMULAS)
def test_formulas_with_explicit_operators_match_python(text: str) -> None:
    expected = eval(text.replace("^", "**"), {"sqrt": math.sqrt, **KNOWN})  # only of texts generated above
    assert evaluate(text, KNOWN) == pytest.approx(expected, rel=1e-12)


@given(st.lists(st.sampled_from([*KNOWN, "sqrt(N)", "(N + D)", "D^2"]), min_size=1, max_size=6))
def test_adjacent_factors_are_multiplied(factors: list[str]) -> None:
    expected = math.prod(evaluate(factor, KNOWN) for factor in factors)
    assert evaluate(" ".join(factors), KNOWN) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("N^2 sqr(D)", "unknown name 'sqr'; did you mean 'sqrt'"),
        ("n^2", "unknown name 'n'"),
        ("ND", "unknown name 'ND'"),
        ("True", "unknown name 'True'"),
        ("N if D", "unknown name 'if'"),
    ],
)
def test_unknown_names_are_reported(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        evaluate(text, KNOWN)
    assert str(caught.value).startswith(repr(text))


NOT_FORMULAS = [
    *('__import__("os")', 'print("here")', "N.real", "N[0]", "N, D", "N; D", "lambda: N", "N == D", "N - D", "N := 2"),
    *("", " ", "()", "(", "N^", "^N", "N ** 2", "N +", "+ N", "N N)", "sqrt N", "log 2"),
    *("N2", "N 2", "2 3", "1e9", "0x10", "1_000", "N²", "\uff2e", "\u0663", "N\x00", "N#D", "'N'", "{N}", "…"),
    *("(" * 300 + "N" + ")" * 300, "N" * 10**6, "N " * 10**5, "N+" * 10**5 + "N", "9" * 10**6, "(" * 199 + "N"),
]
WITHOUT_VALUE = [
    *("9^9^9^9", "N^N^N", "N^999 N", "10^300 10^300", "1/0", "1/0.0", "log(0)", "N^(1/0)", "0/0"),
    *("sqrt", "sqrt()", "sqrt^2", "sqrt sqrt(N)", "log(log)"),
]


def check_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        evaluate(text, KNOWN)
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", NOT_FORMULAS, ids=[text[:20] for text in NOT_FORMULAS])
def test_invalid_formulas_are_refused_without_running_them(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(formulas, "eval", lambda *args: calls.append(args), raising=False)
    check_refused(text)
    assert calls == []


@pytest.mark.parametrize("text", WITHOUT_VALUE)
def test_formulas_without_a_value_are_refused(text: str) -> None:
    check_refused(text)


@given(st.text(alphabet="NDHCk2930.^*/+()sqrtlog _-'\"", max_size=40))
def test_any_text_gives_a_finite_number_or_an_error(text: str) -> None:
    with suppress(UsageError):
        assert math.isfinite(evaluate(text, KNOWN))
