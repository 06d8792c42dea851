"""Compile the C++ sources of this folder: in the build of a wheel, and on a machine whose wheel has none.

Each source becomes a library for every class of processors, so that a wheel, or a cache in a shared folder, serves all
of them. Only Python's own library is used, because the build of a wheel has nothing else.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
LIBRARIES = ("decode", "scan", "sums", "tiles")
FLAGS = ("-std=c++20", "-O3", "-ffp-contract=fast", "-pthread", "-shared", "-fPIC")
X86 = {"AVX512": ("-march=x86-64-v4",), "AVX2": ("-march=x86-64-v3",), "DEFAULT": ()}
CLASSES = {"x86_64": X86, "amd64": X86}  # by machine: a class of processors has torch's name of its vector instructions
OTHER_CLASSES = {"DEFAULT": ()}
LIMIT_S = 120.0  # of one compilation, which takes about 5 s


class CompilerError(Exception):
    """No library could be built, with the reason in one line."""


def list_classes() -> dict[str, tuple[str, ...]]:
    """The classes of this machine's processors, the best first, with the compiler's flags."""
    return CLASSES.get(platform.machine().lower(), OTHER_CLASSES)


def library_name(name: str, processors: str) -> str:
    """The file name of a library, which is another one for other sources or flags."""
    classes = list_classes()
    processors = processors if processors in classes else "DEFAULT"
    flags = " ".join((*FLAGS, *classes[processors]))
    sources = (FOLDER / f"{name}.cpp", *sorted(FOLDER.glob("*.h")))
    text = b"".join(source.read_bytes() for source in sources) + flags.encode()
    machine = platform.machine().lower()
    return f"{name}-{machine}-{processors.lower()}-{hashlib.sha256(text).hexdigest()[:12]}.so"


def compile_library(name: str, processors: str, folder: Path) -> Path:
    """Compile ``name.cpp`` for a class of processors into a folder.

    The file is written under a name of its own and then renamed, so that no process loads an incomplete one. It ends
    with a digest of itself (see `is_intact`). Raises `CompilerError`.
    """
    command = shlex.split(os.environ.get("CXX") or "c++")
    if not command or shutil.which(command[0]) is None:
        raise CompilerError(f"there is no C++ compiler ({' '.join(command)})")
    flags = list_classes().get(processors, ())
    target = folder / library_name(name, processors)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder) as scratch:
            built_file = Path(scratch) / target.name
            _run([*command, *FLAGS, *flags, str(FOLDER / f"{name}.cpp"), "-o", str(built_file)], Path(scratch))
            content = built_file.read_bytes()
            built_file.write_bytes(content + hashlib.sha256(content).digest())
            built_file.chmod(0o755)  # whatever the umask: others may not write to it
            built_file.replace(target)
    except OSError as error:
        raise CompilerError(f"it cannot be stored in {folder}: {error.strerror or error}") from error
    return target


def is_intact(library: Path) -> bool:
    """Whether a library is as it was built: loading a truncated one would end the process."""
    content, size = library.read_bytes(), hashlib.sha256().digest_size
    return hashlib.sha256(content[:-size]).digest() == content[-size:]


def _run(command: list[str], scratch: Path) -> None:
    """Run the compiler, with the processes that it starts, within the time limit."""
    with (scratch / "output").open("w+b") as output:
        # a session of its own: its processes are stopped together
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait(LIMIT_S)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise CompilerError(f"the compiler did not finish in {LIMIT_S:g} s ({command[0]})") from error
            raise
        output.seek(0)
        lines = [line.strip() for line in output.read().decode(errors="replace").splitlines() if line.strip()]
    if status:
        reason = next((line for line in lines if "error" in line), lines[0] if lines else f"status {status}")
        raise CompilerError(f"{command[0]} failed: {reason}")
