"""Addresses that do not answer, Ray that is missing, and signals; runs on a cluster are tests of the command."""

from __future__ import annotations

import builtins
import signal
import socket
from typing import Any

import pytest

from efficient_attn.engines import ray as engine
from efficient_attn.errors import UsageError


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("127.0.0.1:1", "--address 127.0.0.1:1: Connection refused; start a cluster there: ray start --head"),
        ("ray://127.0.0.1:1", "--address ray://127.0.0.1:1: not HOST:PORT, nor auto"),
        ("127.0.0.1:x", "--address 127.0.0.1:x: not HOST:PORT, nor auto"),
        ("127.0.0.1:99999", "--address 127.0.0.1:99999: .+; start a cluster there"),
        ("", "--address : not HOST:PORT, nor auto"),
        ("no.such.host.invalid", "--address no.such.host.invalid: .+; start a cluster there"),
    ],
)
def test_addresses_where_nothing_answers(address: str, text: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(UsageError, match=text):
        engine.connect(address)


def test_a_host_that_never_answers_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr(engine, "ANSWER_S", 0.2)

    def connect(address: Any, timeout: float) -> Any:
        assert (address, timeout) == (("198.51.100.1", 6379), 0.2)
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(UsageError, match=r"--address 198\.51\.100\.1: no answer"):
        engine.connect("198.51.100.1")


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "ray":
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(UsageError, match=r'python -m pip install "efficient-attn\[ray\]"'):
        engine.connect(None)


def test_handlers_of_signals_are_kept() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with engine._keep_signal_handlers():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is before
