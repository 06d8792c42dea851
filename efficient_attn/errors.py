"""The package's exceptions, the message for unknown names, and deprecated attributes."""

import difflib
import errno
import os
import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LIBRARIES = (str(Path(__file__).parent), os.path.dirname(os.__file__), "<")  # this package, Python's, and frozen code

# parts of the messages of torch, and of the loader of libraries
OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate", "MemoryError", "failed to map segment")
OUT_OF_MEMORY += ("_STATUS_ALLOC_FAILED",)  # of cuBLAS and cuDNN, for what they allocate themselves


class UsageError(ValueError):
    """Invalid input: one line says what is wrong, where, and what to do. The command line exits with status 2."""


class UnsupportedError(RuntimeError):
    """A feature that a mechanism, backend or device does not support; the message has the reason."""


class NotInstalled(UsageError):
    """A missing library, model or file, without which a case is skipped; the message says how to install it."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether there was too little memory, also for loading a library, or for torch, which raises a `RuntimeError`."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    is_described = isinstance(error, RuntimeError | ImportError) and any(text in str(error) for text in OUT_OF_MEMORY)
    return is_described or isinstance(error, MemoryError)


UNCHANGED = "what it depends on was measured again, and its row stays"


class NotNeeded(Exception):
    """A case that gives no new information and is skipped; the message is the reason."""


class Unchanged(NotNeeded):
    """A finished case, which depended on rows that have been measured again, and would be the same. Its row stays."""

    def __init__(self) -> None:
        super().__init__(UNCHANGED)


def check_at_least_one(where: str, **values: int | None) -> None:
    """Raise `UsageError` for a value below 1. where: the beginning of the message."""
    for name, value in values.items():
        if value is not None and value < 1:
            raise UsageError(f"{where}: {name} must be at least 1, not {value}")


def make_unknown_error(kind: str, name: object, choices: Iterable[str], *, where: str = "") -> UsageError:
    """Return the error for an unknown name: it names the location, the nearest valid name and, if few, all of them."""
    valid_names = sorted(choices)
    closest = difflib.get_close_matches(str(name), valid_names, n=1, cutoff=0.5)
    hint = f"; did you mean {closest[0]!r}?" if closest else ""
    choices_text = ", ".join(repr(choice) if "," in choice else choice for choice in valid_names)
    listing = f" (choices: {choices_text or 'none'})" if len(valid_names) <= 12 or not closest else ""
    return UsageError(f"{where + ': ' if where else ''}unknown {kind} {str(name)!r}{hint}{listing}")


def describe_exception(error: BaseException) -> str:
    """``TypeError: message (my_attn.py, line 12)``: with the last line that belongs to no library, and the notes."""
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [f for f in frames if not f.filename.startswith(LIBRARIES) and "-packages" not in f.filename]
    details = getattr(error, "__notes__", [])[:1]
    if user_frames and not isinstance(error, SyntaxError):  # whose message has the line
        details = [*details, f"{Path(user_frames[-1].filename).name}, line {user_frames[-1].lineno}"]
    message = f"{type(error).__name__}: {describe_text(error)}".rstrip()
    return message + (f" ({'; '.join(details)})" if details else "")


def describe_text(error: BaseException) -> str:
    """The text of an exception, whose own code may fail."""
    try:
        return str(error)
    except Exception as other:
        return f"without a text ({type(other).__name__} in its __str__)"


def make_deprecated_alias(old: str, new: str) -> Any:
    """Return a property that reads attribute ``new`` under its name of version 0.1, with a `DeprecationWarning`."""

    def get(self: Any) -> Any:
        owner = type(self).__name__
        warnings.warn(f"{owner}.{old} is now {new}; version 0.3 removes {old}", DeprecationWarning, 2)
        return getattr(self, new)

    return property(get)
