"""The verb ``claims``: verdicts on published claims from the rows of runs."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from ..errors import UsageError
from .output import print_json
from .runs import choose_runs


def claims(args: Namespace) -> int:
    """``efficient-attn claims``: test published claims against measured rows."""
    from ..report.claims import ledger

    if args.check:
        if args.run or args.claims:
            raise UsageError("claims: --check only reads claim files; leave out RUN and --claims")
        return _check_files(args)
    if not args.run:
        raise UsageError("claims: needs at least one run's folder, or --check FILE")
    entries = ledger.load_ledger([Path(file) for file in args.claims])  # reports errors before runs are read
    runs = choose_runs("claims", args.run)
    from ..report.claims import claims_text, evidence, verdicts

    rows = evidence.read_evidence(runs)
    columns = [*_list_task_columns(), *rows.task_columns]
    for entry in entries:
        ledger.check_task_columns(entry.claim, columns, entry.file)
    verdicts_of_claims = verdicts.evaluate_claims(entries, rows)
    if args.json:
        return print_json(claims_text.as_json(verdicts_of_claims))
    from . import console

    for title, table_rows in claims_text.list_tables(verdicts_of_claims):
        console.print_table(title, claims_text.COLUMNS, table_rows)
    print(*claims_text.summarise(verdicts_of_claims), sep="\n")
    return 0


def _check_files(args: Namespace) -> int:
    """Print the correct hash of each claim, and fail if one is wrong."""
    from ..report.claims.ledger import check_task_columns, list_wrong_hashes, read_source

    sources, columns = {file: read_source(Path(file)) for file in args.check}, _list_task_columns()
    for file, source in sources.items():
        for claim in source.claim:
            check_task_columns(claim, columns, file)
    if args.json:
        print_json({file: {claim.id: claim.expected_hash for claim in s.claim} for file, s in sources.items()})
    else:
        for file, source in sources.items():
            wrong = list_wrong_hashes(source)
            print(f"{file}: {len(source.claim)} claims, {len(wrong) or 'none'} with a wrong hash")
            for claim in wrong:
                print(f'{claim.id}: hash = "{claim.expected_hash}"')
    return 2 if any(list_wrong_hashes(source) for source in sources.values()) else 0


def _list_task_columns() -> list[str]:
    """The columns that tasks add, as frames name them, and those computed from them."""
    from ..bench.task_registry import find_task, list_tasks
    from ..report.claims.row_query import PERPLEXITY_COLUMN
    from ..tasks import TABLE

    tasks = {name: find_task(target) for name, target in list_tasks(TABLE).items()}
    columns = {c if "." in c else f"{name}.{c}" for name, task in tasks.items() for c in task.columns}
    return sorted({*columns, PERPLEXITY_COLUMN})
