"""The Python API of runs: run a suite, and read its rows."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import units
from ..errors import UsageError
from .values import DTYPE_ALIASES

if TYPE_CHECKING:
    import pandas as pd

    from ..report.answers.recommendation import Recommendation

NOTEBOOK_COLUMNS = ("variant", "mode", "seq_len", "status", "latency_ms", "speedup", "relative_error", "accuracy")
MAX_NOTEBOOK_ROWS = 30


@dataclass(frozen=True)
class Run:
    """A run's folder: `run` creates one, ``Run(Path("results/quickstart_zen4"))`` opens an existing one."""

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))

    @property
    def frame(self) -> pd.DataFrame:
        """All rows, as returned by `efficient_attn.load`."""
        from ..results.gathered import load

        return load(self.folder)

    def report(self, out: str | Path | None = None) -> Path:
        """Write the page, its Markdown version, plots and table, by default into the run's folder. Returns the page's
        path."""
        from ..report.write import write_report

        return write_report([self.folder], Path(out) if out else self.folder).page

    def claims(self) -> pd.DataFrame:
        """All built-in claims, one row each, with this run's measured value and the verdict."""
        import pandas as pd

        from ..report.claims import claims_text, evidence, ledger, verdicts

        verdicts_of_claims = verdicts.evaluate_claims(ledger.load_ledger([]), evidence.read_evidence([self.folder]))
        return pd.DataFrame(claims_text.as_json(verdicts_of_claims))

    def recommend(self, **requirements: Any) -> Recommendation:
        """The mechanisms that satisfy the requirements, the fastest first; keywords are the fields of
        `requirements.Requirements`. Raises `UsageError` for a run without timings, or with disturbed timings only."""
        from ..report.answers.recommendation import recommend
        from ..report.answers.recommendation_data import RecommendationData, check_rows
        from ..report.answers.requirements import Requirements
        from ..report.gather import gather

        question = Requirements(**requirements)
        data = RecommendationData.of(gather([self.folder]).rows, requirements=question)
        check_rows(data)
        return recommend(data, question)

    def _repr_html_(self) -> str:
        """A table for notebooks: the first rows' most used columns."""
        rows = self.frame
        columns = [name for name in NOTEBOOK_COLUMNS if name in rows and rows[name].notna().to_numpy().any()]
        table = rows[columns].head(MAX_NOTEBOOK_ROWS)
        more = f" The first {MAX_NOTEBOOK_ROWS} are shown." if len(rows) > MAX_NOTEBOOK_ROWS else ""
        caption = f"{html.escape(str(self.folder))}: {len(rows)} rows.{more}"
        return f"<p>{caption}</p>{table.to_html(index=False, na_rep=units.EMPTY, float_format='{:.4g}'.format)}"


def run(
    suite: str | Path,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    variant: str | Sequence[str] = (),
    task: str | Sequence[str] = (),
    part: str | Sequence[str] = (),
    seed: int | None = None,
    quick: bool = False,
    shape: str | None = None,
    settings: Mapping[str, Any] | None = None,
    jobs: int = 1,
    progress: Callable[[Any, int, int], Any] = lambda record, done, total: None,
    **axes: Any,
) -> Run:
    """Run a suite, as ``efficient-attn run`` does, and return its folder.

    suite: name of a built-in suite, or a TOML file. out: folder for the rows, by default ``results/local/SUITE-TIME``;
    resume: continue an existing one. variant, task, part: select some of the suite. seed, quick, shape: as on the
    command line. settings: keys of tasks. jobs: trainings at the same time, at most. progress: called with each record,
    the number of finished and of planned cases. Other keywords are axes, with one value or several:
    ``run("quickstart", seq_len=[512, 1024], device="cpu")``.

    Workers are processes that import the program's main module: call this below ``if __name__ == "__main__":`` in
    scripts. Raises `UsageError` for unknown names, and for a folder that contains something else.
    """
    from ..bench import run as running
    from ..bench.planning.plan import Overrides, make_plan
    from ..bench.planning.suite import load_suite
    from ..resources import find_model_shape
    from ..tasks import TABLE

    axes = (find_model_shape(shape).axes if shape else {}) | axes
    loaded = load_suite(str(suite), TABLE)
    overrides = Overrides(
        axes=_check_axes({name: _as_list(value) for name, value in axes.items()}),
        shape=shape,
        variants=_as_list(variant),
        tasks=_as_list(task),
        parts=_as_list(part),
        keys=dict(settings or {}),
        seed=seed,
        quick=quick,
    )
    cases = make_plan(loaded, overrides)
    folder = Path(out) if out else running.default_folder(loaded.name)
    changes = overrides.described
    outcome = running.run(loaded, cases, folder, resume=resume, overridden=changes, jobs=jobs, progress=progress)
    if not any(outcome.statuses.values()):
        raise UsageError(f"run: {loaded.name} has no cases")
    return Run(outcome.folder)


def _check_axes(axes: dict[str, list[Any]]) -> dict[str, Any]:
    """The axes as in a suite, with full names of dtypes. Raises `UsageError` for invalid ones."""
    from pydantic import ValidationError

    from ..bench.planning.suite_schema import AxesTable, format_problem

    if "dtype" in axes:
        axes["dtype"] = [DTYPE_ALIASES.get(dtype, dtype) for dtype in axes["dtype"]]
    try:
        return AxesTable.model_validate(axes).model_dump(exclude_none=True)
    except ValidationError as error:
        raise format_problem("run", error, lambda table: AxesTable.model_fields) from error


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
