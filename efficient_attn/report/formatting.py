"""Format configurations, counts and comparisons as text. Differences are claimed only if significant."""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from ..units import is_present, ratio

T = TypeVar("T")
# how a batch is filled, if it is not full
FILL_TEXTS = {
    "half": "rows half full",
    "drawn": "rows of drawn lengths, padded",
    "packed": "rows of drawn lengths, packed",
}


# names of models, by the start of their labels in rows
MODEL_NAMES = {"minilm": "MiniLM", "smollm2": "SmolLM2-135M"}
# a machine's name in rows, such as AMD-Zen4-2c-24GiB+NVIDIA_H100#5d0574, or AMD-EPYC-x2-24GiB of older runs
MACHINE_PATTERN = re.compile(r"(.+)-(?:(\d+)c|x(\d+))-(?:\d+GiB|unknown)((?:-?\+[^+#]+)*)(?:#[0-9a-f]+)?")
UNDECIDED_TEXTS = {"unclear": "no difference is shown", "": "measured without an interval, so no difference is claimed"}


def format_count(n: int, noun: str) -> str:
    """``1 case``, ``3 cases``."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def join_words(items: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *most, last = list(items) or [""]
    return f"{', '.join(most)} and {last}" if most else last


def shorten_list(items: Sequence[str], most: int | None) -> list[str]:
    """The first items and ``3 more``; all if there are not more than ``most``."""
    rest = 0 if most is None else len(items) - most
    return [*items[:most], f"{rest} more"] if rest > 0 else list(items)


def shorten_text(text: str, most: int = 48) -> str:
    """A text of at most this length, with an ellipsis if it was cut."""
    return text if len(text) <= most else f"{text[: most - 1]}\u2026"


def split_label(label: str) -> list[tuple[str, list[str]]]:
    """The mechanisms of a label, several for a union, each with its options: ``[("sliding_window", ["window=128"])]``.
    A label that is no spec is a name without options."""
    parts = [part.strip().split(":") for part in label.split("|")]
    is_spec = all("=" in option for _, *options in parts for option in options)
    return [(name, options) for name, *options in parts] if is_spec else [(label, [])]


def split_batches(items: Sequence[T], size: int) -> Iterator[tuple[str, Sequence[T]]]:
    """Split into batches of at most this size, each with its number: ``2 of 3``, empty for a single batch."""
    count = math.ceil(len(items) / size)
    for number in range(count):
        yield f"{number + 1} of {count}" if count > 1 else "", items[number * size : (number + 1) * size]


def split_evenly(items: Sequence[T], most: int) -> Iterator[tuple[str, Sequence[T]]]:
    """Split into as few batches of at most this size as possible, of about equal sizes."""
    return split_batches(items, math.ceil(len(items) / max(1, math.ceil(len(items) / most))) or 1)


def interleave(lists: Iterable[Sequence[T]]) -> Iterator[T]:
    """The first item of each list, then the second of each, and so on."""
    return (item for items in itertools.zip_longest(*lists) for item in items if item is not None)


def make_slug(*parts: object) -> str:
    """Join the parts to a name for files and HTML ids."""
    text = "-".join(str(part) for part in parts if part is not None and str(part))
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def format_direction(causal: Any) -> str:
    """``causal`` or ``bidirectional``; empty if unknown."""
    return "" if not is_present(causal) else "causal" if causal else "bidirectional"


def format_mode(mode: Any) -> str:
    """The mode as text; empty if unknown."""
    return "" if not is_present(mode) else {"forward_backward": "forward + backward"}.get(str(mode), str(mode))


def format_slice(mode: Any, causal: Any) -> str:
    """Mode and direction: ``forward, causal``."""
    return ", ".join(filter(None, (format_mode(mode), format_direction(causal))))


def name_model(inputs: Any) -> str:
    """The model of an ``inputs`` label, without the digest of its activations: ``MiniLM`` for ``minilm@d181760f``."""
    label = str(inputs).partition("@")[0] if is_present(inputs) else ""
    stem = label.partition(":")[0]
    return next((name for prefix, name in MODEL_NAMES.items() if stem.lower().startswith(prefix)), stem)


def format_inputs(inputs: Any, causal: Any, length: Any) -> str:
    """Model, length and direction of a measurement of quality: ``MiniLM, N = 384, bidirectional``."""
    length_text = f"N = {int(length):,}" if is_present(length) else ""
    return ", ".join(filter(None, (name_model(inputs), length_text, format_direction(causal))))


def format_setting(setting: dict[str, Any], cpus: dict[str, str]) -> str:
    """Device, sizes, suite and machine in one line."""
    return " \u00b7 ".join(format_setting_parts(setting, cpus).values())


def format_config(setting: dict[str, Any], cpus: dict[str, str]) -> str:
    """The configuration of a setting: ``cpu, float32, 1 thread, batch 1, 4 heads of size 64, machine M2-x8``."""
    return ", ".join(text for name, text in format_setting_parts(setting, cpus).items() if name != "suite")


def format_setting_parts(setting: dict[str, Any], cpus: dict[str, str]) -> dict[str, str]:
    """The known parts of a setting as text, by name."""
    get, heads, width = setting.get, setting.get("heads"), setting.get("head_dim")
    sizes = [format_count(int(setting["heads"]), "head")] if is_present(heads) else []
    sizes += [f"{'of size' if sizes else 'head size'} {width}"] if is_present(width) else []
    texts = {
        "device": get("device"),
        "dtype": get("dtype"),
        "threads": format_count(int(setting["threads"]), "thread") if is_present(get("threads")) else "",
        "batch": f"batch {get('batch')}" if is_present(get("batch")) else "",
        "heads": " ".join(sizes),
        "fill": FILL_TEXTS.get(str(get("fill")), ""),
        "suite": f"suite {get('suite')}" if is_present(get("suite")) else "",
        "machine": format_machine(get("machine"), cpus) if is_present(get("machine")) else "",
    }
    return {name: str(text) for name, text in texts.items() if is_present(text) and str(text)}


def format_machine(machine: Any, cpus: dict[str, str]) -> str:
    """A machine's name, with its processor unless the name contains it."""
    cpu = cpus.get(str(machine), "")
    is_named = not cpu or cpu.replace(" ", "-") in str(machine)
    return f"machine {machine}" + ("" if is_named else f" ({cpu})")


def shorten_machine(machine: Any) -> str:
    """``AMD Zen 4 (2 cores)`` for ``AMD-Zen4-2c-24GiB#5d0574``; names of another form are unchanged."""
    match = MACHINE_PATTERN.fullmatch(str(machine))
    if match is None:
        return str(machine)
    processor = re.sub(r"(?<=[a-z])(?=[A-Z0-9])", " ", match[1].replace("-", " "))
    gpus = [gpu.strip("-").replace("_", " ") for gpu in match[4].split("+")[1:]]
    return f"{processor} ({', '.join([format_count(int(match[2] or match[3]), 'core'), *gpus])})"


def classify_speedup(low: Any, high: Any) -> str:
    """Classify the interval of a speedup: faster, slower, unclear (it contains 1), or empty without an interval."""
    if not (is_present(low) and is_present(high)):
        return ""
    return "faster" if low > 1 else "slower" if high < 1 else "unclear"


def describe_speedups(rows: Sequence[dict[str, Any]], against: str, *, most: int | None = None) -> str:
    """Describe the speedups of a slice's variants at one length. Differences are claimed if their interval excludes 1.

    rows: label, speedup, speedup_low, speedup_high, and optionally error_text. most: maximum number of differences to
    name, largest first.
    """
    significant = [r for r in rows if classify_speedup(r["speedup_low"], r["speedup_high"]) in ("faster", "slower")]
    significant.sort(key=lambda r: -abs(math.log(r["speedup"])))
    listed = significant[:most]
    errors = {row.get("error_text", "") for row in listed}
    common_error = errors.pop() if len(errors) == 1 else ""  # an error that all share is stated once
    listed = [row | {"error_text": ""} for row in listed] if common_error else listed
    parts = list(filter(None, (_describe_speedups_of_kind(listed, kind, against) for kind in ("faster", "slower"))))
    parts += [f"all: {common_error}" if len(listed) > 1 else common_error] if common_error else []
    if most is not None and len(significant) > most:
        parts.append(f"{len(significant) - most} more differ")
    for kind, verdict_text in UNDECIDED_TEXTS.items():
        compared = [r for r in rows if is_present(r["speedup"])]
        names = [r["label"] for r in compared if classify_speedup(r["speedup_low"], r["speedup_high"]) == kind]
        parts += [f"{verdict_text} for {join_words(shorten_list(names, most))}"] if names else []
    return "; ".join(parts)


def _describe_speedups_of_kind(rows: Iterable[dict[str, Any]], kind: str, against: str) -> str:
    """``a is 24.1x (23.0-25.3) faster than full, b is 3.10x (2.98-3.22)``; empty if there are no such rows.

    With error texts: ``a is 24.1x faster than full, error 0.3; b is ...``.
    """
    texts, errors = [], []
    for row in rows:
        value, low, high = row["speedup"], row["speedup_low"], row["speedup_high"]
        if classify_speedup(low, high) == kind:
            factor = ratio(value, low, high) if kind == "faster" else ratio(1 / value, 1 / high, 1 / low)
            errors.append(row.get("error_text", ""))
            texts.append(f"{row['label']} is {factor}" + ("" if texts else f" {kind} than {against}"))
    if not any(errors):
        return ", ".join(texts)
    return "; ".join(", ".join(filter(None, parts)) for parts in zip(texts, errors, strict=True))
