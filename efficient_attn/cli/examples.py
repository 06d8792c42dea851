"""The examples at the end of each verb's help."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "list": ("list", "list --family sparse --picture patterns.png"),
    "info": ("info performer:kind=hyperbolic", 'info "sliding_window:window=16|global_tokens:n_global=4"'),
    "new": ("new my_attn.py", "new my_score.py --kind score"),
    "check": ("check linear", "check my_attn.py --dtype float32 --seed 1"),
    "doctor": ("doctor", "doctor --quick --threads 1", "doctor --strict --json"),
    "plan": ("plan quickstart", "plan quickstart --shape llama3-8b --seq-len 4K", "plan my_suite.toml --quick"),
    "run": (
        "run quickstart --variant full,linear --seq-len 1K,4K --out results/local/mine",
        "run quickstart --plugin my_attn.py --variant full,sink_window",
    ),
    "report": ("report results/local/mine", "report results/local/mine --export github-action=benchmark.json"),
    "compare": ("compare before after", "compare before after --fail-on-regression --format markdown"),
    "claims": ("claims results/quickstart_zen4", "claims --check my_claims.toml"),
    "plot": (
        "plot results/linear_xeon --figure speed --causal --out speed.pdf",
        "plot results/linear_xeon --figure crossover --only linear,performer --format tex",
    ),
    "publish": ("publish", "publish results/promises_xeon results/decode_xeon --site public"),
    "recommend": ("recommend --seq-len 8K --causal --max-ppl-ratio 1.1", "recommend --seq-len 16K --mode decode"),
    "runs": ("runs", "runs --json"),
    "clean": ("clean --dry-run", "clean"),
}


def format_examples(verb: str) -> str:
    """The examples as the epilog of a help text."""
    return "\n".join(["examples:", *(f"  efficient-attn {example}" for example in EXAMPLES[verb])])
