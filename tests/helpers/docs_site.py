"""The documentation site, which all workers of a test session build once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import ROOT as ROOT
from made_once import make_once

SECONDS = 400


def build(factory: pytest.TempPathFactory) -> Path:
    """The folder of the site. Warnings are errors; the output of a failed build is in the error."""
    return make_once(factory, "docs_site", _build)


def _build(folder: Path) -> Path:
    site = folder / "site"
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site))
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return site
