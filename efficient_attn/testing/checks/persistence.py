"""Pickled, saved and copied mechanisms and decode states give the same results as the originals."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from ...contract.mask import Mask
from ...errors import describe_exception
from ...instruments.search_path import make_search_path
from ...registry import load_plugin, plugins
from ..check import check
from ..subject import Subject
from ..tensor_comparison import assert_close, describe

T = TypeVar("T")
PROCESS_LIMIT_S = 300.0  # of another process, which imports torch
LENGTH, STEPS = 70, 3  # positions of a call, and those that another process decodes


def _pickle(x: T) -> T:
    return pickle.loads(pickle.dumps(x))


def _save(x: T) -> T:
    buffer = io.BytesIO()
    torch.save(x, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


METHODS: dict[str, Callable] = {"pickle": _pickle, "torch.save": _save, "copy.deepcopy": copy.deepcopy}


def _copy(x: T, label: str) -> list[tuple[str, T]]:
    """A copy by every method, each with a label."""
    copies = []
    for method, copied in METHODS.items():
        try:
            copies.append((f"{label}, {method}", copied(x)))
        except Exception as error:
            raise AssertionError(f"{label}, {method}: {type(error).__name__}: {error}") from error
        assert copies[-1][1] is not x, f"{label}, {method}: it is the original itself; remove __deepcopy__"
    return copies


@check()
def pickles(subject: Subject) -> None:
    """A mechanism that is pickled, saved or copied, before and after calls, gives the same bits and attributes."""
    attn, drawn = subject.prepare(70)
    for time in ("before calls", "after calls"):
        copies = _copy(attn, f"the mechanism {time}")
        for call in map(drawn.under, subject.plain_masks):
            want = call.run(attn)
            for label, copied in copies:
                subject.assert_alike(call.run(copied), want, f"{label}, {describe(call.mask)}")
        for label, copied in copies:
            for name in ("label", "backend", "dims", "seed", "traits", "dropout", "training"):
                assert getattr(copied, name) == getattr(attn, name), f"{label}: its {name} changed"
        if subject.traits.gradient:
            drawn.leaves().run(attn)


@check(needs="decode")
@torch.no_grad()
def states_pickle(subject: Subject) -> None:
    """A decode state that is pickled, saved or copied continues with the same bits.

    Runs without gradients, because torch cannot copy tensors with a graph, such as keys that parameters project.
    """
    attn, call = subject.prepare(12, mask=Mask(causal=True))
    state = attn.init_state(2, 12, subject.dtype, subject.device)
    *_, (_, _, state) = call.steps(attn, state, (1,) * 9)
    copies = _copy(state, "a state after 9 positions")
    want = [out for _, out, _ in call.steps(attn, state, (1,) * 3, 9)]
    for label, copied in copies:
        for (at, got, _), expected in zip(call.steps(attn, copied, (1,) * 3, 9), want, strict=True):
            subject.assert_alike(got, expected, f"{label}, position {at.start}")


def _no_other_process(subject: Subject) -> str | None:
    if not subject.thorough:
        return "only if thorough, because another process imports torch"
    if not isinstance(subject.source, str) or type(subject.attn).__module__ == "__main__":
        return "another process cannot import its class"
    return None


@check(skip_reason=_no_other_process)
@torch.no_grad()
def another_process(subject: Subject) -> None:
    """If thorough: a pickled mechanism gives the same results in another process, and continues a decode state."""
    attn, drawn = subject.prepare(LENGTH)
    calls, state = [drawn.under(mask) for mask in subject.plain_masks], None
    labels = [describe(call.mask) for call in calls]
    calls[0].run(attn)
    if subject.traits.decode:
        state = attn.init_state(2, LENGTH, subject.dtype, subject.device)
        *_, (_, _, state) = drawn.steps(attn, state, (1,) * (LENGTH - STEPS))
        labels.append("steps of a state")
    sent = pickle.dumps((attn, calls, state))
    for label, got, want in zip(labels, _send_to_process(sent), _run_pickled(sent), strict=True):
        assert_close(got, want, f"in another process, {label}")


def _send_to_process(sent: bytes) -> list[Tensor]:
    """What `answer` computes in a new process."""
    command = [sys.executable, "-c", f"from {__name__} import answer; answer()"]
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("sent", "received", "error")]
        files[0].write_bytes(sent)
        environment = os.environ | make_search_path()
        arguments = [*command, str(torch.get_num_threads()), *map(str, files), *plugins()]
        done = subprocess.run(
            arguments, capture_output=True, text=True, check=False, env=environment, timeout=PROCESS_LIMIT_S
        )
        status = f"it ended with status {done.returncode}"
        error = (done.stderr.strip().splitlines() or [status])[-1] if done.returncode else files[2].read_text()
        assert not error, f"in another process: {error}"
        return pickle.loads(files[1].read_bytes())


def answer() -> None:
    """Run what another process has pickled. Arguments of the process: threads, the file to read, the files to write
    outputs and the description of an error to, and the plug-ins to load."""
    threads, sent, received, failure, *targets = sys.argv[1:]
    torch.set_num_threads(int(threads))
    error = ""
    try:
        for target in targets:
            load_plugin(target)
        outputs = _run_pickled(Path(sent).read_bytes())
        Path(received).write_bytes(pickle.dumps(outputs))
    except Exception as exception:
        error = describe_exception(exception)
    Path(failure).write_text(error)


@torch.no_grad()
def _run_pickled(sent: bytes) -> list[Tensor]:
    attn, calls, state = pickle.loads(sent)
    outputs = [call.run(attn) for call in calls]
    if state is None:
        return outputs
    steps = calls[0].steps(attn, state, (1,) * STEPS, LENGTH - STEPS)
    return [*outputs, torch.cat([out for _, out, _ in steps], 2)]
