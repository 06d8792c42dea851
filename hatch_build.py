"""Adds the C++ kernels, compiled for each class of processors, to wheels; without a compiler they have none."""

import os
import runpy
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = "efficient_attn/kernels/native"


class NativeLibraries(BuildHookInterface):
    """Builds libraries in a temporary folder, and tags the wheel with its platform; any Python can load them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless the package is installed to be edited: a changed source is then built when it is used."""
        if version == "editable":
            return
        compiler = runpy.run_path(str(Path(self.root, NATIVE, "compiler.py")))
        self._folder = tempfile.TemporaryDirectory(prefix="efficient-attn-")
        compile_library = partial(compiler["compile_library"], folder=Path(self._folder.name))
        tasks = product(compiler["LIBRARIES"], compiler["list_classes"]())
        try:
            with ThreadPoolExecutor(os.cpu_count()) as executor:
                built = list(executor.map(lambda task: compile_library(*task), tasks))
        except compiler["CompilerError"] as error:
            self.app.display_warning(f"no C++ kernels in this wheel: {error}")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data |= {"pure_python": False, "tag": f"py3-none-{platform}"}
        build_data["force_include"] |= {str(file): f"{NATIVE}/built/{file.name}" for file in built}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder."""
        if version != "editable":
            self._folder.cleanup()
