"""The completion script of a shell, which shtab writes from the parser."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ..errors import UsageError
from ..resources import list_suite_names
from ..variants import CATALOGUE

NAMES = {"SUITE": "suites", "NAME": "mechanisms", "NAME-or-FILE": "mechanisms"}  # of positional arguments
FUNCTIONS = {  # that complete names and files; tcsh completes files only
    "bash": '_efficient_attn_{}() {{ compgen -W "{}" -- "$1"; compgen -f -- "$1"; }}',
    "zsh": "_efficient_attn_{}() {{ compadd {}; _files; }}",
}


class PrintCompletion(argparse.Action):
    """Print the script by which a shell completes verbs, options, mechanisms, suites and files."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, shell: Any, option: Any = None) -> None:
        """Print it and exit. Raises `UsageError` without shtab."""
        try:
            import shtab
        except ImportError:
            raise UsageError("--print-completion needs shtab: python -m pip install shtab") from None
        paths = dict.fromkeys(("DIR", "RUN"), shtab.DIRECTORY) | dict.fromkeys(("FILE", "BASE", "NEW"), shtab.FILE)
        for action in (action for verb in parser.verbs.values() for action in verb._actions):  # type: ignore[attr-defined]
            if action.metavar in NAMES and not action.option_strings:
                action.complete = dict.fromkeys(FUNCTIONS, f"_efficient_attn_{NAMES[action.metavar]}") | {"tcsh": "f"}
            elif action.metavar in paths:
                action.complete = paths[action.metavar]
        names = {"suites": " ".join(list_suite_names()), "mechanisms": " ".join(entry.name for entry in CATALOGUE)}
        preamble: Any = {shell: "\n".join(map(it.format, names, names.values())) for shell, it in FUNCTIONS.items()}
        print(shtab.complete(parser, shell=shell, preamble=preamble))
        sys.exit(0)
