"""The command line: it parses arguments, calls the library and prints; it has no logic of its own.

Exit codes: 0 success; 1 a case or check failed, a regression was found, or the machine is not ready; 2 invalid usage; 3
with ``--fail-if-blind``, if a case is blind; 130 interrupted; 143 terminated.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from ..errors import UnsupportedError, UsageError, describe_exception, describe_text, is_out_of_memory
from .flags import check_flags
from .parser import make_parser
from .stopping import report_stop
from .verbs import load_guarded_plugin

# silences torch's profiler and allocator on stderr; set before torch is imported
LOG_LEVELS = {"KINETO_LOG_LEVEL": "99", "TORCH_CPP_LOG_LEVEL": "ERROR"}
PACKAGE = Path(__file__).parents[1]
DEBUG = "EFFICIENT_ATTN_DEBUG"  # variable: errors that are not expected show their traceback
UNEXPECTED = "an error that should not occur"
MAX_SHOWN_PATH = 200  # characters


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    for name, level in LOG_LEVELS.items():
        os.environ.setdefault(name, level)
    if not _open_standard_streams():
        _print_error("standard output is closed; nothing was done")
        return 1
    try:
        code = _run_command(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()  # flushed here, where a closed pipe can still be distinguished from other errors
        return code
    except (UsageError, UnsupportedError) as error:
        _print_error(describe_text(error))
        return 2
    except KeyboardInterrupt as stop:
        return report_stop(stop)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        _discard(sys.stdout)
        return 0
    except OSError as error:
        if is_out_of_memory(error):
            return _report_memory(error)
        if error.filename is not None:  # not the output
            _print_error(f"{str(error.filename)[:MAX_SHOWN_PATH]}: {error.strerror or error}")
            return 2
        _print_error(f"the output cannot be written: {error.strerror or error}")
        _discard(sys.stdout)
        return 1
    except Exception as error:
        if is_out_of_memory(error):
            return _report_memory(error)
        if os.environ.get(DEBUG):
            raise
        advice = f"please report it, with the command; {DEBUG}=1 shows where it happened"
        _print_error(f"{UNEXPECTED}: {describe_exception(error)}; {advice}")
        return 1


def _report_memory(error: Exception) -> int:
    _print_error(f"not enough memory: {describe_text(error)[:MAX_SHOWN_PATH] or 'for this command'}")
    return 1


def _run_command(arguments: list[str]) -> int:
    parser = make_parser()
    check_flags(parser, arguments)
    args, rest = parser.parse_known_args(arguments)
    if rest:
        raise UsageError(f"{args.verb}: unexpected argument {rest[0]!r}")
    from ..registry import load_plugin

    load = load_guarded_plugin if args.verb == "run" else load_plugin
    with _one_line_warnings():
        args.arguments = arguments
        args.registered = {plugin: load(plugin) for plugin in getattr(args, "plugin", ())}
        return args.call(args)


def _open_standard_streams() -> bool:
    """Give closed standard streams a descriptor, which otherwise a file of results would get; False without output."""
    has_output = sys.stdout is not None
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number
    sys.stdin, sys.stdout, sys.stderr = (
        sys.stdin or os.fdopen(0),
        sys.stdout or os.fdopen(1, "w"),
        sys.stderr or os.fdopen(2, "w"),
    )
    return has_output


def _discard(stream: TextIO) -> None:
    """Send what is still buffered nowhere, so that the end of the process does not fail as well."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _print_error(text: str) -> None:
    """Print one line on stderr, if that can be written."""
    try:
        print(f"efficient-attn: {' '.join(text.split())}", file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Print our own warnings as plain sentences, without the line of code that raised them."""
    default_showwarning = warnings.showwarning

    def show(message: Any, category: type[Warning], filename: str, *rest: Any, **more: Any) -> None:
        from_package = category.__module__.startswith("efficient_attn.") or Path(filename).is_relative_to(PACKAGE)
        if from_package and issubclass(category, UserWarning):
            print(f"efficient-attn: {' '.join(str(message).split())}", file=sys.stderr)
        else:
            default_showwarning(message, category, filename, *rest, **more)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
