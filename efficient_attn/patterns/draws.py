"""Random numbers as functions of a seed and a key: equal for tensors, arrays and numbers, on every machine."""

from typing import Any

_BITS = (1 << 31) - 1  # states of 31 bits: a product with a factor of 31 bits still fits 64, signed, everywhere


def draw(seed: int, key: Any, among: Any, count: int) -> list[Any]:
    """Draw ``count`` distinct numbers below ``among`` for each ``key``; -1 after all are drawn. key, among: numbers,
    arrays or tensors of one shape, at least 0 and 1. Every subset is equally likely (Floyd's method: the t-th draw is
    below ``among - count + t + 1``, and a repeated number is replaced by that bound itself)."""
    state = _mix(_mix(_mix_seed(seed) ^ key) ^ among)
    has_enough = (among >= count) * 1
    size = count * has_enough + among * (1 - has_enough)
    chosen: list[Any] = []
    for t in range(count):
        bound = among - size + t
        pick = _mix(state ^ (t + 1)) % (bound + 1)
        is_chosen = key * 0
        for earlier in chosen:
            is_chosen = is_chosen | (earlier == pick) * 1
        pick = pick + (bound - pick) * is_chosen
        is_open = (size > t) * 1
        chosen.append(pick * is_open - (1 - is_open))
    return chosen


def _mix_seed(seed: int) -> int:
    state = 0x3C6EF372
    remaining_bits = abs(seed) * 2 + (seed < 0)
    while remaining_bits:
        state, remaining_bits = _mix(state ^ (remaining_bits & _BITS)), remaining_bits >> 31
    return _mix(state)


def _mix(x: Any) -> Any:
    """A mixing function: every bit of the result depends on every bit of x, which has at most 31."""
    for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39), (15, 0x5851F42D)):
        x = ((x ^ (x >> shift)) * factor) & _BITS
    return x ^ (x >> 16)
