"""Messages of workers: whole, in pieces, several at once, and bytes that are none."""

from __future__ import annotations

import os
import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import pytest

from efficient_attn.engines.job import ForeignBytes, ResultPipe

TOKEN = bytes(range(16))


@pytest.fixture
def ends() -> tuple[ResultPipe, Connection]:
    """The receiving end, and the other end of the pipe."""
    receiver, sender = Pipe(duplex=False)
    return ResultPipe(receiver, TOKEN), sender


def _pack(message: object) -> bytes:
    receiver, sender = Pipe(duplex=False)
    ResultPipe(sender, TOKEN).send(message)
    return os.read(receiver.fileno(), 2**16)


def test_messages_arrive_in_order(ends: tuple[ResultPipe, Connection]) -> None:
    results, sender = ends
    for message in ("first", {"rows": [1.5, None]}):
        ResultPipe(sender, TOKEN).send(message)
    assert [results.receive(1), results.receive(1)] == ["first", {"rows": [1.5, None]}]
    assert results.receive(0) is None
    sender.close()
    with pytest.raises(EOFError):
        results.receive(1)


def test_a_message_that_is_larger_than_a_pipe_arrives_whole(ends: tuple[ResultPipe, Connection]) -> None:
    results, sender = ends
    message = os.urandom(2**21)
    thread = threading.Thread(target=ResultPipe(sender, TOKEN).send, args=(message,))
    thread.start()
    received = None
    while received is None:
        received = results.receive(1)
    thread.join()
    assert received == message


@pytest.mark.parametrize("cut", [1, 15, 16, 20, 24, 30])
def test_the_rest_of_a_message_is_not_waited_for(ends: tuple[ResultPipe, Connection], cut: int) -> None:
    results, sender = ends
    data = _pack("a result of a case")
    os.write(sender.fileno(), data[:cut])
    assert results.receive(0) is None
    os.write(sender.fileno(), data[cut:])
    assert results.receive(0) == "a result of a case"


@pytest.mark.parametrize("junk", [b"x", bytes(4), (16).to_bytes(4, "big"), bytes(64), TOKEN[:8] + b"junk"])
def test_other_bytes_are_recognized_by_their_beginning(ends: tuple[ResultPipe, Connection], junk: bytes) -> None:
    results, sender = ends
    os.write(sender.fileno(), _pack("a result") + junk)
    assert results.receive(0) == "a result"
    with pytest.raises(ForeignBytes):
        results.receive(0)
