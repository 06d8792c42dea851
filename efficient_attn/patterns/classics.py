"""The published patterns, composed of facts."""

from ..errors import UsageError
from .facts import Band, Blocks, Keys, Pattern, Queries


def sliding_window(window: int) -> Pattern:
    """Every key within ``window`` positions: abs(i - j) <= window."""
    _check_minimum(window=(window, 0))
    return Pattern((Band(-window, window),))


def dilated_window(window: int, dilation: int) -> Pattern:
    """``window`` keys on each side, ``dilation`` apart: abs(i - j) <= window * dilation, and a multiple of dilation."""
    _check_minimum(window=(window, 0), dilation=(dilation, 1))
    return Pattern((Band(-window * dilation, window * dilation, dilation),))


def global_tokens(n_global: int) -> Pattern:
    """The first ``n_global`` tokens see all and are seen by all; all others also see themselves."""
    _check_minimum(n_global=(n_global, 0))
    itself = Pattern((Band(0, 0),))
    return itself | Keys(0, n_global) | Queries(n_global) if n_global else itself


def random_blocks(n_random: int, block_size: int, seed: int = 0) -> Pattern:
    """A query's own block and ``n_random`` random ones; ``block_size=1`` draws single tokens."""
    _check_minimum(n_random=(n_random, 0), block_size=(block_size, 1))
    return Pattern((Blocks(block_size, n_random, seed),))


def strided(stride: int) -> Pattern:
    """The last ``stride`` positions (and the next), and every ``stride``-th: abs(i - j) < stride or a multiple."""
    _check_minimum(stride=(stride, 1))
    return Band(1 - stride, stride - 1) | Band(None, None, stride)


def fixed(stride: int, summary: int) -> Pattern:
    """A query's own block of ``stride``, and the last ``summary`` keys of every block."""
    _check_minimum(stride=(stride, 1), summary=(summary, 1))
    if summary > stride:
        raise UsageError(f"summary must be at most stride, got {summary} and {stride}")
    return Blocks(stride) | Keys(stride - summary, stride, stride)


def sinks(n_sink: int) -> Pattern:
    """The first ``n_sink`` keys."""
    _check_minimum(n_sink=(n_sink, 1))
    return Pattern((Keys(0, n_sink),))


def _check_minimum(**values: tuple[int, int]) -> None:
    for name, (value, minimum) in values.items():
        if isinstance(value, bool) or value < minimum:
            raise UsageError(f"{name} must be {minimum} or more, not {value!r}")
