"""Captured activations: the inputs of the model's attention, in a file that fidelity reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import numpy as np
import torch
from tiny_models import bert, llama, save_tiny

import efficient_attn as ea
from efficient_attn.integrations import capture
from efficient_attn.integrations.bundled import load
from efficient_attn.tasks.fidelity.activations import Activations

TEXT = "of the people, by the people, for the people"


@pytest.mark.parametrize("make", [llama, bert])
def test_attention_over_captured_inputs_equals_the_models(tmp_path: Path, make: Callable[..., Any]) -> None:
    loaded = load(str(save_tiny(tmp_path, make)))
    tokens = loaded.tokenizer(TEXT, return_tensors="pt").input_ids[:, :32]
    arrays = capture.capture(loaded, tokens, [1])
    own: list[torch.Tensor] = []
    inner = loaded.model
    after = inner.model.layers[1].self_attn.o_proj if make is llama else inner.encoder.layer[1].attention.output.dense
    hook = after.register_forward_pre_hook(lambda _, given: own.append(given[0]))
    with torch.inference_mode():
        loaded.model(tokens)
    hook.remove()
    q, k, v = (torch.from_numpy(arrays[name]).float() for name in "qkv")
    out = ea.create("full")(q, k, v, ea.Mask(causal=make is llama))
    torch.testing.assert_close(out[0].transpose(0, 1).flatten(1), own[0][0], rtol=0, atol=2e-3)


def test_the_head_is_not_computed(tmp_path: Path) -> None:
    loaded = load(str(save_tiny(tmp_path)))
    loaded.model.lm_head.register_forward_hook(lambda *given: pytest.fail("logits were worked out"))
    tokens = loaded.tokenizer(TEXT, return_tensors="pt").input_ids[:, :8]
    assert capture.capture(loaded, tokens, [0])["q"].shape[2] == tokens.shape[1]


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_fidelity_reads_the_file(tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]) -> None:
    save_tiny(tmp_path / "tiny")
    (tmp_path / "text.txt").write_text(TEXT)
    out = tmp_path / f"mine.{ending}"
    told = f"--model {tmp_path / 'tiny'} --text {tmp_path / 'text.txt'} --layers 1,0 --seq-len 20 --out {out}"
    assert capture.main(told.split()) == 0
    assert "q [2, 4, 20, 16]" in capsys.readouterr().out
    found = Activations.find(str(out))
    assert (found.q.shape, found.k.shape, found.sizes.layers) == ((2, 4, 20, 16), (2, 2, 20, 16), (1, 0))
    assert np.isfinite(found.v).all()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--layers 9", "layers 0 to 1"),
        ("--seq-len 900", "256 positions"),
        ("--out a.txt", ".npz or .safetensors"),
        ("--out gone/a.npz", "no such folder"),
    ],
)
def test_invalid_input_is_reported_in_one_line(
    tmp_path: Path, more: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tiny(tmp_path / "tiny")
    told = f"--model {tmp_path / 'tiny'} --layers 0 --seq-len 20 --out {tmp_path / 'a.npz'} {more}"
    capsys.readouterr()  # transformers shows a bar while the model is saved
    assert capture.main(told.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
