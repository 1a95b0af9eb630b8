"""The budget study of the bundled model: ranking, kinds, minimum sufficient budgets, and a control.

Everything is computed from stored samples of the runs of `experiment=study`. Budgets are nominal tokens (peak),
capacities the time-averages of requests in tokens, accuracies shares of 1.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from growpage.errors import UsageError
from growpage.metrics.accuracy import Outcomes, paired_difference, pass_at_1
from growpage.paper.accuracy_capacity import write_figure
from growpage.paper.markdown import write_table
from growpage.paper.points import footer, read_points
from growpage.paper.stored import StoredRun

if TYPE_CHECKING:
    import pandas as pd

UNSOLVED = "unsolved"
_REFERENCE = "growpage"


def write_study(runs: Sequence[StoredRun], folder: Path) -> list[Path]:
    """Write all tables and the figure of the study; return their paths.

    Raises `UsageError` when a run is incomplete or the runs answer different questions.
    """
    points = read_points(runs)
    source = footer(runs)
    samples = _samples(runs, {point.run: point.label for point in points})
    paths = write_figure(points, folder / "accuracy_capacity", source)
    for name, table in (
        ("ranking", ranking(samples)),
        ("kinds", by_kind(samples)),
        ("minimum_budget", budget_distribution(samples)),
        ("capacity_alignment", alignment(samples)),
    ):
        paths += write_table(table, folder / name, source)
    return paths


def ranking(samples: "pd.DataFrame") -> "pd.DataFrame":
    """One row a policy, seeds pooled by question; differences to growpage are paired by question."""
    import pandas as pd

    groups = {str(name): group for name, group in samples.groupby("row", sort=False)}
    if _REFERENCE not in groups:
        raise UsageError(f"the study needs a run of policy={_REFERENCE} with its defaults.")
    reference = groups[_REFERENCE]
    rows = []
    for name, group in groups.items():
        accuracy = pass_at_1(_outcomes(group))
        row = {
            "policy": name,
            "runs": group["run"].nunique(),
            "pass@1 %": _interval(accuracy.value, accuracy.low, accuracy.high),
            "KV capacity": round(float(group["avg_capacity_tokens"].mean()), 1),
            "pass@1 − growpage, points": "",
            "KV capacity − growpage": "",
        }
        if name != _REFERENCE:
            row |= _against(reference, group)
        rows.append(row)
    return pd.DataFrame(rows).sort_values("KV capacity", kind="stable", ignore_index=True)


def by_kind(samples: "pd.DataFrame") -> "pd.DataFrame":
    """Accuracy in percent and, after @, capacity, of every policy on every kind of problem."""
    import pandas as pd

    def cell(group: "pd.DataFrame") -> str:
        correct, capacity = group["is_correct"].mean(), group["avg_capacity_tokens"].mean()
        return f"{100 * correct:.0f} @ {capacity:.0f}"

    rows = []
    for name, group in samples.groupby("row", sort=False):
        cells = {str(kind): cell(part) for kind, part in group.groupby("kind")}
        rows.append({"policy": name, **cells})
    return pd.DataFrame(rows)


def minimum_budget(samples: "pd.DataFrame") -> "pd.Series[float]":
    """B* of every question (Eq. 1): the least fixed budget from which on every tested budget solves it.

    One greedy answer a budget. NaN where the largest budget fails.
    """
    fixed = samples[samples["policy"] == "fixed"]
    solved = fixed.pivot(index="problem_id", columns="budget", values="is_correct").astype(bool)
    if solved.shape[1] < 2:
        raise UsageError("the study needs runs of policy=fixed with several budgets.")
    budgets = sorted(solved.columns)

    def least(row: "pd.Series[bool]") -> float:
        found = math.nan
        for budget in reversed(budgets):
            if not row[budget]:
                break
            found = float(budget)
        return found

    result: pd.Series[float] = solved.apply(least, axis=1)
    return result


def budget_distribution(samples: "pd.DataFrame") -> "pd.DataFrame":
    """Questions by minimum sufficient budget, in all and by kind (the paper's Figure 2)."""
    import pandas as pd

    least = minimum_budget(samples)
    kinds = samples.drop_duplicates("problem_id").set_index("problem_id")["kind"]
    names = least.map(lambda budget: UNSOLVED if math.isnan(budget) else str(int(budget)))
    table = pd.crosstab(names, kinds.reindex(names.index))
    order = [str(int(budget)) for budget in sorted(least.dropna().unique())]
    table = table.reindex([*order, *([UNSOLVED] if least.isna().any() else [])])
    table.insert(0, "all", table.sum(axis=1))
    return table.rename_axis(index="B*, tokens", columns=None).reset_index()


def alignment(samples: "pd.DataFrame") -> "pd.DataFrame":
    """Spearman correlation of a policy's capacity with B* and with the output length.

    The control to the paper's Appendix I: a long answer reaches more boundaries, so capacity goes with demand under any
    rule that grows, also a random one. Questions without B* are left out.
    """
    import pandas as pd
    from scipy.stats import spearmanr

    least = minimum_budget(samples).dropna()
    rows = []
    for name, group in samples.groupby("row", sort=False):
        mean = group.groupby("problem_id")[["avg_capacity_tokens", "num_output_tokens"]].mean()
        own = mean.reindex(least.index)
        capacity, length = own["avg_capacity_tokens"], own["num_output_tokens"]
        rows.append(
            {
                "policy": name,
                "capacity with B*": round(float(spearmanr(capacity, least).statistic), 2),
                "capacity with output length": round(
                    float(spearmanr(capacity, length).statistic), 2
                ),
                "output length with B*": round(float(spearmanr(length, least).statistic), 2),
                "questions": len(least),
            }
        )
    return pd.DataFrame(rows)


def _samples(runs: Sequence[StoredRun], labels: dict[str, str]) -> "pd.DataFrame":
    """All samples, with the columns run, policy, budget and row: the label without its seed."""
    import pandas as pd

    frames = []
    for run in runs:
        assert run.metrics is not None
        frame = run.frame.copy()
        frame["run"] = run.name
        frame["policy"] = run.metrics["policy"]
        frame["budget"] = run.metrics["capacity"]["nominal_budget_tokens"]
        frame["row"] = labels[run.name].partition(" seed ")[0]
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _outcomes(group: "pd.DataFrame") -> Outcomes:
    rows: dict[str, list[bool | None]] = {}
    for problem, correct in zip(group["problem_id"], group["is_correct"], strict=True):
        rows.setdefault(problem, []).append(None if correct is None else bool(correct))
    return rows


def _against(reference: "pd.DataFrame", group: "pd.DataFrame") -> dict[str, str]:
    """Paired differences to the reference; several seeds count as one answer of their mean."""
    num_seeds = group["run"].nunique()
    repeated = {name: list(row) * num_seeds for name, row in _outcomes(reference).items()}
    gap = paired_difference(repeated, _outcomes(group))
    capacity = "avg_capacity_tokens"
    gaps = (
        group.groupby("problem_id")[capacity].mean() - reference.set_index("problem_id")[capacity]
    )
    half = 1.96 * float(gaps.std()) / math.sqrt(len(gaps))
    mean = float(gaps.mean())
    return {
        "pass@1 − growpage, points": _interval(gap.value, gap.low, gap.high, sign="+"),
        "KV capacity − growpage": f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]",
    }


def _interval(value: float, low: float | None, high: float | None, sign: str = "") -> str:
    text = f"{100 * value:{sign}.1f}"
    if low is None or high is None:
        return text
    return f"{text} [{100 * low:{sign}.1f}, {100 * high:{sign}.1f}]"
