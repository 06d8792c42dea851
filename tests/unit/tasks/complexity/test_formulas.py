"""Formulas: what papers write is what Python works out, and anything else is one line, quickly."""

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
    # a power goes before a product, from the right; products and quotients go from the left
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
def test_it_is_what_python_works_out(text: str) -> None:
    assert evaluate(text, KNOWN) == pytest.approx(PAPERS[text], rel=1e-12)


ATOMS = st.sampled_from([*KNOWN, "2", "3", "1.5"])
SIDES = st.sampled_from([" + ", " * ", " / "])
FORMULAS = st.recursive(
    ATOMS,
    lambda inner: (
        st.tuples(inner, SIDES, inner).map(lambda x: f"({x[0]}{x[1]}{x[2]})")
        | inner.map(lambda x: f"sqrt({x})")
        | ATOMS.map(lambda x: f"({x})^2")
    ),
    max_leaves=6,
)


@given(FORMULAS)
def test_any_formula_with_all_its_signs_is_pythons(text: str) -> None:
    wanted = eval(text.replace("^", "**"), {"sqrt": math.sqrt, **KNOWN})  # of texts that are made above
    assert evaluate(text, KNOWN) == pytest.approx(wanted, rel=1e-12)


@given(st.lists(st.sampled_from([*KNOWN, "sqrt(N)", "(N + D)", "D^2"]), min_size=1, max_size=6))
def test_factors_side_by_side_multiply(factors: list[str]) -> None:
    wanted = math.prod(evaluate(factor, KNOWN) for factor in factors)
    assert evaluate(" ".join(factors), KNOWN) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("N^2 sqr(D)", "unknown name 'sqr'; did you mean 'sqrt'"),
        ("n^2", "unknown name 'n'"),
        ("ND", "unknown name 'ND'"),
        ("True", "unknown name 'True'"),
        ("N if D", "unknown name 'if'"),
    ],
)
def test_an_unknown_name_is_reported_with_the_nearest(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        evaluate(text, KNOWN)
    assert str(caught.value).startswith(repr(text))


UNREAD = [
    *('__import__("os")', 'print("here")', "N.real", "N[0]", "N, D", "N; D", "lambda: N", "N == D", "N - D", "N := 2"),
    *("", " ", "()", "(", "N^", "^N", "N ** 2", "N +", "+ N", "N N)", "sqrt N", "log 2"),
    *("N2", "N 2", "2 3", "1e9", "0x10", "1_000", "N²", "\uff2e", "\u0663", "N\x00", "N#D", "'N'", "{N}", "…"),
    *("(" * 300 + "N" + ")" * 300, "N" * 10**6, "N " * 10**5, "N+" * 10**5 + "N", "9" * 10**6, "(" * 199 + "N"),
]
WORTHLESS = [
    *("9^9^9^9", "N^N^N", "N^999 N", "10^300 10^300", "1/0", "1/0.0", "log(0)", "N^(1/0)", "0/0"),
    *("sqrt", "sqrt()", "sqrt^2", "sqrt sqrt(N)", "log(log)"),
]


def refuse(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        evaluate(text, KNOWN)
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", UNREAD, ids=[text[:20] for text in UNREAD])
def test_what_is_no_formula_is_one_line_and_is_never_run(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[object] = []
    monkeypatch.setattr(formulas, "eval", lambda *given: ran.append(given), raising=False)
    refuse(text)
    assert ran == []


@pytest.mark.parametrize("text", WORTHLESS)
def test_a_formula_without_a_value_is_one_line(text: str) -> None:
    refuse(text)


@given(st.text(alphabet="NDHCk2930.^*/+()sqrtlog _-'\"", max_size=40))
def test_any_text_is_a_number_or_a_refusal(text: str) -> None:
    with suppress(UsageError):
        assert math.isfinite(evaluate(text, KNOWN))
