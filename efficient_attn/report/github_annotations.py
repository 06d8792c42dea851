"""Format a comparison for GitHub Actions: annotations of a workflow run, and the summary of a job."""

import re
from collections.abc import Sequence
from pathlib import Path

from ..errors import UsageError
from ..results.compare import Change, Comparison
from .case_names import find_mechanism
from .comparison_text import as_markdown, describe_fully, format_unmatched, name_cases, sort_changes

MAX_SUMMARY_BYTES = 2**20  # of a step's summary; GitHub discards a larger one
CUT_OFF = "\n\nThe rest does not fit into a summary.\n"
MAX_ANNOTATIONS = 10  # of one level, which GitHub shows for a step


def list_annotations(comparison: Comparison, command: Sequence[str]) -> list[str]:
    """An error for each case that is slower or broken, and a warning for each in which a slowdown of the tolerance may
    be hidden, the worst first. Only as many are listed as GitHub shows, the last one with the number of the others.

    command: that measured NEW; its files are annotated.
    """
    changes = sort_changes(comparison.changes)
    short, _ = name_cases(comparison)
    least = 1 / (1 + comparison.tolerance)
    hidden = [c for c in changes if c.kind == "inconclusive" and (c.blind or c.low is None or c.low < least)]
    regressions = [c for c in changes if c.kind in ("slower", "broken")]
    lines = []
    for level, title, listed in (("error", "Regression", regressions), ("warning", "Inconclusive", hidden)):
        visible = listed if len(listed) <= MAX_ANNOTATIONS else listed[: MAX_ANNOTATIONS - 1]
        for change in visible:
            properties = _locate(change, command) | {"title": title}
            lines.append(_format_annotation(level, f"{short[change.name]}: {describe_fully(change)}", properties))
        if rest := len(listed) - len(visible):
            lines.append(_format_annotation(level, f"{rest} more in the summary", {"title": title}))
    unmatched = format_unmatched(comparison)
    return lines + ([_format_annotation("notice", unmatched, {"title": "Not compared"})] if unmatched else [])


def _locate(change: Change, command: Sequence[str]) -> dict[str, str]:
    """The file and line of a command's plug-in or suite that names the case's mechanism, else the suite's first."""
    arguments = [argument.rpartition("=")[2] for argument in command]
    files = {suffix: [x for x in arguments if x.endswith(suffix) and Path(x).is_file()] for suffix in (".py", ".toml")}
    for file in files[".py"] + files[".toml"]:
        if line := _find_line(Path(file).read_text(encoding="utf-8", errors="replace").splitlines(), change.name):
            return {"file": file, "line": str(line)}
    return {"file": files[".toml"][0], "line": "1"} if files[".toml"] else {}


def _find_line(lines: Sequence[str], name: str) -> int | None:
    """The number of the line with the mechanism of a case in quotes, if possible after the name of the case's part."""
    part, mechanism = find_mechanism(name)
    start = next((i for i, line in enumerate(lines) if f'"{part}"' in line), 0)
    pattern = re.compile(rf"""(?<!family=)["']{re.escape(mechanism)}["':]""")
    return next((i + 1 for i in [*range(start, len(lines)), *range(start)] if pattern.search(lines[i])), None)


def _format_annotation(level: str, message: str, properties: dict[str, str]) -> str:
    """A workflow command, in which no text can end a property, the message or the line."""
    pairs = (f"{name}={_escape(text).replace(':', '%3A').replace(',', '%2C')}" for name, text in properties.items())
    return f"::{level} {','.join(pairs)}::{_escape(message)}"


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def append_summary(comparison: Comparison, file: Path) -> None:
    """Append the comparison to a job's summary, as far as it fits. Raises `UsageError` if that is not possible."""
    data = as_markdown(comparison).encode()
    try:
        room = MAX_SUMMARY_BYTES - (file.stat().st_size if file.exists() else 0)
        if len(data) > room:
            data = data[: room - len(CUT_OFF)].rpartition(b"\n")[0] + CUT_OFF.encode() if room > len(CUT_OFF) else b""
        with file.open("ab") as summary:
            summary.write(data)
    except OSError as error:
        raise UsageError(f"compare: GITHUB_STEP_SUMMARY={file}: cannot be written: {error.strerror}") from error
