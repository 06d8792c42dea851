"""Turns of two runs: what a run writes, and when it waits."""

from __future__ import annotations

import socket
import threading

import pytest

from efficient_attn.engines.turns import Turns
from efficient_attn.errors import UsageError


def test_a_run_alone_never_waits() -> None:
    turns = Turns()
    turns.wait()
    turns.start_group()
    turns.start_process_run()


def test_positions_are_written_before_each_step_and_count_within_a_group() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        turns = Turns(theirs.fileno())
        ours.sendall(b"\n" * 5)
        turns.wait()
        turns.start_group()
        turns.start_process_run()
        turns.start_process_run()
        turns.start_group()
        assert ours.recv(100) == b"-1 0\n0 0\n0 1\n0 2\n1 0\n"


def test_a_run_waits_until_it_is_answered() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        waiting = threading.Thread(target=Turns(theirs.fileno()).wait)
        waiting.start()
        assert ours.recv(100) == b"-1 0\n"
        assert waiting.is_alive()
        ours.sendall(b"\n")
        waiting.join(60)
        assert not waiting.is_alive()


def test_a_coordinator_that_ended_and_no_socket_are_reported() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        with pytest.raises(UsageError, match=r"--turns \d+: "):
            Turns(theirs.fileno()).wait()
    with pytest.raises(UsageError, match="--turns 4000: not an open socket: Bad file descriptor"):
        Turns(4000).wait()


def test_a_coordinator_that_ends_while_a_run_waits_is_reported() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(UsageError, match="the coordinator ended; continue without --turns by --resume"):
            Turns(theirs.fileno()).wait()
