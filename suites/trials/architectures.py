"""Write docs/models.md: which architectures of transformers work with mechanisms, by tiny random models.

    python suites/trials/architectures.py [NAME...] [--mechanism full] [--without compile]

Each model is compared with its own eager attention (largest difference of logits below 2e-6 times their largest, of
gradients below 2e-5 of their norm, equal tokens): in the manner of transformers' own tests of SDPA, which its packages
leave out. With names, their table is printed and no file is written. The exit code is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from architecture_configs import ARCHITECTURES, DECODERS, ENCODERS, TRANSLATORS, VOCABULARY
from torch import Tensor

import efficient_attn as ea
from efficient_attn.errors import UnsupportedError, UsageError
from efficient_attn.integrations.state_cache import StateCache

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
COMMAND = "python suites/trials/architectures.py"
MAX_ERROR, MAX_GRADIENT_ERROR = 2e-6, 2e-5  # relative to the largest logit, and to the norm of a gradient
LENGTH, PADDING, NEW_TOKENS = 24, 7, 12

REFUSALS = (UsageError, UnsupportedError)
WORKS, REFUSES, WRONG, ABSENT = "works", "refuses", "WRONG", "\u2013"
TEXT = """# Architectures

Which architectures of transformers {transformers} work with mechanisms: tiny random models with `{mechanism}` in every
layer, compared with their own eager attention on the CPU in float32, torch {torch}. Logits differ by less than 2e-6 of
the largest, gradients by less than 2e-5 of their norm, and tokens are equal. `{command}` writes this page.

{table}

| Column | Compared |
|---|---|
| exact | logits of a batch, also in training mode |
| gradient | of every parameter |
| padded | logits of a padded batch, on the left and on the right |
| cache | 12 tokens of greedy generation with transformers' own cache, prompts padded on the left |
| states | the same with a `StateCache`, without padding |
| beam | beam search with 3 beams |
| static | greedy generation with a static cache |
| compile | logits of `torch.compile(model, fullgraph=True)` |

'works' is equal, 'refuses' is one line that says why (below), and 'WRONG' is anything else, of which there must be
none. '{absent}': the model does not generate, or has no padding.

{reasons}
"""


def make_model(name: str) -> Any:
    """A tiny random model in evaluation mode, without dropout."""
    torch.manual_seed(0)
    config = tf.AutoConfig.for_model(name, **ARCHITECTURES[name])
    for field in vars(config):
        if field.endswith(("dropout", "pdrop", "dropout_rate", "dropout_prob", "drop_path_rate", "dropout_p")):
            setattr(config, field, 0.0)
    factory = tf.AutoModelForCausalLM if name in DECODERS else tf.AutoModel
    model = (tf.AutoModelForSeq2SeqLM if name in TRANSLATORS else factory).from_config(config)
    for parameter in model.parameters():  # biases, sinks and tables are zeros in new models
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()


def make_ids(length: int = LENGTH) -> Tensor:
    """Random tokens ``[2, length]``."""
    return torch.randint(3, VOCABULARY, (2, length), generator=torch.Generator().manual_seed(1))


def make_inputs(model: Any, padded: str = "") -> dict[str, Tensor]:
    """Tokens or images; padded: ``left`` or ``right``, of the second row."""
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))}
    inputs = {"input_ids": make_ids()}
    if padded:
        valid = torch.ones(2, LENGTH, dtype=torch.int64)
        valid[1, : PADDING if padded == "left" else 0] = 0
        valid[1, LENGTH - PADDING if padded == "right" else LENGTH :] = 0
        inputs["attention_mask"] = valid
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = make_ids(11)
    return inputs


def read(model: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """The model's first output, without rows of padding."""
    out = model(**inputs)[0]
    valid = inputs.get("attention_mask")
    return out if valid is None or model.config.is_encoder_decoder else out[valid.bool()]


class Difference(AssertionError):
    """A result that is not the model's own."""


def require_equal(found: Tensor, want: Tensor) -> None:
    """Raise `Difference` for logits that differ by more than rounding."""
    error = float((found - want).abs().max() / want.abs().max())
    if not error <= MAX_ERROR:
        raise Difference(f"logits differ by {error:.1e}")


def check_exact(model: Any, swapped: Callable[[], Any]) -> None:
    inputs = make_inputs(model)
    for mode in (False, True):
        model.train(mode)
        with torch.no_grad():
            want = read(model, inputs)
            with swapped():
                require_equal(read(model, inputs), want)
    model.eval()


def check_padded(model: Any, swapped: Callable[[], Any]) -> None:
    for padded in ("left", "right"):
        inputs = make_inputs(model, padded)
        with torch.no_grad():
            want = read(model, inputs)
            with swapped():
                require_equal(read(model, inputs), want)


def check_gradient(model: Any, swapped: Callable[[], Any]) -> None:
    def differentiate() -> dict[str, Tensor]:
        model.zero_grad()
        read(model, make_inputs(model)).square().mean().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    want = differentiate()
    with swapped():
        found = differentiate()
    if found.keys() != want.keys():
        raise Difference(f"other parameters have gradients: {sorted(found.keys() ^ want.keys())[0]}")
    total = torch.stack([grad.norm() for grad in want.values()]).norm()
    for name, grad in want.items():
        if not (found[name] - grad).norm() <= MAX_GRADIENT_ERROR * grad.norm() + 1e-7 * total:
            raise Difference(f"the gradient of {name} differs")


def check_cache(model: Any, swapped: Callable[[], Any]) -> None:
    _compare_tokens(model, swapped, attention_mask=make_inputs(model, "left")["attention_mask"])


def check_beam(model: Any, swapped: Callable[[], Any]) -> None:
    _compare_tokens(model, swapped, num_beams=3)


def check_static(model: Any, swapped: Callable[[], Any]) -> None:
    _compare_tokens(model, swapped, ours={"cache_implementation": "static", "disable_compile": True})


def check_states(model: Any, swapped: Callable[[], Any]) -> None:
    _compare_tokens(model, swapped, ours={"past_key_values": StateCache})


def _compare_tokens(
    model: Any, swapped: Callable[[], Any], ours: Mapping[str, Any] | None = None, **options: Any
) -> None:
    options |= {"max_new_tokens": NEW_TOKENS, "do_sample": False}
    want = model.generate(make_ids(), **options)
    with swapped():
        more = {name: x(model) if x is StateCache else x for name, x in (ours or {}).items()}
        found = model.generate(make_ids(), **options, **more)
    if not torch.equal(found, want):
        raise Difference("other tokens")


def check_compile(model: Any, swapped: Callable[[], Any]) -> None:
    inputs = make_inputs(model)
    with torch.no_grad():
        want = read(model, inputs)
        with swapped():
            torch._dynamo.reset()
            require_equal(torch.compile(model, fullgraph=True)(**inputs)[0], want)


CHECKS = {
    "exact": check_exact,
    "gradient": check_gradient,
    "padded": check_padded,
    "cache": check_cache,
    "states": check_states,
    "beam": check_beam,
    "static": check_static,
    "compile": check_compile,
}
OF_GENERATION = ("cache", "states", "beam", "static")


def applies(name: str, check: str) -> bool:
    """Whether a check is one for this architecture: encoders do not generate, and images have no padding."""
    if check in OF_GENERATION:
        return name not in ENCODERS
    return check != "padded" or make_model(name).main_input_name == "input_ids"


def try_check(name: str, check: str, mechanism: str) -> tuple[str, str]:
    """The outcome of a check, and for others than `WORKS` the reason."""
    model = make_model(name)
    model.set_attn_implementation("eager")
    try:
        CHECKS[check](model, lambda: ea.swap(model, mechanism))
    except REFUSALS as error:
        return REFUSES, " ".join(str(error).split())
    except Exception as error:  # anything else is the finding, whatever it is
        root: BaseException | None = error
        while root is not None and not isinstance(root, REFUSALS):
            root = root.__cause__ or root.__context__
        if root is not None:
            return REFUSES, " ".join(str(root).split())
        return WRONG, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return WORKS, ""


def run_architecture(name: str, checks: list[str], mechanism: str) -> Iterator[tuple[str, str]]:
    """Outcomes in the order of checks; without exact results nothing else is tried."""
    refusal: tuple[str, str] | None = None
    for check in checks:
        if not applies(name, check):
            yield ABSENT, ""
        elif refusal is not None:
            yield refusal[0], ""
        else:
            outcome = try_check(name, check, mechanism)
            refusal = outcome if check == "exact" and outcome[0] == REFUSES else None
            yield outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--mechanism", default="full")
    parser.add_argument("--without", action="append", choices=list(CHECKS), default=[])
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in ARCHITECTURES]:
        parser.error(f"unknown architecture {unknown[0]}; choose from {', '.join(ARCHITECTURES)}")
    tf.logging.set_verbosity_error()
    checks = [check for check in CHECKS if check not in arguments.without]
    lines = [f"| Architecture | {' | '.join(checks)} |", f"|---|{'---|' * len(checks)}"]
    reasons, has_wrong = [], False
    for name in arguments.names or ARCHITECTURES:
        outcomes = list(run_architecture(name, checks, arguments.mechanism))
        lines.append(f"| `{name}` | {' | '.join(outcome for outcome, _ in outcomes)} |")
        print(lines[-1], flush=True)
        for check, (outcome, reason) in zip(checks, outcomes, strict=True):
            has_wrong = has_wrong or outcome == WRONG
            if reason:
                reasons.append(f"- `{name}`, {check}: {reason}")
                print(f"  {reasons[-1]}", flush=True)
    if not arguments.names and not arguments.without:
        values = {"transformers": tf.__version__, "torch": torch.__version__.partition("+")[0], "command": COMMAND}
        values["absent"] = ABSENT
        table, listed = "\n".join(lines), "\n".join(dict.fromkeys(reasons))
        PAGE.write_text(TEXT.format(table=table, reasons=listed, mechanism=arguments.mechanism, **values))
    return int(has_wrong)


if __name__ == "__main__":
    sys.exit(main())
