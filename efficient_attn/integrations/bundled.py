"""Load trained models with their tokenizers: bundled ones from installed packages, or from a folder. Nothing is
downloaded.

``smollm2`` is distributed quantized in one file, which takes a minute to read. It is converted once, into a cache
folder that is either complete or absent, with a checksum of each of its files.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import UnsupportedError, UsageError
from ..results.user_cache import user_folder
from .model_info import BUNDLED_MODELS, ModelSizes, check_folder, describe_model

CHECKSUMS_FILE = "checksums.json"
ATTENTION = "efficient_attn:full"


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model with its tokenizer."""

    sizes: ModelSizes
    model: Any
    tokenizer: Any


def load(name: str) -> LoadedModel:
    """A bundled model by its name, or one in a local folder, in evaluation mode and float32.

    Raises `UsageError` for a model that is not installed, a folder without weights or tokenizer, and a missing library.
    """
    if find_spec("transformers") is None:
        raise UsageError("models need transformers; run: pip install 'efficient-attn[transformers]'")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when the library is imported
    from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

    from . import transformers as _  # noqa: F401  (registers the mechanisms)

    folder = find_folder(name)
    sizes = describe_model(name)
    model_class = AutoModelForCausalLM if sizes.kind == "decoder" else AutoModel
    try:
        options = {"dtype": "float32", "attn_implementation": ATTENTION}
        with _silence_library():
            model = model_class.from_pretrained(folder, local_files_only=True, **options)
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except UnsupportedError as error:
        raise UsageError(f"--model {name}: {error}") from error
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"--model {name}: cannot be read from {folder}: {_format_error(error)}") from error
    return LoadedModel(sizes, model.eval().requires_grad_(False), tokenizer)


@contextmanager
def _silence_library() -> Iterator[None]:
    """Errors only and no progress bars of transformers, within this context."""
    from transformers import logging

    verbosity, shows_progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shows_progress:
            logging.enable_progress_bar()


def find_folder(name: str) -> Path:
    """The folder of a model: a bundled one by its name, which is converted if necessary, or an existing one."""
    if name not in BUNDLED_MODELS:
        return check_folder(name)
    source = BUNDLED_MODELS[name].find()
    return source if source.is_dir() else convert_gguf(source)


def find_cache_folder() -> Path:
    """The folder of converted models."""
    return user_folder() / "models"


def convert_gguf(source: Path) -> Path:
    """The folder of a converted GGUF file, created if there is no complete one."""
    folder = find_cache_folder() / f"{source.stem}-{_find_digest(source)[:12]}"
    if is_complete(folder):
        return folder
    shutil.rmtree(folder, ignore_errors=True)  # an incomplete one, from a full disk or an interruption
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        temporary.mkdir(parents=True)
        _write_converted(source, temporary)
        checksums = {path.name: _find_digest(path) for path in sorted(temporary.iterdir())}
        (temporary / CHECKSUMS_FILE).write_text(json.dumps(checksums, indent=1))
        try:
            temporary.rename(folder)
        except OSError:
            if not is_complete(folder):  # another process may have been first
                raise
    except OSError as error:
        problem = f"{source.name} cannot be converted into {folder.parent}: {_format_error(error)}"
        raise UsageError(f"{problem}; free some space (0.6 GB) or set XDG_CACHE_HOME") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def is_complete(folder: Path) -> bool:
    """Whether a converted model exists with all of its files unchanged."""
    try:
        checksums = json.loads((folder / CHECKSUMS_FILE).read_text())
        return bool(checksums) and all(_find_digest(folder / name) == digest for name, digest in checksums.items())
    except (OSError, ValueError, AttributeError):
        return False


def _write_converted(source: Path, folder: Path) -> None:
    """The weights in float32, with config and tokenizer."""
    missing = [name for name in ("gguf", "accelerate") if find_spec(name) is None]
    if missing:
        packages = " and ".join(missing)
        raise UsageError(f"{source.name} needs {packages}; run: pip install 'efficient-attn[transformers]'")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = {"gguf_file": source.name, "local_files_only": True}
    quantized = AutoModelForCausalLM.from_pretrained(source.parent, dtype="float32", **options)
    config = quantized.config
    delattr(config, "quantization_config")  # the weights are dequantized
    model = type(quantized)(config)  # a new one: transformers refuses to save a model that it read as quantized
    model.load_state_dict(quantized.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, **options).save_pretrained(folder)


@cache
def _hash_file(path: Path, size: int, modified_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _find_digest(path: Path) -> str:
    file_status = path.stat()
    return _hash_file(path, file_status.st_size, file_status.st_mtime_ns)


def _format_error(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
