"""Count query-key pairs, in which the work of mechanisms is measured."""


def count_possible_pairs(n: int, m: int, causal: bool, start: int | None = None) -> int:
    """The pairs of n queries and m keys: all, or the causal ones. start: the first query's position, which may be
    negative; by default the last query is aligned with the last key."""
    if not causal:
        return n * m
    start = m - n if start is None else start

    def count_before(position: int) -> int:  # pairs of all queries before a position
        queries = max(position, 0)
        n_partial = min(queries, m)  # those that see fewer than all keys, or exactly all
        return n_partial * (n_partial + 1) // 2 + (queries - n_partial) * m

    return count_before(start + n) - count_before(start)


def count_block_pairs(n: int, m: int, size: int, earlier: int) -> int:
    """The pairs of n queries, aligned with the last of m keys, with their own block of ``size`` keys up to themselves,
    and with so many earlier ones, as far as there are any."""
    return sum(i % size + 1 + min(i // size, earlier) * size for i in range(max(m - n, 0), m))
