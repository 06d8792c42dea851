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
from typing import Any

from ..errors import UnsupportedError, UsageError
from .flags import check_flags
from .parser import make_parser
from .verbs import load_guarded_plugin, report_stop

# silences torch's profiler and allocator on stderr; set before torch is imported
LOG_LEVELS = {"KINETO_LOG_LEVEL": "99", "TORCH_CPP_LOG_LEVEL": "ERROR"}
PACKAGE = Path(__file__).parents[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    for name, level in LOG_LEVELS.items():
        os.environ.setdefault(name, level)
    parser = make_parser()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        check_flags(parser, arguments)
        args, rest = parser.parse_known_args(arguments)
        if rest:
            raise UsageError(f"{args.verb}: unexpected argument {rest[0]!r}")
        from ..registry import load_plugin

        load = load_guarded_plugin if args.verb == "run" else load_plugin
        with _one_line_warnings():
            args.registered = {plugin: load(plugin) for plugin in getattr(args, "plugin", ())}
            code = args.call(args)
        sys.stdout.flush()  # flushed here, where a closed pipe can still be distinguished from other errors
        return code
    except (UsageError, UnsupportedError) as error:
        print(f"efficient-attn: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        return report_stop(stop)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


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
