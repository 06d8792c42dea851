"""Ray clusters (Moritz et al. 2018, arXiv:1712.05889): an actor is the program in a place, and reserves its device.

Ray runs code that anyone sends who can reach its ports, so clusters belong in trusted networks.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError
from .cluster import NodeLost, Slot

RESOURCE = "efficient_attn"  # that nodes offer for measurements on their processor
ANSWER_S = 10.0  # in which an address has to answer
DEFAULT_PORT = 6379
STORE_BYTES = 100 * 2**20  # of shared memory for objects, of a cluster that is started here
START = f"ray start --address HEAD:{DEFAULT_PORT} --resources '{{\"{RESOURCE}\": 1}}'"


@dataclass
class RayRemote:
    """An actor."""

    actor: Any

    def call(self, method: str, *arguments: Any, seconds: float) -> Any:
        """See `Remote.call`."""
        import ray

        with _translate_errors(seconds):
            return ray.get(getattr(self.actor, method).remote(*arguments), timeout=seconds)

    def stream(self, method: str, *arguments: Any, pause_s: float) -> Iterator[Any]:
        """See `Remote.stream`."""
        import ray

        with _translate_errors(pause_s):
            references = getattr(self.actor, method).options(num_returns="streaming").remote(*arguments)
            while True:
                ready, _ = ray.wait([references], timeout=pause_s)
                if not ready:
                    yield None
                    continue
                try:
                    reference = next(references)
                except StopIteration:
                    return
                yield ray.get(reference)

    def stop(self) -> None:
        """See `Remote.stop`."""
        import ray

        with suppress(Exception):  # it has ended, or there is no cluster any more
            ray.kill(self.actor)


@contextmanager
def _translate_errors(seconds: float) -> Iterator[None]:
    """Raise what the program raised, and `NodeLost` for everything else."""
    from ray import exceptions

    try:
        yield
    except exceptions.RayTaskError as error:
        raise error.cause from None
    except exceptions.GetTimeoutError:
        raise NodeLost(f"no answer for {seconds:g} s") from None
    except (exceptions.ActorDiedError, exceptions.ActorUnavailableError) as error:
        raise NodeLost(f"its process has ended, or cannot be reached ({type(error).__name__})") from None
    except exceptions.RayError as error:
        sentence = " ".join(str(error).split()).partition(". ")[0]
        raise NodeLost(f"{type(error).__name__}: {sentence[:200]}") from None


@dataclass
class RayCluster:
    """A Ray cluster to which this process is connected."""

    def list_slots(self, devices: Sequence[str]) -> list[Slot]:
        """One place on each node that offers `RESOURCE`, for the processor, and one for each GPU."""
        import ray

        slots: list[Slot] = []
        for node in ray.nodes():
            if not node["Alive"]:
                continue
            resources, identity = node["Resources"], node["NodeID"]
            name = f"{node['NodeManagerHostname']}-{identity[:6]}"
            if "cpu" in devices and resources.get(RESOURCE, 0) >= 1:
                slots.append(Slot(identity, name, "cpu"))
            if "cuda" in devices:
                slots += [Slot(identity, name, "cuda", number) for number in range(int(resources.get("GPU", 0)))]
        return sorted(slots, key=lambda slot: (slot.name, slot.device, slot.number))

    def start(self, slot: Slot, program: str) -> RayRemote:
        """See `Cluster.start`."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        module, _, name = program.partition(":")
        resources: dict[str, Any] = {"num_gpus": 1} if slot.device == "cuda" else {"resources": {RESOURCE: 1}}
        with _translate_errors(ANSWER_S):
            actor_class = ray.remote(getattr(importlib.import_module(module), name)).options(
                num_cpus=0,
                max_concurrency=2,  # so that it answers while it measures
                scheduling_strategy=NodeAffinitySchedulingStrategy(slot.node, soft=False),
                **resources,
            )
            return RayRemote(actor_class.remote())

    def close(self) -> None:
        """See `Cluster.close`."""
        import ray

        ray.shutdown()


def connect(address: str | None) -> RayCluster:
    """Connect to a cluster (``HOST:PORT``, or ``auto`` for the one of this machine), or start one here, which only this
    machine can reach and which ends with this process. Raises `UsageError` without Ray, or where none answers."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # of a cluster that is started here
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the future default, of which Ray warns
    try:
        import ray
    except ImportError:
        raise UsageError('--engine ray: needs Ray: python -m pip install "efficient-attn[ray]"') from None
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        options |= {"address": "local", "num_cpus": 0, "resources": {RESOURCE: 1}, "include_dashboard": False}
        options |= {"_node_ip_address": "127.0.0.1", "object_store_memory": STORE_BYTES}
    else:
        options["address"] = _check_address(address)
    try:
        with _keep_signal_handlers():
            ray.init(**options)
    except Exception as error:  # of many types, some of them RuntimeError and SystemExit's relatives
        text = " ".join(str(error).split())[:300]
        remedy = "" if address is None else "; a cluster with a token needs RAY_AUTH_MODE=token (docs/clusters.md)"
        raise UsageError(f"--address {address or 'local'}: cannot be connected: {text}{remedy}") from error
    return RayCluster()


def _check_address(address: str) -> str:
    """Raise `UsageError` for an address where nothing answers, for which Ray would wait for minutes."""
    if address == "auto":
        return address
    host, colon, port = address.rpartition(":")
    host, port = (host, port) if colon else (address, str(DEFAULT_PORT))
    if not host or "/" in host or not port.isdigit():
        raise UsageError(f"--address {address}: not HOST:PORT, nor auto")
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_S).close()
    except (OSError, OverflowError) as error:
        reason = f"{error}" if isinstance(error, OverflowError) else error.strerror or "no answer"
        raise UsageError(f"--address {address}: {reason}; start a cluster there: ray start --head") from error
    return f"{host}:{port}"


@contextmanager
def _keep_signal_handlers() -> Iterator[None]:
    """Keep our handlers of signals, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
