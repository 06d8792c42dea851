"""Uptraining: scores of models that were made from trained ones, by conversion and share of further training, next to
those of models trained so from scratch (Ainslie et al. 2023, arXiv:2305.13245)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise

from ... import units
from ...results.stats import Estimate, estimate_mean
from ..drawing.figures import PlotContext
from ..drawing.panel_data import Line, Panel, Picture, make_line
from ..drawing.style import COLOURS, DASH_PATTERNS, INK, MARKERS, LineStyle
from ..gather import Frame
from ..tables import ReportCell, ReportTable
from .trained_scores import LearningTest

ORDER = ("mean", "first", "random")  # of conversions, the best first according to the paper
UNCHANGED, UNCHANGED_TEXT = "none", "none, trained further"
SCORE_NOTE = (
    "Mean over seeds with its 95% interval. Keys and values of the original's heads are averaged in groups (mean), "
    "only the first head of each group is kept (first), or new ones are drawn (random); everything else is copied. "
    "Shares are of the original's steps, with its learning rate, the examples that come next, a new optimizer, and a "
    "schedule of warm-up, constant rate and decay. 'From scratch' is the same model trained from random weights, with"
    " its own learning rate. All feed-forward parts have the width of the original's, because converted models keep "
    "it, so that models with fewer key-value heads have fewer parameters. 'none' keeps all heads: of the original it "
    "shows what further training alone changes, of another mechanism what it changes in place of the original's."
)
DIFFERENCE_NOTE = (
    "Mean difference of models of the same seed, with its 95% interval over seeds; positive if the first conversion is "
    "better; of shares, in percentage points. The paper reports mean before first before random, for 5% "
    "and one key-value head."
)


def make_uptraining_tables(test: LearningTest) -> Iterator[ReportTable]:
    """The scores, and the differences of conversions; nothing without uptraining."""
    if test.uptrained.empty:
        return
    shares = sorted(set(test.uptrained["train.share"]))
    heads = [f"{100 * share:g}%" for share in shares]
    body, differences = [], []
    for label, conversion, rows in _split(test.uptrained):
        cells = [_show(test, _read_seeds(rows, share).values()) for share in shares]
        originals = list(rows.drop_duplicates("seed")["train.original"].astype(float))
        result = test.find(label)
        trained = result.seed_scores if result is not None and result.score is not None else []
        text = UNCHANGED_TEXT if conversion == UNCHANGED else conversion
        body.append([ReportCell(label), ReportCell(text), *cells, _show(test, originals), _show(test, trained)])
    head = ("Variant", "Conversion", *heads, "Original", "From scratch")
    yield ReportTable(f"{test.heading}: uptraining", head, body, text_columns=2, note=SCORE_NOTE)
    for label, better, worse in _list_comparisons(test.uptrained):
        pairs = (_compare(test, label, better, worse, share) for share in shares)
        differences.append([ReportCell(label), ReportCell(f"{better} against {worse}"), *pairs])
    if differences:
        caption = f"{test.heading}: uptraining, differences of conversions"
        head = ("Variant", "Conversions", *heads)
        yield ReportTable(caption, head, differences, text_columns=2, note=DIFFERENCE_NOTE)


def make_uptraining_panels(test: LearningTest, context: PlotContext) -> Iterator[Picture]:
    """A plot for each converted mechanism: scores over the share of further training."""
    split = [x for x in _split(test.uptrained) if x[1] != UNCHANGED] if not test.uptrained.empty else []
    for label in dict.fromkeys(label for label, _, _ in split):
        lines = []
        for name, conversion, rows in split:
            if name == label:
                number = ORDER.index(conversion)
                style = LineStyle(COLOURS[number], MARKERS[number], DASH_PATTERNS[number], hollow=False)
                shares = sorted(set(rows["train.share"]))
                means = [_estimate(_read_seeds(rows, share).values(), test) for share in shares]
                lines.append(make_line(conversion, style, [100 * share for share in shares], means))
        shares = sorted({x for line in lines for x in line.x})
        result = test.find(label)
        originals = test.uptrained.drop_duplicates("seed")["train.original"].astype(float).tolist()
        lines.append(_make_level("original", sum(originals) / len(originals), shares, dashes=1))
        if result is not None and result.score is not None:
            lines.append(_make_level("from scratch", result.score.value, shares, dashes=2))
        panel = Panel(
            title=f"Uptraining: {label}, {test.name}",
            caption=f"Uptraining: {label}, {test.name}: scores by the share of the original's steps; mean over seeds, "
            "bands: 95% intervals over seeds.",
            xlabel="further training, % of the original's steps",
            ylabel=test.metric,
            unit=test.unit,
            lines=tuple(lines),
            ticks={share: f"{share:g}" for share in shares},
            margin=0.03 * (shares[-1] - shares[0]) or 0.5,
            log_x=False,
            log_y=False,
        )
        yield from context.name_parts(panel, "uptraining", "uptraining", test.name, label, rank=1)


def _make_level(label: str, score: float, shares: Sequence[float], dashes: int) -> Line:
    style = LineStyle(INK, "", DASH_PATTERNS[dashes], hollow=False)
    return Line(label, style, list(shares), [score] * len(shares))


def _split(rows: Frame) -> Iterator[tuple[str, str, Frame]]:
    """Label, conversion and rows, in order of appearance of labels, and of conversions as in the paper."""
    for label, label_rows in rows.groupby("label", sort=False):
        for conversion in (UNCHANGED, *ORDER):
            matching = label_rows[label_rows["train.conversion"] == conversion]
            if len(matching):
                yield str(label), conversion, matching


def _list_comparisons(rows: Frame) -> Iterator[tuple[str, str, str]]:
    """Neighbouring conversions of each mechanism."""
    conversions: dict[str, list[str]] = {}
    for label, conversion, _ in _split(rows):
        conversions.setdefault(label, []).append(conversion)
    for label, names in conversions.items():
        yield from ((label, better, worse) for better, worse in pairwise(names))


def _read_seeds(rows: Frame, share: float) -> dict[int, float]:
    """The score of each seed at a share; of repeated rows, the last."""
    rows = rows[rows["train.share"] == share]
    return dict(zip(rows["seed"].astype(int), rows["train.score"].astype(float), strict=True))


def _estimate(scores: Iterable[float], test: LearningTest, least: float = 0.0) -> Estimate:
    """The mean over seeds with its 95% interval, which for shares is clipped to what is possible."""
    mean = estimate_mean(list(scores))
    low, high = mean.interval() or (None, None)
    if test.in_bits or low is None or high is None:
        return Estimate(mean.value, low, high)
    return Estimate(mean.value, max(low, least), min(high, 1.0))


def _show(test: LearningTest, scores: Collection[float], least: float = 0.0) -> ReportCell:
    """A cell with the mean over seeds and its interval."""
    if not scores:
        return ReportCell(units.EMPTY)
    estimate = _estimate(scores, test, least)
    value, *ends = (units.format_value(x, test.unit) for x in estimate)
    if estimate.low is None:
        return ReportCell(f"{value} (1 seed)", estimate.value)
    low, high = (end.removesuffix("%") for end in ends)
    dash = units.INTERVAL_DASH if estimate.low >= 0 else " to "
    return ReportCell(f"{value} ({low}{dash}{high})", estimate.value)


def _compare(test: LearningTest, label: str, better: str, worse: str, share: float) -> ReportCell:
    parts = {conversion: rows for name, conversion, rows in _split(test.uptrained) if name == label}
    first, second = (_read_seeds(parts[name], share) for name in (better, worse))
    sign = -1 if test.in_bits else 1
    return _show(test, [sign * (first[seed] - second[seed]) for seed in first if seed in second], -1.0)
