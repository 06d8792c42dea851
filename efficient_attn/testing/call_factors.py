"""What a call can be: factors with their levels, and the call that a combination of levels describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from random import Random
from typing import Any

import torch
from torch import Tensor

from ..contract.mask import Mask
from ..contract.mechanism import Attention
from ..contract.shapes import Shape
from .covering_design import Case
from .mechanism_call import Call
from .probing import (
    combine_options,
    has_signed_weights,
    other_instances,
    refuses_shape,
    too_slow,
)
from .subject import Subject

# the first level of each factor is the simplest
SELF = ((64, 64), (1, 1), (17, 17), (130, 130), (512, 512), (513, 513), (1000, 1000), (1024, 1024), (2048, 2048))
SELF += ((3001, 3001), (4096, 4096))
CROSS = ((1, 65), (33, 400), (70, 41), (600, 300), (64, 1024), (1, 2049), (128, 4096))
WIDTHS = (64, 8, 13, 80, 128, 256)  # of q and k; 8 is that of other checks
VALUE_WIDTHS = ("as q", 1, 24, 96, 128)
BATCHES = (1, 2, 4, 65)
GROUPED = ((2, 2), (2, 1), (3, 3), (6, 2), (8, 2), (8, 1), (40, 40), (40, 8))
UNGROUPED = ((2, 2), (3, 3), (4, 4), (40, 40))
QUERY_PADDING = ("none", "query_lengths", "lengths that hide nothing")
PADDING = (*QUERY_PADDING, "key_lengths", "key_mask", "both lengths", "both lengths and key_mask")
PADDING += ("one key_mask for all",)
STARTS = (None, 0, 25, -9)
LAYOUTS = ("as drawn", "[B, N, H, D]", "one projection", "every other column")
INCOMING = (1.0, 1e-8, 1e5)  # size of incoming gradients
VALUES = (1.0, 1e-8)  # size of v
DEFAULTS = "defaults"
SIGNED = 100.0  # times as large are products over a sum of weights of both signs, which may be nearly zero
# factors of which triples are met too, as far as they only distinguish the first level from the others
TOGETHER = ("dtype", "padding", "start", "heads", "value_width", "causal")
ROW_PAIRS = 2**26  # multiply-adds of a reference result that is computed for some rows only
SPANS = 5


@dataclass(frozen=True)
class Factors:
    """The factors of a mechanism. levels: of each factor. options: the mechanism by the option that is not its default.
    left_out: levels that it does not support, or whose reference would take too long, with the reason."""

    levels: Mapping[str, tuple[Any, ...]]
    options: Mapping[str, Subject]
    left_out: tuple[str, ...]

    def allows(self, case: Case) -> bool:
        """Whether the dtype represents the case's numbers, and its options support it."""
        if case["dtype"] == torch.float16 and (case["incoming"] != 1 or case["values"] != 1):
            return False
        subject = self.options[case["options"]]
        if case["gradient"] == "parameters" and not any(True for _ in subject.attn.parameters()):
            return False
        traits, (n, m) = subject.traits, case["lengths"]
        return (
            case["causal"] in traits.directions
            and (traits.cross or (n == m and case["start"] is None))
            and (traits.padding or case["padding"] in QUERY_PADDING)
            and (traits.grouped or case["heads"] in UNGROUPED or self.options[DEFAULTS].attn.kv_heads is not None)
        )


def list_factors(subject: Subject) -> Factors:
    """The levels that a mechanism supports."""
    traits, kv_heads = subject.traits, subject.attn.kv_heads
    heads = GROUPED if traits.grouped else UNGROUPED
    if kv_heads:
        groups = (1, 2, 3, 4, 8, max(40 // kv_heads, 1)) if traits.grouped else (1,)
        heads = tuple((kv_heads * group, kv_heads) for group in dict.fromkeys(groups))
    widths, left_out = [], []
    for width in WIDTHS:
        refusal = refuses_shape(subject, subject.shape(64, head_dim=width, value_dim=width))
        left_out += [f"D={width} is refused: {refusal}"] if refusal else []
        widths += [] if refusal else [width]
    lengths = []
    for n, m in (*SELF, *(CROSS if traits.cross else ())):
        reason = None if traits.rows_alone else too_slow(subject, replace(subject.shape(n, m, batch=1), heads=1))
        left_out += [reason] if reason else []
        lengths += [] if reason else [(n, m)]
    others = enumerate(other_instances(subject), 1)
    options = {DEFAULTS: subject, **{_name_options(other, number): other for number, other in others}}
    if combined := combine_options(subject):
        options[_name_options(combined, len(options))] = combined
    has_parameters = any(True for _ in subject.attn.parameters())
    gradients = ("all", "nothing", "inputs", "q", "k", *["v"] * traits.values, *["parameters"] * has_parameters)
    levels = {
        "lengths": tuple(lengths),
        "width": tuple(widths),
        "batch": BATCHES,
        "heads": tuple(h for h in heads if not refuses_shape(subject, subject.shape(64, heads=h[0], kv_heads=h[1]))),
        "value_width": VALUE_WIDTHS,
        "dtype": tuple(subject.dtypes),
        "padding": PADDING if traits.padding else QUERY_PADDING,
        "start": STARTS if traits.cross else (None,),
        "causal": subject.causalities,
        "layout": LAYOUTS,
        "gradient": gradients if traits.gradient else ("nothing",),
        "incoming": INCOMING if traits.gradient else (1.0,),
        "values": VALUES if traits.values else (1.0,),
        "options": tuple(options),
    }
    return Factors(levels, options, tuple(left_out))


def _name_options(other: Subject, number: int) -> str:
    return other.source if isinstance(other.source, str) else f"other options {number}"


@dataclass(frozen=True)
class DesignedCall:
    """The call that a case describes. subject: with the case's options."""

    subject: Subject
    case: Case

    @cached_property
    def shape(self) -> Shape:
        """Its sizes."""
        case = self.case
        value_width = case["width"] if case["value_width"] == "as q" else case["value_width"]
        heads, kv_heads = case["heads"]
        sizes = {"batch": case["batch"], "head_dim": case["width"], "value_dim": value_width}
        return self.subject.shape(*case["lengths"], heads=heads, kv_heads=kv_heads, **sizes)

    @cached_property
    def call(self) -> Call:
        """Its tensors and mask, in contiguous memory."""
        call = self.subject.draw(self.shape, dtype=self.case["dtype"], mask=self.mask, seed=self._random("tensors"))
        return call.with_(v=call["v"] * self.case["values"]) if "v" in call.tensors else call

    def _random(self, purpose: str) -> int:
        return Random(f"{purpose} {self.subject.seed} {sorted(map(str, self.case.values()))}").randrange(2**31)

    @cached_property
    def mask(self) -> Mask:
        """Its mask. Lengths of a batch are drawn: all equal, or different ones with at least one row nearly whole."""
        case, s, subject = self.case, self.shape, self.subject
        random, kind = Random(self._random("mask")), str(case["padding"])

        def draw_lengths(size: int) -> Tensor:
            if random.random() < 0.4:  # a batch that is padded to a round length
                return subject.lengths(*[random.randint(1, size)] * s.batch)
            values = [random.randint(0, size) for _ in range(s.batch)]
            values[random.randrange(s.batch)] = max(size - random.choice((0, 1, 3)), 1)
            return subject.lengths(*values)

        fields: dict[str, Any] = {"causal": case["causal"], "query_start": case["start"]}
        if kind.startswith(("key_lengths", "both")):
            fields["key_lengths"] = draw_lengths(s.m)
        if kind.startswith(("query_lengths", "both")):
            fields["query_lengths"] = draw_lengths(s.n)
        if kind.endswith("key_mask"):
            fields["key_mask"] = torch.stack([_draw_row_mask(random, s.m) for _ in range(s.batch)]).to(subject.device)
        if kind == "one key_mask for all":
            fields["key_mask"] = _draw_row_mask(random, s.m).to(subject.device).expand(s.batch, s.m)
        if kind == "lengths that hide nothing":
            fields["query_lengths"] = subject.lengths(*[s.n] * s.batch)
            if subject.traits.padding:
                fields["key_lengths"] = subject.lengths(*[s.m] * s.batch)
                fields["key_mask"] = torch.ones(s.batch, s.m, dtype=torch.bool, device=subject.device)
        return Mask(**fields)

    @cached_property
    def spans(self) -> tuple[slice, ...]:
        """The rows that are compared: all, or some that are drawn if the reference would take too long."""
        s = self.shape
        row_cost = s.batch * s.heads * s.m * (s.head_dim + s.value_dim)
        count = max(ROW_PAIRS // row_cost, 2 * SPANS)
        if count >= s.n or not self.subject.traits.rows_alone:
            return (slice(0, s.n),)
        random, size = Random(self._random("rows")), count // SPANS
        # one span in each part of the sequence; the first and the last row are among them
        edges = [s.n * i // SPANS for i in range(SPANS + 1)]
        starts = [random.randint(low, high - size) for low, high in pairwise(edges)]
        starts[0], starts[-1] = 0, s.n - size
        return tuple(slice(start, start + size) for start in starts)

    def run_whole(self, call: Call, attn: Attention) -> Tensor:
        """The compared rows of a call of all rows, with its tensors in the case's memory order."""
        return self._select(_arrange(call, self.case["layout"]).run(attn))

    def run_rows(self, call: Call, attn: Attention) -> Tensor:
        """The compared rows, computed alone."""
        if len(self.spans) == 1:
            return call.run(attn)
        n, m = self.shape.n, self.shape.m
        return torch.cat([call.queries(x).under(call.mask.rows(x, n, m)).run(attn) for x in self.spans], 2)

    def _select(self, out: Tensor) -> Tensor:
        return out if len(self.spans) == 1 else torch.cat([out[:, :, span] for span in self.spans], 2)

    def evaluate(self, call: Call, attn: Attention, run: Callable[[Call, Attention], Tensor]) -> dict[str, Tensor]:
        """The output and the gradients that the case asks for, by name."""
        kind = str(self.case["gradient"])
        if kind == "nothing":
            with torch.no_grad():
                return {"output": run(call, attn)}
        attn.requires_grad_(kind in ("all", "parameters"))
        names = {"all": tuple(call.tensors), "inputs": tuple(call.tensors), "parameters": ()}.get(kind, (kind,))
        out, grads = call.gradients(attn, run=run, incoming=self.case["incoming"], names=names)
        return {"output": out, **{f"gradient by {name}": grad for name, grad in grads.items()}}

    @cached_property
    def values(self) -> float:
        """The largest number that outputs are sums of."""
        return self.call.tensors.get("v", self.call["k"]).abs().max().item()

    @property
    def terms(self) -> float:
        """The size of the products that gradients are sums of, which may cancel."""
        largest = max(self.call[name].abs().max().item() for name in ("q", "k"))
        size = 3 * self.case["incoming"] * self.values * largest * self.shape.head_dim**-0.5
        return size * (SIGNED if has_signed_weights(self.subject) else 1)

    def count_elements(self) -> int:
        """Numbers in its tensors and their gradients, in a mask ``[B, N, M]``, and in the estimated workspace."""
        s, training = self.shape, self.case["gradient"] != "nothing"
        queries = s.heads * s.n * (s.head_dim + s.value_dim)
        tensors = (2 if training else 1) * s.batch * (queries + s.kv_heads * s.m * (s.head_dim + s.value_dim))
        mask = 0 if self.case["padding"] == "none" and self.case["start"] is None else s.batch * s.n * s.m
        workspace = self.subject.attn.workspace_bytes(s, 1, causal=bool(self.case["causal"]), training=training)
        return tensors + mask + workspace

    def describe(self) -> str:
        """Its sizes, mask and whatever is not the simplest."""
        s, case = self.shape, self.case
        words = (
            f"B={s.batch} H={s.heads} Hkv={s.kv_heads} N={s.n} M={s.m} D={s.head_dim} E={s.value_dim} "
            f"{str(case['dtype']).removeprefix('torch.')}",
            "causal" if case["causal"] else "not causal",
            f"padded by {case['padding']}" if case["padding"] != "none" else "",
            f"query_start={case['start']}" if case["start"] is not None else "",
            f"in memory as {case['layout']}" if case["layout"] != "as drawn" else "",
            f"gradient of {case['gradient']}" if case["gradient"] not in ("all", "nothing") else "",
            f"incoming gradients of {case['incoming']:g}" if case["incoming"] != 1 else "",
            f"values of {case['values']:g}" if case["values"] != 1 else "",
            f"with {case['options']}" if case["options"] != DEFAULTS else "",
        )
        return ", ".join(filter(None, words))


def _draw_row_mask(random: Random, m: int) -> Tensor:
    """Which of M keys are not padding: all, those before or from a drawn position on, or all but drawn ones."""
    j, kind, at = torch.arange(m), random.choice(("whole", "right", "left", "holes")), random.randint(0, m - 1)
    if kind == "holes":
        return torch.tensor([random.random() < 0.75 for _ in range(m)])
    return {"whole": j >= 0, "right": j <= at, "left": j >= at}[kind]


def _arrange(call: Call, layout: str) -> Call:
    """The same call with its tensors in another memory order, by operations that have gradients."""
    if layout == "[B, N, H, D]":
        return call.change(lambda x: x.transpose(1, 2).contiguous().transpose(1, 2))
    if layout == "every other column":
        return call.change(lambda x: torch.stack([x, x + 1], -1)[..., 0])
    return _fuse(call) if layout == "one projection" else call


def _fuse(call: Call) -> Call:
    """Tensors of the same length as views of one tensor ``[B, length, all heads and widths]``, as a projection returns
    them."""
    views = {}
    for length in dict.fromkeys(x.shape[2] for x in call.tensors.values()):
        parts = {id(x): x for x in call.tensors.values() if x.shape[2] == length}
        rows = [x.transpose(1, 2).flatten(2) for x in parts.values()]
        split = torch.cat(rows, -1).split([x.shape[-1] for x in rows], -1)
        for (key, x), view in zip(parts.items(), split, strict=True):
            views[key] = view.unflatten(-1, (x.shape[1], *x.shape[3:])).transpose(1, 2)
    return call.change(lambda x: views[id(x)])
