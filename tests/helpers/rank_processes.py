"""Processes that form a process group on the loopback interface, started once and used for many calls."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from efficient_attn.engines.local import LocalEngine

WORLDS = (1, 2, 4)  # the first ranks that form groups
START_S, CALL_S = 120, 60


class RankProcesses:
    """Four processes; a call runs on the first 1, 2 or 4 of them, as a group of their own."""

    def __init__(self) -> None:
        # the engine's server, which other tests of this process use: one of our own would import the checkout's package
        LocalEngine(preload=("efficient_attn.layers",)).start()
        context = get_context("forkserver")
        self._folder = tempfile.TemporaryDirectory()
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(max(WORLDS)):
            pipe, child_pipe = context.Pipe()
            store = str(Path(self._folder.name) / "store")
            process = context.Process(target=_serve, args=(child_pipe, rank, store), daemon=True)
            process.start()
            self._pipes.append(pipe)
            self._processes.append(process)
        for pipe in self._pipes:
            assert pipe.poll(START_S), "a rank did not start"
            assert pipe.recv() == "ready"

    def run(self, function: Callable[..., Any], *arguments: Any, world: int) -> list[Any]:
        """``function(group, *arguments)`` on each rank; the results by rank. An exception of a rank is returned as its
        text. function: of a module that the processes can import."""
        for pipe in self._pipes[:world]:
            pipe.send((function, arguments, world))
        results = []
        for rank, pipe in enumerate(self._pipes[:world]):
            assert pipe.poll(CALL_S), f"rank {rank} waits for another one"
            results.append(pipe.recv())
        return results

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(10)
        self._folder.cleanup()


def _serve(pipe: Connection, rank: int, store: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    timeout = timedelta(seconds=CALL_S)
    size = max(WORLDS)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timeout)
    groups = {world: dist.new_group(list(range(world))) for world in WORLDS}
    pipe.send("ready")
    while (message := pipe.recv()) is not None:
        function, arguments, world = message
        try:
            result = function(groups[world], *arguments)
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        pipe.send(result)
    dist.destroy_process_group()
