"""Capture queries, keys and values of a trained model's layers, as inputs of attention, for ``--activations FILE``.

    python -m efficient_attn.integrations.capture --model smollm2 --layers 5,20 --seq-len 2048 --out smollm2.npz

They are captured after rotary positions, with the model's key-value heads, and scaled for scores q.k / sqrt(width).
Segments are those of the suite ``swap``. The file (.npz or .safetensors) has float16 arrays q ``[layers, heads, length,
width]``, k and v ``[layers, kv_heads, length, width]``, the layers' numbers, and a sentence about its origin.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UsageError
from .bundled import LoadedModel, load
from .observers import listen
from .segments import cut_segment
from .texts import Text
from .transformers import register


def capture(loaded_model: LoadedModel, tokens: Tensor, layers: Sequence[int]) -> dict[str, np.ndarray]:
    """q, k and v of these layers in float16, from a pass of the unmodified model over the tokens ``[1, N]``.

    Raises `UsageError` for a layer that the model does not have, and for values beyond float16.
    """
    count = loaded_model.sizes.layers
    if missing_layers := [layer for layer in layers if not 0 <= layer < count]:
        raise UsageError(f"--layers {missing_layers[0]}: {loaded_model.sizes.label} has layers 0 to {count - 1}")
    captured: dict[int, tuple[Tensor, ...]] = {}

    def store(layer: int, *tensors: Tensor) -> None:
        if layer in layers:
            captured[layer] = tuple(x[0].half() for x in tensors)

    loaded_model.model.set_attn_implementation(register("full"))
    options: dict[str, Any] = {"use_cache": False} if loaded_model.sizes.kind == "decoder" else {}
    base_model = loaded_model.model.base_model  # without the head: logits of 8,192 tokens would take 1.6 GB
    with torch.inference_mode(), listen(store):
        base_model(tokens, **options)
    arrays = {name: torch.stack([captured[layer][i] for layer in layers]).numpy() for i, name in enumerate("qkv")}
    if not all(np.isfinite(x).all() for x in arrays.values()):
        raise UsageError(f"{loaded_model.sizes.label}: inputs of attention are too large for float16")
    return arrays | {"layers": np.array(layers, dtype=np.int64)}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: capture q, k and v of a model, and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--layers", default="5,20", help="comma-separated numbers from 0")
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--text", default="sotu")
    parser.add_argument("--segment", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="a .npz or .safetensors file")
    options = parser.parse_args(arguments)
    try:
        layers = [int(x) for x in options.layers.split(",")]
        if options.out.suffix not in (".npz", ".safetensors"):
            raise UsageError(f"--out {options.out}: activations are a .npz or .safetensors file")
        if not options.out.parent.is_dir():  # checked before the model reads the text
            raise UsageError(f"--out {options.out}: no such folder")
        loaded_model, text = load(options.model), Text.find(options.text)
        arrays = capture(loaded_model, cut_segment(loaded_model, text, options.seq_len, options.segment), layers)
    except (UsageError, ValueError) as error:
        print(f"capture: {error}", file=sys.stderr)
        return 2
    source = f"{loaded_model.sizes.label}, segment {options.segment} of {text.label}, {options.seq_len} tokens"
    if options.out.suffix == ".npz":
        np.savez_compressed(options.out, source=np.array(source), **arrays)  # pyright: ignore[reportArgumentType]
    else:
        from safetensors.numpy import save_file

        save_file(arrays, options.out, metadata={"source": source})
    print(f"{options.out}: {', '.join(f'{name} {list(x.shape)}' for name, x in arrays.items())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
