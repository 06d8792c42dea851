"""The files that come with the package: suites and captured data."""

from __future__ import annotations

from pathlib import Path


def suites_folder() -> Path:
    """Where the built-in suites are: inside the installed package, or at the top of a checkout."""
    package = Path(__file__).parent
    installed = package / "suites"
    return installed if installed.is_dir() else package.parent / "suites"


def suite_names() -> list[str]:
    """The names of the built-in suites."""
    return sorted(p.stem for p in suites_folder().glob("*.toml"))
