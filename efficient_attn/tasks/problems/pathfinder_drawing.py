"""Images of dashed paths on a grid of cells. Two ends of paths have a dot; they are connected or not.

A path is a chain of neighbouring cells that turns by at most 45 degrees a step. Cells of different paths are further
apart than the dashes of one path, so that an image determines which dashes belong together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..training.problem import Array

STEPS = np.array([(0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1)])  # by direction
DIRECTIONS = np.zeros((3, 3), dtype=np.int64)  # by step, plus one
DIRECTIONS[tuple(STEPS.T + 1)] = np.arange(8)
TURN_PROBABILITY = 0.5  # of a step; the others go straight on where there is room
TRIES = 4  # to draw each path
POOL = 384  # drawings at a time, half of them connected; fixed, because what is left out depends on it
DISTANCE_CLASSES = 32  # of the distance of dots, from 0 to the side, if each has at least one cell
SPREAD_CLASSES = 64  # of the mean distance from the centre, from 0 to the side
BLANK, INK, DOT = range(3)


@dataclass(frozen=True, kw_only=True)
class PathSizes:
    """Sizes of an image. side: in cells. path_length: of the two long paths, in dashes. distractors, distractor_length:
    number and dashes of the short ones. dash, gap: in cells."""

    side: int
    path_length: int
    distractors: int
    distractor_length: int
    dash: int
    gap: int

    @property
    def margin(self) -> int:
        """Cells of different paths are further apart than this: one step over a gap."""
        return self.gap + 1

    @property
    def recent_cells(self) -> int:
        """Cells before the head of a path that may be within the margin; a path needs more of them to turn round."""
        return 2 * self.margin + 1

    @property
    def common_cells(self) -> int:
        """Cells at each end of a path that stay in place when it is broken, as many as leave more than the margin."""
        return max(1, (self.count_cells(self.path_length) - self.recent_cells) // 2)

    def count_cells(self, dashes: int) -> int:
        """Cells of a path of so many dashes, with the gaps between them."""
        return dashes * (self.dash + self.gap) - self.gap


def draw_pairs(sizes: PathSizes, generator: np.random.Generator) -> Array:
    """Pairs ``[S, 2, side, side]`` of an image whose dots are not connected and one whose dots are; BLANK, INK and DOT.

    S varies, and is 0 for most sizes that have no room. For dots that are not connected, a path is drawn and broken:
    its ends stay in place, and each is continued to the full length, away from the other, so that dots look the same
    from nearby. Both images of a pair have as much ink, the same distance of dots within a cell, or 1/32 of the side
    if that is more, and the same mean distance of paths from the centre within 1/64 of the side. Drawings without a
    partner are left out.
    """
    drawings = [_draw_paths(sizes, generator, connected=connected) for connected in (False, True)]
    classes = [_classify(sizes, paths, connected=bool(connected)) for connected, paths in enumerate(drawings)]
    partners = _match(classes, generator)
    images = [
        _render(sizes, [path[indices] for path in paths], connected=bool(connected))
        for connected, (paths, indices) in enumerate(zip(drawings, partners, strict=True))
    ]
    return generator.permutation(np.stack(images, 1))


def _draw_paths(sizes: PathSizes, generator: np.random.Generator, *, connected: bool) -> list[Array]:
    """The cells ``[S, cells, 2]`` of each path of S drawings, those of half a pool that have room for all paths. Dots
    are at both ends of the first path, or at the beginnings of the first two."""
    length, distractor_length = sizes.count_cells(sizes.path_length), sizes.count_cells(sizes.distractor_length)
    blocked = np.ones((POOL // 2, sizes.side + 2, sizes.side + 2), dtype=bool)  # with a border of one cell
    blocked[:, 1:-1, 1:-1] = False
    path, has_room = _draw_path(sizes, blocked, None, length, generator)
    blocked, paths = blocked[has_room], [path[has_room]]
    if connected:
        blocked = _block(sizes, blocked, paths[0])
    else:
        blocked, paths = _break(sizes, blocked, paths[0], generator)
    for cells in [length] * connected + [distractor_length] * sizes.distractors:
        path, has_room = _draw_path(sizes, blocked, None, cells, generator)
        paths = [other[has_room] for other in (*paths, path)]
        blocked = _block(sizes, blocked[has_room], paths[-1])
    return paths


def _break(sizes: PathSizes, blocked: Array, path: Array, generator: np.random.Generator) -> tuple[Array, list[Array]]:
    """Two paths from the ends of a path, each as long as it, in the drawings that have room for both, and the cells
    that they block."""
    first, second = path[:, : sizes.common_cells], path[:, : -sizes.common_cells - 1 : -1]
    first, has_room = _draw_path(sizes, _block(sizes, blocked, second), first, path.shape[1], generator)
    first, second, blocked = first[has_room], second[has_room], blocked[has_room]
    blocked = _block(sizes, blocked, first)
    second, has_room = _draw_path(sizes, blocked, second, path.shape[1], generator)
    first, second, blocked = first[has_room], second[has_room], blocked[has_room]
    return _block(sizes, blocked, second), [first, second]


def _draw_path(
    sizes: PathSizes, blocked: Array, begun: Array | None, length: int, generator: np.random.Generator
) -> tuple[Array, Array]:
    """A path of ``length`` cells in each drawing, ``[S, length, 2]``, and in which of them there is room for it; where
    not, after several tries, the path is not valid. begun: its first cells, ``[S, cells, 2]``; None for any."""
    paths, has_room = np.zeros((len(blocked), length, 2), dtype=np.int64), np.zeros(len(blocked), dtype=bool)
    for _ in range(TRIES):
        rows = np.flatnonzero(~has_room)
        if not len(rows):
            break
        starts = _choose_starts(blocked[rows], generator) if begun is None else begun[rows]
        paths[rows], has_room[rows] = _extend(sizes, blocked[rows], starts, length, generator)
    return paths, has_room


def _choose_starts(blocked: Array, generator: np.random.Generator) -> Array:
    """A free cell of each drawing, ``[S, 1, 2]``; any cell if none is free."""
    free = ~blocked[:, 1:-1, 1:-1]
    ranks = generator.random(free.shape, dtype=np.float32) * free
    chosen = ranks.reshape(len(free), free[0].size).argmax(1)
    return np.stack(np.unravel_index(chosen, free.shape[1:]), -1)[:, None]


def _extend(
    sizes: PathSizes, blocked: Array, begun: Array, length: int, generator: np.random.Generator
) -> tuple[Array, Array]:
    """One try to draw paths that begin with the cells of ``begun``. Further cells are not blocked, and not near the
    path's own, except the recent ones."""
    count, n_begun = begun.shape[:2]
    rows, cells, head = np.arange(count), np.empty((count, length, 2), dtype=np.int64), begun[:, -1]
    cells[:, :n_begun] = begun
    heading = generator.integers(8, size=count)
    if n_begun > 1:
        heading = DIRECTIONS[tuple((head - begun[:, -2] + 1).T)]
    has_room = ~blocked[rows, head[:, 0] + 1, head[:, 1] + 1]
    sides = generator.choice([-1, 1], size=(count, length))
    turns = generator.random((count, length)) < TURN_PROBABILITY
    for position in range(n_begun, length):
        side, turn = sides[:, position], turns[:, position]
        options = np.stack([np.where(turn, side, 0), np.where(turn, 0, side), -side])  # in order of preference
        headings = (heading + options) % 8
        heads = head + STEPS[headings]  # options, S, 2
        is_free = ~blocked[rows, heads[..., 0] + 1, heads[..., 1] + 1]
        earlier = cells[:, : max(0, position - sizes.recent_cells)]
        distances = np.abs(earlier - heads[:, :, None]).max(-1)
        is_free &= (distances > sizes.margin).all(-1)
        option = is_free.argmax(0)
        has_room &= is_free[option, rows]
        head = np.where(has_room[:, None], heads[option, rows], head)
        heading = np.where(has_room, headings[option, rows], heading)
        cells[:, position] = head
    return cells, has_room


def _block(sizes: PathSizes, blocked: Array, path: Array) -> Array:
    """The blocked cells and those within the margin of a path."""
    reach = np.arange(-sizes.margin, sizes.margin + 1)
    offsets = np.stack(np.meshgrid(reach, reach), -1).reshape(-1, 2)
    near = np.clip(path[:, :, None] + offsets + 1, 0, sizes.side + 1)
    blocked = blocked.copy()
    blocked[np.arange(len(path))[:, None, None], near[..., 0], near[..., 1]] = True
    return blocked


def _get_ends(paths: Sequence[Array], *, connected: bool) -> tuple[Array, Array]:
    """The paths from each dot, ``[S, cells, 2]``."""
    return (paths[0], paths[0][:, ::-1]) if connected else (paths[0], paths[1])


def _classify(sizes: PathSizes, paths: Sequence[Array], *, connected: bool) -> Array:
    """The class of each drawing, ``[S]``: the distance of the dots, and the mean distance of all cells of paths from
    the centre."""
    first, second = _get_ends(paths, connected=connected)
    width = max(1.0, sizes.side / DISTANCE_CLASSES)
    distances = np.rint(np.hypot(*(second[:, 0] - first[:, 0]).T) / width).astype(np.int64)
    offsets = np.concatenate(paths, 1) - (sizes.side - 1) / 2
    spreads = np.hypot(offsets[..., 0], offsets[..., 1]).mean(1) / sizes.side
    return distances * SPREAD_CLASSES + (spreads * SPREAD_CLASSES).astype(np.int64)


def _match(classes: Sequence[Array], generator: np.random.Generator) -> list[Array]:
    """Indices of as many random elements of each class in all arrays, in order of their classes."""
    n_classes = 1 + max(int(x.max(initial=0)) for x in classes)
    counts = [np.bincount(x, minlength=n_classes) for x in classes]
    common, indices = np.minimum(*counts), []
    for values, count in zip(classes, counts, strict=True):
        order = np.lexsort((generator.random(len(values)), values))
        ranks = np.arange(len(values)) - np.repeat(np.cumsum(count) - count, count)
        indices.append(order[ranks < np.repeat(common, count)])
    return indices


def _render(sizes: PathSizes, paths: Sequence[Array], *, connected: bool) -> Array:
    """Images ``[S, side, side]``."""
    images = np.full((len(paths[0]), sizes.side, sizes.side), BLANK, dtype=np.int64)
    rows = np.arange(len(images))[:, None]
    for path in paths:
        dashes = path[:, np.arange(path.shape[1]) % (sizes.dash + sizes.gap) < sizes.dash]
        images[rows, dashes[..., 0], dashes[..., 1]] = INK
    for path in _get_ends(paths, connected=connected):
        images[rows[:, 0], path[:, 0, 0], path[:, 0, 1]] = DOT
    return images
