"""Names for machines of runs that are older than machine identities, from their ``run.json``.

A present name ends in a digest of the identity, ``AMD-Zen4-2c-24GiB#6b1f0c``. Before, it was the processor's model
name, which different designs shared.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

# AMD's designs with AVX-512, until identities were recorded, by the size of a core's first data cache
DESIGN_BY_L1D = {32 * 2**10: "Zen4", 48 * 2**10: "Zen5"}
TOPOLOGY_FIELDS = ("sockets", "physical_cores", "threads_per_core", "cache_bytes")


def rename_machine(session: dict[str, Any]) -> dict[str, Any]:
    """The session with an unambiguous ``machine`` in its environment; unchanged if it has one, or if the environment is
    not sufficient."""
    environment = _as_dict(session.get("environment"))
    topology, machine = _as_dict(environment.get("topology")), environment.get("machine")
    if "identity" in environment or not topology or not isinstance(machine, str):
        return session
    memory = environment.get("memory_bytes")
    facts = {
        **{name: environment.get(name) for name in ("cpu", "cores", "cpu_capability", "gpus")},
        **{name: topology.get(name) for name in TOPOLOGY_FIELDS},
        "memory_gib": round(memory / 2**30) if isinstance(memory, int) else None,
        "virtual": _as_dict(environment.get("virtualisation")).get("hypervisor"),
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:6]
    return {**session, "environment": {**environment, "machine": f"{_make_name(facts) or machine}#{digest}"}}


def find_machine_names(sessions: Iterable[dict[str, Any]]) -> dict[tuple[Any, Any], str]:
    """The names from `rename_machine`, by a session's run_id and the name in its rows."""
    pairs = [
        (s.get("run_id"), _as_dict(s.get("environment")), _as_dict(rename_machine(s).get("environment")))
        for s in sessions
    ]
    return {(run, old["machine"]): new["machine"] for run, old, new in pairs if old != new}


def _make_name(facts: Mapping[str, Any]) -> str | None:
    """``AMD-Zen5-2c-24GiB`` if the facts identify the design, else None."""
    cache = _as_dict(facts["cache_bytes"]).get("L1d")
    design = next((name for size, name in DESIGN_BY_L1D.items() if size == cache), None)
    is_zen = facts["cpu_capability"] == "AVX512" and str(facts["cpu"]).startswith("AMD") and facts["memory_gib"]
    if not (design and is_zen) or facts["gpus"]:
        return None
    return f"AMD-{design}-{facts['cores']}c-{facts['memory_gib']}GiB"


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
