"""Names of machines of runs that are older than machine identities."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from compare_runs import record

from efficient_attn.errors import UsageError
from efficient_attn.results.compare import compare
from efficient_attn.results.exchange import read_run
from efficient_attn.results.machines import find_machine_names, rename_machine
from efficient_attn.results.shards import DamagedRecord
from efficient_attn.results.store import RUN_FILE, RunWriter, read, read_sessions

OLD = "AMD-EPYC-x2-24GiB"


def _session(run_id: str = "r", l1d: int = 49152, **known: Any) -> dict[str, Any]:
    topology = {"sockets": 1, "physical_cores": 2, "cache_bytes": {"L1d": l1d, "L3": 2**25}}
    environment = {
        **{"machine": OLD, "cpu": "AMD EPYC", "cores": 2, "memory_bytes": 25276518400, "gpus": []},
        **{"topology": topology, "cpu_capability": "AVX512", "torch": "2.13.0", "threads_default": 2},
        **{"load_average": [0.1, 0.2, 0.3], "virtualisation": {"hypervisor": True}},
    }
    return {"run_id": run_id, "environment": environment | known}


def _name(session: dict[str, Any]) -> str:
    return rename_machine(session)["environment"]["machine"]


def test_the_design_follows_from_the_cache_where_only_one_has_it() -> None:
    assert _name(_session()).partition("#")[0] == "AMD-Zen5-2c-24GiB"
    assert _name(_session(l1d=32768)).partition("#")[0] == "AMD-Zen4-2c-24GiB"


@pytest.mark.parametrize(
    "known", [{"cpu": "Intel Xeon"}, {"cpu_capability": "AVX2"}, {"memory_bytes": None}, {"gpus": ["A"]}]
)
def test_insufficient_facts_give_no_name(known: dict[str, Any]) -> None:
    assert _name(_session(**known)).partition("#")[0] == OLD


def test_the_digest_is_of_the_machine_alone() -> None:
    assert _name(_session()) == _name(_session("other", load_average=[9.0, 9.0, 9.0], torch="2.14"))
    intel = {"cpu": "Intel"}
    assert _name(_session(**intel)) != _name(_session(l1d=32768, **intel))


@pytest.mark.parametrize(
    "session",
    [
        {"run_id": "r"},
        {"run_id": "r", "environment": None},
        {"run_id": "r", "environment": {"machine": OLD, "cpu": "AMD EPYC"}},
        {"run_id": "r", "environment": {"machine": OLD, "topology": "flat"}},
        _session(identity={"name": "x"}),
        _session(machine=None),
    ],
)
def test_sessions_with_insufficient_or_complete_facts_are_unchanged(session: dict[str, Any]) -> None:
    before = copy.deepcopy(session)
    assert rename_machine(session) == session == before
    assert find_machine_names([session]) == {}


def test_a_damaged_topology_is_ignored() -> None:
    assert _name(_session(topology={"cache_bytes": 3}, gpus=7, memory_bytes="many")).startswith(f"{OLD}#")


def _write(folder: Path, l1d: int) -> Path:
    with RunWriter(folder) as writer:
        writer.write_session(_session(l1d=l1d))
        for length in (256, 512):
            writer.write(record("full", length, [10.0, 10.1, 10.2], machine=OLD))
    return folder


def test_old_rows_are_read_with_names_and_kept_unchanged(tmp_path: Path) -> None:
    folder = _write(tmp_path / "a", 49152)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    (machine,) = {found.row.machine for found in read(folder)}
    assert machine == read_sessions(folder)[0]["environment"]["machine"] == _name(_session())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    with RunWriter(folder, resume=True) as writer:
        writer.write_session({"run_id": "next"})
    assert f'"{OLD}"' in (folder / RUN_FILE).read_text()


def test_a_row_of_an_unknown_session_keeps_its_name(tmp_path: Path) -> None:
    folder = _write(tmp_path / "a", 49152)
    with RunWriter(folder, resume=True) as writer:
        writer.write(record("linear", 256, [1.0], machine=OLD, run_id="another"))
    assert [found.row.machine for found in read(folder)][-1] == OLD


def test_rows_are_read_despite_a_damaged_run_json(tmp_path: Path) -> None:
    folder = _write(tmp_path / "a", 49152)
    (folder / RUN_FILE).write_text('{"sessions": [3]}')
    with pytest.warns(DamagedRecord, match="machines keep the names in their rows"):
        assert {found.row.machine for found in read(folder)} == {OLD}


def test_a_comparison_of_two_designs_is_refused(tmp_path: Path) -> None:
    zen5, zen4 = (read_run(_write(tmp_path / name, l1d)) for name, l1d in (("a", 49152), ("b", 32768)))
    with pytest.raises(UsageError, match=r"different machines: machine AMD-Zen5-2c-24GiB#.* AMD-Zen4-2c-24GiB#"):
        compare(zen5, zen4)
