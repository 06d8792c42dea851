"""What a drawn call costs: roughly the seconds of its comparison, and its numbers in memory."""

from __future__ import annotations

from functools import lru_cache

from .call_factors import DesignedCall
from .probing import declares_growth
from .subject import Subject

BLOCK = 128  # keys of a block, which take as long as one of them
SCORE_MATRICES, TRAINING_SCORE_MATRICES = 6, 16  # of a reference: scores, weights, masks, gradients
MAX_STORED = 2**28  # numbers in these: 2 GiB in float64
MAX_SCORES = 2**25  # of a mechanism that stores all of them, several times with gradients: 256 MiB each in float64


@lru_cache(maxsize=1024)
def _count_work(subject: Subject, n: int, m: int, causal: bool) -> float:
    """The declared work of one head in query-key pairs; that of all pairs if none is declared."""
    return subject.attn.growth.cost(n, m, causal) if declares_growth(subject.attn) else n * m


def estimate_seconds(designed: DesignedCall) -> float:
    """Roughly the seconds of a comparison, the same on every machine."""
    s, traits = designed.shape, designed.subject.traits
    rows = sum(span.stop - span.start for span in designed.spans)
    passes = 1 if designed.case["gradient"] == "nothing" else 3
    declared = _count_work(designed.subject, s.n, s.m, bool(designed.case["causal"]))
    work = max(declared, s.n * min(s.m, BLOCK))
    # fewer pairs than all take longer each, and so do numbers that are converted
    slow = (3 if designed.case["dtype"].itemsize < 4 else 1) * (4 if work < s.n * s.m / 3 else 1)
    width, heads = s.head_dim + s.value_dim, s.batch * s.heads
    reference, fast = rows * s.m * (width + 40), work * (width + 40) * slow
    numbers = s.batch * s.heads * (s.n + s.m) * width
    return 0.006 + passes * (heads * (reference + fast) * 2e-10 + numbers * 3e-8) * (1 if traits.rows_alone else 1.5)


def is_affordable(designed: DesignedCall, elements: int) -> bool:
    """Whether a case has at most so many numbers, and its reference stores no more scores."""
    s, longest = designed.shape, max(span.stop - span.start for span in designed.spans)
    if "^2" in designed.subject.attn.growth.memory and s.batch * s.heads * s.n * s.m > MAX_SCORES:
        return False
    copies = SCORE_MATRICES if designed.case["gradient"] == "nothing" else TRAINING_SCORE_MATRICES
    scores = s.batch * s.heads * longest * s.m
    return max(designed.count_elements(), scores) <= elements and copies * scores <= MAX_STORED
