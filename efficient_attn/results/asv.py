"""Export runs to airspeed velocity (asv): files of its results folder, one for each commit, machine and suite."""

import itertools
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .exchange import list_round_values, list_timed, read_run, record_stem
from .file_marks import MARK
from .rows import Record
from .stats import estimate_geometric_mean, median
from .store import read_sessions

BENCHMARKS_FILE = "benchmarks.json"
MACHINE_FIELDS = {"os": "os", "cpu": "cpu", "ram": "memory_bytes", "num_cpu": "cores"}  # by asv's names


def to_asv(run: Path, folder: Path) -> dict[Path, Any]:
    """The files of a results folder, with their contents. Benchmarks that it already lists are kept.

    Raises `UsageError` if the run's commit is unknown, or is not what was measured.
    """
    session = (read_sessions(run) or [{}])[-1]
    commit, environment = _find_commit(run, session), session["environment"]
    suite, name = session["suite"]["name"], environment["machine"].replace("#", "-")  # it is part of addresses
    machine = {"machine": name, "arch": ""} | {key: str(environment.get(x)) for key, x in MACHINE_FIELDS.items()}
    columns, described = {}, {}
    for benchmark, cases in _group_cases(list_timed(read_run(run))).items():
        values = [dict.fromkeys(column) for column in zip(*cases, strict=True)]
        rows = [_summarise(cases.get(combination)) for combination in itertools.product(*values)]
        parameters = [list(map(repr, column)) for column in values]  # Python literals, as in asv
        columns[benchmark] = [parameters, "1", *map(list, zip(*rows, strict=True))]
        described[benchmark] = {
            **{"name": benchmark, "type": "time", "unit": "seconds", "version": "1", "code": f"# {MARK}"},
            **{"params": parameters, "param_names": ["variant", "sizes", "settings"]},
        }
    results = {
        **{"version": 2, "note": MARK, "commit_hash": commit["revision"], "date": 1000 * commit["committed"]},
        **{"env_name": suite, "env_vars": {}, "requirements": {}, "durations": {}},
        "python": environment["python"],
        "params": machine | {"python": environment["python"]},
        "result_columns": ["params", "version", "result", "stats_ci_99_a", "stats_ci_99_b", "samples"],
        "results": columns,
    }
    return {
        folder / BENCHMARKS_FILE: _read_benchmarks(folder / BENCHMARKS_FILE) | described | {"version": 2},
        folder / name / "machine.json": {"version": 1, "note": MARK, **machine},
        folder / name / f"{commit['revision'][:8]}-{suite}.json": results,
    }


def _find_commit(run: Path, session: Mapping[str, Any]) -> Mapping[str, Any]:
    commit = session.get("repository")
    if not commit:
        raise UsageError(f"{run}: asv needs the commit, and none was recorded; measure in a folder of a git repository")
    if commit["changed"]:
        raise UsageError(
            f"{run}: measured with uncommitted changes, which asv cannot show; commit them, and measure again"
        )
    return commit


def _group_cases(records: Sequence[Record]) -> Mapping[str, Mapping[tuple[str, ...], Record]]:
    """The cases of each benchmark, which are those of one suite, part and mode, by their parameters."""
    benchmarks = defaultdict[str, dict[tuple[str, ...], Record]](dict)
    for record in records:
        variant = record.row.variant
        prefix, _, suffix = record_stem(record).rpartition(f"/{variant}/")
        benchmarks[prefix.replace("/", ".")][variant, *suffix.split("/", 1)] = record
    return benchmarks


def _summarise(record: Record | None) -> tuple[Any, ...]:
    """The median in seconds with its 99% interval, and all rounds; nulls for a combination without a case."""
    if record is None:
        return None, None, None, None
    seconds = [ms / 1e3 for ms in list_round_values(record)]
    interval = estimate_geometric_mean(seconds, record.samples.get("process"), confidence=0.99)
    return median(seconds), interval.low, interval.high, seconds


def _read_benchmarks(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise UsageError(f"{file}: not asv's list of benchmarks: {error}; name another folder") from error
