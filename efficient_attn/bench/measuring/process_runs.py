"""The sittings of a cell: its cases timed together in several processes, until the intervals are narrow enough."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field, replace
from typing import Any

from ...engines.job import Died
from ...instruments.roofline import share
from ...instruments.timing import PASSES, Turn
from ...results.rows import Record, Row
from ...results.stats import Estimate, middle, paired_ratio, typical
from ..case import Case
from ..config import Cell
from .conditions import Conditions
from .failures import end_dead
from .jobs import Ended, Sat, Sit
from .plausibility import explain_impossible

EXTRA = 2  # sittings more than were wanted, where something else disturbed some


@dataclass
class Entrant:
    """A prepared case on its way through the sittings of its cell."""

    case: Case
    row: Row
    samples: dict[str, Any]
    turn: Turn
    left_s: float  # of its budget
    until_timeout_s: float
    rounds: list[list[float]] = field(default_factory=list)
    process: list[int] = field(default_factory=list)
    waited: list[int] = field(default_factory=list)
    spent: bool = False

    @property
    def medians(self) -> list[float]:
        """One value a round."""
        return [middle(passes) for passes in self.rounds]

    def take(self, samples: list[float], waited: int, process: int) -> None:
        self.rounds.append(samples)
        self.process.append(process)
        self.waited.append(waited)
        self._pay(sum(samples) / 1e3 * self.turn.pace.calls + len(samples) * self.turn.pace.reset_s)

    def _pay(self, seconds: float) -> None:
        self.left_s -= seconds
        self.until_timeout_s -= seconds

    def sit_down(self, per_sitting: int) -> int:
        """How many rounds of the next sitting it can afford; its warm-up is paid for if that is any."""
        count = min(per_sitting, self.turn.affordable(self.left_s))
        if not self.rounds:
            count = max(count, 1)  # a case whose single call fits the budget gets a number
        if count:
            self._pay(self.turn.pace.warm_up_s)
        self.spent = count < per_sitting
        return count


class Sittings:
    """The sittings of a cell, each in a process of its own, until the intervals are narrow or a limit is reached."""

    def __init__(self, cell: Cell, entrants: dict[str, Entrant], conditions: Conditions) -> None:
        self.cell, self.entrants, self.conditions = cell, entrants, conditions
        self.records: dict[str, Record] = {}
        self.seed = zlib.crc32(repr(cell).encode())
        self.per_sitting = math.ceil(cell.effort.rounds / cell.effort.processes)
        self.least = math.ceil(cell.effort.rounds / self.per_sitting)
        self.most = max(self.least, cell.effort.max_rounds // self.per_sitting)
        self.disturbed: dict[int, str] = {}
        self.seen: list[dict[str, Any]] = []
        self.reason = "rounds"

    def run(self) -> dict[str, Record]:
        number = 0
        while self.entrants and number < self.most:
            joining = {k: n for k, e in self.entrants.items() if not e.spent and (n := e.sit_down(self.per_sitting))}
            if not joining or (number >= self.least and self._baseline and self._baseline.case.key not in joining):
                self.reason = "budget"  # nobody's speedup would get better
                break
            self._sit(joining, number)
            number += 1
            wanted = self.least + min(EXTRA, len(self.disturbed))
            if number >= wanted and self._narrow():
                self.reason = "half_width"
                break
        self._refuse_impossible()
        return self.records | {key: self._record(entrant) for key, entrant in self.entrants.items()}

    @property
    def _baseline(self) -> Entrant | None:
        return next((e for e in self.entrants.values() if e.case.is_baseline), None)

    def _sit(self, joining: dict[str, int], number: int) -> None:
        """One sitting; when it kills its worker, the culprit is named and the others sit again."""
        while joining:
            try:
                self._take(list(self._carry_out(joining, number)), list(joining), number)
                return
            except Died as death:
                key = self._culprit(joining, death, number)
                self.records[key] = end_dead(self.entrants.pop(key).case, death, self.conditions)
                del joining[key]

    def _carry_out(self, joining: dict[str, int], number: int) -> Any:
        members = [self.entrants[key] for key in joining]
        s = self.conditions
        job = Sit(
            cell=self.cell,
            cases=tuple(e.case for e in members),
            turns=tuple(e.turn for e in members),
            rounds=tuple(joining.values()),
            seed=self.seed + number,
            timeout_s=tuple(e.until_timeout_s for e in members),
            memory_bytes=_together(s.memory_bytes, len(members), s.available_bytes),
            energy=number == 0,
            choices=s.choices,
        )
        return s.engine.carry_out(job)

    def _culprit(self, joining: dict[str, int], death: Died, number: int) -> str:
        """Whose fault it was that a worker died: each alone in a worker, the one that was running first."""
        keys = list(joining)
        suspect = keys[max(death.case, 0)]
        if death.status == "timeout" or len(keys) == 1:
            return suspect
        for key in (suspect, *(k for k in keys if k != suspect)):
            try:
                list(self._carry_out({key: 1}, number))
            except Died:
                return key
        return suspect

    def _take(self, told: list[Any], keys: list[str], number: int) -> None:
        for message in told:
            if isinstance(message, Ended):
                self.seen.append(message.seen)
                if message.disturbed:
                    self.disturbed[number] = message.disturbed
                for place, breaks in message.graph_breaks.items():
                    if (entrant := self.entrants.get(keys[place])) and self.cell.place.compiled:
                        entrant.row.graph_breaks = breaks
                for place, joules in message.energy_j.items():
                    if entrant := self.entrants.get(keys[place]):
                        entrant.row.energy_j = joules
            else:
                self._take_round(message, keys, number)

    def _take_round(self, message: Sat, keys: list[str], number: int) -> None:
        for place, (status, reason) in message.failed.items():
            entrant = self.entrants.pop(keys[place])
            row = entrant.case.row()
            if status == "invalid":
                reason = f"round {len(entrant.rounds) + 1}: {reason}"
            self.records[keys[place]] = Record(replace(row, status=status, reason=reason))
        for place, samples in message.samples.items():
            if keys[place] in self.entrants:
                self.entrants[keys[place]].take(samples, message.waited.get(place, 0), number)

    def _narrow(self) -> bool:
        """Whether every interval that can still get narrower is as narrow as wanted."""
        base = self._baseline
        going = [e for e in self.entrants.values() if not e.spent and (e is not base or len(self.entrants) == 1)]
        widths = [_speedup(base, e) if base and e is not base else typical(e.medians, e.process) for e in going]
        return all(width.half_width <= self.cell.effort.half_width for width in widths)

    def _refuse_impossible(self) -> None:
        """End what was faster than the machine can be, even at the slow end of its interval; before anything is paired
        with it."""
        for key, entrant in list(self.entrants.items()):
            row, place = entrant.row, self.cell.place
            slowest_ms = typical(entrant.medians, entrant.process).high or max(entrant.medians)
            reason = explain_impossible(row.flops, row.bytes_moved, slowest_ms / 1e3, place, self.conditions)
            if reason:
                self.records[key] = Record(replace(entrant.case.row(), status="invalid", reason=reason))
                del self.entrants[key]

    def _record(self, entrant: Entrant) -> Record:
        row, base = entrant.row, self._baseline
        _finish(entrant, base, self.conditions)
        limited = entrant.spent or entrant.turn.passes < PASSES
        row.stop_reason = "budget" if limited else self.reason
        flagged = [bool(w) or p in self.disturbed for w, p in zip(entrant.waited, entrant.process, strict=True)]
        row.rounds, row.processes, row.contaminated = len(flagged), len(set(entrant.process)), sum(flagged)
        row.cache, row.cuda_graph = self.cell.place.cache, self.cell.place.cuda_graph
        entrant.samples |= {
            "latency_ms": entrant.rounds,
            "process": entrant.process,
            "calls": entrant.turn.pace.calls,
            "order_seed": self.seed,
            "input_seed": self.seed,
            "waited": entrant.waited,
            "disturbed": {str(process): why for process, why in self.disturbed.items()},
            "seen": self.seen,
        }
        return Record(row, entrant.samples)


def _together(each: int | None, count: int, available: int | None) -> int | None:
    if each is None:
        return available
    return each * count if available is None else min(each * count, available)


def _speedup(base: Entrant, other: Entrant) -> Estimate:
    """Over the rounds that both took part in: the first ones, because a budget ends and does not begin again."""
    return paired_ratio(base.medians, other.medians, other.process)


def _finish(entrant: Entrant, baseline: Entrant | None, conditions: Conditions) -> None:
    row, cell, medians = entrant.row, entrant.case.cell, entrant.medians
    latency, about = middle(medians), typical(medians, entrant.process)
    row.latency_ms = latency
    row.latency_ms_low = about.low and min(about.low, latency)
    row.latency_ms_high = about.high and max(about.high, latency)
    seconds = latency / 1e3
    row.tokens_per_s = (cell.place.batch if row.mode == "decode" else sum(entrant.case.row_lengths)) / seconds
    row.tflops_per_s = None if row.flops is None else row.flops / seconds / 1e12
    ceiling = conditions.ceilings.get((cell.place.device, cell.place.dtype, cell.place.threads))
    if ceiling is not None and row.bytes_moved is not None:
        cold = cell.place.cache == "cold"
        row.read_from = ceiling.find_holder(row.bytes_moved, cold=cold)
        row.bandwidth_share = ceiling.read_seconds(row.bytes_moved, cold=cold) / seconds
        if row.flops is not None:
            row.roofline_share = share(row.flops, row.bytes_moved, seconds, ceiling, cold=cold)
    if baseline is not None:
        row.speedup, row.speedup_low, row.speedup_high = _speedup(baseline, entrant)
