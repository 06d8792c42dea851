"""Units of a plan: what one node measures at a time."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from ..case import Case, group_cases
from ..measuring.parallel import PlannedGroup, identify_unit, is_parallel
from ..task_registry import find_task

REPEATED_SHARE = 0.05  # of timed groups, measured on a second node too


@dataclass(frozen=True)
class CheckpointFile:
    """A file of a run's folder of checkpoints. digest: of its case."""

    name: str
    content: bytes

    @property
    def digest(self) -> str:
        """The digest of its case."""
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class Unit:
    """A timed group, or cases that read each other's rows, such as chains of trainings. number: in the plan. needed:
    the digests of all cases, planned or measured, whose rows and checkpoints its cases may read. is_repeat: of a group
    that another node has measured. losses: nodes that were lost meanwhile. avoided: a node that must not measure it."""

    number: int
    groups: tuple[PlannedGroup, ...]
    needed: tuple[str, ...] = ()
    is_repeat: bool = False
    losses: int = 0
    avoided: str | None = None

    @property
    def cases(self) -> list[Case]:
        """All cases."""
        return [case for _, members in self.groups for case in members]

    @property
    def device(self) -> str:
        """The device that it needs."""
        return self.groups[0][0].config.device

    @property
    def is_timed(self) -> bool:
        """Whether its cases are timed together, so that all are measured again if one has to be."""
        return find_task(self.groups[0][0].target).work is not None

    def repeat(self, avoided: str) -> Unit:
        """The same for another node."""
        return replace(self, is_repeat=True, losses=0, avoided=avoided)

    def retry(self, remaining: Collection[str]) -> Unit:
        """The unit after the loss of a node. remaining: the digests of the cases without a record."""
        if self.is_timed:
            return replace(self, losses=self.losses + 1)
        groups = [(group, [case for case in members if case.digest in remaining]) for group, members in self.groups]
        return replace(self, losses=self.losses + 1, groups=tuple(item for item in groups if item[1]))


def make_units(cases: Iterable[Case], planned: Iterable[PlannedGroup], jobs: int) -> list[Unit]:
    """The units of the planned groups, in their order. cases: of the whole plan. jobs: how many chains of trainings a
    node has at the same time."""
    related: dict[Hashable, list[str]] = defaultdict(list)
    for case in cases:
        if find_task(case.group.target).work is None:  # cases that are timed together do not read each other's rows
            related[identify_unit(case)].append(case.digest)
    members_by_identity: dict[Hashable, list[Case]] = defaultdict(list)
    chains: dict[str, dict[Hashable, None]] = defaultdict(dict)  # by device, in order
    for group, members in planned:
        for case in members:
            identity = identify_unit(case)
            members_by_identity[identity].append(case)
            if is_parallel(group):
                chains[group.config.device][identity] = None
    of_chains = {identity for of_device in chains.values() for identity in of_device}
    batches = [[identity] for identity in members_by_identity if identity not in of_chains]
    for of_device in chains.values():
        identities = list(of_device)
        batches += [identities[i : i + jobs] for i in range(0, len(identities), jobs)]
    return [
        Unit(
            number,
            tuple(group_cases(case for identity in batch for case in members_by_identity[identity])),
            tuple(digest for identity in batch for digest in related[identity]),
        )
        for number, batch in enumerate(batches)
    ]


def choose_repeated(units: Sequence[Unit], share: float = REPEATED_SHARE) -> set[int]:
    """The numbers of the timed units that a second node measures too: drawn by a digest of their cases, so that the
    same plan gives the same ones."""
    timed = {unit.number: unit for unit in units if unit.is_timed}
    digests = {number: " ".join(case.digest for case in unit.cases) for number, unit in timed.items()}
    drawn = sorted(timed, key=lambda number: hashlib.sha256(digests[number].encode()).digest())
    return set(drawn[: round(share * len(timed))])
