"""How fast does a decoder generate after a long prompt, and how large are its states?

    python suites/trials/generation.py [--prompt 4096] [--steps 256] [--rounds 7] [SPEC...]

A `Decoder` of 4 layers, d_model 256, 4 heads, a vocabulary of 256 and rotary positions, float32, one thread: the prompt
is processed at once, then tokens are generated one by one. All specs are measured in every round. Ratios are relative
to the first spec and paired by round; intervals are of 95%. First, some tokens are compared with recomputation.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field

import torch
from interleaving import format_estimate
from torch import Tensor

import efficient_attn as ea
from efficient_attn.models.config import Config
from efficient_attn.models.generate import generate
from efficient_attn.models.stacks import Decoder
from efficient_attn.results.stats import estimate_geometric_mean, estimate_paired_ratio

SPECS = ["full", "gqa:kv_heads=1", "sliding_window:window=256", "linear"]
VOCAB, N_CHECKED = 256, 6


@dataclass
class TextGenerator:
    """A model, and the seconds of its prompts and steps, one value for each round."""

    model: Decoder
    prompts: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)  # of one token
    bytes: int = 0

    @torch.no_grad()
    def measure(self, prompt: Tensor, steps: int) -> None:
        start = time.perf_counter()
        logits, state = self.model.step(prompt, self.model.init_state(1, prompt.shape[1] + steps))
        prompt_end = time.perf_counter()
        for _ in range(steps):
            logits, state = self.model.step(logits[:, -1:].argmax(-1), state)
        self.steps.append((time.perf_counter() - prompt_end) / steps)
        self.prompts.append(prompt_end - start)
        self.bytes = ea.state_bytes(state)

    @torch.no_grad()
    def check(self, prompt: Tensor) -> str:
        """How many of the first tokens equal recomputed ones, and the smallest gap between the two largest logits."""
        expected, min_gap = prompt, float("inf")
        for _ in range(N_CHECKED):
            logits = self.model(expected)[:, -1]
            first, second = logits.topk(2).values[0].tolist()
            expected, min_gap = torch.cat([expected, logits.argmax(-1)[:, None]], 1), min(min_gap, first - second)
        actual = generate(self.model, prompt, N_CHECKED)
        assert isinstance(actual, Tensor)
        same = int((actual == expected[:, prompt.shape[1] :]).sum())
        return f"{same} of {N_CHECKED} tokens equal recomputed ones (two largest logits at least {min_gap:.1e} apart)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="*", default=SPECS)
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    prompt = torch.randint(VOCAB, (1, args.prompt), generator=torch.Generator().manual_seed(0))
    generators = {spec: TextGenerator(make_decoder(spec, args.prompt + args.steps)) for spec in args.specs}
    for spec, generator in generators.items():
        print(f"{spec:28} {generator.check(prompt)}", flush=True)
    for _ in range(args.rounds):
        for generator in generators.values():
            generator.measure(prompt, args.steps)
    first = next(iter(generators.values()))
    for spec, generator in generators.items():
        rate = estimate_geometric_mean([1 / seconds for seconds in generator.steps])
        faster = estimate_paired_ratio(first.steps, generator.steps)
        print(
            f"{spec:28} {format_estimate(rate, 0)} tokens/s, {format_estimate(faster, 2)} of {args.specs[0]}'s; "
            f"prompt {format_estimate(estimate_geometric_mean(generator.prompts), 2)} s; "
            f"state {generator.bytes / 2**20:.2f} MiB"
        )


def make_decoder(spec: str, length: int) -> Decoder:
    return Decoder(Config(d_model=256, heads=4, layers=4, attention=spec, max_len=length), vocab=VOCAB).eval()


if __name__ == "__main__":
    main()
