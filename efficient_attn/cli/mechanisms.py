"""The verbs about mechanisms: list, info, check."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedError, UsageError
from ..results.file_marks import check_creatable
from ..results.sanitize import sanitize_line
from .output import print_json, write_file

if TYPE_CHECKING:
    from ..testing import Subject
    from .isolated_checks import CheckResults


def list_(args: Namespace) -> int:
    """``efficient-attn list``: print the catalogue."""
    from ..peers import PEERS
    from ..registry import catalogue
    from ..resources import describe_suite, list_model_shapes, list_suite_names

    entries, suites = catalogue(family=args.family), list_suite_names()
    if args.picture:
        from .pattern_pictures import render_gallery

        write_file(args.picture, render_gallery([e.name for e in entries], args.picture))
    picture_file = {"picture": str(args.picture)} if args.picture else {}
    if args.json:
        mechanisms = [
            {
                "name": e.name,
                "family": e.family,
                "sentence": e.sentence,
                "able": None if e.able is None else sorted(e.able),
            }
            for e in entries
        ]
        data = {"mechanisms": mechanisms, "suites": suites, "shapes": [asdict(shape) for shape in list_model_shapes()]}
        data |= {"peers": [peer._asdict() for peer in PEERS]}
        return print_json(data | picture_file)
    from . import console

    console.show_catalogue(entries, {name: describe_suite(name) for name in suites}, list_model_shapes(), PEERS)
    if args.picture:
        print(f"picture: {args.picture}")
    return 0


def info(args: Namespace) -> int:
    """``efficient-attn info``: describe a mechanism."""
    from ..registry import info
    from . import console

    mechanism = info(args.name)
    if args.picture:
        from .pattern_pictures import render_portrait

        write_file(args.picture, render_portrait(mechanism, args.picture))
    picture_file = {"picture": str(args.picture)} if args.picture else {}
    if args.json:
        return print_json(console.info_as_json(mechanism) | picture_file)
    console.show_info(mechanism)
    if args.picture:
        print(f"picture: {args.picture}")
    return 0


def check(args: Namespace) -> int:
    """``efficient-attn check``: run the conformance tests on a mechanism, or on those of a file."""
    from ..registry import load_plugin

    names = load_plugin(args.name) if args.name.endswith(".py") else [args.name]
    if not names:
        raise UsageError(f"check: {args.name} registers no mechanism; decorate its class with @ea.register(...)")
    if args.coverage:
        check_creatable(args.coverage)  # now, rather than after minutes
    import torch

    from ..testing import Subject
    from . import check_text

    settings: Any = {"device": args.device, "dtype": getattr(torch, args.dtype), "seed": args.seed}
    settings["thorough"] = args.thorough
    subjects = {name: Subject(name, backend=args.backend, **settings) for name in names}
    results = {name: _run_checks(subject, args, alone=len(names) == 1) for name, subject in subjects.items()}
    if args.json:
        print_json({name: [check_text.outcome_as_json(o) for o in r.outcomes] for name, r in results.items()})
    else:
        check_text.show_checks(results, args.seed, verbose=args.verbose)
    if args.coverage:
        sys.stdout.flush()  # outcomes come first, also where both outputs are one file
        for name, result in results.items():
            if result.coverage is None:
                print(f"efficient-attn: {sanitize_line(f'{name}: no coverage: {result.no_coverage}')}", file=sys.stderr)
        write_file(args.coverage, check_text.format_coverage({name: r.coverage or () for name, r in results.items()}))
    return 1 if any(o.status == "failed" for result in results.values() for o in result.outcomes) else 0


def _run_checks(subject: Subject, args: Namespace, *, alone: bool) -> CheckResults:
    """The results of a mechanism. One that cannot be created is an error if it is alone, otherwise a failure."""
    from ..instruments.environment import describe_absence
    from ..testing.check import make_failure
    from ..testing.conformance import declared_traits
    from .isolated_checks import CheckResults, run_isolated_checks

    if reason := describe_absence(args.device):
        raise UnsupportedError(f"check: {reason}; leave --device out to check on the CPU")
    try:
        return run_isolated_checks(subject, coverage=bool(args.coverage))
    except (UsageError, UnsupportedError) as error:
        if alone:
            raise
        return CheckResults([make_failure(declared_traits, error)], no_coverage="it cannot be created")
