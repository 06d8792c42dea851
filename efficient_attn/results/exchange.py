"""Import and export runs: JSON of pytest-benchmark and github-action-benchmark."""

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .rows import COLUMNS, Record, Row
from .schema import parse_json
from .shards import is_shard, strip_digest
from .stats import median
from .store import read, read_sessions

UNMEASURED_STATUSES = ("skipped", "interrupted")  # of cases that did not run; their records are ignored
SAMPLES_OF_TIMES = frozenset({"process", "started", "summary", "calls"})
ROUND_VALUES = "round_ms"  # instead of latency_ms, which has every call
MACHINE_FIELDS = (
    "machine",
    "torch",
    "gpu_libraries",
    "threads_default",
)  # of the environment; equal in comparable runs


@dataclass(frozen=True, kw_only=True)
class ImportedRun:
    """Measured cases: a name, their records, the environments of the sessions that wrote them, and the last command."""

    name: str
    records: Sequence[Record]
    environments: Sequence[Mapping[str, Any]]
    command: Sequence[str] = ()


def read_run(path: Path) -> ImportedRun:
    """A run's folder (or its ``rows.jsonl``), or a pytest-benchmark JSON file, with the samples of times. Raises
    `UsageError` for neither."""
    if path.suffix == ".json":
        return from_pytest_benchmark(path)
    folder = path.parent if is_shard(path) else path
    sessions = read_sessions(folder)
    return ImportedRun(
        name=str(path),
        records=tuple(read(path, keep_samples=keep_times)),
        environments=[session.get("environment") or {} for session in sessions],
        command=sessions[-1].get("command") or () if sessions else (),
    )


def record_stem(record: Record) -> str:
    """A case's key without the digest of its sources: the same case has the same stem in two runs."""
    return strip_digest(record.row.case_key)


def name_group(record: Record) -> str:
    """The stem without the mechanism and its key-value heads, which all cases of a group share."""
    prefix, _, suffix = record_stem(record).rpartition(f"/{record.row.variant}/")
    return f"{prefix}/{re.sub(r'-kv[0-9]+(?=-d[0-9])', '', suffix, count=1)}"


def select_latest(records: Iterable[Record]) -> dict[str, Record]:
    """The latest record of every measured case, by stem."""
    return {record_stem(record): record for record in records if record.row.status not in UNMEASURED_STATUSES}


def keep_times(samples: Mapping[str, Any]) -> dict[str, Any]:
    """What `read_run` keeps of the samples of a record: those of times, reduced to one value for each round."""
    times = {name: samples[name] for name in SAMPLES_OF_TIMES.intersection(samples)}
    return times | {ROUND_VALUES: _list_medians(samples)} if "latency_ms" in samples else times


def list_round_values(record: Record) -> list[float]:
    """Milliseconds a call, one value for each round: the median of its samples. Empty without samples."""
    values = record.samples.get(ROUND_VALUES)
    return _list_medians(record.samples) if values is None else values


def _list_medians(samples: Mapping[str, Any]) -> list[float]:
    return [median(calls) for calls in samples.get("latency_ms") or () if calls]


# -- pytest-benchmark ----------------------------------------------------------------------------------------------


def from_pytest_benchmark(path: Path) -> ImportedRun:
    """The benchmarks of a pytest-benchmark JSON file.

    Rounds come from ``stats.data``, which exists after ``--benchmark-save-data``; without it the samples have
    ``summary``: mean and standard deviation in ms, and the number of rounds.
    """
    try:
        content = parse_json(path.read_bytes())
        records = [_import_benchmark(benchmark) for benchmark in content["benchmarks"]]
        info = content["machine_info"]
        cpu = info.get("cpu") or {}
        name = cpu.get("brand_raw") or info.get("machine") or "unknown"  # a CI runner's host name is meaningless
        identity = {"machine": f"{name} x{cpu.get('count', '?')}".replace(" ", "-")}
        environment = dict(info.get("efficient_attn") or identity)  # the first, if this package wrote the file
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: not pytest-benchmark's JSON: {type(error).__name__}: {error}") from error
    return ImportedRun(name=str(path), records=records, environments=[environment])


def _import_benchmark(benchmark: Mapping[str, Any]) -> Record:
    stats, extra = benchmark["stats"], benchmark.get("extra_info") or {}
    row_values = {name: value for name, value in extra.items() if name in COLUMNS} if "case_key" in extra else {}
    row_fields = {"case_key": benchmark["fullname"], "variant": benchmark["name"], "task": "speed"} | row_values
    row = Row(**row_fields | {"latency_ms": (stats["median"] or stats["mean"]) * 1e3})
    samples: dict[str, Any] = {"summary": [stats["mean"] * 1e3, stats["stddev"] * 1e3, stats["rounds"]]}
    times = stats.get("data") or []
    if times and min(times) > 0:  # a coarse clock may have measured zero
        samples["latency_ms"] = [[seconds * 1e3] for seconds in times]
        samples["process"] = extra.get("process")
    record = Record(row, samples)
    record.to_line()  # refuses values of other types
    return record


def to_pytest_benchmark(folder: Path) -> dict[str, Any]:
    """A run in pytest-benchmark's format: one benchmark for each timed case, grouped by benchmark group, with the
    rounds' values as data."""
    run = read_run(folder)
    session = (read_sessions(folder) or [{}])[-1]
    environment = session.get("environment") or {}
    git = environment.get("git") or {}
    return {
        "machine_info": {
            "machine": environment.get("machine"),
            "system": environment.get("os"),
            "python_version": environment.get("python"),
            "cpu": {"brand_raw": environment.get("cpu"), "count": environment.get("cores")},
            "efficient_attn": {name: environment.get(name) for name in MACHINE_FIELDS},
        },
        "commit_info": {"id": git.get("revision"), "dirty": git.get("changed"), "project": "efficient-attn"},
        "benchmarks": [_export_record(record) for record in list_timed(run)],
        "datetime": session.get("started"),
        "version": "5.0.0",  # the version of pytest-benchmark with this format
    }


def list_timed(run: ImportedRun) -> list[Record]:
    """The latest record of every case with rounds."""
    return [r for r in select_latest(run.records).values() if r.row.status == "ok" and list_round_values(r)]


def _export_record(record: Record) -> dict[str, Any]:
    row_fields = {name: value for name, value in asdict(record.row).items() if value not in (None, {})}
    return {
        "group": name_group(record),
        "name": record.row.variant,
        "fullname": record_stem(record),
        "params": None,
        "param": None,
        "extra_info": row_fields | {"process": record.samples.get("process")},
        "options": {},
        "stats": _compute_stats([ms / 1e3 for ms in list_round_values(record)], record.samples.get("calls") or 1),
    }


def _compute_stats(data: list[float], iterations: int) -> dict[str, Any]:
    """The statistics that pytest-benchmark stores for its rounds, in seconds."""
    mean, ordered = statistics.fmean(data), sorted(data)
    stddev = statistics.stdev(data) if len(data) > 1 else 0.0
    q1, q2, q3 = statistics.quantiles(data, method="inclusive") if len(data) > 1 else data * 3
    fence = q1 - 1.5 * (q3 - q1), q3 + 1.5 * (q3 - q1)
    inliers = [x for x in ordered if fence[0] <= x <= fence[1]]
    stddev_outliers = sum(abs(x - mean) > stddev for x in data)
    return {
        **{"min": ordered[0], "max": ordered[-1], "mean": mean, "stddev": stddev, "median": q2},
        **{"rounds": len(data), "iterations": iterations, "iqr": q3 - q1, "q1": q1, "q3": q3},
        **{"iqr_outliers": len(data) - len(inliers), "stddev_outliers": stddev_outliers},
        **{"outliers": f"{stddev_outliers};{len(data) - len(inliers)}", "ld15iqr": inliers[0], "hd15iqr": inliers[-1]},
        **{"ops": 1 / mean, "total": math.fsum(data), "data": data},
    }


# -- github-action-benchmark ---------------------------------------------------------------------------------------


def to_github_action(folder: Path) -> list[dict[str, Any]]:
    """A run in the format of github-action-benchmark's tool ``customSmallerIsBetter``: one time for each case."""
    return [_make_entry(record) for record in list_timed(read_run(folder))]


def _make_entry(record: Record) -> dict[str, Any]:
    row = record.row
    entry: dict[str, Any] = {"name": record_stem(record), "unit": "ms", "value": row.latency_ms}
    if row.latency_ms and row.latency_ms_low is not None and row.latency_ms_high is not None:
        entry["range"] = f"\u00b1 {(row.latency_ms_high - row.latency_ms_low) / 2 / row.latency_ms:.1%}"
    notes = [f"{row.speedup:.3g}x the baseline's speed" if row.speedup is not None else "", f"machine {row.machine}"]
    return entry | {"extra": "\n".join(filter(None, notes))}
