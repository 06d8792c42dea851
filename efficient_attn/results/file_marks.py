"""Which files may be overwritten: only those that this package wrote, and never a run's rows."""

import re
import stat
import tempfile
from pathlib import Path

from ..errors import UsageError
from . import durable
from .shards import list_shards
from .store import is_run_file_name

MARK = "Made by efficient-attn"  # in every file that may be replaced

# how files without the mark are recognized
KNOWN_FORMATS = (
    re.compile(rb"run_id,suite,case_key,variant,"),  # rows.csv
    re.compile(rb"factor,value,other_factor,"),  # the coverage of conformance tests
    re.compile(rb'\{.*"project": "efficient-attn"', re.DOTALL),  # an export for pytest-benchmark
    re.compile(rb'\[\s*\{\s*"name": "[^"]*",\s*"unit": "ms",\s*"value": '),  # one for github-action-benchmark
)


def add_mark(text: str, form: str) -> str:
    """A text, a Markdown or XML text, or a JSON object with the mark at its end."""
    if form == "json":
        return text.rstrip().removesuffix("}").rstrip() + f',\n  "note": "{MARK}"\n}}\n'
    return f"{text}\n<!-- {MARK} -->\n" if form in ("markdown", "xml") else f"{text}\n{MARK}\n"


def is_marked(path: Path) -> bool:
    """Whether a file contains the mark."""
    return MARK.encode() in path.read_bytes()


def is_generated(path: Path) -> bool:
    """Whether this package wrote a file, by its mark or its format."""
    return is_marked(path) or any(form.match(path.read_bytes()) for form in KNOWN_FORMATS)


def check_writable(path: Path) -> None:
    """Raise `UsageError` unless the file does not exist or was written by this package."""
    if is_run_file_name(path) and list_shards(path.parent):
        raise UsageError(f"{path}: one of a run's own files, which are never overwritten; name another file")
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(kind):
        kind_name = "a link" if stat.S_ISLNK(kind) else "a folder" if stat.S_ISDIR(kind) else "not a plain file"
        raise UsageError(f"{path}: cannot be written: {kind_name}; name another file")
    if not is_generated(path):
        raise UsageError(f"{path}: exists, and was not written by efficient-attn; move it away, or name another file")


def check_creatable(path: Path) -> None:
    """Raise `UsageError` unless `check_writable` allows the file, and its folder, or the nearest one that exists, can
    hold new files."""
    try:
        check_writable(path)
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error


def check_folder(path: Path) -> None:
    """Raise `UsageError` for a link, through which files would be written to another folder."""
    if path.is_symlink():
        raise UsageError(f"{path}: a link; nothing is written through links; move it away, or choose another folder")


def write_derived(path: Path, data: bytes) -> None:
    """Write a file that can be generated again, if `check_writable` allows it. Raises `UsageError` otherwise."""
    try:
        check_writable(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.replace(path, data, sync=False)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error
